"""Decode a split of a task: one record per prompt and sample, and the per-token trace.

A prompt that cannot be decoded, or a completion that cannot be scored, becomes a row with an
`error`; no prompt is left out.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from diversed.core.types import Status, Trace
from diversed.evaluation.timing import timed
from diversed.generation import Generation, PromptError, SpeculativeDecoder, row_key
from diversed.prompting import FittedPrompt, fit_prompt, prompt_text
from diversed.records.schema import ROW_COLUMNS, TRACE_COLUMNS
from diversed.tasks.base import Example, Task, score_completions

logger = logging.getLogger(__name__)

Progress = Callable[[int], None]
"""Called with the number of prompts that were just finished."""

RowKey = tuple[Any, int]
"""Prompt id and sample."""

_SHORT_PROMPT = 512  # tokens

_NO_TRACE = pd.DataFrame(columns=list(TRACE_COLUMNS))


@dataclass(frozen=True)
class Evaluation:
    """Records of one run.

    Attributes:
        rows: One mapping per (prompt, sample) with the columns of `records.schema.ROW_COLUMNS`.
        trace: Columns of `records.schema.TRACE_COLUMNS`.
    """

    rows: list[dict[str, Any]]
    trace: pd.DataFrame = field(default_factory=_NO_TRACE.copy)


@dataclass(frozen=True)
class _Request:
    example: Example
    sample: int
    fitted: FittedPrompt

    @property
    def key(self) -> RowKey:
        return self.example["id"], self.sample


def evaluate_task(
    decoder: SpeculativeDecoder,
    task: Task,
    examples: Sequence[Example],
    *,
    samples_per_prompt: int = 1,
    batch_size: int = 64,
    part: int = 0,
    num_parts: int = 1,
    progress: Progress | None = None,
    finished: Evaluation | None = None,
    keep: Callable[[Evaluation], object] | None = None,
) -> Evaluation:
    """Complete and score examples.

    Random numbers belong to (seed, example id, sample), so runs that share a seed share them, and
    neither batch size nor order changes a completion.

    Args:
        decoder: Pair, rule and settings.
        task: Builds prompts and scores completions.
        examples: Rows of one split.
        samples_per_prompt: Completions of each prompt.
        batch_size: Rows decoded together, at most: prompts of much different lengths are not.
        part: Which of the parts to do, from 0; every row is in one of them, rows that cannot be
            decoded in the first.
        num_parts: Parts that the rows are dealt out to.
        progress: Told of finished rows.
        finished: Rows of an earlier attempt at the same, with their trace: they are taken as they
            are, and the batches of the others are those of an unbroken evaluation.
        keep: Called with every batch once it is scored.

    Returns:
        Records and trace.

    Raises:
        PromptError: Not one prompt can be decoded, in any part; its message is that of the first.
        ValueError: A number is below 1, there are no examples, or no such part.
    """
    for name, number in (("samples_per_prompt", samples_per_prompt), ("batch_size", batch_size)):
        if number < 1:
            raise ValueError(f"evaluation.{name}={number}: must be at least 1")
    if not examples:
        raise ValueError("there are no examples to evaluate")
    if not 0 <= part < num_parts:
        raise ValueError(f"part {part} of {num_parts} parts")
    good: list[_Request] = []
    failed: list[tuple[_Request, PromptError]] = []
    for example in examples:
        try:
            fitted = fit_prompt(decoder, task, example)
        except PromptError as error:
            unfit = FittedPrompt(task.prompt(example), is_cut=False)
            failed += [(_Request(example, n, unfit), error) for n in range(samples_per_prompt)]
        else:
            good += [_Request(example, n, fitted) for n in range(samples_per_prompt)]
    if not good:
        raise failed[0][1]
    if failed:
        logger.warning("%d of %d prompts cannot be decoded", len(failed), len(failed) + len(good))
    num_cut = sum(request.fitted.is_cut for request in good) // samples_per_prompt
    if num_cut:
        logger.warning(
            "%d of %d prompts were cut at the end of %s to fit the models' context of %d tokens",
            num_cut,
            len(examples),
            task.long_column,
            decoder.pair.context_length,
        )
    if part > 0:
        failed = []
    own = good[part::num_parts]
    evaluations = [
        Evaluation([_failed_row(decoder, task, request, str(error)) for request, error in failed])
    ]
    kept: set[RowKey] = set()
    if finished is not None:
        evaluations.append(_rows_of(finished, {request.key for request in own}))
        kept.update(_keys(evaluations[-1].rows))
    if progress is not None and kept:
        progress(len(kept))
    for batch in _batches([request for request in own if request.key not in kept], batch_size):
        prompts = [request.fitted.prompt for request in batch]
        keys = [row_key(*request.key) for request in batch]
        generation, seconds = timed(partial(decoder.generate, prompts, keys), decoder.pair.device)
        evaluation = Evaluation(
            rows=_rows(decoder, task, batch, generation, seconds / len(batch)),
            trace=_trace_table(decoder, batch, generation.result.trace),
        )
        evaluations.append(evaluation)
        if keep is not None:
            keep(evaluation)
        if progress is not None:
            progress(len(batch))
    whole = _joined(evaluations)
    unscored = [row["error"] for row in whole.rows[len(failed) :] if row["error"] is not None]
    if unscored:
        logger.warning(
            "%d of %d completions cannot be scored (%s)", len(unscored), len(own), unscored[0]
        )
    return whole


def _joined(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Return evaluations one after the other as one."""
    traces = [evaluation.trace for evaluation in evaluations if len(evaluation.trace)]
    return Evaluation(
        rows=[row for evaluation in evaluations for row in evaluation.rows],
        trace=pd.concat(traces or [_NO_TRACE], ignore_index=True),
    )


