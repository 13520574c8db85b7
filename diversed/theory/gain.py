"""By how much a method's score exceeds that of the best of its rivals.

Knows arrays of per-prompt numbers only, as `theory.front` does.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from diversed.theory.bootstrap import (
    Interval,
    crossed_mean,
    finite_array,
    percentile_intervals,
    resample_counts,
    resample_seed_counts,
)


def gain_over_best(
    own: ArrayLike,
    rivals: Sequence[ArrayLike],
    *,
    num_resamples: int = 2000,
    level: float = 0.95,
    seed: int,
) -> Interval:
    """Return a method's mean score less that of the best rival.

    Which rival is best is decided on the same prompts that it is scored on, anew in every resample:
    that favours the rivals. A coin flip between two rivals scores no more than the better of them,
    so with the static verifiers as rivals and J = R + lambda A as score this is also the gain over
    every point of their hull.

    Args:
        own: One score per seed of the method and prompt, shape [S, P].
        rivals: The same of each rival, shapes [S_k, P]; a rival without seeds has S_k = 1.
        num_resamples: Bootstrap resamples: seeds of each method on their own, prompts together.
        level: Coverage aimed at, in (0, 1).
        seed: Seed of the resampling.

    Raises:
        ValueError: There is no rival, a shape does not fit, a value is not finite, or a setting is
            out of range.
    """
    scores = {"own": own} | {f"rivals[{k}]": rival for k, rival in enumerate(rivals)}
    if len(scores) == 1:
        raise ValueError("rivals is empty: there is nothing to compare with")
    arrays = [finite_array(name, values, num_dims=2) for name, values in scores.items()]
    num_prompts = arrays[0].shape[1]
    for name, array in zip(scores, arrays, strict=True):
        if array.shape[1] != num_prompts:
            raise ValueError(f"{name} has {array.shape[1]} prompts, own has {num_prompts}")
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples}")
    prompt_counts = resample_counts(num_prompts, num_resamples, seed)
    resampled = [
        crossed_mean(
            array, resample_seed_counts(len(array), num_resamples, seed + k), prompt_counts
        )
        for k, array in enumerate(arrays)
    ]
    gains = resampled[0] - np.max(resampled[1:], axis=0)
    estimate = arrays[0].mean() - max(array.mean() for array in arrays[1:])
    return percentile_intervals(np.array([estimate]), gains[:, None], level)[0]
