"""Accepted length by enumeration against sums written out by hand, and the i.i.d. formula."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diversed.theory.accepted_length import (
    accepted_length_law,
    expected_accepted_length,
    iid_accepted_length,
    iid_survival,
    judged_acceptance,
    survival_of_law,
    survival_of_rule,
)

VOCAB_SIZE = 3


def random_law(seed, concentration=1.0):
    """Return context -> a law that is fixed for the context."""

    def law(context):
        key = [seed, *(token + 1 for token in context)]
        return np.random.default_rng(key).dirichlet(np.full(VOCAB_SIZE, concentration))

    return law


def mixture(target, draft, weight):
    return lambda context: weight * target(context) + (1 - weight) * draft(context)


P, Q = random_law(1), random_law(2)


def written_out(draft, verify, k, start=()):
    """Return sum over x_1..x_k of prod min(q, pi)(x_i | x_<i), term by term."""
    total = 0.0
    for drafted in itertools.product(range(VOCAB_SIZE), repeat=k):
        factors = [
            min(law(start + drafted[:i])[drafted[i]] for law in (draft, verify)) for i in range(k)
        ]
        total += np.prod(factors)
    return total


# --- enumeration ----------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, 0.6, 0.1])
@pytest.mark.parametrize("start", [(), (2, 0)])
def test_survival_is_the_sum_over_all_drafts(weight, start):
    verify = mixture(P, Q, weight)
    survival = survival_of_law(Q, verify, 4, start=start)
    expected = [written_out(Q, verify, k, start) for k in range(1, 5)]
    np.testing.assert_allclose(survival, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("weight", [1.0, 0.3, 0.0])
def test_first_token_survives_with_one_minus_w_tv(weight):
    tv = np.abs(P(()) - Q(())).sum() / 2
    survival = survival_of_law(Q, mixture(P, Q, weight), 1)
    assert survival[0] == pytest.approx(1 - weight * tv, abs=1e-15)


def test_a_verifier_that_trusts_the_draft_accepts_everything():
    np.testing.assert_allclose(survival_of_law(Q, Q, 5), np.ones(5), atol=1e-14)


@given(seed=st.integers(0, 10**6), concentration=st.floats(0.05, 5))
def test_survival_never_rises_and_is_the_same_for_a_longer_draft(seed, concentration):
    draft, verify = random_law(seed, concentration), random_law(seed + 1, concentration)
    survival = survival_of_law(draft, verify, 4)
    assert (np.diff(np.concatenate([[1.0], survival])) <= 1e-15).all()
    assert (survival >= 0).all()
    assert survival_of_law(draft, verify, 2).tolist() == survival[:2].tolist()


def test_tokens_that_the_draft_never_proposes_do_not_count():
    draft, verify = (lambda context: [0.0, 0.5, 0.5]), (lambda context: [0.5, 0.5, 0.0])
    np.testing.assert_allclose(survival_of_law(draft, verify, 3), [0.5, 0.25, 0.125])


def test_rule_without_a_law_passes_by_its_table():
    """Token 0 always passes, 1 with 1/2, 2 never."""
    survival = survival_of_rule(lambda context: [0.5, 0.25, 0.25], lambda context: [1, 0.5, 0], 2)
    np.testing.assert_allclose(survival, [0.625, 0.625**2])


def test_an_end_token_closes_the_draft():
    """Both tokens always pass, so a second one is accepted unless the first was the end."""
    law = lambda context: [0.25, 0.75]  # noqa: E731 - a constant law
    np.testing.assert_allclose(survival_of_law(law, law, 3, end_ids=[0]), [1, 0.75, 0.75**2])
    np.testing.assert_allclose(survival_of_law(law, law, 3), [1, 1, 1])


def test_law_and_mean_of_a_survival():
    survival = survival_of_law(Q, P, 4)
    law = accepted_length_law(survival)
    assert law.shape == (5,)
    assert (law >= 0).all()
    assert law.sum() == pytest.approx(1, abs=1e-15)
    mean = expected_accepted_length(survival)
    assert mean == pytest.approx(law @ np.arange(5), abs=1e-14)


# --- the i.i.d. formula ---------------------------------------------------------------------------


@given(acceptance=st.floats(0, 0.999), draft_length=st.integers(1, 9))
def test_iid_length_is_leviathans_without_the_extra_token(acceptance, draft_length):
    expected = acceptance * (1 - acceptance**draft_length) / (1 - acceptance)
    with_extra = (1 - acceptance ** (draft_length + 1)) / (1 - acceptance)
    length = iid_accepted_length(acceptance, draft_length)
    assert length == pytest.approx(expected, rel=1e-12, abs=1e-300)
    assert length + 1 == pytest.approx(with_extra, rel=1e-12)


def test_iid_length_at_certain_acceptance_is_the_draft_length():
    assert iid_accepted_length(1, 5) == 5
    assert iid_accepted_length(0, 5) == 0


def test_iid_formula_is_exact_where_every_context_is_alike():
    draft, verify = (lambda context: [0.7, 0.2, 0.1]), (lambda context: [0.4, 0.4, 0.2])
    survival = survival_of_law(draft, verify, 5)
    np.testing.assert_allclose(survival, iid_survival(0.7, 5), atol=1e-15)
    assert judged_acceptance(survival) == pytest.approx(0.7)


def passages(context):
    """Return q and p of a text of easy and hard passages, which its first token tells apart.

    In easy ones (first token 0 or 1) every token passes, in hard ones (2 or 3) one in five.
    """
    if not context:
        return [0.25, 0.25, 0.45, 0.05], [0.25, 0.25, 0.05, 0.45]
    if context[0] < 2:
        return [0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]
    return [0.0, 0.0, 0.9, 0.1], [0.0, 0.0, 0.1, 0.9]


def test_iid_is_off_by_more_than_a_tenth_where_acceptance_persists():
    """Acceptance is certain in one half of the blocks and 0.2 in the other.

    The i.i.d. formula is wrong whether it is fed the rate per judged token, which it is fitted to
    where counts are all there is, or the mean acceptance of the drafted tokens.
    """
    survival = survival_of_law(
        lambda context: passages(context)[0], lambda context: passages(context)[1], 5
    )
    np.testing.assert_allclose(survival, [0.5 + 0.5 * 0.2**k for k in range(1, 6)])
    exact = expected_accepted_length(survival)
    assert iid_accepted_length(judged_acceptance(survival), 5) / exact > 1.16
    assert iid_accepted_length(0.5 + 0.5 * 0.2, 5) / exact < 0.53


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "verify", "message"),
    [
        ([0.5, 0.6], [0.5, 0.5], r"draft_law after \(7,\) is no distribution: .* sum 1.1"),
        ([0.5, 0.5], [1.5, -0.5], r"verify_law after \(7,\) is no distribution: minimum -0.5"),
        ([0.5, 0.5], [1.0], r"after \(7,\) draft_law has 2 tokens, verify_law 1"),
        ([0.5, np.nan], [0.5, 0.5], r"draft_law after \(7,\) has 1 NaN"),
    ],
)
def test_what_is_no_law_is_refused_with_its_context(draft, verify, message):
    with pytest.raises(ValueError, match=message):
        survival_of_law(lambda context: draft, lambda context: verify, 1, start=[7])


@pytest.mark.parametrize(
    ("accepts", "message"),
    [
        ([0.5, 1.2], r"accept_probs after \(\) lie in \[0.5, 1.2\]"),
        ([0.5], "draft_law has 2 tokens, accept_probs 1"),
    ],
)
def test_what_is_no_acceptance_is_refused(accepts, message):
    with pytest.raises(ValueError, match=message):
        survival_of_rule(lambda context: [0.5, 0.5], lambda context: accepts, 1)


def test_lengths_and_rates_out_of_range_are_refused():
    with pytest.raises(ValueError, match="draft_length=0: must be at least 1"):
        survival_of_law(Q, P, 0)
    with pytest.raises(ValueError, match=r"acceptance=1\.5: must lie in"):
        iid_accepted_length(1.5, 3)
    with pytest.raises(ValueError, match="draft_length=0"):
        iid_survival(0.5, 0)
