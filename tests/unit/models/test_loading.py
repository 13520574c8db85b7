"""Loading a pair: the embedded one, local folders, and what is refused by name."""

import itertools
import shutil
from importlib.util import find_spec

import pytest
import torch
from tiny_models import BASE, frozen, longrope_phi3, random_prompts
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    BloomForCausalLM,
    T5Config,
    ViTConfig,
)

from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import StaticVerifier
from diversed.generation import SpeculativeDecoder
from diversed.models.loading import (
    TINY_FOLDER,
    LoadingError,
    ModelSource,
    load_pair,
    load_tiny_pair,
    make_pair,
    weights_fingerprint,
)
from diversed.tasks.arithmetic import draw_examples

TARGET = ModelSource(name="tiny/target", path="builtin:target")
DRAFT = ModelSource(name="tiny/draft", path="builtin:draft")


def test_embedded_pair_is_frozen_in_eval_mode_and_smaller_as_draft(pair):
    for role in (pair.target, pair.draft):
        assert not role.model.training
        assert not any(parameter.requires_grad for parameter in role.model.parameters())
        assert role.model.dtype == torch.float32
    sizes = {role: pair.description[role]["num_parameters"] for role in ("target", "draft")}
    assert 0 < sizes["draft"] < sizes["target"] == pair.target.model.num_parameters()
    assert pair.eos_ids == (pair.tokenizer.eos_token_id,)


def weighing(*numbers, dtype=torch.float32):
    """Return a model whose weights are `numbers`."""
    layer = torch.nn.Linear(len(numbers), 1, bias=False, dtype=dtype)
    layer.weight.data = torch.tensor([numbers], dtype=dtype)
    return layer


@pytest.mark.parametrize(
    ("numbers", "dtype", "fingerprint"),
    [
        ((0.0,), torch.float32, "0000000000000000"),
        ((1.0, 2.0), torch.float32, "400000003f800000"),  # little-endian: the first is low
        ((1.0, 2.0, 0.0, 1.0), torch.float32, "7f8000003f800000"),
        ((-0.0,) * 4, torch.bfloat16, "8000800080008000"),
        ((-0.0,) * 8, torch.bfloat16, "0001000100010000"),  # modulo 2^64
        ((1.0,), torch.bfloat16, "00000000000000bf"),  # 0x3f80, its two bytes added
    ],
)
def test_fingerprint_is_the_sum_of_the_weights_as_64_bit_integers(numbers, dtype, fingerprint):
    assert weights_fingerprint(weighing(*numbers, dtype=dtype)) == fingerprint


def test_fingerprint_tells_the_next_number_and_does_not_mind_where_weights_lie():
    numbers = torch.linspace(-1, 1, 1001)
    wanted = weights_fingerprint(weighing(*numbers))
    shifted = weighing(0.0)
    shifted.weight.data = torch.cat([torch.zeros(1), numbers])[1:]
    assert shifted.weight.data.storage_offset() == 1
    assert weights_fingerprint(shifted) == wanted
    for place in (0, 500, 1000):
        changed = numbers.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(2.0))
        assert weights_fingerprint(weighing(*changed)) != wanted


def test_descriptions_tell_the_weights_apart(pair):
    prints = {role: pair.description[role]["fingerprint"] for role in ("target", "draft")}
    assert prints["draft"] == weights_fingerprint(pair.draft.model)
    assert prints["draft"] != prints["target"]
    assert load_tiny_pair().description == pair.description


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


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/nowhere/model", "folder"), ("builtin:nowhere", "folder"), ("/nowhere/m.gguf", "file")],
)
def test_missing_folder_names_key_and_path(path, kind):
    message = rf"model\.draft\.path={path}: the {kind} does not exist"
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


def padded_copy(role, num_more, folder):
    """Save an embedded model with more logits, high ones, than its tokenizer has ids."""
    model = AutoModelForCausalLM.from_pretrained(TINY_FOLDER / role)
    width = model.config.vocab_size
    model.resize_token_embeddings(width + num_more, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[width:] = 50.0
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_FOLDER / role).save_pretrained(folder)
    return ModelSource(name=f"padded/{role}", path=str(folder))


