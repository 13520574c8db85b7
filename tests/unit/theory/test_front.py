"""The front, the distances from it and their bootstrap, against independent answers."""

import numpy as np
import pytest
from scipy.spatial import ConvexHull
from scipy.stats import binom

from diversed.theory import bootstrap as bootstrap_module
from diversed.theory.bootstrap import bootstrap_mean, bootstrap_ratio, resample_counts
from diversed.theory.front import (
    Front,
    acceptance_at,
    concave_hull,
    front_distance,
    interpolated_curve,
    quality_at,
)


def vertices(front):
    return list(zip(front.acceptance.tolist(), front.quality.tolist(), strict=True))


def static_prompts(generator, num_static=5, num_prompts=40):
    """Return per-prompt acceptance and quality of static points along a falling curve."""
    w = np.linspace(1.0, 0.0, num_static)[:, None]
    acceptance = 1 - w * generator.uniform(0.2, 0.4, num_prompts)
    quality = (generator.random((num_static, num_prompts)) < 0.4 + 0.5 * w**2).astype(float)
    return acceptance, quality


# --- fronts ---------------------------------------------------------------------------------------


def test_hull_equals_scipys_upper_facets_on_random_points():
    generator = np.random.default_rng(0)
    for _ in range(300):
        points = generator.random((generator.integers(3, 30), 2))
        reference = ConvexHull(points)
        upper = reference.simplices[reference.equations[:, 1] > 0]
        expected = sorted(map(tuple, points[np.unique(upper)].tolist()))
        assert vertices(concave_hull(*points.T)) == expected


def test_hull_drops_points_on_and_below_a_chord_and_keeps_those_above():
    x = [0.0, 0.25, 0.5, 0.75, 1.0]
    hull = concave_hull(x, [1.0, 0.75, 0.4, 0.5, 0.0])
    assert vertices(hull) == [(0.0, 1.0), (0.75, 0.5), (1.0, 0.0)]
    assert vertices(concave_hull(x, [1.0, 0.75, 0.5, 0.25, 0.0])) == [(0.0, 1.0), (1.0, 0.0)]


@pytest.mark.parametrize("build", [concave_hull, interpolated_curve])
def test_best_of_points_with_the_same_acceptance_counts_in_any_order(build):
    x, y = np.array([0.5, 0.0, 0.5, 1.0, 0.0]), np.array([0.2, 1.0, 0.8, 0.1, 0.3])
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        assert vertices(build(x[order], y[order])) == [(0.0, 1.0), (0.5, 0.8), (1.0, 0.1)]


def test_curve_passes_through_every_point_and_under_the_hull():
    x, y = [1.0, 0.0, 0.5], [0.0, 1.0, 0.2]
    curve, hull = interpolated_curve(x, y), concave_hull(x, y)
    assert [quality_at(curve, a) for a in x] == y
    assert quality_at(curve, 0.25) == pytest.approx(0.6)
    assert quality_at(hull, 0.25) == pytest.approx(0.75)


def test_a_single_point_is_its_own_front():
    hull = concave_hull([0.7], [0.9])
    assert quality_at(hull, 0.7) == 0.9
    assert acceptance_at(hull, 0.9) == 0.7
    assert np.isnan(quality_at(hull, 0.71))


@pytest.mark.parametrize("acceptance", [0.19, 0.91, np.nan])
def test_quality_is_not_extrapolated(acceptance):
    assert np.isnan(quality_at(concave_hull([0.2, 0.9], [1.0, 0.4]), acceptance))


def test_quality_at_the_ends_survives_rounding():
    hull = concave_hull([0.2, 0.9], [1.0, 0.4])
    assert quality_at(hull, 0.2 - 1e-15) == 1.0
    assert quality_at(hull, 0.9 + 1e-15) == 0.4


def test_acceptance_at_is_the_last_fall_below_the_quality():
    hull = Front(acceptance=np.array([0.2, 0.5, 0.9]), quality=np.array([0.6, 1.0, 0.2]))
    assert acceptance_at(hull, 1.0) == 0.5
    assert acceptance_at(hull, 0.6) == pytest.approx(0.7)  # the falling side, not the start
    assert acceptance_at(hull, 0.2) == 0.9
    dip = Front(acceptance=np.array([0.0, 0.4, 0.6, 1.0]), quality=np.array([1.0, 0.2, 0.8, 0.0]))
    assert acceptance_at(dip, 0.5) == pytest.approx(0.75)  # after the recovery
    assert acceptance_at(dip, 0.9) == pytest.approx(0.05)  # the recovery does not reach it