def joined_parts(parts: Sequence[Evaluation], prompt_ids: Sequence[Any]) -> Evaluation:
    """Return the parts of an evaluation as one, with its rows in the order of the whole.

    Args:
        parts: All of them, as `evaluate_task` returns them.
        prompt_ids: Ids of the examples, in order.
    """
    place = {prompt_id: number for number, prompt_id in enumerate(prompt_ids)}

    def order(row: dict[str, Any]) -> tuple[bool, int, int]:
        return row["num_tokens"] is not None, place[row["prompt_id"]], row["sample"]

    whole = _joined(parts)
    return replace(whole, rows=sorted(whole.rows, key=order))


def _keys(rows: Sequence[dict[str, Any]]) -> list[RowKey]:
    return [(row["prompt_id"], row["sample"]) for row in rows]


def _rows_of(evaluation: Evaluation, keys: Set[RowKey]) -> Evaluation:
    """Return what an evaluation has of some rows."""
    rows, trace = evaluation.rows, evaluation.trace
    traced = zip(trace["prompt_id"], trace["sample"], strict=True)
    return Evaluation(
        rows=[row for row, key in zip(rows, _keys(rows), strict=True) if key in keys],
        trace=trace[[key in keys for key in traced]],
    )


def corpus_metrics(
    task: Task, examples: Sequence[Example], rows: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """Return the task's metrics of a whole evaluation, over the rows without an error.

    Args:
        task: The task.
        examples: What was evaluated.
        rows: Records of it, as `evaluate_task` returns them.

    Returns:
        Metrics by name; empty where no row has a score.
    """
    by_id = {example["id"]: example for example in examples}
    scored = [row for row in rows if row["error"] is None]
    if not scored:
        return {}
    return task.corpus_metrics(
        [row["text"] for row in scored], [by_id[row["prompt_id"]] for row in scored]
    )


def _batches(requests: list[_Request], batch_size: int) -> Iterator[list[_Request]]:
    """Yield requests in batches, those with much longer prompts in batches of their own.

    A batch takes the memory of its longest prompt in every row.
    """
    by_bracket: dict[int, list[_Request]] = {}
    for request in requests:
        by_bracket.setdefault(_bracket(request.fitted.num_tokens), []).append(request)
    for bracket in sorted(by_bracket):
        alike = by_bracket[bracket]
        for start in range(0, len(alike), batch_size):
            yield alike[start : start + batch_size]


def _bracket(num_tokens: int) -> int:
    """Return 0 for a short prompt, 1 for up to four times as many tokens, and so on."""
    return max(0, math.ceil(math.log(max(num_tokens, 1) / _SHORT_PROMPT, 4)))


def _rows(
    decoder: SpeculativeDecoder,
    task: Task,
    batch: list[_Request],
    generation: Generation,
    seconds: float,
) -> list[dict[str, Any]]:
    result = generation.result
    counts = result.counts
    columns: dict[str, list[Any]] = {
        "num_tokens": counts.emitted.tolist(),
        "num_drafted": counts.drafted.tolist(),
        "num_judged": counts.judged.tolist(),
        "num_accepted": counts.accepted.tolist(),
        "num_recovered": counts.recovered.tolist(),
        "num_bonus": counts.bonus.tolist(),
        "num_blocks": counts.blocks.tolist(),
        "num_draft_calls": counts.draft_calls.tolist(),
        **_means_over_emitted(result.trace, len(batch)),
    }
    scores = score_completions(task, generation.texts, [request.example for request in batch])
    rows = []
    for index, (request, score) in enumerate(zip(batch, scores, strict=True)):
        text = generation.texts[index]
        row = _empty_row(decoder, task, request) | {
            "text": text,
            "answer": task.extract(text),
            "quality": score.value,
            "error": None if score.error is None else f"scoring failed: {score.error}",
            "end_reason": result.end_reasons[index],
            "is_truncated": result.end_reasons[index] == "length",
            "seconds": seconds,
        }
        rows.append(row | {name: values[index] for name, values in columns.items()})
    return rows


def _empty_row(decoder: SpeculativeDecoder, task: Task, request: _Request) -> dict[str, Any]:
    return dict.fromkeys(ROW_COLUMNS) | {
        "prompt_id": request.example["id"],
        "sample": request.sample,
        "prompt": prompt_text(decoder, request.fitted.prompt),
        "is_prompt_cut": request.fitted.is_cut,
        "reference": task.reference(request.example),
    }


def _failed_row(
    decoder: SpeculativeDecoder, task: Task, request: _Request, error: str
) -> dict[str, Any]:
    return _empty_row(decoder, task, request) | {"error": error}


def _means_over_emitted(trace: Trace, num_rows: int) -> dict[str, list[float | None]]:
    """Return per-row means over emitted tokens of known value; None where there is none."""
    emitted = trace.is_emitted
    row = trace.row[emitted]

    def total(values: Tensor) -> tuple[Tensor, Tensor]:
        values = values[emitted].double()
        known = ~values.isnan()
        sums = torch.zeros(num_rows, dtype=torch.float64, device=row.device)
        sums.index_add_(0, row[known], values[known])
        return sums, torch.bincount(row[known], minlength=num_rows)

    def as_list(values: Tensor, count: Tensor) -> list[float | None]:
        pairs = zip(values.tolist(), count.tolist(), strict=True)
        return [value if number else None for value, number in pairs]

    acceptance, count = total(trace.expected_acceptance)
    bias, bias_count = total((1 - trace.target_weight) * trace.tv_distance)
    weight, weight_count = total(trace.target_weight)
    return {
        "expected_acceptance": as_list(acceptance / count, count),
        "expected_acceptance_sum": as_list(acceptance, count),
        "bias": as_list(bias / bias_count, bias_count),
        "mean_target_weight": as_list(weight / weight_count, weight_count),
    }


def _trace_table(decoder: SpeculativeDecoder, batch: list[_Request], trace: Trace) -> pd.DataFrame:
    names = {int(status): status.name.lower() for status in Status}
    rows = trace.row.tolist()
    tokens = trace.token_id.tolist()
    texts = {token: decoder.pair.tokenizer.decode([token]) for token in set(tokens)}
    table = pd.DataFrame(
        {
            "prompt_id": [batch[row].example["id"] for row in rows],
            "sample": [batch[row].sample for row in rows],
            "token": [texts[token] for token in tokens],
            "status": [names[status] for status in trace.status.tolist()],
            **{
                name: getattr(trace, name).cpu().numpy()
                for name in TRACE_COLUMNS
                if name not in ("prompt_id", "sample", "token", "status")
            },
        }
    )
    return table[list(TRACE_COLUMNS)]
