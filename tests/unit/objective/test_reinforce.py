"""Advantages, clipping and the settings of the objective, by numbers worked out by hand."""

import math
import re

import pytest
import torch

from diversed.objective.acceptance import (
    ObjectiveSettings,
    TokenScalars,
    acceptance_term,
    mixture_log_probs,
    objective_loss,
)
from diversed.objective.acceptance import batch_returns as make_returns
from diversed.objective.reinforce import ADVANTAGES, RunningMean, advantages, policy_loss

RETURNS = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
SPREAD = math.sqrt(14 / 3)  # of 1, 2, 6
SHORT_SPREAD = math.sqrt(2)  # of 0, 0, 3
BATCH_SPREAD = math.sqrt((1 + 0 + 16 + 4 + 4 + 1) / 6)  # of all six, mean 2
BY_HAND = {
    "rloo": [[-3.0, -1.5, 4.5], [-1.5, -1.5, 3.0]],
    "none": [[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]],
    "running_mean": [[0.5, 1.5, 5.5], [-0.5, -0.5, 2.5]],
    "group": [
        [-2 / SPREAD, -1 / SPREAD, 3 / SPREAD],
        [-1 / SHORT_SPREAD, -1 / SHORT_SPREAD, 2 / SHORT_SPREAD],
    ],
    "reinforce_pp": [
        [-1 / BATCH_SPREAD, 0.0, 4 / BATCH_SPREAD],
        [-2 / BATCH_SPREAD, -2 / BATCH_SPREAD, 1 / BATCH_SPREAD],
    ],
}


def close(got, wanted, tolerance=1e-9):
    wanted = torch.as_tensor(wanted, dtype=got.dtype)
    torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_by_hand(name):
    got = advantages(name, RETURNS, RunningMean(total=1.0, count=2))
    close(got, BY_HAND[name], tolerance=1e-5 if name in ("group", "reinforce_pp") else 1e-12)


@pytest.mark.parametrize("name", ["group", "reinforce_pp", "rloo"])
def test_zero_spread_gives_zeros(name):
    close(advantages(name, torch.full((2, 3), 0.3), RunningMean()), torch.zeros(2, 3), 1e-6)
    close(advantages(name, torch.full((3, 7), 0.7), RunningMean()), torch.zeros(3, 7), 1e-6)


@pytest.mark.parametrize("name", ["rloo", "group"])
def test_one_sample_per_prompt_is_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"samples_per_prompt=1: objective\.advantage={name} "):
        advantages(name, torch.ones(4, 1), RunningMean())


@pytest.mark.parametrize("name", ["running_mean", "none", "reinforce_pp"])
def test_one_sample_per_prompt_will_do_for_the_others(name):
    assert advantages(name, torch.rand(4, 1), RunningMean()).isfinite().all()


def test_unknown_advantage_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"objective\.advantage='gae'.*rloo.*reinforce_pp"):
        advantages("gae", torch.ones(2, 2), RunningMean())


def test_running_mean_is_updated_after_use():
    baseline = RunningMean()
    close(advantages("running_mean", torch.tensor([[2.0, 4.0]]), baseline), [[2.0, 4.0]])
    assert baseline.value == 3.0
    close(advantages("running_mean", torch.tensor([[9.0]]), baseline), [[6.0]])
    assert baseline.value == 5.0  # (2 + 4 + 9) / 3: every return weighs the same


def test_other_advantages_leave_the_running_mean_alone():
    baseline = RunningMean(total=3.0, count=2)
    for name in set(ADVANTAGES) - {"running_mean"}:
        advantages(name, RETURNS, baseline)
    assert (baseline.total, baseline.count) == (3.0, 2)


@pytest.mark.parametrize(
    ("ratio", "advantage", "counted"),
    [
        (1.1, 1.0, 1.1),  # inside
        (2.0, 1.0, 1.2),  # too good to be true: clipped
        (2.0, -1.0, -2.0),  # a loss counts in full
        (0.5, 1.0, 0.5),
        (0.5, -1.0, -0.8),
    ],
)
def test_ratios_are_clipped_pessimistically(ratio, advantage, counted):
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    sampled = torch.zeros(1, 1, dtype=torch.float64)
    loss = policy_loss(log_probs, sampled, mask, torch.tensor([advantage]).double(), 0.2)
    assert float(loss.detach()) == pytest.approx(-counted, abs=1e-12)
    loss.backward()
    is_clipped = counted != pytest.approx(ratio * advantage)
    assert float(log_probs.grad) == pytest.approx(0 if is_clipped else -ratio * advantage)


