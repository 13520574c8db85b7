"""Predicted and measured speed of decoding rules at batch 1, on one machine.

The costs of a block's parts come from runs with a clock around every model call, accepted tokens
per block from the traces (`theory.blocks`). What `theory.speed` predicts from both is laid beside
the wall-clock time of other runs, in which only the prompt's prefill has a clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from diversed.core.types import StepOutput, Trace
from diversed.core.verifiers import AutoregressiveVerifier
from diversed.evaluation.timing import timed
from diversed.generation import SpeculativeDecoder, row_key
from diversed.models.loading import LoadedModel
from diversed.theory.blocks import DraftedBlocks, trace_blocks
from diversed.theory.bootstrap import FloatArray, bootstrap_statistics
from diversed.theory.speed import (
    MeasuredSeconds,
    draft_steps,
    predicted_speedup,
    step_costs,
)

_PARTS = ("decode_seconds", "target_seconds", "num_target", "draft_seconds", "num_draft")
_INTERVALS = ("mean_accepted", "predicted_speedup", "measured_speedup", "predicted_to_measured")


@dataclass(frozen=True)
class SpeedComparison:
    """What was predicted and what was measured.

    Attributes:
        table: One row per rule with a draft: run_name; draft_length; mean_accepted (E[T],
            Rao-Blackwellised) and counted_accepted, whose difference is luck that no prediction
            foresees; full_acceptance (P(T = N)); num_draft_steps per block by the model;
            draft_step, target_pass, overhead, plain_overhead (c, v, o, o_1) and unit_seconds;
            predicted_speedup and measured_speedup over the plain decoder, both without the
            prompt's prefill; their ratio predicted_to_measured; `<name>_low` and `<name>_high` of
            these three and of mean_accepted (95 %, paired over prompts); and
            measured_speedup_with_prompt.
        runs: One row per run: run_name, prompt (index), repeat, is_clocked, num_tokens, seconds,
            decode_seconds (without the prefill), and of clocked runs target_seconds, num_target,
            draft_seconds, num_draft (NaN for the others).
    """

    table: pd.DataFrame
    runs: pd.DataFrame


class _ClockedModel:
    """A language model that adds up the seconds of its calls."""

    def __init__(self, inner: LoadedModel, clocks_steps: bool) -> None:
        self.model = inner.model
        self.vocab_size = inner.vocab_size
        self._inner = inner
        self._clocks_steps = clocks_steps
        self.reset()

    def reset(self) -> None:
        self.prefill_seconds = 0.0
        self.step_seconds = 0.0
        self.num_steps = 0

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        work = partial(self._inner.start, prompt_ids, prompt_mask)
        self.prefill_seconds += timed(work, prompt_ids.device)[1]

    def step(self, input_ids: Tensor) -> StepOutput:
        if not self._clocks_steps:
            return self._inner.step(input_ids)
        output, seconds = timed(partial(self._inner.step, input_ids), input_ids.device)
        self.step_seconds += seconds
        self.num_steps += 1
        return output

    def retain(self, rows: Tensor, num_drop: Tensor) -> None:
        self._inner.retain(rows, num_drop)


class _ClockedDecoder:
    """A decoder whose runs are broken down into prefill, target calls and draft calls."""

    def __init__(self, decoder: SpeculativeDecoder, clocks_steps: bool) -> None:
        pair = decoder.pair
        self._target = _ClockedModel(pair.target, clocks_steps)
        self._draft = _ClockedModel(pair.draft, clocks_steps)
        self._decoder = SpeculativeDecoder(
            replace(pair, target=self._target, draft=self._draft),
            decoder.verifier,
            decoder.settings,
            decoder.stop_strings,
        )
        self.clocks_steps = clocks_steps

    def run(self, prompt: str, key: int) -> tuple[dict[str, float], Trace]:
        """Return the seconds and calls of one completion, and its trace."""
        target, draft = self._target, self._draft
        target.reset()
        draft.reset()
        work = partial(self._decoder.generate, [prompt], [key], show_progress=False)
        generation, seconds = timed(work, self._decoder.pair.device)
        numbers = {
            "num_tokens": int(generation.result.counts.emitted.sum()),
            "seconds": seconds,
            "decode_seconds": seconds - target.prefill_seconds - draft.prefill_seconds,
        }
        if self.clocks_steps:
            numbers |= {
                "target_seconds": target.step_seconds,
                "num_target": target.num_steps,
                "draft_seconds": draft.step_seconds,
                "num_draft": draft.num_steps,
            }
        return numbers, generation.result.trace


def compare_speeds(
    decoders: Mapping[str, SpeculativeDecoder],
    prompts: Sequence[str],
    row_keys: Sequence[int],
    *,
    calibration: str | None = None,
    num_repeats: int = 3,
    num_warmup: int = 2,
    num_resamples: int = 2000,
    seed: int = 0,
) -> SpeedComparison:
    """Predict the speed-up of decoding rules over plain decoding, and measure it.

    Every prompt is completed at batch 1 with each decoder in turn, once as it is and, for the
    costs, once more with clocks in the models and random numbers of its own. All of it is repeated,
    and the fastest of equal runs counts: what other processes took from the others is not the
    rule's. Measure on a machine that does nothing else all the same.

    Args:
        decoders: Run name -> decoder on one pair; exactly one of them decodes plainly.
        prompts: Prompts, decoded one at a time.
        row_keys: One per prompt.
        calibration: The decoder whose clocked runs give the costs c, v and o of all; None: each
            decoder has its own.
        num_repeats: Equal runs of each prompt with each decoder.
        num_warmup: Prompts that each decoder completes untimed beforehand.
        num_resamples: Resamples of the bootstrap over prompts.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: There is not exactly one plain decoder or none beside it, `calibration` names
            no decoder with a draft, or `num_repeats` is below 1.
    """
    if num_repeats < 1:
        raise ValueError(f"num_repeats={num_repeats}: must be at least 1")
    plain = _plain_name(decoders)
    rules = [name for name in decoders if name != plain]
    if not rules:
        raise ValueError("decoders holds no decoder with a draft")
    if calibration is not None and calibration not in rules:
        raise ValueError(f"calibration={calibration!r}: must be one of {', '.join(rules)}")
    clocked = {name: calibration or name for name in rules}
    requests = list(zip(prompts, row_keys, strict=True))
    jobs = _jobs(decoders, {plain, *clocked.values()})
    for _, job in jobs:
        for prompt, key in requests[:num_warmup]:
            job.run(prompt, key)
    runs, traces = _measure(jobs, requests, num_repeats)
    rows = []
    for name in rules:
        blocks = trace_blocks(traces[name], decoders[name].settings.draft_length)
        sums = _Sums(runs, plain, name, clocked[name], blocks, decoders[name].verifier.bonus)
        rows.append({"run_name": name} | sums.row(num_resamples, seed))
    return SpeedComparison(table=pd.DataFrame(rows), runs=runs)


def _plain_name(decoders: Mapping[str, SpeculativeDecoder]) -> str:
    plain = [
        name
        for name, decoder in decoders.items()
        if isinstance(decoder.verifier, AutoregressiveVerifier)
    ]
    if len(plain) != 1:
        raise ValueError(f"decoders must hold one plain decoder, got {len(plain)}")
    return plain[0]


def _jobs(
    decoders: Mapping[str, SpeculativeDecoder], clocked: set[str]
) -> list[tuple[str, _ClockedDecoder]]:
    """Return every decoder as it is, and some once more with clocks."""
    bare = [(name, _ClockedDecoder(decoder, False)) for name, decoder in decoders.items()]
    return bare + [(name, _ClockedDecoder(decoders[name], True)) for name in sorted(clocked)]


def _measure(
    jobs: Sequence[tuple[str, _ClockedDecoder]],
    requests: Sequence[tuple[str, int]],
    num_repeats: int,
) -> tuple[pd.DataFrame, dict[str, list[Trace]]]:
    """Run all jobs on all prompts; return the runs, and one trace per prompt of those unclocked."""
    rows: list[dict[str, Any]] = []
    traces: dict[str, list[Trace]] = {name: [] for name, _ in jobs}
    turns = [(repeat, index) for repeat in range(num_repeats) for index in range(len(requests))]
    for turn, (repeat, index) in enumerate(turns):
        prompt, key = requests[index]
        shift = turn % len(jobs)  # no decoder always follows the same one
        for name, job in [*jobs[shift:], *jobs[:shift]]:
            numbers, trace = job.run(prompt, row_key("clocked", key) if job.clocks_steps else key)
            names = {"run_name": name, "prompt": index, "repeat": repeat}
            rows.append(names | {"is_clocked": job.clocks_steps} | numbers)
            if repeat == 0 and not job.clocks_steps:
                traces[name].append(trace)
    return pd.DataFrame(rows), traces


class _Sums:
    """Numbers per prompt, [P, K], from whose sums the speed of a rule is predicted and measured."""

    def __init__(
        self,
        runs: pd.DataFrame,
        plain: str,
        name: str,
        clocked: str,
        blocks: DraftedBlocks,
        bonus: str,
    ) -> None:
        self._draft_length = blocks.draft_length
        self._bonus = bonus
        accepted = np.bincount(blocks.prompt, blocks.products.sum(1))
        full = np.bincount(blocks.prompt, blocks.products[:, -1])
        speeds = ("num_tokens", "decode_seconds", "seconds")
        self._columns = np.column_stack(
            [
                accepted,
                full,
                np.bincount(blocks.prompt, blocks.num_accepted),
                np.bincount(blocks.prompt),
                _by_prompt(runs, name, False, speeds),
                _by_prompt(runs, plain, False, speeds),
                _by_prompt(runs, clocked, True, _PARTS),
                _by_prompt(runs, plain, True, _PARTS),
            ]
        )

    def row(self, num_resamples: int, seed: int) -> dict[str, float]:
        """Return the rule's columns of `SpeedComparison.table`."""

        def statistics(counts: FloatArray) -> FloatArray:
            numbers = [self._numbers(sums) for sums in counts @ self._columns]
            return np.array([[each[name] for name in _INTERVALS] for each in numbers])

        row = self._numbers(self._columns.sum(0))
        num_prompts = len(self._columns)
        intervals = bootstrap_statistics(statistics, num_prompts, num_resamples, 0.95, seed)
        for name, interval in zip(_INTERVALS, intervals, strict=True):
            row |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        return row

    def _numbers(self, sums: FloatArray) -> dict[str, float]:
        accepted, full, counted, num_blocks = sums[:4].tolist()
        tokens, decode, total, plain_tokens, plain_decode, plain_total = sums[4:10].tolist()
        costs = step_costs(_seconds(sums[15:20]), _seconds(sums[10:15]))
        steps = draft_steps(self._draft_length, full / num_blocks, self._bonus)
        predicted = predicted_speedup(accepted / num_blocks, steps, costs)
        measured = (tokens / decode) / (plain_tokens / plain_decode)
        return {
            "draft_length": self._draft_length,
            "mean_accepted": accepted / num_blocks,
            "counted_accepted": counted / num_blocks,
            "full_acceptance": full / num_blocks,
            "num_draft_steps": steps,
            **vars(costs),
            "predicted_speedup": predicted,
            "measured_speedup": measured,
            "predicted_to_measured": predicted / measured,
            "measured_speedup_with_prompt": (tokens / total) / (plain_tokens / plain_total),
        }


def _by_prompt(
    runs: pd.DataFrame, name: str, is_clocked: bool, columns: Sequence[str]
) -> FloatArray:
    """Return the numbers of the fastest run of each prompt, in the order of prompts, [P, K]."""
    own = runs[(runs["run_name"] == name) & (runs["is_clocked"] == is_clocked)]
    fastest = own.sort_values("decode_seconds").groupby("prompt").first()
    values: FloatArray = fastest[list(columns)].to_numpy(float)
    return values


def _seconds(sums: FloatArray) -> MeasuredSeconds:
    """Return sums of `_PARTS` as the speed model takes them."""
    total, target, num_target, draft, num_draft = sums.tolist()
    return MeasuredSeconds(total, target, num_target, draft, num_draft)
