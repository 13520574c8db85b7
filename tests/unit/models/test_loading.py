"""Loading a pair: the embedded one, local folders, and what is refused by name."""

import itertools
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import StaticVerifier
from diversed.generation import SpeculativeDecoder
from diversed.models.loading import (
    TINY_FOLDER,
    LoadingError,
    ModelSource,
    load_pair,
    load_tiny_pair,
)
from diversed.tasks.arithmetic import draw_examples

TARGET = ModelSource(name="tiny/target", path="builtin:target")
DRAFT = ModelSource(name="tiny/draft", path="builtin:draft")


@pytest.fixture(scope="module")
def pair():
    return load_tiny_pair()


def test_embedded_pair_is_frozen_in_eval_mode_and_smaller_as_draft(pair):
    for role in (pair.target, pair.draft):
        assert not role.model.training
        assert not any(parameter.requires_grad for parameter in role.model.parameters())
        assert role.model.dtype == torch.float32
    sizes = {role: pair.description[role]["num_parameters"] for role in ("target", "draft")}
    assert 0 < sizes["draft"] < sizes["target"] == pair.target.model.num_parameters()
    assert pair.eos_ids == (pair.tokenizer.eos_token_id,)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_embedded_models_are_plain_transformers_checkpoints(role, pair):
    model = AutoModelForCausalLM.from_pretrained(TINY_FOLDER / role)
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER / role)
    ids = tokenizer("Ada has 3 pens.", return_tensors="pt").input_ids
    logits = model(ids).logits
    assert logits.shape[:2] == ids.shape
    wrapped = getattr(pair, role).model(ids).logits
    torch.testing.assert_close(logits, wrapped)


def test_tokenizer_gives_back_every_question_and_solution(pair):
    for example in itertools.islice(draw_examples("test", 3), 200):
        for text in (example["question"], example["solution"]):
            ids = pair.tokenizer(text).input_ids
            assert pair.tokenizer.decode(ids, skip_special_tokens=True) == text
            assert pair.tokenizer.unk_token_id not in ids


def test_every_solution_fits_the_context(pair):
    for example in itertools.islice(draw_examples("test", 4), 200):
        text = f"{example['question']}\n{example['solution']}"
        assert len(pair.tokenizer(text).input_ids) < pair.context_length


def test_weights_are_small_enough_for_a_repository():
    total = sum(path.stat().st_size for path in TINY_FOLDER.rglob("*") if path.is_file())
    assert 0 < total < 15e6


def test_dtype_is_that_of_the_models():
    pair = load_pair(TARGET, DRAFT, dtype="bfloat16")
    assert pair.target.model.dtype == pair.draft.model.dtype == torch.bfloat16


def test_unknown_dtype_is_refused_by_name():
    with pytest.raises(LoadingError, match=r"model\.dtype='int3'.*float32, bfloat16, float16"):
        load_pair(TARGET, DRAFT, dtype="int3")


@pytest.mark.parametrize("path", ["/nowhere/model", "builtin:nowhere"])
def test_missing_folder_names_key_and_path(path):
    message = rf"model\.draft\.path={path}: the folder does not exist"
    with pytest.raises(LoadingError, match=message):
        load_pair(TARGET, ModelSource(name="mine", path=path))


def test_folder_without_config_names_key_and_path(tmp_path):
    message = rf"model\.target\.path={tmp_path}: the folder has no config\.json"
    with pytest.raises(LoadingError, match=message):
        load_pair(ModelSource(name="mine", path=str(tmp_path)), DRAFT)


def test_name_that_the_hub_cannot_serve_names_the_key():
    message = r"model\.target\.name=nowhere/none: cannot be loaded.*model\.target\.path"
    with pytest.raises(LoadingError, match=message):
        load_pair(ModelSource(name="nowhere/none"), DRAFT)


def test_differing_tokenizers_are_refused_with_both_names(tmp_path):
    shutil.copytree(TINY_FOLDER / "draft", tmp_path, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(tmp_path)
    draft = ModelSource(name="other/draft", path=str(tmp_path))
    message = r"model\.draft=other/draft and model\.target=tiny/target.*1 tokens differ, 'zebra'"
    with pytest.raises(LoadingError, match=message):
        load_pair(TARGET, draft)


def test_padded_vocabulary_of_one_model_changes_no_text(pair, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(TINY_FOLDER / "target")
    width = model.config.vocab_size + 9
    model.resize_token_embeddings(width, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[-9:] = 50.0  # what lies there must not be drawn
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(TINY_FOLDER / "target").save_pretrained(tmp_path)
    padded = load_pair(ModelSource(name="padded", path=str(tmp_path)), DRAFT)
    assert padded.target.model.config.vocab_size == width
    prompts = ["Ada has 3 pens. Ada buys 4 more pens. How many pens are there?\n", "Ben has"]
    texts = [
        SpeculativeDecoder(some, StaticVerifier(0.5), DecodeSettings(max_new_tokens=20))
        .generate(prompts)
        .texts
        for some in (pair, padded)
    ]
    assert texts[0] == texts[1]
    assert any(texts[0])
