"""Acceptance gained by a method that is as good as the front's best, and methods of several seeds.

`static` below stands for two static points: acceptance 0.6 with quality 1.0, and 1.0 with 0.2.
"""

import numpy as np
import pytest
from scipy.stats import binom

from diversed.theory import bootstrap as bootstrap_module
from diversed.theory.bootstrap import (
    bootstrap_mean,
    bootstrap_mean_over_seeds,
    hierarchical_resamples,
    resample_counts,
    resample_seed_counts,
)
from diversed.theory.front import (
    acceptance_at,
    concave_hull,
    front_distance,
    front_distance_over_seeds,
    interpolated_curve,
)

STATIC = np.array([[0.6], [1.0]]), np.array([[1.0], [0.2]])


def measured(acceptance, quality):
    return front_distance(*STATIC, [acceptance], [quality], num_resamples=20, seed=0)


# --- the one-sided bound --------------------------------------------------------------------------


def test_bound_of_a_gain_that_is_defined_is_its_quantile():
    distance = measured(0.9, 0.6)
    bound = distance.acceptance_above_hull_bound
    assert bound.estimate == distance.acceptance_above_hull.estimate == pytest.approx(0.9 - 0.8)
    assert bound.low == pytest.approx(0.1)
    assert (bound.above_front_frac, bound.below_front_frac, bound.num_resamples) == (0, 0, 20)


def test_method_above_the_front_gains_at_least_what_its_best_point_lacks():
    distance = measured(0.9, 1.1)
    assert np.isnan(distance.acceptance_above_hull.estimate)
    bound = distance.acceptance_above_hull_bound
    assert (bound.estimate, bound.low) == pytest.approx((0.3, 0.3))
    assert (bound.above_front_frac, bound.below_front_frac) == (1, 0)


def test_best_point_may_lie_within_the_front():
    """The curve rises to its best point at acceptance 0.8; what lies before gives no credit."""
    x, y = np.array([[0.6], [0.8], [1.0]]), np.array([[0.7], [0.9], [0.2]])
    distance = front_distance(x, y, [0.9], [0.95], num_resamples=5, seed=0)
    for bound in (distance.acceptance_above_hull_bound, distance.acceptance_above_curve_bound):
        assert bound.low == pytest.approx(0.1)


def test_method_below_the_fronts_end_has_no_bound():
    bound = measured(0.9, 0.1).acceptance_above_curve_bound
    assert np.isnan([bound.estimate, bound.low]).all()
    assert (bound.above_front_frac, bound.below_front_frac) == (0, 1)


def noisy_points(generator, num_prompts, quality=(0.9, 0.5, 0.88)):
    """Return per-prompt numbers of two static points and a method; true gain 0.8 - 0.62 = 0.18.

    Static: (0.6, 0.9) and (1.0, 0.5); the method: (0.8, 0.88).
    """
    x = np.array([0.6, 1.0, 0.8])[:, None] + generator.normal(0, 0.02, (3, num_prompts))
    y = (generator.random((3, num_prompts)) < np.array(quality)[:, None]).astype(float)
    return x[:2], y[:2], x[2], y[2]


@pytest.mark.parametrize(("data_seed", "has_bound"), [(0, False), (2, True)])
def test_bound_and_shares_equal_explicit_resampling(data_seed, has_bound):
    """Few prompts and a bad method, so that all three cases occur."""
    points = noisy_points(np.random.default_rng(data_seed), 12, quality=(0.7, 0.5, 0.6))
    distance = front_distance(*points, num_resamples=200, level=0.8, seed=7)
    for build, interval, bound in (
        (concave_hull, distance.acceptance_above_hull, distance.acceptance_above_hull_bound),
        (
            interpolated_curve,
            distance.acceptance_above_curve,
            distance.acceptance_above_curve_bound,
        ),
    ):
        gains, above, below = [], 0, 0
        for counts in resample_counts(12, 200, 7):
            x, y, own_x, own_y = (values @ counts / 12 for values in points)
            front = build(x, y)
            best = front.quality.max()
            if own_y > best + 1e-12:
                above += 1
                gains.append(own_x - front.acceptance[np.isclose(front.quality, best)].max())
            elif own_y < front.quality[-1] - 1e-12:
                below += 1
                gains.append(-np.inf)
            else:
                gains.append(own_x - acceptance_at(front, own_y))
        assert min(above, below) > 0
        assert (bound.above_front_frac, bound.below_front_frac) == (above / 200, below / 200)
        assert interval.undefined_frac == pytest.approx((above + below) / 200)
        expected = np.sort(gains)[int(0.2 * 199)]
        assert np.isfinite(expected) == has_bound
        assert bound.low == pytest.approx(expected) if has_bound else np.isnan(bound.low)


def covered_and_useful(num_data_sets=160):
    """Count the 95 % bounds that hold, and those above 0, of the gain in `noisy_points`."""
    generator = np.random.default_rng(11)
    held, useful, undefined = 0, 0, 0
    for i in range(num_data_sets):
        distance = front_distance(*noisy_points(generator, 80), num_resamples=60, seed=i)
        low = distance.acceptance_above_hull_bound.low
        held += bool(np.isnan(low) or low <= 0.18)
        useful += low > 0
        undefined += bool(np.isnan(distance.acceptance_above_hull.low))
    return held, useful, undefined


def is_honest(held):
    """Test the null "coverage of 0.93 or more" at n = 160, false alarm 1e-6."""
    return held >= binom.ppf(1e-6, 160, 0.93)