@pytest.mark.parametrize("quality", [1.01, 0.19, np.nan])
def test_acceptance_is_not_extrapolated(quality):
    hull = Front(acceptance=np.array([0.2, 0.5, 0.9]), quality=np.array([0.1, 1.0, 0.2]))
    assert np.isnan(acceptance_at(hull, quality))


def test_acceptance_at_the_limits_survives_rounding():
    hull = concave_hull([0.2, 0.9], [1.0, 0.4])
    assert acceptance_at(hull, 1.0 + 1e-15) == 0.2
    assert acceptance_at(hull, 0.4 - 1e-15) == 0.9


# --- distances ------------------------------------------------------------------------------------


def test_coin_flip_between_two_static_weights_lies_on_their_chord():
    """Its exact expectation per prompt, so the distance is 0 in the data and in every resample."""
    acceptance, quality = static_prompts(np.random.default_rng(1), num_static=2)
    for heads in (0.25, 0.5, 0.9):
        flip = [heads * values[0] + (1 - heads) * values[1] for values in (acceptance, quality)]
        distance = front_distance(acceptance, quality, *flip, num_resamples=50, seed=0)
        for interval in (distance.quality_above_hull, distance.acceptance_above_hull):
            bounds = [interval.estimate, interval.low, interval.high]
            assert bounds == pytest.approx([0, 0, 0], abs=1e-12)
            assert interval.num_undefined_resamples == 0


def test_coin_flip_never_lies_above_the_hull_but_does_lie_above_a_sagging_curve():
    acceptance, quality = static_prompts(np.random.default_rng(2))
    flip = (acceptance[0] + acceptance[-1]) / 2, (quality[0] + quality[-1]) / 2
    distance = front_distance(acceptance, quality, *flip, num_resamples=200, seed=0)
    assert distance.quality_above_hull.high <= 1e-12
    assert distance.quality_above_curve.low > 0


def test_distances_of_a_worked_example():
    """Hull from (0.6, 1.0) to (1.0, 0.2), slope -2; the point between sags to (0.8, 0.4)."""
    static = np.array([[0.6], [0.8], [1.0]]), np.array([[1.0], [0.4], [0.2]])
    distance = front_distance(*static, [0.9], [0.7], num_resamples=3, seed=0)
    assert distance.quality_above_hull.estimate == pytest.approx(0.7 - 0.4)
    assert distance.acceptance_above_hull.estimate == pytest.approx(0.9 - 0.75)
    assert distance.quality_above_curve.estimate == pytest.approx(0.7 - 0.3)
    assert distance.acceptance_above_curve.estimate == pytest.approx(0.9 - 0.7)


def test_vectorised_bootstrap_equals_explicit_resampling():
    generator = np.random.default_rng(3)
    acceptance, quality = static_prompts(generator, num_static=4, num_prompts=30)
    method = acceptance.mean(axis=0), generator.integers(0, 2, 30).astype(float)
    distance = front_distance(acceptance, quality, *method, num_resamples=60, level=0.8, seed=7)

    expected = []
    for counts in np.random.default_rng(7).multinomial(30, np.full(30, 1 / 30), size=60):
        drawn = np.repeat(np.arange(30), counts)  # the resample as a list of prompts
        x, y = method[0][drawn].mean(), method[1][drawn].mean()
        static = acceptance[:, drawn].mean(axis=1), quality[:, drawn].mean(axis=1)
        for front in (concave_hull(*static), interpolated_curve(*static)):
            expected.append([y - quality_at(front, x), x - acceptance_at(front, y)])
    expected = np.array(expected).reshape(60, 4)

    intervals = [
        distance.quality_above_hull,
        distance.acceptance_above_hull,
        distance.quality_above_curve,
        distance.acceptance_above_curve,
    ]
    for interval, values in zip(intervals, expected.T, strict=True):
        num_undefined = np.isnan(values).sum()
        assert interval.num_undefined_resamples == num_undefined
        if num_undefined <= 3:
            bounds = np.nanquantile(values, [0.1, 0.9])
            np.testing.assert_allclose([interval.low, interval.high], bounds, atol=1e-12)
    assert intervals[0].num_undefined_resamples == 0  # so at least these bounds were compared


