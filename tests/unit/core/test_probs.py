"""Distributions: the identities of mixed verification, the transforms, and the edge cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from diversed.core.probs import (
    NUM_FEATURES,
    Sampling,
    distribution_features,
    expected_acceptance,
    logits_to_probs,
    mix,
    mixture_accept_probs,
    residual,
    tv_distance,
)

WEIGHTS = (0.0, 1e-7, 0.1, 0.3, 0.5, 0.7, 0.999, 1.0)


def random_pairs(generator, num_rows=50, vocab_size=7):
    """Return p, q [num_rows, V] in float64, some entries tiny."""
    logits = torch.randn(2, num_rows, vocab_size, generator=generator, dtype=torch.float64) * 4
    return logits.softmax(-1)


def emitted_law(p, q, w):
    """Return the law of the token emitted at a judged position, by the shipped rule."""
    accepted = q * mixture_accept_probs(p, q, w.unsqueeze(-1).expand_as(p))
    accepted = torch.where(q > 0, accepted, 0)  # never drafted, never judged
    weights = residual(p, q)
    rejected = 1 - accepted.sum(-1, keepdim=True)
    return accepted + rejected * weights / weights.sum(-1, keepdim=True)


# --- identities, float64 against brute force ------------------------------------------------------


@pytest.mark.parametrize("weight", WEIGHTS)
def test_accept_probs_are_nu_over_q_capped_at_one(generator, weight):
    p, q = random_pairs(generator)
    got = mixture_accept_probs(p, q, torch.full_like(p, weight))
    for row in range(p.shape[0]):
        for token in range(p.shape[1]):
            p_x, q_x = float(p[row, token]), float(q[row, token])
            wanted = min(1.0, (weight * p_x + (1 - weight) * q_x) / q_x)
            assert float(got[row, token]) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_acceptance_is_the_overlap_of_q_and_nu(generator, weight):
    p, q = random_pairs(generator)
    w = torch.full(p.shape[:-1], weight, dtype=torch.float64)
    overlap = torch.minimum(q, weight * p + (1 - weight) * q).sum(-1)
    tv = tv_distance(q, p)
    drafted = (q * mixture_accept_probs(p, q, torch.full_like(p, weight))).sum(-1)
    assert torch.allclose(tv, (p - q).abs().sum(-1) / 2, atol=1e-14)
    assert torch.allclose(expected_acceptance(tv, w), overlap, atol=1e-14)
    assert torch.allclose(drafted, overlap, atol=1e-14)
    assert torch.allclose(1 - tv_distance(q, mix(p, q, w)), overlap, atol=1e-14)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_bias_of_nu_shrinks_with_the_weight(generator, weight):
    p, q = random_pairs(generator)
    w = torch.full(p.shape[:-1], weight, dtype=torch.float64)
    assert torch.allclose(tv_distance(mix(p, q, w), p), (1 - w) * tv_distance(q, p), atol=1e-14)


@pytest.mark.parametrize("weight", [w for w in WEIGHTS if w >= 0.1])
def test_residual_is_that_of_nu_for_every_positive_weight(generator, weight):
    p, q = random_pairs(generator)
    of_nu = (weight * p + (1 - weight) * q - q).clamp(min=0)
    got = residual(p, q)
    assert torch.allclose(
        got / got.sum(-1, keepdim=True), of_nu / of_nu.sum(-1, keepdim=True), atol=1e-12
    )


def test_residual_in_fp32_is_exact_where_nu_minus_q_cancels():
    p = torch.tensor([0.5, 0.3, 0.2])
    q = torch.tensor([0.2, 0.4, 0.4])
    nu = mix(p, q, torch.tensor(1e-8))
    assert torch.equal(nu, q)  # nothing is left of nu - q in fp32
    assert torch.allclose(residual(p, q), torch.tensor([0.3, 0.0, 0.0]))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_emitted_token_follows_nu(generator, weight):
    p, q = random_pairs(generator)
    w = torch.full(p.shape[:-1], weight, dtype=torch.float64)
    nu = weight * p + (1 - weight) * q
    assert torch.allclose(emitted_law(p, q, w), nu, atol=1e-14)


def test_three_scalars_per_token_give_the_whole_gradient(generator):
    p, q = random_pairs(generator)
    token = torch.randint(p.shape[-1], p.shape[:-1], generator=generator).unsqueeze(-1)
    full = torch.rand(p.shape[:-1], generator=generator, dtype=torch.float64).requires_grad_()
    nu = mix(p, q, full)
    (nu.gather(-1, token).log().sum() + torch.minimum(q, nu).sum()).backward()
    short = full.detach().clone().requires_grad_()
    p_x, q_x = p.gather(-1, token)[:, 0], q.gather(-1, token)[:, 0]
    log_nu = (short * p_x + (1 - short) * q_x).log()
    (log_nu.sum() + expected_acceptance(tv_distance(q, p), short).sum()).backward()
    assert torch.allclose(full.grad, short.grad, rtol=1e-10)


def distributions(size):
    """Return a strategy of float64 distributions; zeros and extreme ratios included."""
    weight = st.one_of(st.just(0.0), st.floats(1e-30, 1.0))
    return (
        st.lists(weight, min_size=size, max_size=size)
        .filter(lambda values: sum(values) > 1e-3)
        .map(lambda values: torch.tensor(values, dtype=torch.float64) / sum(values))
    )


@given(
    pair=st.integers(1, 6).flatmap(lambda n: st.tuples(distributions(n), distributions(n))),
    weight=st.one_of(st.sampled_from(WEIGHTS), st.floats(0.0, 1.0)),
)
def test_identities_hold_for_any_distributions(pair, weight):
    p, q = pair
    w = torch.tensor(weight, dtype=torch.float64)
    nu = mix(p, q, w)
    tv = tv_distance(q, p)
    assert float(nu.sum()) == pytest.approx(1, abs=1e-12)
    assert 0 <= float(tv) <= 1
    assert float(expected_acceptance(tv, w)) == pytest.approx(
        float(torch.minimum(q, nu).sum()), abs=1e-12
    )
    assert torch.allclose(emitted_law(p, q, w), nu, atol=1e-12)


@given(
    pair=st.integers(1, 6).flatmap(lambda n: st.tuples(distributions(n), distributions(n))),
    weight=st.floats(0.0, 1.0),
)
def test_fp32_laws_are_finite_and_sum_to_one(pair, weight):
    p, q = (probs.float() for probs in pair)
    w = torch.tensor(weight, dtype=torch.float32)
    law = emitted_law(p, q, w)
    assert bool(torch.isfinite(law).all())
    assert float(law.sum()) == pytest.approx(1, abs=1e-5)
    assert torch.allclose(law, mix(p, q, w), atol=1e-5)


# --- transforms against transformers --------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 3, 49, 50, 60])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("has_ties", [False, True])
def test_transforms_equal_those_of_transformers(generator, temperature, top_k, top_p, has_ties):
    logits = torch.randn(20, 50, generator=generator) * 3
    if has_ties:
        logits = logits.round()
    scores = logits
    if temperature != 1:
        scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    got = logits_to_probs(logits, Sampling(temperature, top_k, top_p))
    assert torch.equal(got, scores.softmax(-1))


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    for top_p, kept in ((0.4, [1]), (0.6, [1, 3]), (0.8, [1, 2, 3]), (0.95, [0, 1, 2, 3])):
        probs = logits_to_probs(logits, Sampling(top_p=top_p))
        assert probs.nonzero()[:, 0].tolist() == kept


def test_transforms_come_in_the_order_temperature_top_k_top_p():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # after top-k 2 the first token holds 4/7 of the mass and reaches 0.5 alone; before, it does not
    probs = logits_to_probs(logits, Sampling(top_k=2, top_p=0.5))
    assert probs.tolist() == [1, 0, 0, 0]


def test_temperature_zero_gives_the_plain_softmax(generator):
    logits = torch.randn(5, 9, generator=generator)
    probs = logits_to_probs(logits, Sampling(temperature=0, top_k=1, top_p=0.1))
    assert torch.equal(probs, logits.softmax(-1))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"temperature": -0.1}, "decoding.temperature=-0.1"),
        ({"temperature": math.inf}, "decoding.temperature=inf"),
        ({"temperature": math.nan}, "decoding.temperature=nan"),
        ({"top_k": -1}, "decoding.top_k=-1"),
        ({"top_p": 0.0}, "decoding.top_p=0.0"),
        ({"top_p": 1.1}, "decoding.top_p=1.1"),
        ({"top_p": math.nan}, "decoding.top_p=nan"),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(settings, key):
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        Sampling(**settings)


# --- edge cases -----------------------------------------------------------------------------------


def edge_logits(dtype):
    """Return pairs of logits [num_cases, V] that break careless code."""
    inf = math.inf
    cases = [
        ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]),  # p == q
        ([-inf, 0.0, -inf, -inf], [0.0, 1.0, 2.0, 3.0]),  # p one-hot
        ([0.0, 1.0, 2.0, 3.0], [-inf, -inf, 0.0, -inf]),  # q one-hot
        ([-inf, 0.0, -inf, -inf], [-inf, 0.0, -inf, -inf]),  # the same one-hot row
        ([0.0, -inf, -inf, -inf], [-inf, 0.0, -inf, -inf]),  # disjoint
        ([-inf, 1.0, 1.0, -inf], [1.0, 1.0, -inf, -inf]),  # overlapping in part
        ([50.0, -50.0, 0.0, -inf], [-50.0, 50.0, 0.0, -inf]),  # probabilities underflow
        ([90.0, 0.0, 0.0, 0.0], [0.0, 90.0, 0.0, 0.0]),
    ]
    target, draft = zip(*cases, strict=True)
    return torch.tensor(target, dtype=dtype), torch.tensor(draft, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.01), Sampling(top_k=2), Sampling(top_p=0.5)]
)
def test_edge_cases_give_no_nan_and_laws_that_sum_to_one(dtype, weight, sampling):
    p, q = (logits_to_probs(logits, sampling) for logits in edge_logits(dtype))
    assert p.dtype == q.dtype == torch.float32
    w = torch.full(p.shape[:-1], weight)
    tv = tv_distance(q, p)
    for law in (p, q, mix(p, q, w), emitted_law(p, q, w)):
        assert bool(torch.isfinite(law).all())
        assert bool((law >= 0).all())
        assert torch.allclose(law.sum(-1), torch.ones(p.shape[0]), atol=1e-6)
    assert torch.allclose(emitted_law(p, q, w), mix(p, q, w), atol=1e-6)
    assert bool((residual(p, q).sum(-1) > 0).all())
    assert bool(((expected_acceptance(tv, w) >= 0) & (expected_acceptance(tv, w) <= 1)).all())
    drafted = q > 0
    accept_probs = mixture_accept_probs(p, q, w.unsqueeze(-1).expand_as(p))[drafted]
    assert bool(((accept_probs >= 0) & (accept_probs <= 1)).all())


def test_float64_logits_stay_float64(generator):
    logits = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    assert logits_to_probs(logits, Sampling(0.7, 3, 0.9)).dtype == torch.float64


@pytest.mark.parametrize("draft_prob", [1e-45, 1e-42, 1e-38])
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("target_prob", [0.0, 0.5, 1.0])
def test_denormal_draft_probability_gives_no_nan(draft_prob, weight, target_prob):
    """Computed as w (p / q), the ratio is 0 times infinity at w = 0."""
    p, q, w = torch.tensor([target_prob, draft_prob, weight])
    wanted = min(1.0, 1 - float(w) + float(w) * float(p) / float(q))
    assert float(mixture_accept_probs(p, q, w)) == pytest.approx(wanted, abs=1e-6)


def test_equal_distributions_leave_a_residual_to_draw_from():
    p = torch.tensor([[0.2, 0.8, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(residual(p, p), p)


def test_inputs_are_left_as_they_were(generator):
    p, q = random_pairs(generator)
    logits = torch.randn(4, 9, generator=generator)
    before = p.clone(), q.clone(), logits.clone()
    residual(p, q)
    tv_distance(p, q)
    mix(p, q, torch.full(p.shape[:-1], 0.5, dtype=torch.float64))
    logits_to_probs(logits, Sampling(0.5, 3, 0.5))
    for tensor, copy in zip((p, q, logits), before, strict=True):
        assert torch.equal(tensor, copy)


def test_shapes_that_differ_are_refused():
    p, q = torch.ones(2, 3), torch.ones(2, 4)
    for function in (residual, tv_distance):
        with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 4\)"):
            function(p, q)
    with pytest.raises(ValueError, match="target_probs"):
        mix(p, q, torch.ones(2))


# --- features -------------------------------------------------------------------------------------


def test_features_are_entropies_distance_and_largest_probabilities(generator):
    p, q = random_pairs(generator)
    q[0] = torch.eye(q.shape[1])[2]  # a one-hot row has entropy 0, not NaN
    got = distribution_features(p, q)
    assert got.shape == (p.shape[0], NUM_FEATURES)
    wanted = np.stack(
        [
            entropy(p.numpy(), axis=-1),
            entropy(q.numpy(), axis=-1),
            np.abs(p.numpy() - q.numpy()).sum(-1) / 2,
            p.numpy().max(-1),
            q.numpy().max(-1),
        ],
        axis=-1,
    )
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-12)