@pytest.mark.parametrize(("target_more", "draft_more"), [(9, 0), (0, 9), (40, 8), (8, 40)])
def test_padded_vocabularies_change_no_text(pair, tmp_path, target_more, draft_more):
    padded = load_pair(
        padded_copy("target", target_more, tmp_path / "target"),
        padded_copy("draft", draft_more, tmp_path / "draft"),
    )
    widths = [role.model.config.vocab_size for role in (padded.target, padded.draft)]
    assert [width - pair.target.vocab_size for width in widths] == [target_more, draft_more]
    prompts = ["Ada has 3 pens. Ada buys 4 more pens. How many pens are there?\n", "Ben has"]
    texts = [
        SpeculativeDecoder(some, StaticVerifier(0.5), DecodeSettings(max_new_tokens=20))
        .generate(prompts)
        .texts
        for some in (pair, padded)
    ]
    assert texts[0] == texts[1]
    assert any(texts[0])


@pytest.mark.parametrize("config", [T5Config(), ViTConfig()])
def test_model_that_is_no_causal_one_is_refused_by_name(tmp_path, config):
    """The hub's list of a hundred model types used to be the message."""
    AutoTokenizer.from_pretrained(TINY_FOLDER / "draft").save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    draft = ModelSource(name="some/model", path=str(tmp_path))
    message = rf"model\.draft\.path={tmp_path}: a model of type {config.model_type} is no causal"
    with pytest.raises(LoadingError, match=message):
        load_pair(TARGET, draft)


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors", "config.json"])
def test_damaged_folder_is_one_clear_error(tmp_path, file):
    """What the readers of each file raise used to come through."""
    shutil.copytree(TINY_FOLDER / "draft", tmp_path, dirs_exist_ok=True)
    (tmp_path / file).write_text("junk")
    draft = ModelSource(name="some/model", path=str(tmp_path))
    with pytest.raises(LoadingError, match=rf"^model\.draft\.path={tmp_path}: cannot be .+\)$"):
        load_pair(TARGET, draft)


def test_file_that_is_no_gguf_is_refused_by_name(tmp_path):
    file = tmp_path / "model.bin"
    file.write_text("junk")
    draft = ModelSource(name="some/model", path=str(file))
    with pytest.raises(LoadingError, match=rf"model\.draft\.path={file}: give a folder.*\.gguf"):
        load_pair(TARGET, draft)


def test_attention_is_the_one_asked_for_and_changes_no_text():
    texts = []
    for name in ("eager", "sdpa"):
        pair = load_pair(TARGET, DRAFT, attn_implementation=name)
        for role in ("target", "draft"):
            assert pair.description[role]["attn_implementation"] == name
            assert getattr(pair, role).model.config._attn_implementation == name
        decoder = SpeculativeDecoder(pair, StaticVerifier(0.5), DecodeSettings(max_new_tokens=20))
        texts.append(decoder.generate(["Ada has 3 pens.", "Ben has"]).texts)
    assert texts[0] == texts[1]


def test_unknown_attention_is_refused_by_name():
    message = r"model\.attn_implementation='fast': must be null or one of eager, sdpa, flash"
    with pytest.raises(LoadingError, match=message):
        load_pair(TARGET, DRAFT, attn_implementation="fast")


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_attention_without_its_package_is_one_clear_error():
    with pytest.raises(LoadingError, match=r"model\.target\.path=.*FlashAttention2.*not"):
        load_pair(TARGET, DRAFT, attn_implementation="flash_attention_2")


def phi3(length_before_extension):
    torch.manual_seed(0)
    return frozen(longrope_phi3(length_before_extension))


def test_context_ends_where_longrope_turns_to_other_frequencies(pair):
    """Behind that length the cache used to hold keys of other frequencies than the queries."""
    model = phi3(16)
    limited = make_pair(model, phi3(32), pair.tokenizer, BASE["vocab_size"], TARGET, DRAFT)
    assert limited.context_length == 16
    lm, ids = limited.target, torch.tensor(random_prompts([20]))
    lm.start(ids[:, :13], torch.ones(1, 13, dtype=torch.bool))
    logits = lm.step(ids[:, 12:16]).logits[0]
    within, beyond = (model(ids[:, :end]).logits[0, 12:16] for end in (16, 20))
    assert torch.allclose(logits, within, atol=1e-4)
    assert not torch.allclose(logits, beyond, atol=1e-2)  # what the limit keeps out


def test_context_of_models_without_a_longest_length_is_open(pair):
    """Their config used to end in an AttributeError."""
    config = BloomConfig(vocab_size=BASE["vocab_size"], hidden_size=32, n_layer=2, n_head=4)
    models = [frozen(BloomForCausalLM(config)) for _ in range(2)]
    opened = make_pair(*models, pair.tokenizer, BASE["vocab_size"], TARGET, DRAFT)
    assert opened.context_length > 10**9
