"""What a draft learns from: the task's answers, the target's outputs, and their batches."""

import copy
import dataclasses
import logging

import pytest
from small_finetune import TASK, decoder_of, prompts_of

from diversed.core.probs import Sampling
from diversed.models.loading import load_tiny_pair
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.training.completions import (
    Completion,
    CompletionBatches,
    CompletionError,
    fitted_prompts,
    make_batch,
    reference_completions,
    sampled_completions,
)


@pytest.fixture
def pair():
    return load_tiny_pair()


def test_a_batch_counts_completions_and_pads_on_the_right():
    rows = [Completion("a", [5, 6], [7]), Completion("b", [8], [9, 10, 11])]
    batch = make_batch(rows)
    assert batch.ids.tolist() == [[5, 6, 7, 0], [8, 9, 10, 11]]
    assert batch.attention_mask.tolist() == [[True] * 3 + [False], [True] * 4]
    assert batch.loss_mask.tolist() == [[False, False, True, False], [False] + [True] * 3]
    assert batch.example_ids == ["a", "b"]


def test_references_end_and_are_what_the_task_says(pair):
    decoder = decoder_of(pair, max_new_tokens=112)
    fitted = prompts_of(decoder, "train", 5)
    for row, (example, _) in zip(reference_completions(decoder, TASK, fitted), fitted, strict=True):
        assert row.example_id == example["id"]
        assert row.prompt_ids == decoder.prompt_ids(TASK.prompt(example))
        assert row.completion_ids[-1] == pair.tokenizer.eos_token_id
        text = pair.tokenizer.decode(row.completion_ids, skip_special_tokens=True)
        assert text == example["solution"]


def test_long_references_are_cut_as_completions_are(pair, caplog):
    decoder = decoder_of(pair, max_new_tokens=10)
    with caplog.at_level(logging.WARNING):
        rows = reference_completions(decoder, TASK, prompts_of(decoder, "train", 5))
    assert {len(row.completion_ids) for row in rows} == {10}
    assert "5 of 5 answers were cut to decoding.max_new_tokens=10" in caplog.text


class Puzzles(ArithmeticTask):
    """Problems of which some have no answer, and some do not fit."""

    def __init__(self, answers):
        super().__init__()
        self._answers = answers

    def reference_completion(self, example):
        return self._answers[example["id"]]


def test_rows_without_an_answer_or_room_are_left_out(pair, caplog):
    decoder = decoder_of(pair)
    task = Puzzles({"a": None, "b": "So it is.", "c": "", "d": "No room."})
    examples = [{"id": name, "question": "Ada has 3 pens."} for name in "abc"]
    examples.append({"id": "d", "question": "Ada has 3 pens. " * 60})
    with caplog.at_level(logging.WARNING):
        rows = reference_completions(decoder, task, fitted_prompts(decoder, task, examples))
    assert [row.example_id for row in rows] == ["b"]
    assert "left out 1 of 4 prompts (decoding.max_new_tokens=48: with a prompt of" in caplog.text
    assert "left out 2 rows without an answer" in caplog.text
    with pytest.raises(CompletionError, match=r"source=references: .* have no answers"):
        reference_completions(decoder, task, fitted_prompts(decoder, task, examples[:1]))
    with pytest.raises(CompletionError, match="no rows"):
        fitted_prompts(decoder, task, [])


def test_a_conversation_ends_as_its_template_ends_turns(pair):
    ids = pair.tokenizer.get_vocab()
    tokenizer = copy.deepcopy(pair.tokenizer)
    tokenizer.chat_template = (
        "{% for turn in messages %}{{ turn['content'] }}####{% endfor %}"
        "{% if add_generation_prompt %}{{ '\\n' }}{% endif %}"
    )
    talking = dataclasses.replace(pair, tokenizer=tokenizer, eos_ids=(2, ids["####"]))
    decoder = decoder_of(talking)

    class Chat(ArithmeticTask):
        def prompt(self, example):
            return [{"role": "user", "content": example["question"]}]

        def reference_completion(self, example):
            return " has 3 pens."

    examples = [{"id": "x", "question": "Eva has 3 pens. How many pens are there?"}]
    fitted = fitted_prompts(decoder, Chat(), examples)
    (row,) = reference_completions(decoder, Chat(), fitted)
    assert tokenizer.decode(row.prompt_ids[-2:]) == "####\n"
    assert tokenizer.decode(row.completion_ids) == " has 3 pens.####"
    assert row.completion_ids[-1] != tokenizer.eos_token_id


def test_outputs_of_the_target_are_what_the_decoder_gives(pair):
    decoder = decoder_of(pair, sampling=Sampling(temperature=0.0))
    fitted = prompts_of(decoder, "train", 5)
    rows = sampled_completions(decoder, fitted, 1, 2)
    greedy = decoder.generate([TASK.prompt(one.example) for one in fitted]).result
    assert [row.completion_ids for row in rows] == [ids.tolist() for ids in greedy.token_ids]
    assert [row.prompt_ids for row in rows] == [
        decoder.prompt_ids(TASK.prompt(one.example)) for one in fitted
    ]


def test_outputs_of_the_target_are_repeated_and_of_many_kinds(pair):
    decoder = decoder_of(pair, max_new_tokens=16)
    fitted = prompts_of(decoder, "train", 4)
    told = []
    rows = sampled_completions(decoder, fitted, 3, 5, told.append)
    assert told == [5, 5, 2]
    assert [row.example_id for row in rows] == [one.example["id"] for one in fitted for _ in "abc"]
    assert len({tuple(row.completion_ids) for row in rows}) > 6
    assert sampled_completions(decoder, fitted, 3, 12) == rows


def test_a_pass_has_every_completion_once_in_an_order_of_its_own():
    rows = [Completion(str(index), [1], [index]) for index in range(10)]
    batches = CompletionBatches(rows, 4, seed=0)
    passes = [[name for batch in batches for name in batch.example_ids] for _ in range(2)]
    assert len(batches) == 3
    assert sorted(passes[0]) == sorted(passes[1]) == [row.example_id for row in rows]
    assert passes[0] != passes[1] != [row.example_id for row in rows]
    again = CompletionBatches(rows, 4, seed=0)
    assert [name for batch in again for name in batch.example_ids] == passes[0]
    unshuffled = CompletionBatches(rows, 4)
    for _ in range(2):
        assert [name for batch in unshuffled for name in batch.example_ids] == list("0123456789")
