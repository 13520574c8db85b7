"""Verification rules on their own, without a loop."""

import logging
import math

import pytest
import torch

from diversed.core import kernel
from diversed.core.probs import distribution_features, tv_distance
from diversed.core.kernel import ModelView
from diversed.core.verifiers import (
    DiversedVerifier,
    LosslessVerifier,
    StaticVerifier,
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


def head_weight(head, view):
    return torch.sigmoid(
        view.draft_hidden @ head.draft_weight + view.target_hidden @ head.target_weight
    )


def judge(verifier, view, draft_ids):
    return verifier.judge(view, draft_ids, tv_distance(view.draft_probs, view.target_probs))


def make(name, view):
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
    verifier, w = make(name, view)
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
    verifier, w = make(name, view)
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


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (lambda: StaticVerifier(1.5), r"verifier\.weight=1\.5"),
        (lambda: StaticVerifier(-0.1), r"verifier\.weight=-0\.1"),
        (lambda: StaticVerifier(math.nan), r"verifier\.weight=nan"),
        (lambda: StaticVerifier(0.5, bonus="draft"), r"verifier\.bonus='draft'"),
        (lambda: LosslessVerifier(bonus=""), r"verifier\.bonus=''"),
        (lambda: DiversedVerifier(CountingHead(1, 1), dial=math.nan), r"verifier\.dial=nan"),
        (lambda: DiversedVerifier(CountingHead(1, 1), bonus="p"), r"verifier\.bonus='p'"),
    ],
)
def test_value_out_of_range_is_refused_by_name(build, key):
    with pytest.raises(ValueError, match=key):
        build()


def test_lossy_rules_warn_once_per_method(monkeypatch, caplog):
    monkeypatch.setattr(kernel, "_warned", set())
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        LosslessVerifier()
        StaticVerifier(0.3)
        DiversedVerifier(CountingHead(1, 1))
    assert [record.getMessage() for record in caplog.records] == [
        f"verifier {name} is lossy: no guarantee on quality" for name in ("static", "diversed")
    ]
    assert [rule.is_lossy for rule in (LosslessVerifier, StaticVerifier, DiversedVerifier)] == [
        False,
        True,
        True,
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
