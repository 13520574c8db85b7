"""Faults injected into the shipped functions: the test of test_law.py must reject each.

n = 4000, seed 0, as there. Each case is accepted as shipped and rejected with the fault.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from laws import FALSE_ALARM, Case, enumerated_law, p_value, summary

from diversed.core import kernel, loop, verifiers
from diversed.core.kernel import (
    Judgement,
    LawVerifier,
    MixtureVerifier,
    ModelView,
    PointwiseVerifier,
)
from diversed.core.loop import _BatchDecoder
from diversed.core.probs import Sampling
from diversed.core.verifiers import (
    CascadeVerifier,
    FuzzyVerifier,
    LenientVerifier,
    MarginVerifier,
    StaticVerifier,
    TypicalVerifier,
)

pytestmark = pytest.mark.statistical

cached_summary = functools.cache(summary)


# --- the loop -------------------------------------------------------------------------------------


def transform_one_side(monkeypatch, is_draft):
    """Leave the other model's logits at temperature 1 without top-k."""
    shipped = loop.logits_to_probs

    def one_sided(logits, sampling):
        # the draft is read one column at a time, the target with the last token and the block
        return shipped(logits, sampling if (logits.shape[1] == 1) == is_draft else Sampling())

    monkeypatch.setattr(loop, "logits_to_probs", one_sided)


def drafting_one_less(shipped):
    return lambda self, room, *rest: shipped(self, room - 1, *rest)


def bonus_of_the_rule_in_target_mode(monkeypatch):
    """Draw the target's bonus token from pi, drafting one token less all the same."""
    monkeypatch.setattr(
        _BatchDecoder, "_draft_block", drafting_one_less(_BatchDecoder._draft_block)
    )
    monkeypatch.setattr(_BatchDecoder, "_judges_bonus", property(lambda self: True))


def shorten_draft_cache(monkeypatch):
    """Drop one token too many from the draft's cache after a block without a bonus token.

    The loop did so at first: the draft kept one token less than it had read.
    """
    shipped = _BatchDecoder._emit

    def emit(self, *block):
        retain, needs_last = self.draft.retain, block[-1]
        if not needs_last:
            self.draft.retain = lambda rows, num_drop: retain(rows, num_drop + 1)
        shipped(self, *block)
        vars(self.draft).pop("retain", None)

    monkeypatch.setattr(_BatchDecoder, "_emit", emit)


def shift_acceptance(monkeypatch, shift):
    """Accept with another probability than the one that is recorded."""
    shipped = loop.stochastic_accepts
    monkeypatch.setattr(
        loop, "stochastic_accepts", lambda probs, uniforms: shipped(probs + shift, uniforms)
    )


def repeat_noise(monkeypatch):
    """Draw the same numbers at every position."""
    shipped = loop.noise.stream_keys

    def stream_keys(seed, row_keys, positions, purpose):
        return shipped(seed, row_keys, positions * 0, purpose)

    monkeypatch.setattr(loop.noise, "stream_keys", stream_keys)


# --- the kernel -----------------------------------------------------------------------------------


def mix_logits(monkeypatch):
    """Judge against softmax(w log p + (1 - w) log q), everywhere and consistently."""

    def mixed(view, weight):
        weight = weight.unsqueeze(-1)
        log_nu = weight * view.target_probs.log() + (1 - weight) * view.draft_probs.log()
        return log_nu.softmax(-1)

    def judge(self, view, draft_ids, tv):
        weight = self.target_weight(view)
        ratio = (mixed(view, weight) / view.draft_probs).gather(-1, draft_ids.unsqueeze(-1))
        return Judgement(ratio.squeeze(-1).clamp(max=1), 1 - weight * tv, weight)

    def recovered(self, view):
        return (mixed(view, self.target_weight(view)) - view.draft_probs).clamp(min=0)

    def bonus(self, view, target_weight):
        return mixed(view, self.target_weight(view))

    monkeypatch.setattr(MixtureVerifier, "judge", judge)
    monkeypatch.setattr(MixtureVerifier, "recovered_weights", recovered)
    monkeypatch.setattr(MixtureVerifier, "bonus_weights", bonus)


def change(owner, name, new):
    """Return a fault: `new` in the place of a function or method."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, new)


def bonus_from(rule, model):
    """Draw the verifier's bonus token from one model alone."""
    return change(rule, "bonus_weights", lambda self, view, weight: getattr(view, model))


def swap_weight(monkeypatch):
    """Put w on the draft."""
    shipped = StaticVerifier.target_weight
    monkeypatch.setattr(StaticVerifier, "target_weight", lambda self, view: 1 - shipped(self, view))