def ragged(generator, lengths=(1, 4, 2)):
    """Return scalars [S, T] of sequences of several lengths, and w."""
    shape = (len(lengths), max(lengths))
    values = torch.rand(4, *shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    return TokenScalars(values[0], values[1], values[2], mask), values[3]


def test_at_ratio_1_the_clipped_gradient_is_reinforce(generator):
    scalars, weight = ragged(generator)
    advantage = torch.randn(3, generator=generator, dtype=torch.float64)
    gradients = []
    for clip_ratio in (None, 0.2):
        leaf = weight.clone().requires_grad_()
        log_probs = mixture_log_probs(scalars, leaf)
        loss = policy_loss(log_probs, log_probs.detach(), scalars.mask, advantage, clip_ratio)
        gradients.append(torch.autograd.grad(loss, leaf)[0])
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("is_first_update", [True, False])
@pytest.mark.parametrize("padding", [0.0, 0.9, math.nan])
def test_padded_tokens_have_no_influence(generator, reduction, is_first_update, padding):
    settings = ObjectiveSettings(acceptance_weight=0.5, acceptance_reduction=reduction)
    scalars, weight = ragged(generator, lengths=(1, 4, 2, 4))
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    outcomes = []
    for filling in (0.5, padding):
        filled = [
            torch.where(scalars.mask, values, filling)
            for values in (scalars.target_prob, scalars.draft_prob, scalars.tv_distance)
        ]
        leaf = weight.clone().requires_grad_()
        own = TokenScalars(*filled, scalars.mask)
        returns = make_returns(own, weight * 0.9, rewards, 2, settings, RunningMean())
        loss = objective_loss(own, leaf, returns, settings, is_first_update)
        (gradient,) = torch.autograd.grad(loss, leaf)
        outcomes.append((loss.detach(), gradient[scalars.mask]))
        assert bool((gradient[~scalars.mask] == 0).all()) or math.isnan(filling)
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-12, atol=1e-15)


def test_losses_average_over_sequences_not_tokens():
    mask = torch.tensor([[True, False, False], [True, True, True]])
    log_probs = torch.tensor([[-1.0, 0.0, 0.0], [-2.0, -2.0, -2.0]])
    loss = policy_loss(log_probs, log_probs, mask, torch.tensor([1.0, 1.0]), None)
    assert float(loss) == pytest.approx((1 + 6) / 2)


@pytest.mark.parametrize(("reduction", "wanted"), [("mean", [0.8, 0.7]), ("sum", [0.8, 1.4])])
def test_acceptance_term_by_hand(reduction, wanted):
    mask = torch.tensor([[True, False], [True, True]])
    tv = torch.tensor([[0.4, 1.0], [0.2, 1.0]], dtype=torch.float64)
    weight = torch.tensor([[0.5, 1.0], [0.5, 0.5]], dtype=torch.float64)
    scalars = TokenScalars(torch.ones_like(tv), torch.ones_like(tv), tv, mask)
    close(acceptance_term(scalars, weight, reduction), wanted, 1e-12)


def test_log_probs_are_of_the_mixture_and_always_finite():
    scalars = TokenScalars(
        torch.tensor([[0.2, 0.0, 0.5]]),
        torch.tensor([[0.6, 0.0, 0.5]]),
        torch.tensor([[0.4, 0.4, 0.0]]),
        torch.tensor([[True, True, False]]),
    )
    weight = torch.tensor([[0.25, 0.5, 0.5]], requires_grad=True)
    log_probs = mixture_log_probs(scalars, weight)
    assert float(log_probs[0, 0].detach()) == pytest.approx(math.log(0.25 * 0.2 + 0.75 * 0.6))
    assert log_probs.isfinite().all()
    assert float(log_probs[0, 2].detach()) == 0
    log_probs.sum().backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, -math.inf, "abc", "None", None, True])
def test_lambda_that_is_no_weight_is_refused_by_name(value):
    with pytest.raises(ValueError, match=re.escape(f"lambda={value}: must be a finite number")):
        ObjectiveSettings(acceptance_weight=value)


@pytest.mark.parametrize("value", [0, 0.0, 3, 2.5])
def test_lambda_may_be_any_other_number(value):
    assert ObjectiveSettings(acceptance_weight=value).acceptance_weight == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acceptance_reduction": "max"}, r"objective\.acceptance_reduction='max'.*mean, sum"),
        ({"advantage": "gae"}, r"objective\.advantage='gae'"),
        ({"clip_ratio": 0.0}, r"objective\.clip_ratio=0\.0"),
        ({"clip_ratio": math.nan}, r"objective\.clip_ratio=nan"),
    ],
)
def test_other_settings_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        ObjectiveSettings(acceptance_weight=1.0, **options)


def test_shapes_that_do_not_fit_are_refused():
    ones = torch.ones(2, 3)
    with pytest.raises(ValueError, match="advantage"):
        policy_loss(ones, ones, ones.bool(), torch.ones(3), None)
    with pytest.raises(ValueError, match="token_mask"):
        policy_loss(ones, ones, ones.bool()[:, :2], torch.ones(2), None)
