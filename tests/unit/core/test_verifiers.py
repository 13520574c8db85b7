"""Verification rules on their own, without a loop."""

import logging
import math

import numpy as np
import pytest
import restated_rules
import torch
from restated_rules import Position, emitted
from table_lm import transformed

from diversed.core import kernel
from diversed.core.kernel import ModelView
from diversed.core.probs import Sampling, distribution_features, logits_to_probs, tv_distance
from diversed.core.verifiers import (
    CASCADE_RULES,
    DIVERGENCES,
    VERIFIERS,
    DiversedVerifier,
    LosslessVerifier,
    StaticVerifier,
    make_verifier,
)


class CountingHead:
    """A linear head that remembers the shapes it was given."""

    def __init__(self, draft_size, target_size):
        generator = torch.Generator().manual_seed(7)
        self.draft_weight = torch.randn(draft_size, generator=generator)
        self.target_weight = torch.randn(target_size, generator=generator)
        self.shapes = []
        self.features = None

    def __call__(self, draft_hidden, target_hidden, features):
        self.shapes.append((tuple(draft_hidden.shape), tuple(target_hidden.shape)))
        self.features = features
        return draft_hidden @ self.draft_weight + target_hidden @ self.target_weight


def random_view(generator, num_rows=3, num_columns=4, vocab_size=6):
    logits = torch.randn(2, num_rows, num_columns, vocab_size, generator=generator) * 2
    return ModelView(
        target_probs=logits[0].softmax(-1),
        draft_probs=logits[1].softmax(-1),
        target_logits=logits[0],
        draft_logits=logits[1],
        target_hidden=torch.randn(num_rows, num_columns, 5, generator=generator),
        draft_hidden=torch.randn(num_rows, num_columns, 3, generator=generator),
    )


# every rule with every choice it has, and numbers under which both answers occur
SETTINGS = [
    ("lossless", {}),
    ("static", {"weight": 0.4}),
    ("diversed", {}),
    *(("lenient", {"lenience": 0.6, "residual": kind}) for kind in ("target", "scaled")),
    *(
        ("cascade", {"rule": rule, "alpha": alpha})
        for rule, alpha in (
            ("chow", 0.6),
            ("diff", 0.1),
            ("diff", -0.2),
            ("opt", 0.3),
            ("opt", -0.3),
            ("token_v1", 0.3),
            ("token_v1", -0.1),
            ("token_v2", 0.3),
            ("token_v3", 0.6),
        )
    ),
    ("typical", {"threshold": 0.2, "alpha": 0.5}),
    ("typical", {"threshold": 0.9, "alpha": 0.5}),
    *(
        ("fuzzy", {"divergence": kind, "threshold": bound})
        for kind, bound in (("js", 0.2), ("kl", 0.8), ("tv", 0.45))
    ),
    ("margin", {"theta": 0.5}),
]
SAMPLINGS = [Sampling(), Sampling(0.5), Sampling(2.0, top_k=4), Sampling(1.3, top_p=0.9)]


def transformed_view(sampling, num_rows=60):
    """Return random logits as a view under some transforms."""
    generator = torch.Generator().manual_seed(5)
    view = random_view(generator, num_rows)
    return ModelView(
        **{
            **vars(view),
            "target_probs": logits_to_probs(view.target_logits, sampling),
            "draft_probs": logits_to_probs(view.draft_logits, sampling),
            "is_plain": sampling.is_plain,
        }
    )


def positions(view, sampling, weights):
    """Return each column of a view as the second statement of the rules takes it."""
    rows = zip(
        view.target_logits.flatten(0, 1).double().numpy(),
        view.draft_logits.flatten(0, 1).double().numpy(),
        weights.flatten().tolist(),
        strict=True,
    )
    plain = Sampling()
    return [
        Position(*(transformed(logits, s) for s in (sampling, plain) for logits in pair), weight)
        for *pair, weight in rows
    ]


def build(name, settings, head):
    if name == "diversed":
        return DiversedVerifier(head)
    return make_verifier(name, bonus="verifier", **settings)


def normed(weights):
    return (weights / weights.sum(-1, keepdim=True)).flatten(0, -2).numpy()


@pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_verdict_is_that_of_the_rule_stated_twice(name, settings, sampling):
    view, head = transformed_view(sampling), CountingHead(3, 5)
    verifier = build(name, settings, head)
    where = positions(view, sampling, head_weight(head, view))
    answers = [restated_rules.answer(name, at, **settings) for at in where]
    shape, vocab_size = view.target_probs.shape[:-1], view.target_probs.shape[-1]
    for token in range(vocab_size):
        got = judge(verifier, view, torch.full(shape, token)).accept_probs.flatten().numpy()
        drafted = np.array([at.q[token] > 0 for at in where])
        wanted = np.array([accepts[token] for accepts, _ in answers])
        np.testing.assert_allclose(got[drafted], wanted[drafted], atol=5e-6, rtol=1e-5)
    passed = [
        np.where(at.q > 0, at.q * np.minimum(accepts, 1), 0)
        for at, (accepts, _) in zip(where, answers, strict=True)
    ]
    rates = np.array([one.sum() for one in passed])
    got = judge(verifier, view, torch.zeros(shape, dtype=torch.long))
    np.testing.assert_allclose(got.expected_acceptance.flatten().numpy(), rates, atol=2e-6)
    assert 0.05 < rates.mean() < 0.95
    law = [emitted(at.q, *answered) for at, answered in zip(where, answers, strict=True)]
    got_law = normed(verifier.bonus_weights(view, got.target_weight))
    np.testing.assert_allclose(got_law, np.array(law), atol=2e-6)
    # what replaces a rejected token means something where one can be rejected
    some = rates < 1 - 1e-4
    left = np.array([left for _, left in answers])
    recovered = normed(verifier.recovered_weights(view))
    np.testing.assert_allclose(recovered[some], left[some], atol=1e-4)


@pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=str)
def test_verdict_at_temperature_zero_is_that_of_the_rule_stated_twice(name, settings):
    greedy = Sampling(temperature=0)
    view, head = transformed_view(greedy), CountingHead(3, 5)
    verifier = build(name, settings, head)
    shape, vocab_size = view.target_probs.shape[:-1], view.target_probs.shape[-1]
    where = positions(view, greedy, head_weight(head, view))
    seen = set()
    for token in range(vocab_size):
        got = verifier.judge_greedy(view, torch.full(shape, token))
        wanted = [restated_rules.greedy(name, at, token, **settings) for at in where]
        assert got.passes.flatten().tolist() == [passes for passes, _ in wanted]
        assert got.recovered_ids.flatten().tolist() == [best for _, best in wanted]
        seen |= {passes for passes, _ in wanted}
    assert seen == {True, False}


@pytest.mark.parametrize("rule", ["token_v1", "token_v2", "token_v3"])
@pytest.mark.parametrize("rare", [1e-3, 1e-6, 1e-9, 1e-30])
def test_rare_token_outside_the_kept_set_keeps_its_chance(rule, rare):
    """1 - q(S) used to cancel: at q = (1, 1e-9) with S = {first} the second never passed."""
    view = random_view(torch.Generator(), num_rows=1, num_columns=1, vocab_size=2)
    logits = {
        "target_logits": torch.tensor([[[0.7, 0.3]]]).log(),
        "draft_logits": torch.tensor([[[1.0, rare]]]).log(),
    }
    probs = {key.replace("logits", "probs"): value.softmax(-1) for key, value in logits.items()}
    view = ModelView(**{**vars(view), **logits, **probs, "is_plain": True})
    verdict = judge(make_verifier("cascade", rule=rule, alpha=0.2), view, torch.tensor([[1]]))
    # pi(x) / q(x) = p(x) (1 - q(S)) / q(x), and x is all that S leaves
    assert float(verdict.accept_probs) == pytest.approx(0.3, rel=1e-5)


def test_settings_above_name_every_rule_and_every_choice():
    assert {name for name, _ in SETTINGS} | {"autoregressive"} == set(VERIFIERS)
    assert {chosen["rule"] for _, chosen in SETTINGS if "rule" in chosen} == set(CASCADE_RULES)
    kinds = {chosen["divergence"] for _, chosen in SETTINGS if "divergence" in chosen}
    assert kinds == set(DIVERGENCES)


