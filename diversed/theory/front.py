"""The front of static verifiers in (acceptance, quality), and how far a method lies above it.

Knows arrays of per-prompt numbers only: nothing of decoding, records or figures.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from diversed.theory.bootstrap import (
    FloatArray,
    Interval,
    check_same_shapes,
    crossed_mean,
    finite_array,
    hierarchical_resamples,
    percentile_intervals,
)

_Points = tuple[FloatArray, FloatArray, FloatArray, FloatArray]

ROUNDING = 1e-12  # a mean may miss the end of a front by this much and still count as on it


@dataclass(frozen=True, eq=False)
class Front:
    """A piecewise-linear front: vertices sorted by strictly increasing `acceptance`, shape [K]."""

    acceptance: FloatArray
    quality: FloatArray


@dataclass(frozen=True)
class LowerBound:
    """A one-sided bound of an acceptance gained at equal quality.

    The gain has no value where the method's quality is beyond the front's. Above the front, where
    no static point is as good, the gain is at least that over the front's best point; it counts as
    just that. Below the front's end of highest acceptance it can be anything, and counts as minus
    infinity. So nothing is extrapolated, and the bound holds all the more.

    Attributes:
        estimate: The gain in the data as they are, counted like this; NaN below the front.
        low: The quantile of rank 1 - level over the resamples, counted like this; NaN if that is
            minus infinity.
        level: Coverage aimed at: the gain is at least `low` with this confidence.
        above_front_frac: Share of the resamples with a quality above the whole front.
        below_front_frac: Share of the resamples with a quality below the front's end.
        num_resamples: Resamples.
    """

    estimate: float
    low: float
    level: float
    above_front_frac: float
    below_front_frac: float
    num_resamples: int


@dataclass(frozen=True)
class FrontDistance:
    """Distances of a method from the static front; positive where the method lies above it.

    `quality_above_*` compares at the method's acceptance, `acceptance_above_*` at its quality.
    `*_hull` is measured from the upper concave hull, which is the bar; `*_curve` from the line
    through the static points. Nothing is extrapolated: a distance that would need the front beyond
    its ends is NaN. For the acceptance of a method whose quality is above the front now and then,
    `acceptance_above_*_bound` still bounds it from below.
    """

    quality_above_hull: Interval
    acceptance_above_hull: Interval
    quality_above_curve: Interval
    acceptance_above_curve: Interval
    acceptance_above_hull_bound: LowerBound
    acceptance_above_curve_bound: LowerBound


def concave_hull(acceptance: ArrayLike, quality: ArrayLike) -> Front:
    """Return the upper concave hull of points in (acceptance, quality).

    The hull is the bar that a context-dependent verifier has to clear: choosing for each prompt
    one of two static weights by a coin flip reaches, in expectation, every point of the chord
    between them, without looking at any context. Being above the line through the static points is
    not enough where that line sags below a chord.

    Args:
        acceptance: Means over prompts, shape [W].
        quality: Means over prompts, same shape.

    Returns:
        The hull's vertices from the lowest to the highest acceptance. Of points with the same
        acceptance only the best counts; points on a chord are not vertices.

    Raises:
        ValueError: Shapes differ or are not [W] with W >= 1, or a value is not finite.
    """
    points = _best_at_each_acceptance(acceptance, quality)
    hull: list[tuple[float, float]] = []
    for x, y in zip(points.acceptance.tolist(), points.quality.tolist(), strict=True):
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (x1 - x0) * (y - y0) < (y1 - y0) * (x - x0):
                break  # the last vertex lies strictly above the chord from its neighbour to (x, y)
            hull.pop()
        hull.append((x, y))
    vertices = np.array(hull)
    return Front(acceptance=vertices[:, 0], quality=vertices[:, 1])


def interpolated_curve(acceptance: ArrayLike, quality: ArrayLike) -> Front:
    """Return the piecewise-linear curve through points sorted by acceptance.

    Arguments and errors as in `concave_hull`; here too the best of points with the same acceptance
    counts. The curve need be neither concave nor monotone.
    """
    return _best_at_each_acceptance(acceptance, quality)


def quality_at(front: Front, acceptance: float) -> float:
    """Return the front's quality at `acceptance`, or NaN outside its range (no extrapolation).

    A value outside by no more than `ROUNDING` counts as the end itself.
    """
    first, last = front.acceptance[0], front.acceptance[-1]
    if not first - ROUNDING <= acceptance <= last + ROUNDING:
        return np.nan
    return float(np.interp(acceptance, front.acceptance, front.quality))


def acceptance_at(front: Front, quality: float) -> float:
    """Return the largest acceptance at which the front still has at least `quality`.

    Walking along the front towards higher acceptance, this is where it falls below `quality` for
    the last time; a curve that dips and recovers is credited with its recovery. On a hull this is
    the point on its falling side.

    Returns:
        An acceptance inside the front's range, or NaN where the question has no answer within it:
        `quality` is above the front's maximum, or below the quality at its end of highest
        acceptance (the front never falls so low; where it would lies beyond its end, and nothing is
        extrapolated). Both limits are inclusive, give or take `ROUNDING`.
    """
    reached = np.flatnonzero(front.quality >= quality - ROUNDING)
    if reached.size == 0 or quality < front.quality[-1] - ROUNDING:
        return np.nan
    i = reached[-1]
    if i == len(front.quality) - 1:
        return float(front.acceptance[i])
    fraction = (front.quality[i] - quality) / (front.quality[i] - front.quality[i + 1])
    step = front.acceptance[i + 1] - front.acceptance[i]
    return float(front.acceptance[i] + max(fraction, 0.0) * step)


def front_distance(
    static_acceptance: ArrayLike,
    static_quality: ArrayLike,
    method_acceptance: ArrayLike,
    method_quality: ArrayLike,
    *,
    num_resamples: int = 2000,
    level: float = 0.95,
    seed: int,
) -> FrontDistance:
    """Measure how far a method lies above the static front, with a paired bootstrap over prompts.

    Both axes are means over prompts, because only those mix linearly (see `concave_hull`). Column i
    of every argument belongs to the same prompt, and one resample of the prompts is applied to the
    static points and the method together, the front being drawn anew each time: what makes a prompt
    hard for all of them cancels. Average several samples of one prompt before the call; they are
    not independent, and as columns of their own they would make the intervals too narrow.

    Args:
        static_acceptance: Per prompt the objective's A in [0, 1], shape [W, P]: one row per static
            weight, w = 0 and w = 1 among them.
        static_quality: Per prompt the task's score, same shape.
        method_acceptance: As `static_acceptance`, shape [P].
        method_quality: As `static_quality`, shape [P].
        num_resamples: Bootstrap resamples.
        level: Coverage aimed at by intervals and bounds, in (0, 1).
        seed: Seed of the resampling; the same seed gives the same intervals.

    Raises:
        ValueError: Shapes do not fit, a value is not finite, or a setting is out of range.
    """
    points = _check_points(
        static_acceptance, static_quality, method_acceptance, method_quality, method_dims=1
    )
    return _measure(points, num_resamples, level, seed)


def front_distance_over_seeds(
    static_acceptance: ArrayLike,
    static_quality: ArrayLike,
    method_acceptance: ArrayLike,
    method_quality: ArrayLike,
    *,
    num_resamples: int = 2000,
    level: float = 0.95,
    seed: int,
) -> FrontDistance:
    """Measure how far a method lies above the static front on average over its seeds.

    The method is the mean over seeds, for instance over heads that were trained with one lambda. A
    resample draws seeds and prompts, the prompts once for all heads and static points (see
    `bootstrap.hierarchical_resamples`); the interval is about the method with another seed and
    other prompts, not about these heads.

    Arguments and errors as in `front_distance`, except that the method's numbers have the shape
    [S, P]: a row per seed.
    """
    points = _check_points(
        static_acceptance, static_quality, method_acceptance, method_quality, method_dims=2
    )
    return _measure(points, num_resamples, level, seed)


def _check_points(
    static_acceptance: ArrayLike,
    static_quality: ArrayLike,
    method_acceptance: ArrayLike,
    method_quality: ArrayLike,
    method_dims: int,
) -> _Points:
    """Return static points [W, P] and the method's [S, P]; ValueError for what does not fit."""
    static_x = finite_array("static_acceptance", static_acceptance, num_dims=2)
    static_y = finite_array("static_quality", static_quality, num_dims=2)
    method_x = finite_array("method_acceptance", method_acceptance, num_dims=method_dims)
    method_y = finite_array("method_quality", method_quality, num_dims=method_dims)
    check_same_shapes(static_acceptance=static_x, static_quality=static_y)
    check_same_shapes(method_acceptance=method_x, method_quality=method_y)
    if static_x.shape[1] != method_x.shape[-1]:
        message = (
            "static_acceptance and method_acceptance must share their prompts (last axis), "
            f"got shapes {static_x.shape} and {method_x.shape}"
        )
        raise ValueError(message)
    return static_x, static_y, np.atleast_2d(method_x), np.atleast_2d(method_y)


