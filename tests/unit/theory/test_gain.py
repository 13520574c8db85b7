"""The gain over the best rival: by hand, by a resampling of its own, and what is refused."""

import numpy as np
import pytest

from diversed.theory.gain import gain_over_best


def test_the_best_rival_counts_by_the_mean_over_its_seeds():
    own = [[3.0, 5.0], [5.0, 7.0]]  # 5
    rivals = [[[4.0, 4.0]], [[0.0, 9.0], [1.0, 8.0]]]  # 4 and 4.5
    assert gain_over_best(own, rivals, seed=0).estimate == pytest.approx(0.5)


def test_the_interval_is_that_of_a_plain_resampling():
    generator = np.random.default_rng(0)
    shared = generator.normal(size=300)
    own = 0.3 + shared + generator.normal(scale=0.5, size=(4, 300)) + [[0.2], [0.1], [-0.2], [-0.1]]
    rivals = [
        shared[None] + generator.normal(scale=0.5, size=(1, 300)),
        0.02 + shared + generator.normal(scale=0.5, size=(3, 300)) + [[0.1], [0.0], [-0.1]],
    ]
    found = gain_over_best(own, rivals, seed=1, num_resamples=8000)

    def drawn(array, prompts):
        number = len(array)
        rows = [0] if number == 1 else generator.integers(number, size=number - 1)
        return array[rows][:, prompts].mean()

    gains = []
    for _ in range(8000):
        prompts = generator.integers(300, size=300)
        gains.append(drawn(own, prompts) - max(drawn(rival, prompts) for rival in rivals))
    low, high = np.quantile(gains, [0.025, 0.975])
    width = high - low
    assert found.low == pytest.approx(low, abs=0.06 * width)
    assert found.high == pytest.approx(high, abs=0.06 * width)


def test_what_prompts_share_cancels():
    hard = np.random.default_rng(0).normal(scale=100, size=(1, 50))
    found = gain_over_best(hard + 1, [hard], seed=0)
    assert (found.estimate, found.low, found.high) == pytest.approx((1, 1, 1))


def test_a_choice_among_equals_is_not_held_against_the_method():
    """The best of several equal rivals looks better than each, and counts as that good."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(21, 400))
    found = gain_over_best(scores[:1], [row[None] for row in scores[1:]], seed=0)
    assert found.estimate < 0
    assert found.low < found.estimate


@pytest.mark.parametrize(
    ("own", "rivals", "message"),
    [
        ([[1.0]], [], "rivals is empty"),
        ([[1.0, 2.0]], [[[1.0]]], r"rivals\[0\] has 1 prompts, own has 2"),
        ([1.0, 2.0], [[[1.0, 2.0]]], "own"),
        ([[1.0]], [[[float("nan")]]], r"rivals\[0\]"),
    ],
)
def test_what_does_not_fit_is_named(own, rivals, message):
    with pytest.raises(ValueError, match=message):
        gain_over_best(own, rivals, seed=0)
