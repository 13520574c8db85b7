"""Measure one training step of the head against the textbook's, in seconds and in memory.

    python benchmarks/rl_step.py model=tiny data=arithmetic --batch 8 --samples 4
    python benchmarks/rl_step.py model=qwen_coder model.target.path=DIR model.draft.path=DIR \
        data=gsm8k data.path=FILE decoding.max_new_tokens=48 --batch 4 --samples 2

Overrides are those of train.py; `--batch` and `--samples` set `objective.prompts_per_step` and
`objective.samples_per_prompt`.

- Ours: the completions come from the speculative decoder with the head as its verifier, the loss
  from the three scalars that it kept of each token (`training.rollout`, `objective`).
- The textbook's: completions are sampled from the mixture token by token, both models read them a
  second time, the loss comes from p, q and nu over the vocabulary (`textbook.py`).

Both have the same pair, head, prompts, numbers of completions, limits, sampling transforms and
ends, and leave the gradient of the same objective at the head, for one update of a rollout. Rewards
are left out of both (every completion earns 0, no program is run), and so is the optimiser's step.
The head stays as it is, so all repetitions do the same work on prompts of their own.

The first step of each warms up, and its memory is measured: the peak above what was held before,
such as the weights; on CUDA of what the allocator gave, elsewhere of the living tensors after every
operation (what an operation needs inside is not seen). Seconds are of repetitions in the order
A B B A; the ratio is the median over repetitions with a 95 % bootstrap interval.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast
from weakref import finalize

import numpy as np
import pandas as pd
import torch
from decode import interval, show
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from textbook import SecondPass, mixture_scalars, read_again, sample_completions
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from diversed.app.setup import set_up
from diversed.app.training import objective_settings
from diversed.config import InputError, input_errors, register_schemas
from diversed.core.checks import check_at_least_one
from diversed.core.verifiers import DiversedVerifier
from diversed.evaluation.timing import timed
from diversed.generation import SpeculativeDecoder
from diversed.models.head import EnsembleHead
from diversed.objective.acceptance import (
    ObjectiveSettings,
    TokenScalars,
    batch_returns,
    objective_loss,
)
from diversed.objective.reinforce import RunningMean, check_advantage
from diversed.prompting import fit_prompt
from diversed.tasks.base import Example, Score, Task
from diversed.theory.bootstrap import FloatArray, Interval, bootstrap_statistics
from diversed.training.data import PromptBatches
from diversed.training.rollout import Rollout, check_rollout_decoder, sample_rollout

CONFIG_FOLDER = Path(__file__).resolve().parents[1] / "conf"
SAMPLING, SECOND_PASS, UPDATE = PHASES = ("sampling", "second pass", "loss and backward")

Result = TypeVar("Result")


class Measure(Protocol):
    """Does a phase of a step and notes what it took.

    Attributes:
        phases: What was noted, by phase.
    """

    phases: dict[str, float]

    def __call__(self, phase: str, work: Callable[[], Result]) -> Result:
        """Return what the work returns."""


class Seconds:
    """Notes the seconds of each phase."""

    def __init__(self, device: torch.device) -> None:
        """Set the device that does the work."""
        self.phases: dict[str, float] = {}
        self._device = device

    def __call__(self, phase: str, work: Callable[[], Result]) -> Result:
        """Do a phase."""
        result, self.phases[phase] = timed(work, self._device)
        return result


class CudaMemory:
    """Notes the most bytes that CUDA's allocator gave in each phase, above those held before."""

    def __init__(self, device: torch.device) -> None:
        """Set the device, whose tensors of now do not count."""
        self.phases: dict[str, float] = {}
        self._device, self._before = device, torch.cuda.memory_allocated(device)

    def __call__(self, phase: str, work: Callable[[], Result]) -> Result:
        """Do a phase."""
        torch.cuda.reset_peak_memory_stats(self._device)
        result = work()
        self.phases[phase] = torch.cuda.max_memory_allocated(self._device) - self._before
        return result


