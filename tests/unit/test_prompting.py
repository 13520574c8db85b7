"""Prompts that fit, with the embedded pair's tokenizer and context of 256."""

import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import LosslessVerifier
from diversed.generation import PromptError, SpeculativeDecoder
from diversed.models.loading import TINY_FOLDER, load_tiny_pair
from diversed.prompting import _largest, fit_prompt, prompt_text
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.tiny_pair import build_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}.{% endif %}"
)


class LongTask(ArithmeticTask):
    """An article between an instruction and a closing line."""

    long_column = "article"

    def prompt(self, example):
        return f"Sum up:\n{example['article']}\n\nSummary:"


class ChatTask(LongTask):
    """The same as a conversation."""

    def prompt(self, example):
        return [{"role": "user", "content": super().prompt(example)}]


@functools.cache
def load_tokenizer():
    return AutoTokenizer.from_pretrained(TINY_FOLDER / "target")


@pytest.fixture
def chat_pair():
    """Return a pair of its own whose tokenizer takes conversations."""
    pair = load_tiny_pair()
    pair.tokenizer.chat_template = TEMPLATE
    return pair


def decoder(pair, max_new_tokens=100):
    return SpeculativeDecoder(pair, LosslessVerifier(), DecodeSettings(max_new_tokens))


def article(num_words):
    return " ".join(f"word{chr(97 + index % 26)}" for index in range(num_words))


def example(text):
    return {"id": "long/1", "article": text}


def test_a_prompt_that_fits_is_left_alone(pair):
    made = example(article(20) + " \n")
    fitted = fit_prompt(decoder(pair), LongTask(), made)
    assert not fitted.is_cut
    assert fitted.prompt == LongTask().prompt(made)


@pytest.mark.parametrize("num_words", [150, 151, 160, 500, 5000])
def test_the_article_loses_as_many_words_as_it_must(pair, num_words):
    own = decoder(pair)
    made = example(article(num_words))
    fitted = fit_prompt(own, LongTask(), made)
    assert fitted.is_cut
    assert made == example(article(num_words))
    head, body, tail = fitted.prompt.split("\n")[0], fitted.prompt.split("\n")[1], "\n\nSummary:"
    assert head == "Sum up:"
    assert fitted.prompt.endswith(tail)
    kept = body.split(" ")
    assert kept == article(num_words).split(" ")[: len(kept)]
    longer = LongTask().prompt(example(article(len(kept) + 1)))
    assert len(own.encode_prompt(fitted.prompt)) <= 156 < len(own.prompt_ids(longer))


def test_white_space_between_the_words_that_stay_is_kept(pair):
    text = "a  b\n\n\tc " * 200
    fitted = fit_prompt(decoder(pair), LongTask(), example(text))
    body = str(fitted.prompt).removeprefix("Sum up:\n").removesuffix("\n\nSummary:")
    assert text.startswith(body)
    assert body[-1] in "abc"


def test_a_conversation_is_cut_inside_its_turn(chat_pair):
    own = decoder(chat_pair)
    fitted = fit_prompt(own, ChatTask(), example(article(500)))
    assert fitted.is_cut
    (turn,) = fitted.prompt
    assert turn["content"].startswith("Sum up:\nworda wordb")
    assert turn["content"].endswith("\n\nSummary:")
    assert len(own.encode_prompt(fitted.prompt)) == 156


def test_the_text_of_a_conversation_is_what_the_models_get(chat_pair):
    own = decoder(chat_pair)
    prompt = ChatTask().prompt(example("Ada has 3 pens."))
    text = prompt_text(own, prompt)
    assert text == "user\nSum up:\nAda has 3 pens.\n\nSummary:\nassistant\n."
    ids = chat_pair.tokenizer(text, add_special_tokens=False).input_ids
    assert ids == own.prompt_ids(prompt)
    assert prompt_text(own, "Ada") == "Ada"


def test_without_a_template_a_conversation_still_has_a_text(pair):
    prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"}]
    assert prompt_text(decoder(pair), prompt) == "Add.\n\n1 + 1"


@pytest.mark.parametrize("text", ["", " \n ", "word"])
def test_what_still_does_not_fit_is_an_error(pair, text):
    with pytest.raises(PromptError, match=r"decoding\.max_new_tokens=250: .* is 256$"):
        fit_prompt(decoder(pair, 250), LongTask(), example(text))


def test_a_task_without_a_long_column_is_not_cut(pair):
    made = {"id": "1", "question": article(500)}
    with pytest.raises(PromptError, match=r"a prompt of 50\d tokens"):
        fit_prompt(decoder(pair), ArithmeticTask(), made)


@settings(max_examples=50)
@given(st.text(min_size=1))
def test_the_embedded_pair_takes_any_text(text):
    """A word that is not of its vocabulary used to raise an exception of the tokenizer."""
    ids = load_tokenizer()(text).input_ids
    assert ids[0] == 1
    assert all(0 <= index < 176 for index in ids)


def test_the_shipped_tokenizers_are_those_that_are_built():
    built = json.loads(build_tokenizer().backend_tokenizer.to_str())
    for role in ("target", "draft"):
        assert json.loads((TINY_FOLDER / role / "tokenizer.json").read_text()) == built


@settings(max_examples=300)
@given(st.integers(min_value=-1, max_value=70), st.integers(min_value=-1, max_value=70))
def test_bisection_finds_the_largest_number(upper, limit):
    tried = []

    def holds(number):
        tried.append(number)
        return number <= limit

    assert _largest(upper, holds) == max(0, min(upper, limit))
    assert len(tried) <= 7