def rejected_mass_as_it_is(self, view, target_weight):
    """Add the residual to what passed without giving it the rejected mass."""
    return view.draft_probs * self.accept_table(view) + self.recovered_weights(view)


def rejected_mass_lost(self, view, target_weight):
    """Keep of pi what passed."""
    return view.draft_probs * self.accept_table(view)


def probs_after(model):
    return property(lambda view: getattr(view, model))


# --- the rules ------------------------------------------------------------------------------------


def lenience_on_the_target(self, view):
    return kernel.accept_ratio(view.target_probs * self.lenience, view.draft_probs)


def other_residual(self, view):
    """Take norm((p - l q)+) for norm((p - q)+), and the other way round."""
    scale = 1.0 if self.residual == "scaled" else self.lenience
    return kernel.residual(view.target_probs, scale * view.draft_probs)


def as_rule(rule):
    """Let a cascade follow another rule."""
    shipped = CascadeVerifier._keeps

    def keeps(self, view):
        own, self.rule = self.rule, rule
        try:
            return shipped(self, view)
        finally:
            self.rule = own

    return change(CascadeVerifier, "_keeps", keeps)


def defer_in_reverse(monkeypatch):
    """Keep the draft where it should be left."""
    shipped = CascadeVerifier._keeps
    monkeypatch.setattr(CascadeVerifier, "_keeps", lambda self, view: ~shipped(self, view))


def fill_up_from_the_draft(self, view):
    """pi = q 1[S] + q (1 - q(S)): what is not kept comes from the draft again."""
    kept = view.draft_probs.masked_fill(~self._keeps(view), 0)
    return kept + view.draft_probs * (1 - kept.sum(-1, keepdim=True))


def kept_tokens_of_the_target(self, view):
    """pi = p 1[S] + p (1 - p(S)): S is filled from the target."""
    kept = view.target_probs.masked_fill(~self._keeps(view), 0)
    return kept + view.target_probs * (1 - kept.sum(-1, keepdim=True))


def typical_of(entropy_of="target_probs", bound=torch.minimum):
    """Take the draft's entropy, or something else than the smaller of the two bounds."""

    def accept_table(self, view):
        entropy = torch.special.entr(getattr(view, entropy_of)).sum(-1, keepdim=True)
        other = self.alpha * (-entropy).exp()
        limit = bound(other, torch.full_like(other, self.threshold))
        return (view.target_probs > limit).float()

    return change(TypicalVerifier, "accept_table", accept_table)


def residual_of_lossless(self, view):
    return kernel.residual(view.target_probs, view.draft_probs)


def divergence_as(change_of):
    """Change what all divergences say."""

    def inject(monkeypatch):
        shipped = verifiers.DIVERGENCES
        monkeypatch.setattr(
            verifiers,
            "DIVERGENCES",
            {name: functools.partial(change_of, of) for name, of in shipped.items()},
        )

    return inject


def margin_between(name):
    """Find the two best tokens of another distribution."""

    def top_two(self, view):
        top = getattr(view, name).topk(2, dim=-1)
        return top.indices, top.values[..., 1] >= self.theta * top.values[..., 0]

    return change(MarginVerifier, "_top_two", top_two)


def margin_for_one(token):
    """Let one of the two best tokens pass in a close race, but not the other."""
    shipped = MarginVerifier._top_two

    def top_two(self, view):
        ids, is_close = shipped(self, view)
        return ids[..., token : token + 1], is_close

    return change(MarginVerifier, "_top_two", top_two)


# --- all of them ----------------------------------------------------------------------------------

COOL = Sampling(0.5, top_k=3)
WARM = Sampling(2.0)
FILTERED = Sampling(2.0, top_k=3)


def plain_is_transformed(name, model):
    return change(ModelView, name, probs_after(model))


ONLY_DRAFT = functools.partial(transform_one_side, is_draft=True)
ONLY_TARGET = functools.partial(transform_one_side, is_draft=False)
RATIO_LEFT_OUT = change(LawVerifier, "accept_table", lambda self, view: self.law(view).clamp(max=1))
LAW_RECOVERED = change(LawVerifier, "recovered_weights", lambda self, view: self.law(view))
TARGET_RECOVERED = change(
    LenientVerifier, "recovered_weights", lambda self, view: view.target_probs
)
TARGET_RESIDUAL = change(LawVerifier, "recovered_weights", residual_of_lossless)