def test_noise_shared_by_all_on_a_prompt_cancels():
    """Pairing at work: the same numbers with the method's prompts shuffled are far less certain."""
    generator = np.random.default_rng(4)
    hardness = generator.normal(0, 0.3, 200)
    acceptance = np.array([0.7, 0.85, 1.0])[:, None] + np.zeros(200)
    quality = np.array([0.9, 0.7, 0.3])[:, None] + hardness
    method = np.full(200, 0.9), 0.75 + hardness
    paired = front_distance(acceptance, quality, *method, num_resamples=300, seed=0)
    shuffled = method[0], generator.permutation(method[1])
    unpaired = front_distance(acceptance, quality, *shuffled, num_resamples=300, seed=0)
    width, unpaired_width = (
        d.quality_above_hull.high - d.quality_above_hull.low for d in (paired, unpaired)
    )
    assert unpaired.quality_above_hull.estimate == pytest.approx(paired.quality_above_hull.estimate)
    assert width < 1e-10
    assert unpaired_width > 0.05


def test_too_many_undefined_resamples_leave_no_bounds():
    """A method as good as lossless: in about half of the resamples no static point reaches it."""
    generator = np.random.default_rng(5)
    acceptance, quality = static_prompts(generator, num_prompts=60)
    method_quality = generator.permutation(quality[0])
    distance = front_distance(
        acceptance, quality, acceptance[1], method_quality, num_resamples=400, seed=0
    )
    interval = distance.acceptance_above_hull
    assert 100 < interval.num_undefined_resamples < 300
    assert interval.num_resamples == 400
    assert np.isfinite(interval.estimate)
    assert np.isnan([interval.low, interval.high]).all()
    assert np.isfinite(distance.quality_above_hull.low)


def test_method_outside_the_static_range_has_no_distance():
    acceptance, quality = static_prompts(np.random.default_rng(6))
    above = acceptance.max(axis=0) + 0.1
    interval = front_distance(
        acceptance, quality, above, quality[0], num_resamples=20, seed=0
    ).quality_above_hull
    assert np.isnan([interval.estimate, interval.low, interval.high]).all()
    assert interval.num_undefined_resamples == 20


# --- intervals ------------------------------------------------------------------------------------


def num_covered(num_data_sets=160, num_prompts=80):
    """Count the 70 % intervals that hold the true distance of a method 0.05 above the front.

    Static: (0.6, 0.9) and (1.0, 0.5), slope -1; the method's true means are (0.8, 0.75).
    """
    generator = np.random.default_rng(11)
    covered = 0
    for i in range(num_data_sets):
        x = np.array([0.6, 1.0, 0.8])[:, None] + generator.normal(0, 0.02, (3, num_prompts))
        y = generator.random((3, num_prompts)) < np.array([0.9, 0.5, 0.75])[:, None]
        interval = front_distance(
            x[:2], y[:2], x[2], y[2], num_resamples=60, level=0.7, seed=i
        ).quality_above_hull
        covered += interval.low <= 0.05 <= interval.high
    return covered


def is_honest(covered):
    """Test the null "coverage within 0.65 to 0.73" at n = 160, false alarm below 1e-6 in all.

    (A percentile bootstrap over 80 prompts with 60 resamples covers a little below its level.)
    """
    return binom.ppf(4e-7, 160, 0.65) <= covered <= binom.isf(4e-7, 160, 0.73)


def test_interval_covers_the_truth_as_often_as_it_says():
    """Null, sample size and false-alarm probability: see `is_honest`."""
    assert is_honest(num_covered())


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_coverage_check_rejects_a_bootstrap_of_the_wrong_spread(monkeypatch, spread):
    def mutant(num_prompts, num_resamples, seed):
        return 1 + spread * (resample_counts(num_prompts, num_resamples, seed) - 1)

    monkeypatch.setattr(bootstrap_module, "resample_counts", mutant)
    assert not is_honest(num_covered())


def test_resamples_draw_every_prompt_alike():
    """Null: each prompt is drawn 4000 times on average, sd 60; 1e-6 for all ten is 5.5 sd."""
    counts = resample_counts(10, 4000, seed=0)
    assert counts.shape == (4000, 10)
    assert (counts.sum(axis=1) == 10).all()
    assert np.abs(counts.sum(axis=0) - 4000).max() < 5.5 * np.sqrt(4000 * 0.9)
    assert (counts == 0).any(axis=1).mean() > 0.9  # with replacement: some prompt is left out