class TensorMemory(TorchDispatchMode):
    """Notes the most bytes in each phase of living tensors that the phases have made."""

    def __init__(self) -> None:
        """Start with no tensor."""
        super().__init__()
        self.phases: dict[str, float] = {}
        self._known: Any = WeakIdKeyDictionary()
        self._living = self._peak = 0

    def __call__(self, phase: str, work: Callable[[], Result]) -> Result:
        """Do a phase."""
        self._peak = self._living
        with self:
            result = work()
        self.phases[phase] = self._peak
        return result

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count the storages of an operation's results that none of its arguments had."""
        for storage in _storages((args, kwargs)):
            self._known[storage] = True
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage not in self._known:
                self._known[storage] = True
                self._living += storage.nbytes()
                finalize(storage, self._forget, storage.nbytes())
        self._peak = max(self._peak, self._living)
        return result

    def _forget(self, num_bytes: int) -> None:
        self._living -= num_bytes


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor)]


@dataclass(frozen=True)
class Training:
    """What both steps share."""

    decoder: SpeculativeDecoder
    head: EnsembleHead
    task: Task
    objective: ObjectiveSettings
    samples_per_prompt: int

    def backward(self, scalars: TokenScalars, target_weight: Tensor, rewards: Tensor) -> None:
        """Give the head the gradient of the first update on a batch."""
        returns = batch_returns(
            scalars, target_weight, rewards, self.samples_per_prompt, self.objective, RunningMean()
        )
        self.head.zero_grad()
        loss = objective_loss(scalars, target_weight, returns, self.objective, is_first_update=True)
        loss.backward()


Step = Callable[[Training, Sequence[Example], int, Measure], int]
"""(what is shared, prompts, number of the step, measure) -> number of sampled tokens."""


def our_step(training: Training, examples: Sequence[Example], number: int, measure: Measure) -> int:
    """Sample and update as `training.module` does."""
    sample = partial(sample_rollout, training.decoder, training.task, examples)
    rollout = measure(SAMPLING, partial(sample, training.samples_per_prompt, number))
    measure(UPDATE, partial(our_update, training, rollout))
    return rollout.row.numel()


def our_update(training: Training, rollout: Rollout) -> None:
    """Give the head the gradient of a rollout."""
    head = training.head
    head.standardise(rollout.draft_hidden, rollout.target_hidden, rollout.features)
    training.backward(rollout.scalars, rollout.target_weight(head), rollout.rewards)


def textbook_step(
    training: Training, examples: Sequence[Example], number: int, measure: Measure
) -> int:
    """Sample, read again and update as a textbook does."""
    decoder = training.decoder
    generator = torch.Generator(decoder.pair.device).manual_seed(number)

    def draw(probs: Tensor) -> Tensor:
        return torch.multinomial(probs, 1, generator=generator)[:, 0]

    def sample() -> tuple[list[list[int]], list[list[int]]]:
        fitted = [fit_prompt(decoder, training.task, example).prompt for example in examples]
        prompts = [decoder.encode_prompt(prompt) for prompt in fitted]
        prompts = [ids for ids in prompts for _ in range(training.samples_per_prompt)]
        return prompts, sample_completions(decoder, training.head, prompts, draw)

    prompts, completions = measure(SAMPLING, sample)
    seen = measure(SECOND_PASS, partial(read_again, decoder, training.head, prompts, completions))
    rewards = torch.zeros(len(prompts), device=decoder.pair.device)
    measure(UPDATE, partial(textbook_update, training, seen, rewards))
    return seen.token_ids.numel()


def textbook_update(training: Training, seen: SecondPass, rewards: Tensor) -> None:
    """Give the head the gradient of completions with rewards [S]."""
    reading = seen.reading
    training.head.standardise(reading.draft_hidden, reading.target_hidden, reading.features)
    scalars = mixture_scalars(training.head, seen)
    training.backward(scalars, torch.ones_like(scalars.target_prob), rewards)


STEPS: dict[str, Step] = {"ours": our_step, "textbook": textbook_step}


