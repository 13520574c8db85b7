"""The speed model by numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diversed.theory.accepted_length import iid_accepted_length, iid_survival
from diversed.theory.speed import (
    MeasuredSeconds,
    StepCosts,
    best_draft_length,
    draft_steps,
    predicted_speedup,
    speedups_by_length,
    step_costs,
)

COSTS = StepCosts(draft_step=0.2, target_pass=1.2, overhead=0.3)


def test_speedup_worked_by_hand():
    assert predicted_speedup(3.0, 5, COSTS) == pytest.approx(4 / (5 * 0.2 + 1.2 + 0.3))
    assert predicted_speedup(3.0, 5.25, COSTS) == pytest.approx(4 / 2.55)


@given(acceptance=st.floats(0, 0.99), draft_length=st.integers(1, 9), cost=st.floats(0, 2))
def test_without_overhead_and_under_iid_it_is_leviathans_walltime_improvement(
    acceptance, draft_length, cost
):
    free = StepCosts(draft_step=cost, target_pass=1, overhead=0)
    improvement = (1 - acceptance ** (draft_length + 1)) / (
        (1 - acceptance) * (draft_length * cost + 1)
    )
    mean = iid_accepted_length(acceptance, draft_length)
    assert predicted_speedup(mean, draft_length, free) == pytest.approx(improvement, rel=1e-9)


def test_verifiers_bonus_needs_a_draft_step_after_full_blocks():
    assert draft_steps(5, 0.25, "verifier") == 5.25
    assert draft_steps(5, 0.25, "target") == 5
    with pytest.raises(ValueError, match="bonus='nu': must be verifier or target"):
        draft_steps(5, 0.25, "nu")


PLAIN = MeasuredSeconds(total=12.0, target=10.0, num_target=100)
SPECULATIVE = MeasuredSeconds(total=9.0, target=4.8, num_target=40, draft=3.0, num_draft=200)


def test_costs_worked_by_hand():
    costs = step_costs(PLAIN, SPECULATIVE)
    assert costs.unit_seconds == pytest.approx(0.1)
    assert costs.draft_step == pytest.approx(3 / 200 / 0.1)
    assert costs.target_pass == pytest.approx(4.8 / 40 / 0.1)
    assert costs.overhead == pytest.approx((9 - 4.8 - 3) / 40 / 0.1)
    assert costs.plain_overhead == pytest.approx(0.2)


def test_speedup_from_the_runs_own_costs_is_the_measured_one():
    """100 plain tokens in 12 s, 40 blocks in 9 s: nothing of the time is lost or counted twice."""
    accepted, steps = 1.75, 200 / 40
    measured = (40 * (accepted + 1) / 9.0) / (100 / 12.0)
    assert predicted_speedup(accepted, steps, step_costs(PLAIN, SPECULATIVE)) == pytest.approx(
        measured
    )


def test_speedup_by_length_uses_the_first_entries_of_the_survival():
    survival = [0.8, 0.5, 0.1]
    expected = [
        1.8 / (1.8 * 0.2 + 1.5),
        2.3 / (2.5 * 0.2 + 1.5),
        2.4 / (3.1 * 0.2 + 1.5),
    ]
    np.testing.assert_allclose(speedups_by_length(survival, COSTS, "verifier"), expected)
    assert best_draft_length(survival, COSTS, "verifier") == 2
    assert best_draft_length(survival, StepCosts(0.01, 1, 0), "target") == 3
    assert best_draft_length(survival, StepCosts(2.0, 1, 0), "target") == 1


def test_costs_may_differ_by_length():
    survival = iid_survival(0.9, 4)
    rising = [StepCosts(0.1, 1 + n, 0) for n in range(4)]
    one_by_one = [
        speedups_by_length(survival, costs, "target")[n] for n, costs in enumerate(rising)
    ]
    np.testing.assert_array_equal(speedups_by_length(survival, rising, "target"), one_by_one)
    assert best_draft_length(survival, rising, "target") == 1
    with pytest.raises(ValueError, match="costs has 3 entries, survival 4"):
        speedups_by_length(survival, rising[:3], "target")


@pytest.mark.parametrize(
    ("plain", "speculative", "message"),
    [
        (MeasuredSeconds(1, 0, 0), SPECULATIVE, "plain: 0 target calls took 0 s"),
        (PLAIN, MeasuredSeconds(1, 0.5, 0, 1, 1), "speculative: 0 target calls"),
        (PLAIN, PLAIN, "speculative: it made no draft call"),
    ],
)
def test_runs_without_calls_have_no_costs(plain, speculative, message):
    with pytest.raises(ValueError, match=message):
        step_costs(plain, speculative)
