"""Properties of every rule on any two distributions, the numeric corner cases among them."""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from diversed.core import noise
from diversed.core.kernel import LawVerifier, MixtureVerifier, ModelView, Verifier, accept_ratio
from diversed.core.probs import Sampling, logits_to_probs, tv_distance
from diversed.core.verifiers import CASCADE_RULES, DiversedVerifier, make_verifier

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SAMPLINGS = (
    Sampling(),
    Sampling(0.01),
    Sampling(0.5, top_k=2),
    Sampling(2.0),
    Sampling(top_p=0.5),
    Sampling(1.5, top_k=3, top_p=0.9),
)
INF = math.inf
HUGE = 6e4  # near the largest number of float16


# --- what is judged -------------------------------------------------------------------------------


def view_of(target: Tensor, draft: Tensor, sampling: Sampling = SAMPLINGS[0]) -> ModelView:
    """Return logits [n, V] as a view of one row."""
    target, draft = target.unsqueeze(0), draft.unsqueeze(0)
    hidden = torch.zeros(*target.shape[:2], 1)
    return ModelView(
        target_probs=logits_to_probs(target, sampling),
        draft_probs=logits_to_probs(draft, sampling),
        target_logits=target,
        draft_logits=draft,
        target_hidden=hidden,
        draft_hidden=hidden,
        is_plain=sampling.is_plain,
    )


CORNERS = [
    ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]),  # p == q
    ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),  # all tied
    ([-INF, 0.0, -INF, -INF], [0.0, 1.0, 2.0, 3.0]),  # p one-hot
    ([0.0, 1.0, 2.0, 3.0], [-INF, -INF, 0.0, -INF]),  # q one-hot
    ([-INF, 0.0, -INF, -INF], [-INF, 0.0, -INF, -INF]),  # the same one-hot row
    ([0.0, -INF, -INF, -INF], [-INF, 0.0, -INF, -INF]),  # one-hot and disjoint
    ([0.0, 1.0, -INF, -INF], [-INF, -INF, 1.0, 0.0]),  # disjoint
    ([-INF, 1.0, 1.0, -INF], [1.0, 1.0, -INF, -INF]),  # overlapping in part
    ([0.0, -95.0, -100.0, -INF], [-100.0, 0.0, -95.0, -INF]),  # denormal probabilities
    ([0.0, -103.0, 0.0, 0.0], [-103.0, 0.0, -103.5, -103.0]),
    ([50.0, -50.0, 0.0, -INF], [-50.0, 50.0, 0.0, -INF]),
    ([HUGE, -HUGE, HUGE, 0.0], [-HUGE, HUGE, 0.0, HUGE]),
    ([HUGE, HUGE, HUGE, HUGE], [HUGE, -HUGE, -HUGE, -HUGE]),
]


def corner_view(dtype: torch.dtype, sampling: Sampling) -> ModelView:
    target, draft = (torch.tensor(rows, dtype=dtype) for rows in zip(*CORNERS, strict=True))
    return view_of(target, draft, sampling)


LOGIT = st.one_of(
    st.sampled_from([-INF, -HUGE, -103.5, -100.0, -95.0, -88.0, -1e-3, 0.0, 1.0, HUGE]),
    st.floats(-30, 30, width=16),
)


def logit_rows(size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(LOGIT, min_size=size, max_size=size).filter(lambda row: max(row) > -INF)


@st.composite
def views(draw, samplings=SAMPLINGS) -> ModelView:
    size = draw(st.integers(2, 5))
    target = draw(logit_rows(size))
    draft = draw(st.one_of(logit_rows(size), st.just(target)))
    dtype = draw(st.sampled_from(DTYPES))
    rows = (torch.tensor([row], dtype=dtype) for row in (target, draft))
    return view_of(*rows, draw(st.sampled_from(samplings)))


# --- the rules, from strict to lenient ------------------------------------------------------------


def constant_head(logit: float) -> DiversedVerifier:
    return DiversedVerifier(lambda draft, target, features: draft[..., 0] * 0 + logit)


def build(name: str, **chosen: object) -> Verifier:
    if name == "diversed":
        return constant_head(float(str(chosen["logit"])))
    return make_verifier(name, bonus="verifier", **chosen)


@dataclass(frozen=True)
class Family:
    """A rule with one parameter left open, and values of that from strict to lenient."""

    name: str
    key: str
    values: tuple[float, ...]
    fixed: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for _, value in self.fixed), self.key])

    def at(self, value: float) -> Verifier:
        return build(self.name, **dict(self.fixed), **{self.key: value})


