"""The shipped gradient estimator against the exact gradient, by enumeration in float64.

A language of three tokens (0 ends a text) and at most three tokens per text has 15 texts of random
length over 7 contexts. p, q and the rewards are random tables; the head is a table of one logit per
context, so that J(theta) = sum P(text) (R + lambda A) can be written down and differentiated. The
expectation of the estimator is a sum over all K-tuples of texts; each tuple goes through
`batch_returns` and `objective_loss` as a batch of its own.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.func import vmap

from diversed.objective import acceptance
from diversed.objective.acceptance import (
    ObjectiveSettings,
    TokenScalars,
    batch_returns,
    objective_loss,
)
from diversed.objective.reinforce import RunningMean

VOCAB_SIZE = 3
EOS = 0
UNBIASED = ("rloo", "running_mean", "none")
BIASED = ("group", "reinforce_pp")
RTOL = 1e-6
ATOL = 1e-12


@dataclass(frozen=True)
class Prompt:
    """One prompt's tables; theta [C] is shared by all prompts.

    `texts` and `contexts` hold for each text its tokens and the indices of their contexts.
    """

    texts: list[list[int]]
    contexts: list[list[int]]
    p: torch.Tensor  # [C, V]
    q: torch.Tensor  # [C, V]
    rewards: torch.Tensor  # [n]

    def scalars(self):
        """Return p, q, TV and mask of every text [n, T], and the contexts [n, T]."""
        longest = max(map(len, self.texts))
        values = torch.zeros(4, len(self.texts), longest, dtype=torch.float64)
        contexts = torch.zeros(len(self.texts), longest, dtype=torch.long)
        for row, (text, visited) in enumerate(zip(self.texts, self.contexts, strict=True)):
            for column, (token, context) in enumerate(zip(text, visited, strict=True)):
                p, q = self.p[context], self.q[context]
                tv = 0.5 * (p - q).abs().sum()
                values[:, row, column] = torch.tensor([p[token], q[token], tv, 1])
                contexts[row, column] = context
        return TokenScalars(values[0], values[1], values[2], values[3].bool()), contexts


def make_prompt(seed, max_length=3):
    words = [token for token in range(VOCAB_SIZE) if token != EOS]
    prefixes = [
        list(prefix)
        for length in range(max_length)
        for prefix in itertools.product(words, repeat=length)
    ]
    texts = [[*prefix, EOS] for prefix in prefixes]
    texts += [
        [*prefix, word] for prefix in prefixes if len(prefix) == max_length - 1 for word in words
    ]
    contexts = [[prefixes.index(text[:i]) for i in range(len(text))] for text in texts]
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(
        2, len(prefixes), VOCAB_SIZE, generator=generator, dtype=torch.float64
    ).softmax(-1)
    rewards = torch.rand(len(texts), generator=generator, dtype=torch.float64)
    return Prompt(texts, contexts, p, q, rewards)


def make_theta(prompt, seed=7):
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(len(prompt.p), generator=generator, dtype=torch.float64)
    return theta.requires_grad_()


PROMPT = make_prompt(0)
SHORT = (make_prompt(1, max_length=2), make_prompt(2, max_length=2))
SETTINGS = ObjectiveSettings(acceptance_weight=0.7)


def text_probs_and_terms(prompt, theta, reduction):
    """Return P(text) and A of every text, both [n], differentiable, from full distributions."""
    weight = theta.sigmoid()
    nu = weight[:, None] * prompt.p + (1 - weight[:, None]) * prompt.q
    accepted = torch.minimum(prompt.q, nu).sum(-1)  # [C], by definition, not by 1 - w TV
    probs, terms = [], []
    for text, visited in zip(prompt.texts, prompt.contexts, strict=True):
        probs.append(nu[visited, text].prod())
        total = accepted[visited].sum()
        terms.append(total if reduction == "sum" else total / len(text))
    return torch.stack(probs), torch.stack(terms)


def exact_objective(prompts, theta, settings, uses_direct=True, uses_score=True):
    """Return J; the switches drop the gradient of one of the two parts of A."""
    total = 0
    for prompt in prompts:
        probs, terms = text_probs_and_terms(prompt, theta, settings.acceptance_reduction)
        weight = settings.acceptance_weight
        total = total + (probs * prompt.rewards).sum()
        if uses_score:
            total = total + weight * (probs * terms.detach()).sum()
        if uses_direct:
            total = total + weight * (probs.detach() * terms).sum()
    return total / len(prompts)


def exact_gradient(prompts, theta, settings, **switches):
    (gradient,) = torch.autograd.grad(exact_objective(prompts, theta, settings, **switches), theta)
    return gradient


class FixedMean(RunningMean):
    """A running mean whose state is the same before every tuple."""

    def update(self, returns):
        pass


def expected_gradient(prompts, theta, settings, num_samples, baseline=None):
    """Return minus the gradient of the shipped loss, averaged over all tuples of texts."""
    tables = [prompt.scalars() for prompt in prompts]
    probs = [text_probs_and_terms(prompt, theta, "mean")[0].detach() for prompt in prompts]
    owner = [index for index in range(len(prompts)) for _ in range(num_samples)]
    tuples = torch.cartesian_prod(*(torch.arange(len(prompts[i].texts)) for i in owner))  # [m, S]
    tuple_probs = torch.stack([probs[i][tuples[:, s]] for s, i in enumerate(owner)], 1).prod(1)

    def choose(name):
        columns = [getattr(tables[i][0], name)[tuples[:, s]] for s, i in enumerate(owner)]
        return torch.stack(columns, dim=1)  # [m, S, T]

    contexts = torch.stack([tables[i][1][tuples[:, s]] for s, i in enumerate(owner)], dim=1)
    rewards = torch.stack([prompts[i].rewards[tuples[:, s]] for s, i in enumerate(owner)], dim=1)
    names = ("target_prob", "draft_prob", "tv_distance", "mask")

    def loss(target_prob, draft_prob, tv_distance, mask, contexts, rewards):
        scalars = TokenScalars(target_prob, draft_prob, tv_distance, mask)
        weight = theta.sigmoid()[contexts]
        returns = batch_returns(
            scalars, weight, rewards, num_samples, settings, baseline or FixedMean(2.8, 4)
        )
        return objective_loss(scalars, weight, returns, settings, is_first_update=True)

    losses = vmap(loss)(*map(choose, names), contexts, rewards)
    assert losses.isfinite().all()
    (gradient,) = torch.autograd.grad((tuple_probs * losses).sum(), theta)
    return -gradient


def check_unbiased(prompts, settings, num_samples, **switches):
    theta = make_theta(prompts[0])
    got = expected_gradient(prompts, theta, settings, num_samples)
    wanted = exact_gradient(prompts, theta, settings, **switches)
    torch.testing.assert_close(got, wanted, rtol=RTOL, atol=ATOL)


def test_the_law_of_the_texts_sums_to_1_and_has_three_lengths():
    probs, _ = text_probs_and_terms(PROMPT, make_theta(PROMPT), "mean")
    assert len(PROMPT.texts) == 15
    assert {len(text) for text in PROMPT.texts} == {1, 2, 3}
    assert float(probs.sum().detach()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("num_samples", [2, 3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("advantage", UNBIASED)
def test_estimator_is_unbiased(advantage, reduction, num_samples):
    settings = replace(SETTINGS, advantage=advantage, acceptance_reduction=reduction)
    check_unbiased([PROMPT], settings, num_samples)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("advantage", UNBIASED)
def test_estimator_is_unbiased_over_two_prompts(advantage, reduction):
    settings = replace(SETTINGS, advantage=advantage, acceptance_reduction=reduction)
    check_unbiased(SHORT, settings, 2)


def test_estimator_is_unbiased_with_a_running_mean_that_is_updated():
    settings = replace(SETTINGS, advantage="running_mean")
    theta = make_theta(PROMPT)
    scalars, contexts = PROMPT.scalars()
    probs = text_probs_and_terms(PROMPT, theta, "mean")[0].detach()
    total = 0
    for pair in itertools.product(range(len(PROMPT.texts)), repeat=2):
        rows = list(pair)
        chosen = TokenScalars(*(getattr(scalars, name)[rows] for name in vars(scalars)))
        weight = theta.sigmoid()[contexts[rows]]
        baseline = RunningMean(2.8, 4)
        returns = batch_returns(chosen, weight, PROMPT.rewards[rows], 2, settings, baseline)
        assert baseline.count == 6
        loss = objective_loss(chosen, weight, returns, settings, is_first_update=True)
        total = total + probs[rows].prod() * loss
    (gradient,) = torch.autograd.grad(total, theta)
    wanted = exact_gradient([PROMPT], theta, settings)
    torch.testing.assert_close(-gradient, wanted, rtol=RTOL, atol=ATOL)


def test_exact_gradient_agrees_with_finite_differences_of_the_objective():
    theta = make_theta(PROMPT)
    got = expected_gradient([PROMPT], theta, SETTINGS, 2)
    step = 1e-5
    wanted = []
    for index in range(theta.numel()):
        values = []
        for sign in (1, -1):
            moved = theta.detach().clone()
            moved[index] += sign * step
            probs, terms = text_probs_and_terms(PROMPT, moved, "mean")
            returns = PROMPT.rewards + SETTINGS.acceptance_weight * terms
            values.append(float((probs * returns).sum()))
        wanted.append((values[0] - values[1]) / (2 * step))
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6, atol=1e-9)


def numpy_expectation(prompts, theta, settings, num_samples):
    """Return the expected gradient of a biased advantage, written out without torch."""
    weight = 1 / (1 + np.exp(-theta.detach().numpy()))
    slope = weight * (1 - weight)
    laws, scores, term_slopes, returns = [], [], [], []
    for prompt in prompts:
        p, q = prompt.p.numpy(), prompt.q.numpy()
        nu = weight[:, None] * p + (1 - weight[:, None]) * q
        tv = np.maximum(q - p, 0).sum(1)
        law = np.ones(len(prompt.texts))
        score = np.zeros((len(prompt.texts), len(weight)))
        term, term_slope = np.zeros(len(law)), np.zeros_like(score)
        for i, (text, visited) in enumerate(zip(prompt.texts, prompt.contexts, strict=True)):
            for token, context in zip(text, visited, strict=True):
                law[i] *= nu[context, token]
                score[i, context] += (p - q)[context, token] / nu[context, token] * slope[context]
                term[i] += (1 - weight[context] * tv[context]) / len(text)
                term_slope[i, context] -= tv[context] * slope[context] / len(text)
        laws.append(law)
        scores.append(score)
        term_slopes.append(term_slope)
        returns.append(prompt.rewards.numpy() + settings.acceptance_weight * term)
    owner = [index for index in range(len(prompts)) for _ in range(num_samples)]
    total = np.zeros(len(weight))
    for chosen in itertools.product(*(range(len(prompts[i].texts)) for i in owner)):
        prob = np.prod([laws[i][text] for i, text in zip(owner, chosen, strict=True)])
        values = np.array([returns[i][text] for i, text in zip(owner, chosen, strict=True)])
        if settings.advantage == "reinforce_pp":
            advantage = (values - values.mean()) / (values.std() + 1e-6)
        else:
            table = values.reshape(len(prompts), num_samples)
            advantage = (table - table.mean(1, keepdims=True)) / (
                table.std(1, keepdims=True) + 1e-6
            )
            advantage = advantage.ravel()
        for i, text, value in zip(owner, chosen, advantage, strict=True):
            part = value * scores[i][text] + settings.acceptance_weight * term_slopes[i][text]
            total += prob * part / len(owner)
    return total


@pytest.mark.parametrize("advantage", BIASED)
@pytest.mark.parametrize(("prompts", "num_samples"), [([PROMPT], 2), (SHORT, 2)])
def test_biased_advantages_have_their_published_expectation(advantage, prompts, num_samples):
    settings = replace(SETTINGS, advantage=advantage)
    theta = make_theta(prompts[0])
    got = expected_gradient(prompts, theta, settings, num_samples).numpy()
    wanted = numpy_expectation(prompts, theta, settings, num_samples)
    np.testing.assert_allclose(got, wanted, rtol=RTOL, atol=ATOL)
    exact = exact_gradient(prompts, theta, settings).numpy()
    assert np.abs(got - exact).max() > 0.01 * np.abs(exact).max()


def test_group_and_reinforce_pp_differ_where_there_are_two_prompts():
    theta = make_theta(SHORT[0])
    group, batch = (
        expected_gradient(SHORT, theta, replace(SETTINGS, advantage=name), 2) for name in BIASED
    )
    assert float((group - batch).abs().max()) > 0.01 * float(group.abs().max())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kept", ["direct", "score"])
def test_each_switch_drops_its_part_alone(kept, reduction):
    settings = replace(
        SETTINGS,
        acceptance_reduction=reduction,
        uses_direct_gradient=kept == "direct",
        uses_score_gradient=kept == "score",
    )
    check_unbiased([PROMPT], settings, 2, uses_direct=kept == "direct", uses_score=kept == "score")
    with pytest.raises(AssertionError):
        check_unbiased([PROMPT], settings, 2)


@pytest.mark.parametrize("advantage", [*UNBIASED, *BIASED])
def test_constant_return_without_acceptance_term_gives_mean_zero(advantage):
    constant = replace(PROMPT, rewards=torch.ones_like(PROMPT.rewards))
    settings = replace(SETTINGS, acceptance_weight=0.0, advantage=advantage)
    gradient = expected_gradient([constant], make_theta(PROMPT), settings, 2)
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize("advantage", ["rloo", *BIASED])
def test_zero_spread_of_one_batch_gives_a_zero_gradient(advantage):
    settings = replace(SETTINGS, acceptance_weight=0.0, advantage=advantage)
    scalars, contexts = PROMPT.scalars()
    theta = make_theta(PROMPT)
    weight = theta.sigmoid()[contexts]
    rewards = torch.ones(len(PROMPT.texts), dtype=torch.float64)
    returns = batch_returns(scalars, weight, rewards, 5, settings, RunningMean())
    loss = objective_loss(scalars, weight, returns, settings, is_first_update=True)
    (gradient,) = torch.autograd.grad(loss, theta)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_step_on_the_acceptance_term_alone_raises_expected_acceptance(reduction):
    silent = replace(PROMPT, rewards=torch.zeros_like(PROMPT.rewards))
    settings = replace(SETTINGS, acceptance_reduction=reduction)
    theta = make_theta(PROMPT)
    before = exact_objective([silent], theta, settings, uses_direct=False).detach()
    moved = theta + 1e-3 * expected_gradient([silent], theta, settings, 2)
    assert exact_objective([silent], moved, settings, uses_direct=False).detach() > before


def test_the_direct_part_lowers_w_wherever_the_models_differ():
    settings = replace(SETTINGS, uses_score_gradient=False)
    silent = replace(PROMPT, rewards=torch.zeros_like(PROMPT.rewards))
    gradient = expected_gradient([silent], make_theta(PROMPT), settings, 2)
    assert (gradient < 0).all()


def wrong_sign(term):
    return lambda *arguments: -term(*arguments)


def token_mean(log_probs, sampled_log_probs, token_mask, advantage, clip_ratio):
    total = (advantage.unsqueeze(1) * log_probs * token_mask).sum()
    return -total / token_mask.sum()


@pytest.mark.parametrize("mutant", ["wrong_sign", "token_mean", "no_score", "no_leave_one_out"])
def test_the_check_rejects_faults(mutant, monkeypatch):
    if mutant == "wrong_sign":
        monkeypatch.setattr(acceptance, "acceptance_term", wrong_sign(acceptance.acceptance_term))
    elif mutant == "token_mean":
        monkeypatch.setattr(acceptance, "policy_loss", token_mean)
    elif mutant == "no_score":
        shipped = acceptance.policy_loss
        monkeypatch.setattr(
            acceptance, "policy_loss", lambda log_probs, *rest: shipped(log_probs.detach(), *rest)
        )
    else:
        monkeypatch.setattr(
            acceptance,
            "advantages",
            lambda name, returns, baseline: returns - returns.mean(1, keepdim=True),
        )
    with pytest.raises(AssertionError):
        check_unbiased([PROMPT], SETTINGS, 2)