def test_bound_holds_as_often_as_it_says_where_intervals_are_missing():
    held, useful, undefined = covered_and_useful()
    assert is_honest(held)
    assert undefined > 120  # of 160 data sets have no interval,
    assert useful > 120  # but a bound that says the method is better


def test_coverage_check_rejects_a_bootstrap_of_too_little_spread(monkeypatch):
    def mutant(num_prompts, num_resamples, seed):
        return 1 + 0.2 * (resample_counts(num_prompts, num_resamples, seed) - 1)

    monkeypatch.setattr(bootstrap_module, "resample_counts", mutant)
    assert not is_honest(covered_and_useful()[0])


# --- seeds and prompts ----------------------------------------------------------------------------


def test_one_seed_is_the_bootstrap_over_prompts():
    points = noisy_points(np.random.default_rng(0), 40)
    one_seed = [*points[:2], points[2][None], points[3][None]]
    assert front_distance_over_seeds(*one_seed, num_resamples=50, seed=3) == front_distance(
        *points, num_resamples=50, seed=3
    )
    values = points[3]
    assert bootstrap_mean_over_seeds(values[None], seed=1) == bootstrap_mean(values, seed=1)


def heads(generator, num_seeds, num_prompts=60):
    x, y, own_x, own_y = noisy_points(generator, num_prompts)
    shift = generator.normal(0, 0.05, (num_seeds, 1))
    return x, y, own_x + shift, own_y + 2 * shift


def test_distance_over_seeds_equals_explicit_resampling():
    x, y, own_x, own_y = heads(np.random.default_rng(1), num_seeds=4)
    distance = front_distance_over_seeds(x, y, own_x, own_y, num_resamples=80, seed=5)
    expected = []
    for seeds, prompts in zip(
        resample_seed_counts(4, 80, 5).astype(int), resample_counts(60, 80, 5), strict=True
    ):
        drawn = np.repeat(np.arange(4), seeds)
        drawn_prompts = np.repeat(np.arange(60), prompts.astype(int))
        means = [values[:, drawn_prompts].mean(1) for values in (x, y)]
        own = [values[np.ix_(drawn, drawn_prompts)].mean() for values in (own_x, own_y)]
        gap = own[1] - np.interp(own[0], *means)
        expected.append(gap)
    interval = distance.quality_above_hull
    bounds = np.quantile(expected, [0.025, 0.975])
    np.testing.assert_allclose([interval.low, interval.high], bounds, atol=1e-12)
    means = x.mean(1), y.mean(1)
    assert interval.estimate == pytest.approx(own_y.mean() - np.interp(own_x.mean(), *means))


def test_heads_that_differ_make_the_interval_wider():
    x, y, own_x, own_y = heads(np.random.default_rng(2), num_seeds=5)
    over_seeds = front_distance_over_seeds(x, y, own_x, own_y, num_resamples=400, seed=0)
    as_one = front_distance(x, y, own_x.mean(0), own_y.mean(0), num_resamples=400, seed=0)
    wide, narrow = (each.quality_above_hull for each in (over_seeds, as_one))
    assert wide.estimate == pytest.approx(narrow.estimate)
    assert wide.high - wide.low > 1.1 * (narrow.high - narrow.low)


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_spread_of_resampled_seeds_is_the_standard_error_of_their_mean(num_seeds):
    """6000 resamples, seed 0: a variance is known to 2 %; S draws of S seeds would be 1 / S short.

    Every prompt is alike, so nothing but the seeds varies.
    """
    values = np.random.default_rng(4).normal(size=(num_seeds, 1)) + np.zeros(7)

    def mean(seed_counts, prompt_counts):
        return bootstrap_module.crossed_mean(values, seed_counts, prompt_counts)[:, None]

    estimates, resampled = hierarchical_resamples(mean, num_seeds, 7, 6000, seed=0)
    assert estimates[0] == pytest.approx(values.mean())
    expected = values[:, 0].var(ddof=1) / num_seeds
    assert resampled.var() == pytest.approx(expected, rel=0.1)


def test_all_seeds_of_a_resample_meet_the_same_prompts():
    """Heads that differ by prompt alone: the interval is that over prompts, whatever the seeds."""
    generator = np.random.default_rng(5)
    values = generator.random(30)
    alike = bootstrap_mean_over_seeds(np.tile(values, (6, 1)), num_resamples=300, seed=2)
    once = bootstrap_mean(values, num_resamples=300, seed=2)
    assert [alike.low, alike.high] == pytest.approx([once.low, once.high])


def test_arguments_of_seeds_are_checked():
    x, y, own_x, own_y = heads(np.random.default_rng(0), num_seeds=3)
    with pytest.raises(ValueError, match=r"method_acceptance must have 2 .*\(60,\)"):
        front_distance_over_seeds(x, y, own_x[0], own_y[0], seed=0)
    with pytest.raises(ValueError, match=r"share their prompts .*\(2, 60\) and \(3, 59\)"):
        front_distance_over_seeds(x, y, own_x[:, 1:], own_y[:, 1:], seed=0)
    with pytest.raises(ValueError, match="num_resamples must be at least 1, got 0"):
        bootstrap_mean_over_seeds(own_x, num_resamples=0, seed=0)
    with pytest.raises(ValueError, match=r"level must lie in \(0, 1\), got 1"):
        bootstrap_mean_over_seeds(own_x, level=1, seed=0)
    with pytest.raises(ValueError, match=r"values must have 2 dimension"):
        bootstrap_mean_over_seeds([1.0, 2.0], seed=0)
