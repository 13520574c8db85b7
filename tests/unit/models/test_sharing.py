"""Heads on the hub: pushed to, and loaded from, a hub that is a folder."""

import json
import re
import runpy
import shutil
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import HfApi, ModelCard, hub_mixin
from huggingface_hub.errors import EntryNotFoundError

from diversed import DecodeSettings, Sampling, SpeculativeDecoder
from diversed.generation import checkpoint_verifier, head_verifier
from diversed.models import checkpoint, loading
from diversed.models.checkpoint import load_head, new_head
from diversed.models.head import EnsembleHead
from diversed.models.loading import LoadingError, ModelSource

HEAD_ID = "someone/a-head"
COMMIT = "c0ffee"
PROMPT = "Ada has 3 pens. How many pens are there?\n"


class FolderHub:
    """What the hub's client is asked for, answered from a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.messages = []

    def create_repo(self, repo_id, **_):
        (self.folder / repo_id).mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id, folder_path, commit_message, **_):
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        self.messages.append(commit_message)
        return f"https://hub/{repo_id}/commit/{COMMIT}"

    def model_info(self, repo_id, **_):
        return SimpleNamespace(id=repo_id, sha=COMMIT)

    def download(self, repo_id, filename, **_):
        file = self.folder / repo_id / filename
        if not file.is_file():
            raise EntryNotFoundError(f"{repo_id} has no {filename}")
        return str(file)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = FolderHub(tmp_path / "hub")
    for name in ("create_repo", "upload_folder", "model_info"):
        monkeypatch.setattr(HfApi, name, getattr(hub, name))
    for module in (hub_mixin, checkpoint):
        monkeypatch.setattr(module, "hf_hub_download", hub.download)
    return hub


@pytest.fixture
def head(pair):
    """Return a head whose w depends on what it reads."""
    head = new_head(pair, kind="mlp", width=5, uses_features=True, initial_weight=0.4)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return head.eval()


def weights_of(head):
    return {name: value.clone() for name, value in head.state_dict().items()}


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(got[name], value), name


def traced(pair, verifier):
    """Return ids and w of a completion."""
    settings = DecodeSettings(max_new_tokens=24, sampling=Sampling(temperature=2))
    result = SpeculativeDecoder(pair, verifier, settings).generate([PROMPT]).result
    return result.token_ids[0], result.trace.target_weight


def assert_same_decoding(pair, got, wanted):
    for ours, theirs in zip(traced(pair, got), traced(pair, wanted), strict=True):
        assert torch.equal(ours.nan_to_num(-1.0), theirs.nan_to_num(-1.0))


def test_a_pushed_head_is_what_comes_back(pair, head, hub):
    address = head.push_to_hub(HEAD_ID, commit_message="A head")
    assert address == f"https://hub/{HEAD_ID}/commit/{COMMIT}"
    assert hub.messages == ["A head"]
    assert sorted(file.name for file in (hub.folder / HEAD_ID).iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    loaded = EnsembleHead.from_pretrained(HEAD_ID)
    assert_same(weights_of(loaded), weights_of(head))
    assert loaded.pair == pair.description
    assert not loaded.training


def test_saving_may_push_as_well(head, hub, tmp_path):
    head.save_pretrained(tmp_path / "local", push_to_hub=True, repo_id=HEAD_ID)
    for folder in (tmp_path / "local", hub.folder / HEAD_ID):
        assert_same(weights_of(EnsembleHead.from_pretrained(folder)), weights_of(head))
    card = (hub.folder / HEAD_ID / "README.md").read_text()
    assert HEAD_ID in card


def test_checkpoint_of_a_verifier_may_be_a_hub_id(pair, head, hub):
    head.push_to_hub(HEAD_ID)
    assert_same(weights_of(load_head(HEAD_ID, pair)), weights_of(head))
    verifier = checkpoint_verifier(pair, HEAD_ID, dial=0.7)
    assert_same_decoding(pair, verifier, head_verifier(head, dial=0.7))
    assert traced(pair, verifier)[1].nan_to_num(0).unique().numel() > 3


def test_a_head_from_the_hub_is_refused_for_another_pair(pair, head, hub):
    head.push_to_hub(HEAD_ID)
    description = deepcopy(pair.description)
    description["draft"]["name"] = "other/draft"
    with pytest.raises(LoadingError, match=f"checkpoint={HEAD_ID}.*tiny-draft.*other/draft"):
        load_head(HEAD_ID, replace(pair, description=description))


def test_a_repository_without_a_head_is_refused(pair, hub):
    hub.create_repo(HEAD_ID)
    with pytest.raises(LoadingError, match=rf"verifier\.checkpoint={HEAD_ID}"):
        load_head(HEAD_ID, pair)


def test_a_second_push_replaces_the_first(pair, head, hub):
    new_head(pair).push_to_hub(HEAD_ID)
    head.push_to_hub(HEAD_ID)
    assert_same(weights_of(load_head(HEAD_ID, pair)), weights_of(head))
    assert json.loads((hub.folder / HEAD_ID / "config.json").read_text())["kind"] == "mlp"


def test_config_and_card_name_both_models(pair, head, hub):
    head.push_to_hub(HEAD_ID)
    config = json.loads((hub.folder / HEAD_ID / "config.json").read_text())
    card = ModelCard.load(hub.folder / HEAD_ID / "README.md")
    for role in ("target", "draft"):
        model = pair.description[role]
        assert config["pair"][role] == model
        assert f"| {role} | {model['name']} |" in card.text
        assert f"| {model['hidden_size']} |" in card.text
    assert "arxiv.org/abs/2604.07622" in card.text
    assert card.data.library_name == "diversed"
    assert "speculative-decoding" in card.data.tags
    assert "{{" not in card.content


def test_card_links_models_of_the_hub_only(pair):
    from_hub = deepcopy(pair.description)
    for role, name in (("target", "org/large"), ("draft", "org/small")):
        from_hub[role] |= {"name": name, "revision": "1234abcd"}
    card = new_head(replace(pair, description=from_hub)).generate_model_card()
    assert card.data["base_model"] == ["org/large", "org/small"]
    assert "| target | org/large | 1234abcd |" in card.text
    nameless = EnsembleHead(2, 3).generate_model_card()
    assert nameless.data.get("base_model") is None
    assert "an unnamed model" in nameless.text


def test_card_asks_for_the_id_where_it_is_unknown(head, hub, tmp_path):
    head.save_pretrained(tmp_path)
    assert '"<id of this repository>"' in (tmp_path / "README.md").read_text()
    head.push_to_hub("no-owner")
    assert '"<id of this repository>"' in (hub.folder / "no-owner" / "README.md").read_text()


def test_what_the_card_says_runs(pair, head, hub, tmp_path, monkeypatch, capsys):
    head.push_to_hub(HEAD_ID)
    by_package, by_transformers = re.findall(
        r"^```python\n(.*?)^```$",
        (hub.folder / HEAD_ID / "README.md").read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )

    def run(code, **given):
        file = tmp_path / "example.py"
        file.write_text(code)
        return runpy.run_path(str(file), init_globals=given)

    asked = []
    monkeypatch.setattr(loading, "load_pair", lambda *sources: asked.append(sources) or pair)
    run(by_package.replace("Once upon a time", "Ada has 3 pens."))
    names = [pair.description[role]["name"] for role in ("target", "draft")]
    assert asked == [tuple(map(ModelSource, names))]
    assert capsys.readouterr().out.strip()
    inputs = pair.tokenizer([PROMPT], return_tensors="pt")
    torch.manual_seed(0)  # of the completion: it could end before its 8 tokens
    scope = run(
        by_transformers.replace("**inputs", "**inputs, max_new_tokens=8"),
        target=pair.target.model,
        draft=pair.draft.model,
        inputs=inputs,
    )
    assert scope["output"].shape == (1, inputs["input_ids"].shape[1] + 8)