UPWARDS = (0.0, 1e-7, 0.1, 0.3, 0.5, 0.9, 1.0)
SIGNED = (-1.0, -0.3, -1e-7, *UPWARDS)
MONOTONE = [
    Family("static", "weight", UPWARDS[::-1]),
    Family("diversed", "logit", (INF, 3.0, 0.0, -3.0, -20.0, -INF)),
    Family("lenient", "lenience", (1.0, 0.9, 0.5, 0.1, 1e-7, 1e-30)),
    Family("lenient", "lenience", (1.0, 0.5, 1e-7), (("residual", "scaled"),)),
    Family("cascade", "alpha", UPWARDS, (("rule", "chow"),)),
    Family("cascade", "alpha", SIGNED, (("rule", "diff"),)),
    Family("cascade", "alpha", SIGNED, (("rule", "opt"),)),
    Family("typical", "threshold", UPWARDS[::-1], (("alpha", 0.6),)),
    Family("typical", "alpha", (1e30, 10.0, *UPWARDS[::-1]), (("threshold", 0.3),)),
    *(
        Family("fuzzy", "threshold", (*UPWARDS, INF), (("divergence", divergence),))
        for divergence in ("js", "kl", "tv")
    ),
    Family("margin", "theta", UPWARDS[::-1]),
]
# More kept tokens leave less of p for the others: at q = (0.5, 0.5), p = (0.9, 0.1) keeping the
# first lowers the acceptance from 0.6 to 0.55. So these do not belong above.
OF_TOKENS = [
    Family("cascade", "alpha", values, (("rule", rule),))
    for rule, values in (("token_v1", SIGNED), ("token_v2", SIGNED), ("token_v3", UPWARDS))
]
RULES = [
    make_verifier("lossless"),
    *(family.at(value) for family in MONOTONE + OF_TOKENS for value in family.values),
]


def test_every_rule_of_the_cascade_is_among_them():
    assert {r.settings["rule"] for r in RULES if r.name == "cascade"} == set(CASCADE_RULES)


# --- properties -----------------------------------------------------------------------------------


def accept_table(verifier: Verifier, view: ModelView) -> Tensor:
    """Return the probability of passing for every token that may be drafted, 0 for the others."""
    tv = tv_distance(view.draft_probs, view.target_probs)
    columns = [
        verifier.judge(view, torch.full_like(tv, token, dtype=torch.long), tv).accept_probs
        for token in range(view.draft_probs.shape[-1])
    ]
    return torch.stack(columns, -1).masked_fill(view.draft_probs == 0, 0)


def acceptance(verifier: Verifier, view: ModelView) -> Tensor:
    tv = tv_distance(view.draft_probs, view.target_probs)
    return verifier.judge(view, torch.zeros_like(tv, dtype=torch.long), tv).expected_acceptance


