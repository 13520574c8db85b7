"""Texts in, texts out: what `SpeculativeDecoder` takes, gives and refuses, and its bar."""

import copy
import io
import itertools
import sys
from dataclasses import replace

import pytest
import torch

from diversed import (
    AutoregressiveVerifier,
    DecodeSettings,
    LosslessVerifier,
    Sampling,
    SpeculativeDecoder,
    StaticVerifier,
)
from diversed.core.verifiers import DiversedVerifier
from diversed.generation import PromptError, checkpoint_verifier, head_verifier, row_key
from diversed.generation.decoder import DEFAULT_NEW_TOKENS
from diversed.models.checkpoint import new_head

PROMPTS = ["Ada has 3 pens. How many pens are there?\n", "Ben keeps 5 toys.\n"]
TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}So{% endif %}"
    "{% if enable_thinking is undefined or enable_thinking %}Then{% endif %}"
)
CHAT = [{"role": "user", "content": "Ada has 3 pens."}, {"role": "user", "content": "Ben has 2."}]


@pytest.fixture(scope="module")
def talking_pair(pair):
    """Return the pair with a tokenizer that knows conversations."""
    tokenizer = copy.deepcopy(pair.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return replace(pair, tokenizer=tokenizer)


def decoder(pair, verifier=None, stop_strings=(), **settings):
    settings = {"max_new_tokens": 12} | settings
    verifier = verifier or LosslessVerifier()
    return SpeculativeDecoder(pair, verifier, DecodeSettings(**settings), stop_strings)


def ids_of(generation):
    return [ids.tolist() for ids in generation.result.token_ids]


def test_defaults_are_plain_sampling_of_a_short_text(pair):
    default = SpeculativeDecoder(pair, LosslessVerifier())
    assert default.settings == DecodeSettings(
        max_new_tokens=DEFAULT_NEW_TOKENS, sampling=Sampling(), eos_ids=pair.eos_ids
    )
    assert default.stop_strings == ()
    generation = default.generate(PROMPTS)
    assert generation.result.end_reasons == ["eos", "eos"]
    assert [ids[-1] for ids in ids_of(generation)] == [pair.tokenizer.eos_token_id] * 2


def test_end_ids_of_the_settings_stay(pair):
    assert decoder(pair, eos_ids=(7,)).settings.eos_ids == (7,)
    greedy = Sampling(temperature=0)
    (plain,) = ids_of(decoder(pair, sampling=greedy).generate(PROMPTS[:1]))
    cut = decoder(pair, sampling=greedy, eos_ids=(plain[3],)).generate(PROMPTS[:1])
    assert ids_of(cut) == [plain[: plain.index(plain[3]) + 1]]
    assert cut.result.end_reasons == ["eos"]


@pytest.mark.parametrize("verifier", [LosslessVerifier(), AutoregressiveVerifier()])
def test_texts_are_the_ids_without_their_end_token(pair, verifier):
    generation = decoder(pair, verifier, max_new_tokens=100).generate(PROMPTS)
    for text, ids, reason in zip(
        generation.texts, ids_of(generation), generation.result.end_reasons, strict=True
    ):
        assert reason == "eos"
        assert text == pair.tokenizer.decode(ids[:-1])
        assert "<eos>" not in text


def test_rows_are_keyed_by_their_index_or_by_the_caller(pair):
    hot = decoder(pair, sampling=Sampling(temperature=2))
    twice = [PROMPTS[0], PROMPTS[0]]
    by_index = ids_of(hot.generate(twice))
    assert by_index == ids_of(hot.generate(twice, [0, 1]))
    assert by_index[0] != by_index[1]
    same = ids_of(hot.generate(twice, [1, 1]))
    assert same == [by_index[1], by_index[1]]


def test_prompt_has_the_tokenizers_special_tokens_once(pair, talking_pair):
    plain = decoder(pair).prompt_ids("Ada has 3 pens.")
    assert plain == pair.tokenizer("Ada has 3 pens.").input_ids
    talking = decoder(talking_pair)
    rendered = "Ada has 3 pens.\nBen has 2.\nSo"
    assert talking.prompt_ids(CHAT) == pair.tokenizer(rendered).input_ids
    assert talking.prompt_ids("Ada has 3 pens.") == plain


def test_a_conversation_and_a_text_share_a_batch(talking_pair):
    talking = decoder(talking_pair, sampling=Sampling(temperature=0))
    (alone,) = ids_of(talking.generate([CHAT]))
    assert ids_of(talking.generate([CHAT, PROMPTS[0]]))[0] == alone
    assert alone == ids_of(talking.generate(["Ada has 3 pens.\nBen has 2.\nSo"]))[0]


def test_a_conversation_needs_a_chat_template(pair):
    with pytest.raises(PromptError, match=r"no chat template.*data\.prompt=plain"):
        decoder(pair).generate([CHAT])


@pytest.mark.parametrize("prompts", [[""], [PROMPTS[0], ""], [[]], []], ids=str)
def test_nothing_to_go_on_from_is_refused(talking_pair, prompts):
    with pytest.raises(PromptError, match=r"the prompt is empty|no prompt was given"):
        decoder(talking_pair).generate(prompts)


def test_a_text_without_a_token_is_refused(pair):
    """A tokenizer without a first token makes nothing of some texts."""

    class Mute:
        def __call__(self, text):
            return type("Encoding", (), {"input_ids": []})

    with pytest.raises(PromptError, match="at least one token"):
        decoder(replace(pair, tokenizer=Mute())).prompt_ids(" ")


def test_a_prompt_past_the_context_names_all_lengths(pair):
    long = decoder(pair, max_new_tokens=250)
    num_ids = len(long.prompt_ids(PROMPTS[0]))
    with pytest.raises(
        PromptError,
        match=rf"decoding\.max_new_tokens=250: with a prompt of {num_ids} tokens it needs a "
        rf"context of {num_ids + 250}, the models' is 256$",
    ):
        long.generate(PROMPTS)
    fitting = decoder(pair, max_new_tokens=256 - num_ids)
    assert fitting.encode_prompt(PROMPTS[0]) == long.prompt_ids(PROMPTS[0])


def test_stop_string_is_cut_from_the_text_and_kept_in_the_ids(pair):
    greedy = Sampling(temperature=0)
    whole = decoder(pair, sampling=greedy, max_new_tokens=60).generate(PROMPTS[:1]).texts[0]
    stop = whole.split()[3]
    stopped = decoder(pair, sampling=greedy, max_new_tokens=60, stop_strings=[stop]).generate(
        PROMPTS[:1]
    )
    assert stopped.texts == [whole[: whole.index(stop)]]
    assert stopped.result.end_reasons == ["stop"]
    text = pair.tokenizer.decode(ids_of(stopped)[0])
    assert whole.startswith(text)
    assert text.endswith(stop)


def test_a_single_stop_string_is_not_read_letter_by_letter(pair):
    decoder = SpeculativeDecoder(pair, LosslessVerifier(), stop_strings="####")
    assert decoder.stop_strings == ("####",)


@pytest.mark.parametrize("stop_strings", [[""], ["\n", ""], ""])
def test_an_empty_stop_string_is_refused(pair, stop_strings):
    with pytest.raises(ValueError, match="stop_strings holds an empty string"):
        SpeculativeDecoder(pair, LosslessVerifier(), stop_strings=stop_strings)


def test_row_keys_are_stable_and_tell_parts_apart():
    assert row_key("a", 1) == row_key("a", 1)
    keys = {row_key("a", 1), row_key("a", 2), row_key("a1"), row_key("a", "1", ""), row_key()}
    assert len(keys) == 5
    assert all(0 <= key < 2**63 for key in keys)
    assert row_key("test-0", 0) == 3216980239521927864  # records of other runs were made with it


def test_head_verifier_reads_features_where_the_head_does(pair):
    for uses_features in (False, True):
        verifier = head_verifier(new_head(pair, uses_features=uses_features), 0.5, "target")
        assert isinstance(verifier, DiversedVerifier)
        assert (verifier.uses_features, verifier.dial, verifier.bonus) == (
            uses_features,
            0.5,
            "target",
        )
        decoder(pair, verifier).generate(PROMPTS[:1])


def test_a_saved_head_decodes_as_the_head_in_memory(pair, tmp_path):
    head = new_head(pair, initial_weight=0.3)
    head.save_pretrained(tmp_path)
    settings = {"sampling": Sampling(temperature=2), "max_new_tokens": 40}
    saved = decoder(pair, checkpoint_verifier(pair, str(tmp_path), dial=1.0), **settings)
    in_memory = decoder(pair, head_verifier(head.eval(), dial=1.0), **settings)
    assert ids_of(saved.generate(PROMPTS)) == ids_of(in_memory.generate(PROMPTS))


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Put a terminal in the place of stderr; called in tests, as pytest sets stderr before them."""
    fake = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", fake)
    return fake


def tick(monkeypatch, seconds):
    """Let the bar's clock go on by some seconds whenever it is looked at."""
    ticks = itertools.count(1000.0, seconds)
    monkeypatch.setattr("tqdm.std.time", lambda: next(ticks))


def test_bar_is_silent_where_stderr_is_no_terminal(pair, monkeypatch, capfd):
    tick(monkeypatch, 5.0)
    decoder(pair).generate(PROMPTS)
    assert capfd.readouterr() == ("", "")


def test_bar_is_shown_on_a_terminal_when_decoding_takes_long(pair, monkeypatch):
    shown = terminal(monkeypatch)
    tick(monkeypatch, 5.0)
    decoder(pair, StaticVerifier(0.5)).generate(PROMPTS)
    assert "/2 [" in shown.getvalue()
    assert "row" in shown.getvalue()


def test_bar_is_not_shown_before_its_delay(pair, monkeypatch):
    shown = terminal(monkeypatch)
    tick(monkeypatch, 0.0)
    decoder(pair).generate(PROMPTS)
    assert "row" not in shown.getvalue()


def test_bar_is_not_shown_where_it_is_not_wanted(pair, monkeypatch):
    shown = terminal(monkeypatch)
    tick(monkeypatch, 5.0)
    decoder(pair).generate(PROMPTS, show_progress=False)
    assert shown.getvalue() == ""


def test_ids_are_on_the_pairs_device(pair):
    (ids,) = decoder(pair).generate(PROMPTS[:1]).result.token_ids
    assert ids.device == pair.device
    assert ids.dtype == torch.int64
