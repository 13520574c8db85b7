"""Heads on disk: found where users point to, and refused for another pair."""

import shutil
from copy import deepcopy
from dataclasses import replace

import httpx
import huggingface_hub.hub_mixin
import pytest
import torch
from huggingface_hub.errors import RemoteEntryNotFoundError
from safetensors.torch import load_file, save_file

from diversed.models import checkpoint
from diversed.models.checkpoint import check_head_pair, load_head, new_head, save_head
from diversed.models.hub import HubCopy
from diversed.models.loading import TINY_FOLDER, LoadingError


def other_pair(pair, role, **changes):
    description = deepcopy(pair.description)
    description[role] |= changes
    return replace(pair, description=description)


def test_new_head_fits_the_pair(pair):
    head = new_head(pair, kind="mlp", width=9)
    sizes = [pair.description[role]["hidden_size"] for role in ("draft", "target")]
    assert head(*(torch.zeros(2, size) for size in sizes)).shape == (2,)
    assert head.layers[0].out_features == 9
    assert head.pair == pair.description


@pytest.mark.parametrize("subfolder", ["", "head"])
def test_head_is_loaded_from_its_folder_and_from_a_run(pair, tmp_path, subfolder):
    head = new_head(pair, initial_weight=0.3)
    head.save_pretrained(tmp_path / subfolder)
    loaded = load_head(str(tmp_path), pair)
    assert not loaded.training
    for name, value in head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("role", "changes"),
    [
        ("target", {"name": "another/target"}),
        ("draft", {"name": "another/draft"}),
        ("draft", {"hidden_size": 7}),
    ],
)
def test_head_of_another_pair_is_refused_with_both_names(pair, tmp_path, role, changes):
    new_head(pair).save_pretrained(tmp_path)
    other = other_pair(pair, role, **changes)
    with pytest.raises(LoadingError) as caught:
        load_head(str(tmp_path), other)
    message = str(caught.value)
    assert f"verifier.checkpoint={tmp_path}" in message
    for known in (pair, other):
        for model in ("target", "draft"):
            assert known.description[model]["name"] in message


def test_head_of_another_revision_may_be_used(pair):
    check_head_pair(new_head(pair), other_pair(pair, "target", revision="newer"), "folder")


def refingerprinted(pair, role, **changes):
    return other_pair(pair, role, fingerprint="0123456789abcdef", **changes)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_head_of_other_weights_of_the_same_name_is_used_with_a_warning(
    pair, tmp_path, caplog, role
):
    """A head used to be taken for a fine-tuned draft without a word."""
    new_head(pair).save_pretrained(tmp_path)
    load_head(str(tmp_path), refingerprinted(pair, role))
    (record,) = caplog.records
    model = pair.description[role]
    assert record.getMessage() == (
        f"verifier.checkpoint={tmp_path}: this head was trained with other weights of "
        f"{model['name']} (fingerprint {model['fingerprint']}, those loaded have "
        "0123456789abcdef), whose hidden states it has not seen"
    )


def test_weights_that_cannot_be_compared_give_no_warning(pair, caplog):
    check_head_pair(new_head(pair), pair, "folder")
    check_head_pair(new_head(pair), refingerprinted(pair, "draft", dtype="bfloat16"), "folder")
    older = new_head(pair)
    older.pair = {
        role: {key: value for key, value in model.items() if key != "fingerprint"}
        for role, model in pair.description.items()
    }
    check_head_pair(older, pair, "folder")
    assert caplog.records == []


def test_saved_head_names_the_pair_that_it_was_trained_with_last(pair, tmp_path, caplog):
    head = new_head(pair)
    tuned = refingerprinted(pair, "draft")
    head.pair = tuned.description
    save_head(head, tmp_path)
    assert load_head(str(tmp_path), tuned).pair == tuned.description
    assert caplog.records == []


def test_head_without_a_pair_is_refused(pair):
    head = new_head(pair)
    head.pair = {}
    with pytest.raises(LoadingError, match="belongs to the pair None / None"):
        check_head_pair(head, pair, "folder")


def test_folder_without_config_says_what_would_do(pair, tmp_path):
    with pytest.raises(LoadingError, match=r"verifier\.checkpoint=.*no config\.json.*run folder"):
        load_head(str(tmp_path), pair)


@pytest.mark.parametrize("name", ["nowhere/none", "plain", "a/b/c", "/nowhere/none"])
def test_missing_head_is_one_clear_error(pair, name):
    with pytest.raises(LoadingError, match=rf"verifier\.checkpoint={name}: no such folder"):
        load_head(name, pair)


def test_repository_without_a_head_on_a_reachable_hub_is_one_clear_error(pair, monkeypatch):
    """It used to end in a TypeError: the hub's mixin goes on without a config."""

    def not_found(*_, **__):
        response = httpx.Response(404, request=httpx.Request("GET", "https://hub"))
        raise RemoteEntryNotFoundError("no config.json\nthere", response=response)

    monkeypatch.setattr(checkpoint, "find_on_hub", lambda *_: HubCopy("c0ffee", False))
    for module in (huggingface_hub.hub_mixin, checkpoint):
        monkeypatch.setattr(module, "hf_hub_download", not_found)
    message = (
        r"verifier\.checkpoint=some/model: no such folder, and no such head.*no config\.json\)$"
    )
    with pytest.raises(LoadingError, match=message):
        load_head("some/model", pair)


@pytest.mark.parametrize("damage", ["model", "config", "weights"])
def test_folder_that_holds_something_else_is_one_clear_error(pair, tmp_path, damage):
    """A model's folder used to end in a TypeError, damaged weights in an error of safetensors."""
    new_head(pair).save_pretrained(tmp_path)
    if damage == "model":
        shutil.copy(TINY_FOLDER / "draft" / "config.json", tmp_path)
    elif damage == "config":
        new_head(other_pair(pair, "draft", hidden_size=7)).save_pretrained(tmp_path / "other")
        shutil.copy(tmp_path / "other" / "config.json", tmp_path)
    else:
        (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(
        LoadingError, match=rf"verifier\.checkpoint={tmp_path}: holds no head \(.+\)"
    ):
        load_head(str(tmp_path), pair)


def test_head_file_without_one_of_its_weights_is_refused(pair, tmp_path):
    """It was loaded, with the missing weight at its initial value."""
    new_head(pair).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["layers.0.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(LoadingError, match=r"verifier\.checkpoint=.*layers\.0\.weight"):
        load_head(str(tmp_path), pair)