def normed(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def check_rule(verifier: Verifier, view: ModelView) -> None:
    """Assert what holds for any rule on any two distributions."""
    p, q = view.target_probs, view.draft_probs
    accepts, recovered = accept_table(verifier, view), verifier.recovered_weights(view)
    assert bool(((accepts >= 0) & (accepts <= 1)).all())  # NaN is neither
    for weights in (recovered, verifier.bonus_weights(view, None)):
        assert bool((torch.isfinite(weights) & (weights >= 0)).all())
        assert bool((weights.sum(-1) > 0).all())
        assert bool((weights[(p == 0) & (q == 0)] == 0).all())
    law = normed(verifier.bonus_weights(view, None))
    passed = q * accepts
    emitted = passed + (1 - passed.sum(-1, keepdim=True)) * normed(recovered)
    ones = torch.ones_like(law[..., 0])
    torch.testing.assert_close(law.sum(-1), ones, atol=1e-5, rtol=0)
    torch.testing.assert_close(emitted.sum(-1), ones, atol=1e-5, rtol=0)
    torch.testing.assert_close(emitted, law, atol=1e-5, rtol=0)
    expected = acceptance(verifier, view)
    assert bool(((expected >= 0) & (expected <= 1)).all())
    torch.testing.assert_close(expected, passed.sum(-1), atol=1e-5, rtol=0)
    if isinstance(verifier, LawVerifier | MixtureVerifier):
        overlap = torch.minimum(q, law).sum(-1)
        torch.testing.assert_close(expected, overlap, atol=1e-5, rtol=0)
        torch.testing.assert_close(
            verifier.bonus_weights(view, None).sum(-1), ones, atol=1e-5, rtol=0
        )


def check_greedy(verifier: Verifier, view: ModelView) -> None:
    """Assert that what is emitted at temperature 0 is possible under one of the models."""
    view = view_of(view.target_logits[0], view.draft_logits[0], Sampling(temperature=0))
    draft_ids = view.draft_logits.argmax(-1)
    verdict = verifier.judge_greedy(view, draft_ids)
    assert verdict.passes.dtype == torch.bool
    ids = torch.where(verdict.passes, draft_ids, verdict.recovered_ids).unsqueeze(-1)
    best = torch.maximum(view.target_probs, view.draft_probs).gather(-1, ids)
    assert bool((best > 0).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_corner_cases_give_laws_for_every_rule(dtype, sampling):
    view = corner_view(dtype, sampling)
    assert view.target_probs.dtype == view.draft_probs.dtype == torch.float32
    for verifier in RULES:
        check_rule(verifier, view)
        check_greedy(verifier, view)


@settings(max_examples=250)
@given(view=views(), verifier=st.sampled_from(RULES))
def test_any_two_distributions_give_a_law(view, verifier):
    check_rule(verifier, view)
    check_greedy(verifier, view)


@pytest.mark.parametrize("family", MONOTONE, ids=str)
@settings(max_examples=40)
@given(view=views())
def test_more_lenient_accepts_more(family, view):
    rates = [float(acceptance(family.at(value), view)[0, 0]) for value in family.values]
    for strict, lenient in itertools.pairwise(rates):
        assert lenient >= strict - 1e-6


LEAST = [
    ("lenient", {"lenience": 1.0}),
    ("lenient", {"lenience": 1.0, "residual": "scaled"}),
    ("static", {"weight": 1.0}),
    ("diversed", {"logit": INF}),
    ("cascade", {"rule": "diff", "alpha": -1.0}),
    ("cascade", {"rule": "token_v1", "alpha": -1.0}),
    ("cascade", {"rule": "token_v2", "alpha": -1.0}),
]
MOST = [
    ("static", {"weight": 0.0}),
    ("diversed", {"logit": -INF}),
    *(("cascade", {"rule": rule, "alpha": 1.0}) for rule in CASCADE_RULES if rule != "opt"),
    *(("fuzzy", {"threshold": INF, "divergence": divergence}) for divergence in ("js", "kl", "tv")),
]


@pytest.mark.parametrize(("name", "chosen"), LEAST, ids=str)
@settings(max_examples=40)
@given(view=views())
def test_strictest_setting_is_the_lossless_rule(name, chosen, view):
    lossless, verifier = make_verifier("lossless"), build(name, **chosen)
    pairs = [
        (accept_table(lossless, view), accept_table(verifier, view)),
        (acceptance(lossless, view), acceptance(verifier, view)),
        (recovered_law(lossless, view), recovered_law(verifier, view)),
        (view.target_probs, normed(verifier.bonus_weights(view, None))),
    ]
    for wanted, got in pairs:
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


def recovered_law(verifier: Verifier, view: ModelView) -> Tensor:
    """Return the probability that a token is rejected and each one takes its place."""
    is_rejected = 1 - acceptance(verifier, view)
    return is_rejected.unsqueeze(-1) * normed(verifier.recovered_weights(view))


@pytest.mark.parametrize(("name", "chosen"), MOST, ids=str)
@settings(max_examples=40)
@given(view=views())
def test_most_lenient_setting_trusts_the_draft(name, chosen, view):
    verifier = build(name, **chosen)
    assert bool((accept_table(verifier, view)[view.draft_probs > 0] == 1).all())
    law = normed(verifier.bonus_weights(view, None))
    torch.testing.assert_close(law, view.draft_probs, atol=1e-6, rtol=0)


def asks_for_the_distance(verifier: Verifier) -> bool:
    """Return whether equal models pass for certain.

    Typical acceptance looks at the target alone. With q = p the token rules of the cascade give
    p 1[S] + p (1 - p(S)): more on S than p has there.
    """
    is_token_rule = str(verifier.settings.get("rule")).startswith("token")
    return verifier.name != "typical" and not is_token_rule


@settings(max_examples=100)
@given(view=views(), verifier=st.sampled_from(list(filter(asks_for_the_distance, RULES))))
def test_equal_models_are_never_rejected(view, verifier):
    view = replace(view, draft_probs=view.target_probs, draft_logits=view.target_logits)
    accepts = accept_table(verifier, view)[view.draft_probs > 0]
    torch.testing.assert_close(accepts, torch.ones_like(accepts), atol=1e-5, rtol=0)
    law = normed(verifier.bonus_weights(view, None))
    torch.testing.assert_close(law, view.target_probs, atol=1e-5, rtol=0)


@settings(max_examples=100)
@given(view=views(), verifier=st.sampled_from(RULES), seed=st.integers(0, 2**31))
def test_token_that_neither_model_knows_is_never_drawn(view, verifier, seed):
    known = (view.target_probs > 0) | (view.draft_probs > 0)
    rows = torch.arange(200).unsqueeze(1)
    keys = noise.stream_keys(seed, rows, rows * 0, noise.Purpose.NEXT)
    arrivals = noise.exponential(keys, known.shape[-1])  # [200, 1, V]
    for weights in (verifier.recovered_weights(view), verifier.bonus_weights(view, None)):
        drawn = noise.race(weights.expand_as(arrivals), arrivals)
        assert bool(known[0, 0, drawn].all())


@given(law=st.floats(0, 1, width=32), draft=st.sampled_from([0.0, 1e-45, 1e-42, 1e-38, 0.25, 1.0]))
@example(law=0.0, draft=1e-45)
@example(law=1.0, draft=1e-45)
@example(law=0.0, draft=0.0)
def test_ratio_is_a_probability_for_denormal_and_zero_drafts(law, draft):
    pi, q = torch.tensor(law), torch.tensor(draft)
    wanted = 1.0 if draft == 0 else min(1.0, float(pi) / float(q))
    assert float(accept_ratio(pi, q)) == pytest.approx(wanted, rel=1e-6)