def head_weight(head, view):
    return torch.sigmoid(
        view.draft_hidden @ head.draft_weight + view.target_hidden @ head.target_weight
    )


def judge(verifier, view, draft_ids):
    return verifier.judge(view, draft_ids, tv_distance(view.draft_probs, view.target_probs))


def make_mixture(name, view):
    """Return a verifier and the w that it must use."""
    shape = view.target_probs.shape[:-1]
    if name == "lossless":
        return LosslessVerifier(), torch.ones(shape)
    if name == "static":
        return StaticVerifier(0.3), torch.full(shape, 0.3)
    head = CountingHead(3, 5)
    return DiversedVerifier(head), head_weight(head, view)


@pytest.mark.parametrize("name", ["lossless", "static", "diversed"])
def test_judgement_is_that_of_nu(generator, name):
    view = random_view(generator)
    verifier, w = make_mixture(name, view)
    assert verifier.name == name
    draft_ids = torch.randint(6, (3, 4), generator=generator)
    got = judge(verifier, view, draft_ids)
    p, q = view.target_probs, view.draft_probs
    nu = w.unsqueeze(-1) * p + (1 - w.unsqueeze(-1)) * q
    ratio = (nu / q).gather(-1, draft_ids.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(got.accept_probs, ratio.clamp(max=1), atol=1e-6)
    assert torch.allclose(got.expected_acceptance, torch.minimum(q, nu).sum(-1), atol=1e-6)
    assert torch.allclose(got.target_weight, w)
    assert torch.allclose(verifier.bonus_weights(view, got.target_weight), nu, atol=1e-6)
    assert torch.allclose(verifier.bonus_weights(view, None), nu, atol=1e-6)
    assert torch.allclose(verifier.recovered_weights(view), (p - q).clamp(min=0), atol=1e-7)


@pytest.mark.parametrize("name", ["lossless", "static", "diversed"])
def test_greedy_token_is_the_argmax_of_the_mixed_probabilities(generator, name):
    view = random_view(generator, num_rows=40)
    verifier, w = make_mixture(name, view)
    nu = w.unsqueeze(-1) * view.target_probs + (1 - w.unsqueeze(-1)) * view.draft_probs
    draft_ids = view.draft_logits.argmax(-1)
    verdict = verifier.judge_greedy(view, draft_ids)
    assert torch.equal(verdict.recovered_ids, nu.argmax(-1))
    assert torch.equal(verdict.passes, draft_ids == nu.argmax(-1))
    assert torch.allclose(verdict.target_weight, w)
    mixed_logits = w.unsqueeze(-1) * view.target_logits + (1 - w).unsqueeze(-1) * view.draft_logits
    if name != "lossless":  # the case tells mixed probabilities from mixed logits
        assert not torch.equal(verdict.recovered_ids, mixed_logits.argmax(-1))


@pytest.mark.parametrize(("weight", "source"), [(1.0, "target"), (0.0, "draft")])
def test_greedy_token_of_one_model_alone_comes_from_its_logits(generator, weight, source):
    """Logits one step of fp32 apart have equal probabilities, whose argmax is the first token."""
    view = random_view(generator, num_rows=1, num_columns=1, vocab_size=64)
    close = torch.full((1, 1, 64), 0.1)
    close[..., 40] = torch.nextafter(torch.tensor(0.1), torch.tensor(1.0))
    probs = close.softmax(-1)
    assert int(probs.argmax()) == 0
    tied = {f"{source}_logits": close, f"{source}_probs": probs}
    view = ModelView(**{**vars(view), **tied})
    verdict = StaticVerifier(weight).judge_greedy(view, torch.tensor([[0]]))
    assert verdict.recovered_ids.tolist() == [[40]]
    assert verdict.passes.tolist() == [[False]]


def test_static_with_weight_one_is_lossless(generator):
    view = random_view(generator)
    draft_ids = torch.randint(6, (3, 4), generator=generator)
    one, other = (judge(v, view, draft_ids) for v in (StaticVerifier(1.0), LosslessVerifier()))
    for name in ("accept_probs", "expected_acceptance", "target_weight"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_head_reads_all_positions_of_a_block_in_one_call(generator):
    view = random_view(generator)
    head = CountingHead(3, 5)
    verifier = DiversedVerifier(head)
    judgement = judge(verifier, view, torch.zeros(3, 4, dtype=torch.long))
    verifier.recovered_weights(view)
    verifier.bonus_weights(view, judgement.target_weight)
    assert head.shapes == [((3, 4, 3), (3, 4, 5))]
    assert head.features is None


def test_features_reach_a_head_that_uses_them(generator):
    view = random_view(generator)
    head = CountingHead(3, 5)
    DiversedVerifier(head, uses_features=True).target_weight(view)
    assert torch.equal(head.features, distribution_features(view.target_probs, view.draft_probs))


@pytest.mark.parametrize("dial", [-3.0, -0.5, 0.0, 2.0, math.inf, -math.inf])
def test_dial_shifts_the_logit_of_w(generator, dial):
    view = random_view(generator)
    head = CountingHead(3, 5)
    plain = head_weight(head, view)
    wanted = torch.sigmoid(torch.logit(plain.double()) + dial).float()
    assert torch.allclose(DiversedVerifier(head, dial=dial).target_weight(view), wanted, atol=1e-6)


UNIT = r"must lie in \[0, 1\]"
WRONG = [
    ("static", {"weight": 1.5}, UNIT),
    ("static", {"weight": -0.1}, UNIT),
    ("static", {"weight": math.nan}, UNIT),
    ("lenient", {"lenience": 0.0}, r"must lie in \(0, 1\]"),
    ("lenient", {"lenience": 1.1}, r"must lie in \(0, 1\]"),
    ("lenient", {"lenience": math.nan}, r"must lie in \(0, 1\]"),
    ("lenient", {"residual": "draft"}, "must be one of target, scaled"),
    ("cascade", {"rule": "token_v4"}, "must be one of chow, diff, opt, token_v1, token_v2"),
    *(("cascade", {"alpha": 1.5, "rule": rule}, r"\[-?[01], 1\]") for rule in CASCADE_RULES),
    *(("cascade", {"alpha": math.nan, "rule": rule}, r"\[-?[01], 1\]") for rule in CASCADE_RULES),
    *(("cascade", {"alpha": -0.1, "rule": rule}, r"\[0, 1\]") for rule in ("chow", "token_v3")),
    *(("cascade", {"alpha": -1.1, "rule": rule}, r"\[-1, 1\]") for rule in ("diff", "token_v1")),
    ("typical", {"threshold": -0.1}, UNIT),
    ("typical", {"threshold": 1.1}, UNIT),
    ("typical", {"threshold": math.nan}, UNIT),
    ("typical", {"alpha": -1.0}, "must be finite and >= 0"),
    ("typical", {"alpha": math.inf}, "must be finite and >= 0"),
    ("typical", {"alpha": math.nan}, "must be finite and >= 0"),
    ("fuzzy", {"threshold": -0.1}, "must be at least 0"),
    ("fuzzy", {"threshold": math.nan}, "must be at least 0"),
    ("fuzzy", {"divergence": "hellinger"}, "must be one of js, kl, tv"),
    ("margin", {"theta": -0.1}, UNIT),
    ("margin", {"theta": 1.1}, UNIT),
    ("margin", {"theta": math.nan}, UNIT),
    ("diversed", {"dial": math.nan}, "must be a number"),
]
RIGHT = {
    "lossless": {},
    "static": {"weight": 0.5},
    "lenient": {"lenience": 0.5},
    "cascade": {"rule": "diff", "alpha": 0.1},
    "diversed": {"head": CountingHead(1, 1)},
    "typical": {},
    "fuzzy": {"threshold": 0.1},
    "margin": {"theta": 0.5},
}
NUMBERS = [
    ("static", "weight"),
    ("lenient", "lenience"),
    ("cascade", "alpha"),
    ("diversed", "dial"),
    ("typical", "threshold"),
    ("typical", "alpha"),
    ("fuzzy", "threshold"),
    ("margin", "theta"),
]


@pytest.mark.parametrize(("name", "wrong", "remedy"), WRONG, ids=str)
def test_value_out_of_range_is_refused_by_key_value_and_remedy(name, wrong, remedy):
    key, value = next(iter(wrong.items()))
    make_verifier(name, **RIGHT[name])
    with pytest.raises(ValueError, match=rf"^verifier\.{key}={value!r}: .*{remedy}"):
        make_verifier(name, **{**RIGHT[name], **wrong})


@pytest.mark.parametrize(("name", "key"), NUMBERS)
@pytest.mark.parametrize("value", ["abc", "0.5", None, True, [0.5]], ids=repr)
def test_value_that_is_no_number_is_refused_by_key_and_value(name, key, value):
    """Used to end in "'<' not supported between instances of 'int' and 'str'", or to pass."""
    with pytest.raises(ValueError, match=rf"^verifier\.{key}=.*: must be a number$") as refusal:
        make_verifier(name, **{**RIGHT[name], key: value})
    assert f"={value!r}:" in str(refusal.value)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("bonus", ["draft", "", "Verifier", None])
def test_unknown_source_of_the_bonus_token_is_refused(name, bonus):
    wanted = rf"verifier\.bonus={bonus!r}: must be one of verifier, target"
    with pytest.raises(ValueError, match=wanted):
        make_verifier(name, **RIGHT[name], bonus=bonus)


@pytest.mark.parametrize("name", ["sd", "Static", "", "sd_en"])
def test_unknown_rule_gets_the_known_ones(name):
    with pytest.raises(ValueError, match=f"verifier={name!r}: must be one of") as refusal:
        make_verifier(name)
    assert all(known in str(refusal.value) for known in VERIFIERS)


@pytest.mark.parametrize("name", VERIFIERS)
def test_setting_that_a_rule_does_not_have_is_refused(name):
    with pytest.raises(ValueError, match=f"verifier={name}: .*wait"):
        make_verifier(name, **RIGHT.get(name, {}), wait=1)


@pytest.mark.parametrize("name", RIGHT)
def test_published_sources_of_the_bonus_token_are_the_defaults(name):
    ours = {"lossless", "static", "diversed"}
    rule = make_verifier(name, **RIGHT[name])
    assert rule.bonus == ("verifier" if name in ours else "target")
    for bonus in ("verifier", "target"):
        assert make_verifier(name, **RIGHT[name], bonus=bonus).bonus == bonus


def test_settings_of_a_rule_are_there_for_records():
    wanted = {
        "lossless": {},
        "static": {"weight": 0.5},
        "lenient": {"lenience": 0.5, "residual": "target"},
        "cascade": {"rule": "diff", "alpha": 0.1},
        "diversed": {},
        "typical": {"threshold": 0.09, "alpha": 0.3},
        "fuzzy": {"threshold": 0.1, "divergence": "js"},
        "margin": {"theta": 0.5},
    }
    got = {name: dict(make_verifier(name, **chosen).settings) for name, chosen in RIGHT.items()}
    assert got == wanted
    assert dict(make_verifier("diversed", **RIGHT["diversed"], dial=-1.0).settings) == {
        "dial": -1.0
    }
    assert make_verifier("autoregressive").settings == {}


def test_lossy_rules_warn_once_per_method(monkeypatch, caplog):
    monkeypatch.setattr(kernel, "_warned", set())
    caplog.set_level(logging.WARNING)
    lossy = [name for name in RIGHT if name != "lossless"]
    for _ in range(3):
        for name in RIGHT:
            make_verifier(name, **RIGHT[name])
        make_verifier("autoregressive")
    assert [record.getMessage() for record in caplog.records] == [
        f"verifier {name} is lossy: no guarantee on quality" for name in lossy
    ]
    assert [name for name, rule in VERIFIERS.items() if rule.is_lossy] == [
        name for name in VERIFIERS if name in lossy
    ]


def test_view_of_one_column_per_row_keeps_every_tensor_aligned(generator):
    view = random_view(generator)
    columns = torch.tensor([2, 0, 3])
    at = view.at(columns)
    tensors = {name: whole for name, whole in vars(view).items() if name != "is_plain"}
    for name, whole in tensors.items():
        for row, column in enumerate(columns.tolist()):
            assert torch.equal(getattr(at, name)[row, 0], whole[row, column])
    for name, whole in tensors.items():
        assert torch.equal(getattr(view.columns(1, 3), name), whole[:, 1:3])
