"""Intervals by a percentile bootstrap over prompts; knows arrays of per-prompt numbers only."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

MAX_UNDEFINED_FRAC = 0.05  # more undefined resamples than this, and an interval has no bounds


@dataclass(frozen=True)
class Interval:
    """An estimate on the data as they are, with percentile bounds from a bootstrap over prompts.

    `num_undefined_resamples` of `num_resamples` had no value (see `quality_at`, `acceptance_at`);
    the bounds come from the others, and are NaN if more than 5 % were undefined: the rest would be
    a selection.
    """

    estimate: float
    low: float
    high: float
    level: float
    num_undefined_resamples: int
    num_resamples: int


def bootstrap_mean(
    values: ArrayLike, *, num_resamples: int = 2000, level: float = 0.95, seed: int
) -> Interval:
    """Return the mean over prompts with its bootstrap interval.

    Args:
        values: One number per prompt, shape [P]; average several samples of one prompt first.
        num_resamples: Bootstrap resamples.
        level: Coverage aimed at, in (0, 1).
        seed: Seed of the resampling. Calls with one seed and the same P resample the same prompts.

    Raises:
        ValueError: Shape is not [P], a value is not finite, or a setting is out of range.
    """
    array = finite_array("values", values, num_dims=1)
    return bootstrap_ratio(
        array, np.ones_like(array), num_resamples=num_resamples, level=level, seed=seed
    )


def bootstrap_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    *,
    num_resamples: int = 2000,
    level: float = 0.95,
    seed: int,
) -> Interval:
    """Return the ratio of sums over prompts (a rate, a speed) with its bootstrap interval.

    Args:
        numerator: One number per prompt, for instance accepted tokens, shape [P].
        denominator: For instance drafted tokens, same shape. Where it sums to 0 the ratio is
            undefined.
        num_resamples: Bootstrap resamples.
        level: Coverage aimed at, in (0, 1).
        seed: Seed of the resampling. Calls with one seed and the same P resample the same prompts.

    Raises:
        ValueError: Shapes differ or are not [P], a value is not finite, or a setting is out of
            range.
    """
    top = finite_array("numerator", numerator, num_dims=1)
    bottom = finite_array("denominator", denominator, num_dims=1)
    check_same_shapes(numerator=top, denominator=bottom)

    def ratio(counts: FloatArray) -> FloatArray:
        """Return the ratio for each row of `counts`, shape [R, P] -> [R, 1]."""
        above, below = counts @ top, counts @ bottom
        ratios = np.full(len(counts), np.nan)
        np.divide(above, below, out=ratios, where=below != 0)
        return ratios[:, None]

    (interval,) = bootstrap_statistics(ratio, len(top), num_resamples, level, seed)
    return interval


def resample_counts(num_prompts: int, num_resamples: int, seed: int) -> FloatArray:
    """Return how often each resample draws each prompt, shape [num_resamples, num_prompts]."""
    chances = np.full(num_prompts, 1 / num_prompts)
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(num_prompts, chances, size=num_resamples)
    return np.asarray(counts, dtype=np.float64)


def bootstrap_statistics(
    statistics: Callable[[FloatArray], FloatArray],
    num_prompts: int,
    num_resamples: int,
    level: float,
    seed: int,
) -> list[Interval]:
    """Return one interval per column of `statistics(counts)`, shape [R, P] -> [R, S]."""
    if num_resamples < 1:
        message = f"num_resamples must be at least 1, got {num_resamples}"
        raise ValueError(message)
    if not 0 < level < 1:
        message = f"level must lie in (0, 1), got {level}"
        raise ValueError(message)
    estimates = statistics(np.ones((1, num_prompts)))[0]
    resampled = statistics(resample_counts(num_prompts, num_resamples, seed))
    return [
        _interval(float(estimate), column, level)
        for estimate, column in zip(estimates, resampled.T, strict=True)
    ]


def _interval(estimate: float, resampled: FloatArray, level: float) -> Interval:
    defined = resampled[~np.isnan(resampled)]
    num_undefined = len(resampled) - len(defined)
    low = high = np.nan
    if num_undefined <= MAX_UNDEFINED_FRAC * len(resampled):
        low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(estimate, low, high, level, num_undefined, len(resampled))


def finite_array(name: str, values: ArrayLike, num_dims: int) -> FloatArray:
    """Return float64 values; ValueError, naming them, for a wrong shape or NaN or infinity."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != num_dims or array.size == 0:
        message = f"{name} must have {num_dims} dimension(s), none empty, got shape {array.shape}"
        raise ValueError(message)
    num_bad = int(np.count_nonzero(~np.isfinite(array)))
    if num_bad:
        message = f"{name} has {num_bad} NaN or infinite value(s) of {array.size}"
        raise ValueError(message)
    return array


def check_same_shapes(**arrays: FloatArray) -> None:
    """Raise ValueError, naming the arrays and their shapes, unless all have the same shape."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        message = f"shapes differ: {shapes}"
        raise ValueError(message)