def _measure(points: _Points, num_resamples: int, level: float, seed: int) -> FrontDistance:
    static_x, static_y, method_x, method_y = points
    num_seeds, num_prompts = method_x.shape

    def distances(seed_counts: FloatArray, prompt_counts: FloatArray) -> FloatArray:
        """Return the numbers of `_distances` for each row of the counts, shape [R, 6]."""
        xs, ys = (prompt_counts @ static.T / num_prompts for static in (static_x, static_y))
        own_xs, own_ys = (
            crossed_mean(values, seed_counts, prompt_counts) for values in (method_x, method_y)
        )
        return np.array([_distances(*means) for means in zip(xs, ys, own_xs, own_ys, strict=True)])

    estimates, resampled = hierarchical_resamples(
        distances, num_seeds, num_prompts, num_resamples, seed
    )
    above_hull, gain_hull, above_curve, gain_curve = percentile_intervals(
        estimates[:4], resampled[:, :4], level
    )
    return FrontDistance(
        quality_above_hull=above_hull,
        acceptance_above_hull=gain_hull,
        quality_above_curve=above_curve,
        acceptance_above_curve=gain_curve,
        acceptance_above_hull_bound=_lower_bound(estimates[4], resampled[:, 4], gain_hull),
        acceptance_above_curve_bound=_lower_bound(estimates[5], resampled[:, 5], gain_curve),
    )


