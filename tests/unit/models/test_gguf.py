"""GGUF files as models, written by the `gguf` package from a tiny model."""

import shutil

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from tiny_models import GROUPED, frozen
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import StaticVerifier
from diversed.generation import SpeculativeDecoder
from diversed.models import loading
from diversed.models.loading import TINY_FOLDER, LoadingError, ModelSource, load_pair

TOKENS = [*bytes_to_unicode().values(), "he", "hel", "lo", "<|endoftext|>"]
MERGES = ["h e", "he l", "l o"]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name):
    name = name.removeprefix("model.")
    for ours, theirs in (("embed_tokens", "token_embd"), ("lm_head", "output")):
        name = name.replace(ours, theirs)
    if not name.startswith("layers."):
        return name.replace("norm.", "output_norm.")
    _, number, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"blk.{number}.{NAMES[module]}.{kind}"


def make_model(vocab_size, seed=0):
    torch.manual_seed(seed)
    return frozen(Qwen2ForCausalLM(Qwen2Config(**{**GROUPED, "vocab_size": vocab_size})))


def write_gguf(model, path, *, has_tokenizer):
    path.parent.mkdir(parents=True, exist_ok=True)
    config = model.config
    writer = GGUFWriter(path, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if has_tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(TOKENS)
        writer.add_token_types([TokenType.NORMAL] * (len(TOKENS) - 1) + [TokenType.CONTROL])
        writer.add_token_merges(MERGES)
        writer.add_eos_token_id(len(TOKENS) - 1)
        writer.add_bos_token_id(len(TOKENS) - 1)
        writer.add_pad_token_id(len(TOKENS) - 1)
    else:
        writer.add_eos_token_id(2)
    for name, weights in model.state_dict().items():
        writer.add_tensor(gguf_name(name), weights.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def source(path):
    return ModelSource(name="tiny/qwen2", path=str(path))


def test_gguf_files_are_read_with_their_own_tokenizer(tmp_path):
    models = [make_model(len(TOKENS), seed) for seed in (0, 1)]
    files = [
        write_gguf(model, tmp_path / f"{index}.gguf", has_tokenizer=True)
        for index, model in enumerate(models)
    ]
    pair = load_pair(*map(source, files))
    for role, model in zip((pair.target, pair.draft), models, strict=True):
        loaded = role.model.state_dict()
        for name, weights in model.state_dict().items():
            torch.testing.assert_close(loaded[name], weights, rtol=0, atol=0)
        ids = torch.tensor([[5, 9, 200]])
        torch.testing.assert_close(role.model(ids).logits, model(ids).logits)
    assert pair.target.vocab_size == len(TOKENS)
    assert pair.eos_ids == (len(TOKENS) - 1,)
    assert pair.context_length == GROUPED["max_position_embeddings"]
    ids = pair.tokenizer("hello, he").input_ids
    assert [TOKENS[index] for index in ids] == ["hel", "lo", ",", "Ġ", "he"]
    decoder = SpeculativeDecoder(pair, StaticVerifier(0.5), DecodeSettings(max_new_tokens=6))
    assert len(decoder.generate(["hello", "he"]).result.token_ids) == 2


def test_tokenizer_in_the_folder_of_a_gguf_file_goes_before_its_own(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY_FOLDER / "target" / name, tmp_path)
    wanted = AutoTokenizer.from_pretrained(TINY_FOLDER / "target")
    for has_tokenizer in (False, True):
        model = make_model(max(len(wanted), len(TOKENS)))
        file = write_gguf(model, tmp_path / "model.gguf", has_tokenizer=has_tokenizer)
        pair = load_pair(source(file), source(file), dtype="bfloat16")
        assert pair.tokenizer.get_vocab() == wanted.get_vocab()
        assert pair.target.model.dtype == torch.bfloat16


def test_gguf_model_can_be_saved_and_loaded_again(tmp_path):
    model = make_model(len(TOKENS))
    file = write_gguf(model, tmp_path / "model.gguf", has_tokenizer=True)
    pair = load_pair(source(file), source(file))
    pair.target.model.save_pretrained(tmp_path / "folder")
    pair.tokenizer.save_pretrained(tmp_path / "folder")
    again = load_pair(source(tmp_path / "folder"), source(file))
    ids = torch.tensor([[5, 9, 200]])
    torch.testing.assert_close(again.target.model(ids).logits, model(ids).logits)


def test_gguf_without_the_extra_says_what_to_install(tmp_path, monkeypatch):
    file = write_gguf(make_model(len(TOKENS)), tmp_path / "model.gguf", has_tokenizer=True)
    monkeypatch.setattr(loading, "find_spec", lambda name: None if name == "gguf" else name)
    message = rf"model\.target\.path={file}: reading a GGUF file needs gguf; .*diversed\[gguf\]"
    with pytest.raises(LoadingError, match=message):
        load_pair(source(file), source(file))


@pytest.mark.parametrize("content", [b"", b"no gguf at all"])
def test_damaged_gguf_is_one_clear_error(tmp_path, content):
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(LoadingError, match=rf"model\.target\.path={file}: cannot be loaded \(.+\)"):
        load_pair(source(file), source(file))
