"""Wall-clock seconds of a piece of work on a device, and speeds that can be compared."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pandas as pd
import torch

from diversed.theory.bootstrap import FloatArray, Interval, bootstrap_statistics

if TYPE_CHECKING:  # readers of records need no transformers
    from diversed.generation import SpeculativeDecoder

Result = TypeVar("Result")


def timed(work: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """Return what `work` returns, and the seconds until the device has finished it."""
    _synchronize(device)
    started = time.perf_counter()
    result = work()
    _synchronize(device)
    return result, time.perf_counter() - started


def interleaved_speeds(
    decoders: "Mapping[str, SpeculativeDecoder]",
    prompts: Sequence[str],
    row_keys: Sequence[int],
    num_warmup: int = 2,
) -> pd.DataFrame:
    """Time decoders against each other at batch 1: every prompt with each of them in turn.

    Args:
        decoders: Run name -> decoder.
        prompts: Prompts, decoded one at a time.
        row_keys: One per prompt.
        num_warmup: Prompts that each decoder completes untimed beforehand.

    Returns:
        Columns run_name, prompt, num_tokens, seconds.
    """
    for decoder in decoders.values():
        for prompt, key in list(zip(prompts, row_keys, strict=True))[:num_warmup]:
            decoder.generate([prompt], [key])
    rows = []
    names = list(decoders)
    for index, (prompt, key) in enumerate(zip(prompts, row_keys, strict=True)):
        shift = index % len(names)  # no decoder always follows the same one
        for name in names[shift:] + names[:shift]:
            decoder = decoders[name]
            generation, seconds = timed(
                partial(decoder.generate, [prompt], [key]),
                decoder.pair.device,
            )
            num_tokens = int(generation.result.counts.emitted.sum())
            rows.append((name, index, num_tokens, seconds))
    return pd.DataFrame(rows, columns=["run_name", "prompt", "num_tokens", "seconds"])


def speed_ratio(
    speeds: pd.DataFrame, run_name: str, baseline: str, *, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return tokens per second of a run relative to a baseline, with an interval over prompts.

    Args:
        speeds: From `interleaved_speeds`.
        run_name: The run.
        baseline: What it is compared to.
        num_resamples: Resamples of the bootstrap; both runs share each resample of prompts.
        seed: Seed of the bootstrap.
    """
    columns = []
    for name in (run_name, baseline):
        own = speeds[speeds["run_name"] == name].sort_values("prompt")
        columns += [own["num_tokens"].to_numpy(float), own["seconds"].to_numpy(float)]
    values = np.stack(columns, axis=1)  # [P, 4]

    def ratio(counts: FloatArray) -> FloatArray:
        tokens, seconds, base_tokens, base_seconds = (counts @ values).T
        ratios: FloatArray = (tokens / seconds) / (base_tokens / base_seconds)
        return ratios[:, None]

    (interval,) = bootstrap_statistics(ratio, len(values), num_resamples, 0.95, seed)
    return interval


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
