"""The ensemble head: shapes, start, standardisation, and what it looks like on disk."""

import json

import pytest
import torch

from diversed.core.probs import NUM_FEATURES
from diversed.models.head import EnsembleHead

DRAFT_SIZE, TARGET_SIZE = 3, 5
PAIR = {
    "target": {"name": "big", "revision": "a1", "hidden_size": TARGET_SIZE},
    "draft": {"name": "small", "revision": "b2", "hidden_size": DRAFT_SIZE},
}
KINDS = ("linear", "mlp")


def make_head(**options):
    torch.manual_seed(0)
    return EnsembleHead(DRAFT_SIZE, TARGET_SIZE, **options)


def inputs(generator, *leading):
    return tuple(
        torch.randn(*leading, size, generator=generator) * 3 + 1
        for size in (DRAFT_SIZE, TARGET_SIZE, NUM_FEATURES)
    )


def randomised(head, generator):
    """Give every parameter a value of its own, so that every input matters."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("uses_features", [False, True])
@pytest.mark.parametrize("leading", [(), (4,), (2, 3)])
def test_output_has_the_leading_shape(generator, kind, uses_features, leading):
    head = make_head(kind=kind, uses_features=uses_features)
    draft_hidden, target_hidden, features = inputs(generator, *leading)
    assert head(draft_hidden, target_hidden, features).shape == leading


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("initial_weight", [0.1, 0.9])
def test_training_starts_from_one_weight_everywhere(generator, kind, initial_weight):
    head = make_head(kind=kind, initial_weight=initial_weight)
    draft_hidden, target_hidden, _ = inputs(generator, 50)
    for _ in range(2):
        weight = head(draft_hidden, target_hidden).sigmoid()
        torch.testing.assert_close(weight, torch.full((50,), initial_weight), rtol=0, atol=1e-6)
        head.standardise(draft_hidden, target_hidden, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("uses_features", [False, True])
def test_output_depends_on_every_input(generator, kind, uses_features):
    head = randomised(make_head(kind=kind, uses_features=uses_features), generator)
    tensors = [tensor.requires_grad_() for tensor in inputs(generator, 6)]
    head(*tensors).sum().backward()
    assert (tensors[0].grad != 0).all()
    assert (tensors[1].grad != 0).all()
    assert (tensors[2].grad is not None) == uses_features


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("uses_features", [False, True])
def test_a_head_on_features_reads_nothing_else(generator, kind, uses_features):
    head = make_head(kind=kind, uses_features=uses_features, reads="features")
    draft_hidden, target_hidden, features = inputs(generator, 40)
    head.standardise(draft_hidden, target_hidden, features)
    torch.testing.assert_close(head.input_mean, features.mean(0))
    randomised(head, generator)
    logits = head(draft_hidden, target_hidden, features)
    assert torch.equal(logits, head(-draft_hidden, target_hidden + 1, features))
    assert (logits != head(draft_hidden, target_hidden, -features)).all()
    number = sum(parameter.numel() for parameter in make_head(reads="features").parameters())
    assert number == NUM_FEATURES + 1
    with pytest.raises(ValueError, match="reads features"):
        head(draft_hidden, target_hidden)


def test_inputs_are_standardised_once_only(generator):
    head = make_head(uses_features=True)
    first = inputs(generator, 400)
    head.standardise(*first)
    joined = torch.cat(first, dim=-1)
    torch.testing.assert_close(head.input_mean, joined.mean(0))
    torch.testing.assert_close(head.input_scale, joined.std(0, correction=0))
    before = head.input_mean.clone()
    head.standardise(*(tensor + 100 for tensor in first))
    assert torch.equal(head.input_mean, before)


def test_standardisation_reaches_the_output(generator):
    head = randomised(make_head(), generator)
    draft_hidden, target_hidden, _ = inputs(generator, 400)
    head.standardise(draft_hidden, target_hidden, None)
    joined = torch.cat([draft_hidden, target_hidden], dim=-1)
    wanted = head.layers((joined - joined.mean(0)) / joined.std(0, correction=0)).squeeze(-1)
    torch.testing.assert_close(head(draft_hidden, target_hidden), wanted)


def test_a_constant_input_does_not_divide_by_zero():
    head = make_head()
    draft_hidden, target_hidden = torch.ones(4, DRAFT_SIZE), torch.ones(4, TARGET_SIZE)
    head.standardise(draft_hidden, target_hidden, None)
    assert head(draft_hidden, target_hidden).isfinite().all()


def test_everything_is_fp32_for_bf16_models(generator):
    head = randomised(make_head(uses_features=True), generator)
    low = [tensor.bfloat16() for tensor in inputs(generator, 4)]
    head.standardise(*low)
    got = head(*low)
    assert got.dtype == torch.float32
    assert torch.equal(got, head(*(tensor.float() for tensor in low)))


def test_features_are_required_by_a_head_that_reads_them(generator):
    draft_hidden, target_hidden, _ = inputs(generator, 2)
    with pytest.raises(ValueError, match="reads features"):
        make_head(uses_features=True)(draft_hidden, target_hidden)


def test_features_are_ignored_by_a_head_that_does_not_read_them(generator):
    head = randomised(make_head(), generator)
    draft_hidden, target_hidden, features = inputs(generator, 2)
    assert torch.equal(
        head(draft_hidden, target_hidden, features), head(draft_hidden, target_hidden)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "transformer"}, r"head\.kind='transformer'.*linear, mlp"),
        ({"initial_weight": 0.0}, r"head\.initial_weight=0\.0"),
        ({"initial_weight": 1.0}, r"head\.initial_weight=1\.0"),
        ({"kind": "mlp", "width": 0}, r"head\.width=0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        make_head(**options)


def test_hidden_states_of_another_width_are_refused(generator):
    draft_hidden, target_hidden, _ = inputs(generator, 2)
    with pytest.raises(ValueError, match="draft_hidden"):
        make_head()(target_hidden, target_hidden)
    with pytest.raises(ValueError, match="target_hidden"):
        make_head()(draft_hidden, draft_hidden)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("uses_features", [False, True])
def test_saved_and_loaded_head_gives_identical_outputs(generator, tmp_path, kind, uses_features):
    head = make_head(kind=kind, width=7, uses_features=uses_features, pair=PAIR)
    randomised(head, generator)
    batch = inputs(generator, 20)
    head.standardise(*batch)
    head.save_pretrained(tmp_path)
    loaded = EnsembleHead.from_pretrained(tmp_path)
    assert torch.equal(loaded(*batch), head(*batch))
    assert loaded.pair == PAIR
    assert loaded.uses_features == uses_features
    assert bool(loaded.is_standardised)


def test_config_file_names_the_pair_and_weights_are_safetensors(tmp_path):
    make_head(kind="mlp", pair=PAIR).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pair"] == PAIR
    assert config["kind"] == "mlp"
    assert (tmp_path / "model.safetensors").is_file()
    assert not list(tmp_path.glob("*.bin"))