MUTANTS = {
    "logits mixed": (mix_logits, Case("static0.3")),
    "logits mixed, head": (mix_logits, Case("diversed", 1)),
    "residual skipped": (change(kernel, "residual", lambda p, q: p), Case("lossless")),
    "residual skipped, static": (change(kernel, "residual", lambda p, q: p), Case("static0.7", 5)),
    "w on the draft": (swap_weight, Case("static0.3")),
    "only the draft transformed": (ONLY_DRAFT, Case("lossless", 3, COOL)),
    "only the draft transformed, lenient": (ONLY_DRAFT, Case("lenient", 3, COOL)),
    "only the draft transformed, token_v2": (ONLY_DRAFT, Case("token_v2", 3, WARM)),
    "only the target transformed": (ONLY_TARGET, Case("static0.3", 3, COOL)),
    "only the target transformed, opt": (ONLY_TARGET, Case("opt", 3, COOL)),
    "only the target transformed, fuzzy": (ONLY_TARGET, Case("fuzzy-js", 3, WARM)),
    "bonus from p": (bonus_from(MixtureVerifier, "target_probs"), Case("static0.3", 1)),
    "bonus from q": (bonus_from(MixtureVerifier, "draft_probs"), Case("lossless", 1)),
    "bonus from p, token_v1": (bonus_from(LawVerifier, "target_probs"), Case("token_v1", 1)),
    "bonus from q, lenient": (bonus_from(PointwiseVerifier, "draft_probs"), Case("lenient", 3)),
    "bonus from p, fuzzy": (bonus_from(PointwiseVerifier, "target_probs"), Case("fuzzy-tv", 1)),
    "bonus from nu": (bonus_of_the_rule_in_target_mode, Case("static0.3", 1, bonus="target")),
    "bonus from pi": (bonus_of_the_rule_in_target_mode, Case("typical", 3, bonus="target")),
    "draft cache short": (shorten_draft_cache, Case("static0.3", 5)),
    "draft cache short, chow": (shorten_draft_cache, Case("chow", 5)),
    "accepted too often": (functools.partial(shift_acceptance, shift=0.1), Case("lossless")),
    "noise repeated": (repeat_noise, Case("lossless")),
    "noise repeated, margin": (repeat_noise, Case("margin")),
    "ratio left out": (RATIO_LEFT_OUT, Case("token_v2")),
    "ratio left out, whole rule": (RATIO_LEFT_OUT, Case("diff", bonus="target")),
    "recovered from pi": (LAW_RECOVERED, Case("token_v1")),
    "recovered from pi, whole rule": (LAW_RECOVERED, Case("chow", bonus="target")),
    "recovered from (p - q)+": (TARGET_RESIDUAL, Case("token_v3")),
    "rejected mass as it is": (
        change(PointwiseVerifier, "bonus_weights", rejected_mass_as_it_is),
        Case("lenient", 1),
    ),
    "rejected mass as it is, typical": (
        change(PointwiseVerifier, "bonus_weights", rejected_mass_as_it_is),
        Case("typical", 1),
    ),
    "rejected mass lost": (
        change(PointwiseVerifier, "bonus_weights", rejected_mass_lost),
        Case("margin", 1),
    ),
    "lenience on the target": (
        change(LenientVerifier, "accept_table", lenience_on_the_target),
        Case("lenient"),
    ),
    "lenient recovered from p": (TARGET_RECOVERED, Case("lenient", bonus="target")),
    "other residual": (
        change(LenientVerifier, "recovered_weights", other_residual),
        Case("lenient", 5, FILTERED),
    ),
    "other residual, scaled": (
        change(LenientVerifier, "recovered_weights", other_residual),
        Case("lenient-scaled", 5, FILTERED),
    ),
    "chow after temperature": (
        plain_is_transformed("plain_draft_probs", "draft_probs"),
        Case("chow", 3, WARM),
    ),
    "diff, draft after temperature": (
        plain_is_transformed("plain_draft_probs", "draft_probs"),
        Case("diff", 3, COOL),
    ),
    "token_v1, draft after temperature": (
        plain_is_transformed("plain_draft_probs", "draft_probs"),
        Case("token_v1", 3, WARM),
    ),
    "token_v2, target after temperature": (
        plain_is_transformed("plain_target_probs", "target_probs"),
        Case("token_v2", 3, WARM),
    ),
    "margin after temperature": (margin_between("target_probs"), Case("margin", 3, COOL)),
    "margin of the draft": (margin_between("plain_draft_probs"), Case("margin")),
    "margin, best token alone": (margin_for_one(0), Case("margin")),
    "margin, second token alone": (margin_for_one(1), Case("margin", 3, COOL)),
    "token_v3 with the threshold of token_v2": (as_rule("token_v2"), Case("token_v3")),
    "token_v2 with the set of token_v1": (as_rule("token_v1"), Case("token_v2")),
    "opt without the distance": (as_rule("diff"), Case("opt", 3, COOL)),
    "opt with the distance before temperature": (
        change(verifiers, "tv_distance", lambda p, q: p.new_full(p.shape[:-1], 0.75)),
        Case("opt", 3, COOL),
    ),
    "deferral reversed": (defer_in_reverse, Case("chow")),
    "deferral reversed, tokens": (defer_in_reverse, Case("token_v3")),
    "filled up from the draft": (
        change(CascadeVerifier, "law", fill_up_from_the_draft),
        Case("token_v1"),
    ),
    "kept tokens of the target": (
        change(CascadeVerifier, "law", kept_tokens_of_the_target),
        Case("token_v2"),
    ),
    "entropy of the draft": (typical_of("draft_probs"), Case("typical")),
    "the larger bound": (typical_of(bound=torch.maximum), Case("typical")),
    "the bound of the entropy alone": (typical_of(bound=lambda a, b: a), Case("typical", 3, COOL)),
    "the threshold alone": (typical_of(bound=lambda a, b: b), Case("typical", 3, WARM)),
    "typical with a residual": (
        change(TypicalVerifier, "recovered_weights", residual_of_lossless),
        Case("typical", bonus="target"),
    ),
    "fuzzy with a residual": (
        change(FuzzyVerifier, "recovered_weights", residual_of_lossless),
        Case("fuzzy-tv", bonus="target"),
    ),
    "kl reversed": (divergence_as(lambda of, p, q: of(q, p)), Case("fuzzy-kl")),
    "js twice as large": (divergence_as(lambda of, p, q: 2 * of(p, q)), Case("fuzzy-js")),
    "L1 for TV": (divergence_as(lambda of, p, q: 2 * of(p, q)), Case("fuzzy-tv")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_fault_in_a_shipped_function_is_rejected(monkeypatch, name):
    inject, case = MUTANTS[name]
    assert cached_summary(case).law > FALSE_ALARM
    inject(monkeypatch)
    assert summary(case).law < FALSE_ALARM


# --- the instrument -------------------------------------------------------------------------------


def test_acceptance_that_differs_from_the_record_is_told_apart(monkeypatch):
    """n = 4000 rows, seed 3: acceptance 0.05 below the recorded one is rejected by the z-test."""
    shift_acceptance(monkeypatch, -0.05)
    for variant in ("static0.3", "lenient", "token_v2"):
        for column, value in summary(Case(variant), 4000, 3).acceptance.items():
            assert value < FALSE_ALARM, column


@pytest.mark.parametrize(
    ("owner", "name", "variant"),
    [
        (kernel, "expected_acceptance", "static0.7"),
        (PointwiseVerifier, "judge", "lenient"),
    ],
)
def test_expected_acceptance_of_lossless_is_told_apart(monkeypatch, owner, name, variant):
    """n = 4000 rows, seed 3: 1 - TV in the place of the rule's own is rejected by the z-test."""
    if owner is kernel:
        monkeypatch.setattr(kernel, name, lambda tv, target_weight: 1 - tv)
    else:
        shipped = PointwiseVerifier.judge

        def judge(self, view, draft_ids, tv):
            return replace(shipped(self, view, draft_ids, tv), expected_acceptance=1 - tv)

        monkeypatch.setattr(PointwiseVerifier, name, judge)
    found = summary(Case(variant), 4000, 3)
    assert found.acceptance["expected_acceptance"] < FALSE_ALARM
    assert found.law > FALSE_ALARM


def test_p_values_of_draws_from_the_law_itself_are_no_smaller_than_they_say():
    """30 multinomial samples of n = 5000, seed 0: all above 1e-6, at most 6 of them below 0.05.

    Three Bonferroni tests have at most 5 % there; more than 6 of 30 come with probability 5e-4.
    """
    law = enumerated_law(Case("static0.7"))
    keys = list(law)
    rng = np.random.default_rng(0)
    values = []
    for counts in rng.multinomial(5000, np.array(list(law.values())), size=30):
        drawn = [key for key, count in zip(keys, counts, strict=True) for _ in range(count)]
        values.append(p_value(drawn, law))
    assert min(values) > FALSE_ALARM
    assert sum(value < 0.05 for value in values) <= 6