def compare(
    training: Training, batches: PromptBatches, num_repeats: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Take all steps, and print what each took as soon as it is done.

    Returns:
        One row per step, of its peak bytes and of its seconds: step, tokens (sampled ones), the
        phases (0 where a step lacks one) and total.
    """
    device = training.decoder.pair.device

    def row(name: str, number: int, measure: Measure, total: Callable[[Any], float]) -> Any:
        num_tokens = STEPS[name](training, batches.batch(number), number, measure)
        phases = dict.fromkeys(PHASES, 0.0) | measure.phases
        return {"step": name, "tokens": num_tokens, **phases, "total": total(phases.values())}

    show(_header("MiB at the peak"))
    num_bytes = []
    for name in STEPS:
        memory = CudaMemory(device) if device.type == "cuda" else TensorMemory()
        num_bytes.append(row(name, 0, memory, max))
        show(_line(num_bytes[-1], 2**20, digits=1))
    show(_header("Seconds"))
    seconds = []
    for number in range(num_repeats):
        for name in list(STEPS)[:: -1 if number % 2 else 1]:
            seconds.append(row(name, number, Seconds(device), sum))
            show(_line(seconds[-1], 1, digits=3))
    return pd.DataFrame(num_bytes), pd.DataFrame(seconds)


def _header(title: str) -> str:
    names = ("step", "tokens", *PHASES, "whole step")
    return f"\n**{title}**\n\n| {' | '.join(names)} |\n{'| --- ' * len(names)}|"


def _line(row: Mapping[str, Any], unit: int, digits: int) -> str:
    """Return a row of `compare` as one of a Markdown table; 2**20 bytes are a unit of MiB."""
    numbers = (f"{row[name] / unit:.{digits}f}" for name in (*PHASES, "total"))
    return f"| {row['step']} | {row['tokens']:.0f} | {' | '.join(numbers)} |"


def median_ratio(numerator: FloatArray, denominator: FloatArray) -> Interval:
    """Return the median over repetitions of a ratio, with its bootstrap interval."""
    ratios = numerator / denominator

    def median(counts: FloatArray) -> FloatArray:
        return np.array([[np.median(ratios.repeat(row.astype(int)))] for row in counts])

    (result,) = bootstrap_statistics(median, len(ratios), 2000, 0.95, seed=0)
    return result


def report(num_bytes: pd.DataFrame, seconds: pd.DataFrame) -> None:
    """Print the medians of the seconds and both ratios."""
    show(_header("Seconds, median"))
    for name, medians in seconds.groupby("step").median().iterrows():
        show(_line({"step": name, **medians}, 1, digits=3))
    times = {name: rows["total"].to_numpy(float) for name, rows in seconds.groupby("step")}
    ratio = interval(median_ratio(times["textbook"], times["ours"]))
    peaks = num_bytes.set_index("step")["total"]
    memory_ratio = peaks["textbook"] / peaks["ours"]
    show(f"\ntextbook / ours: seconds {ratio}, peak memory {memory_ratio:.2f}")


def set_up_training(
    overrides: Sequence[str], num_prompts: int, samples_per_prompt: int
) -> tuple[Training, PromptBatches]:
    """Return what both steps share, and the prompts of every step.

    Raises:
        InputError: Something cannot be used.
        HydraException: An override fits no key.
    """
    register_schemas()
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        cfg = compose("train", overrides=list(overrides))
    with input_errors():
        objective = objective_settings(cfg)
        check_at_least_one("--samples", samples_per_prompt)
        check_advantage(objective.advantage, samples_per_prompt)
        setup = set_up(cfg)
        check_rollout_decoder(setup.decoder)
        if setup.pair.reads != "hidden":
            raise InputError(
                f"head.reads={setup.pair.reads}: the textbook's step reads hidden states alone"
            )
        batches = PromptBatches(
            setup.task.examples("train"), num_prompts, 1, cfg.seed, start=lambda: 0
        )

    def no_rewards(texts: Sequence[str], examples: Sequence[Example]) -> list[Score]:
        return [Score(0.0) for _ in texts]

    setup.task.score_batch = no_rewards  # type: ignore[method-assign]
    head = cast(EnsembleHead, cast(DiversedVerifier, setup.decoder.verifier).head)
    return Training(setup.decoder, head, setup.task, objective, samples_per_prompt), batches


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="as of train.py, such as model=tiny")
    parser.add_argument("--batch", type=int, default=8, help="prompts of a step")
    parser.add_argument("--samples", type=int, default=4, help="completions of a prompt")
    parser.add_argument("--repeats", type=int, default=6, help="timed steps of each kind")
    options = parser.parse_intermixed_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats={options.repeats}: must be at least 1")
    try:
        training, batches = set_up_training(options.overrides, options.batch, options.samples)
    except (InputError, HydraException) as error:
        parser.error(str(error).splitlines()[0])
    settings = training.decoder.settings
    show(
        f"{options.batch} prompts x {options.samples} completions of at most "
        f"{settings.max_new_tokens} tokens, N = {settings.draft_length}, {options.repeats} "
        f"repetitions, {training.decoder.pair.device.type}"
    )
    report(*compare(training, batches, options.repeats))


if __name__ == "__main__":
    main()