def test_mean_and_ratio_of_worked_examples():
    assert bootstrap_mean([1.0, 2.0, 6.0], num_resamples=10, seed=0).estimate == 3.0
    ratio = bootstrap_ratio([1, 9], [10, 10], num_resamples=10, seed=0)
    assert ratio.estimate == 0.5
    uneven = bootstrap_ratio([1, 1], [1, 9], num_resamples=10, seed=0)
    assert uneven.estimate == 0.2  # the ratio of sums, not the mean 0.556 of ratios


def test_mean_has_the_interval_of_the_normal_law():
    """Within 10 % of 1.96 standard errors: over 4 sd of the bounds' own noise; seed fixed."""
    values = np.random.default_rng(8).normal(5.0, 2.0, 400)
    interval = bootstrap_mean(values, num_resamples=4000, seed=0)
    reach = 1.96 * values.std() / np.sqrt(400)
    assert interval.high - values.mean() == pytest.approx(reach, rel=0.1)
    assert values.mean() - interval.low == pytest.approx(reach, rel=0.1)


def test_wider_level_gives_a_wider_interval_and_the_seed_decides_it():
    values = np.random.default_rng(9).random(50)
    narrow, wide = (bootstrap_mean(values, level=level, seed=0) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high
    assert bootstrap_mean(values, seed=0) == bootstrap_mean(values, seed=0)
    assert bootstrap_mean(values, seed=0) != bootstrap_mean(values, seed=1)


def test_ratio_counts_resamples_without_a_denominator():
    interval = bootstrap_ratio([1.0, 0.0], [1.0, 0.0], num_resamples=1000, seed=0)
    assert interval.estimate == 1.0
    assert 150 < interval.num_undefined_resamples < 350  # a quarter draws the second prompt twice
    assert np.isnan(interval.low)
    assert np.isnan(bootstrap_ratio([0.0], [0.0], num_resamples=5, seed=0).estimate)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "value", "message"),
    [
        ("static_acceptance", np.zeros(4), r"static_acceptance must have 2 .*\(4,\)"),
        (
            "static_quality",
            np.zeros((2, 4)),
            r"static_acceptance \(3, 4\), static_quality \(2, 4\)",
        ),
        ("method_quality", np.zeros(5), r"method_acceptance \(4,\), method_quality \(5,\)"),
        ("method_quality", [0, np.nan, 0, np.nan], "method_quality has 2 NaN"),
        ("static_quality", np.full((3, 4), np.inf), "static_quality has 12 NaN or infinite"),
        ("static_acceptance", np.zeros((0, 4)), r"static_acceptance must have .*none empty"),
        ("num_resamples", 0, "num_resamples must be at least 1, got 0"),
        ("level", 95, r"level must lie in \(0, 1\), got 95"),
    ],
)
def test_wrong_arguments_are_named(changed, value, message):
    arguments = {
        "static_acceptance": np.zeros((3, 4)),
        "static_quality": np.zeros((3, 4)),
        "method_acceptance": np.zeros(4),
        "method_quality": np.zeros(4),
        "seed": 0,
    }
    with pytest.raises(ValueError, match=message):
        front_distance(**(arguments | {changed: value}))


def test_other_prompts_for_the_method_are_refused():
    with pytest.raises(ValueError, match=r"share their prompts .*\(3, 4\) and \(5,\)"):
        front_distance(np.zeros((3, 4)), np.zeros((3, 4)), np.zeros(5), np.zeros(5), seed=0)


def test_fronts_and_ratios_name_wrong_arguments():
    with pytest.raises(ValueError, match="quality has 1 NaN"):
        concave_hull([0.1, 0.2], [0.3, np.nan])
    with pytest.raises(ValueError, match=r"acceptance \(2,\), quality \(3,\)"):
        interpolated_curve([0.1, 0.2], [0.3, 0.4, 0.5])
    with pytest.raises(ValueError, match=r"numerator \(2,\), denominator \(1,\)"):
        bootstrap_ratio([1, 2], [1], seed=0)
    with pytest.raises(ValueError, match="values has 1 NaN"):
        bootstrap_mean([1.0, np.nan], seed=0)