def _distances(
    static_x: FloatArray, static_y: FloatArray, method_x: float, method_y: float
) -> list[float]:
    """Return four distances in the order of `FrontDistance`, then the least gains in acceptance."""
    fronts = concave_hull(static_x, static_y), interpolated_curve(static_x, static_y)
    distances = [
        distance
        for front in fronts
        for distance in (
            method_y - quality_at(front, method_x),
            method_x - acceptance_at(front, method_y),
        )
    ]
    return distances + [method_x - _acceptance_at_most(front, method_y) for front in fronts]


def _acceptance_at_most(front: Front, quality: float) -> float:
    """Return `acceptance_at`, or where it has no value the most that it can be.

    That is the acceptance of the front's best point for a quality above it, and infinity for one
    below the front's end.
    """
    if quality < front.quality[-1] - ROUNDING:
        return np.inf
    return acceptance_at(front, min(quality, float(front.quality.max())))


def _lower_bound(estimate: float, resampled: FloatArray, gain: Interval) -> LowerBound:
    """Return the bound from least gains (minus infinity where unknown) and the gain's interval."""
    num_resamples = len(resampled)
    num_below = int(np.isneginf(resampled).sum())
    low = float(np.quantile(resampled, 1 - gain.level, method="lower"))
    return LowerBound(
        estimate=float(estimate) if np.isfinite(estimate) else np.nan,
        low=low if np.isfinite(low) else np.nan,
        level=gain.level,
        above_front_frac=(gain.num_undefined_resamples - num_below) / num_resamples,
        below_front_frac=num_below / num_resamples,
        num_resamples=num_resamples,
    )


def _best_at_each_acceptance(acceptance: ArrayLike, quality: ArrayLike) -> Front:
    x = finite_array("acceptance", acceptance, num_dims=1)
    y = finite_array("quality", quality, num_dims=1)
    check_same_shapes(acceptance=x, quality=y)
    order = np.lexsort((-y, x))  # by acceptance, the best first among equals
    x, first = np.unique(x[order], return_index=True)
    return Front(acceptance=x, quality=y[order][first])
