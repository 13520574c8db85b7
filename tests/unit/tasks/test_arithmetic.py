"""The generated word problems: right by an independent reading of the question."""

import itertools
import random
import re

import pytest

from diversed.tasks.arithmetic import (
    CONTAINERS,
    ITEMS,
    MAX_RESULT,
    NAMES,
    SPLIT_PATTERN,
    STYLE_SLOTS,
    UNIFORM_STYLE,
    ArithmeticTask,
    draw_examples,
    draw_problem,
    tell_question,
    tell_solution,
    vocabulary,
)
from diversed.tasks.base import SPLITS, Task

NUM_EXAMPLES = 2000
EXAMPLES = list(itertools.islice(draw_examples("train", 5), NUM_EXAMPLES))
ONE_WORD_STYLE = {slot: (1.0,) + (0.0,) * (len(words) - 1) for slot, words in STYLE_SLOTS.items()}


@pytest.fixture(scope="module")
def task():
    return ArithmeticTask(num_train=300, num_validation=100, num_test=100)


def answer_by_reading(question):
    """Work the story out sentence by sentence, as a reader would."""
    total = None
    for sentence in re.split(r"(?<=[.?]) ", question):
        numbers = [int(number) for number in re.findall(r"\d+", sentence)]
        if re.fullmatch(r"\w+ has \d+ \w+\.", sentence):
            (total,) = numbers
        elif re.fullmatch(r"\w+ (buys|finds|wins) \d+ more \w+\.", sentence):
            total += numbers[0]
        elif re.fullmatch(r"\w+ (gives|sells|hands) \d+ \w+ to \w+\.", sentence):
            total -= numbers[0]
        elif re.fullmatch(r"That pile turns into \d+ times as many \w+\.", sentence):
            total *= numbers[0]
        elif re.fullmatch(r"\w+ brings \d+ \w+ with \d+ each\.", sentence):
            total += numbers[0] * numbers[1]
        else:
            assert re.fullmatch(r"How many \w+ are there\?", sentence), sentence
    return total


def test_it_is_a_task(task):
    assert isinstance(task, Task)


def test_answers_are_those_of_the_questions():
    for example in EXAMPLES:
        assert int(example["answer"]) == answer_by_reading(example["question"]), example


def test_every_line_of_a_solution_is_right_and_results_stay_small():
    symbols = {slot: STYLE_SLOTS[slot] for slot in ("plus", "minus", "times")}
    for example in EXAMPLES[:500]:
        *lines, closing, last = example["solution"].split("\n")
        assert last == f"#### {example['answer']}"
        assert re.findall(r"\d+", closing) == [example["answer"]]
        for line in lines:
            left, symbol, right, result = re.search(r"(\d+) (\S+) (\d+)\D+(\d+)\D*$", line).groups()
            left, right = int(left), int(right)
            right_results = {"plus": left + right, "minus": left - right, "times": left * right}
            (slot,) = (name for name, words in symbols.items() if symbol in words)
            assert int(result) == right_results[slot], line
            assert 0 < int(result) <= MAX_RESULT


def test_splits_have_their_sizes_and_share_no_chain(task):
    keys = {split: [row["key"] for row in task.examples(split)] for split in SPLITS}
    assert {split: len(own) for split, own in keys.items()} == {
        "train": 300,
        "validation": 100,
        "test": 100,
    }
    for own in keys.values():
        assert len(set(own)) == len(own)
    for one, other in itertools.combinations(SPLITS, 2):
        assert not set(keys[one]) & set(keys[other])


def test_splits_of_other_seeds_share_no_chain_either():
    train = {example["key"] for example in EXAMPLES}
    for split, seed in (("test", 5), ("test", 0), ("validation", 9)):
        drawn = itertools.islice(draw_examples(split, seed), 500)
        assert not train & {example["key"] for example in drawn}


def test_the_key_is_the_arithmetic_of_the_question():
    by_key = {}
    for example in EXAMPLES:
        numbers = tuple(re.findall(r"\d+", example["question"]))
        assert by_key.setdefault(example["key"], numbers) == numbers
    assert len({*by_key}) > 0.5 * NUM_EXAMPLES


def test_ids_are_unique(task):
    ids = [row["id"] for split in SPLITS for row in task.examples(split)]
    assert len(set(ids)) == len(ids) == 500


def test_gold_solutions_score_1(task):
    for example in EXAMPLES[:300]:
        assert task.score(example["solution"], example) == 1.0


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("#### 12", 1.0),
        ("####12", 1.0),
        ("3 + 9 = 12.\n#### 12\n", 1.0),
        ("#### 7\n#### 12", 1.0),  # the last one is the answer
        ("#### 012", 1.0),
        ("#### 12\n#### 7", 0.0),
        ("#### 13", 0.0),
        ("#### 120", 0.0),
        ("#### 1", 0.0),
        ("#### -12", 0.0),
        ("12", 0.0),
        ("the answer is 12.", 0.0),
        ("### 12", 0.0),
        ("####", 0.0),
        ("#### twelve", 0.0),
        ("#### ١٢", 0.0),
        ("", 0.0),
        ("\x00####\ud800", 0.0),
    ],
)
def test_scores_of_texts(task, text, score):
    assert task.score(text, {"answer": "12"}) == score


def test_extract_returns_the_number_or_none(task):
    assert task.extract("so 4.\n#### 12") == "12"
    assert task.extract("#### none") is None


def test_prompt_is_the_question_and_a_line_break(task):
    assert task.prompt({"question": "How many?"}) == "How many?\n"


def test_style_changes_words_but_no_number():
    for seed in range(200):
        problem = draw_problem(random.Random(seed))
        told = [
            tell_solution(problem, "Ada", "pens", style, random.Random(seed))
            for style in (UNIFORM_STYLE, ONE_WORD_STYLE)
        ]
        assert told[0] != told[1]
        assert re.findall(r"\d+", told[0]) == re.findall(r"\d+", told[1])


def test_a_style_of_single_words_uses_those_alone():
    problem = draw_problem(random.Random(1))
    told = {
        tell_solution(problem, "Ada", "pens", ONE_WORD_STYLE, random.Random(seed))
        for seed in range(20)
    }
    assert len(told) == 1


def test_questions_are_told_in_several_ways():
    problem = draw_problem(random.Random(1))
    assert len({tell_question(problem, random.Random(seed)) for seed in range(20)}) > 10


def test_examples_are_a_function_of_split_and_seed(task):
    again = ArithmeticTask(num_train=300, num_validation=100, num_test=100)
    assert list(again.examples("test")) == list(task.examples("test"))
    other = ArithmeticTask(num_train=300, num_validation=100, num_test=100, seed=1)
    assert list(other.examples("test")) != list(task.examples("test"))


def test_a_smaller_split_is_the_beginning_of_a_larger_one(task):
    small = ArithmeticTask(num_test=20)
    assert list(small.examples("test")) == list(task.examples("test"))[:20]


@pytest.mark.parametrize("split", SPLITS)
def test_sizes_below_1_are_refused_by_name(split):
    with pytest.raises(ValueError, match=rf"data\.num_{split}=0: must be at least 1"):
        ArithmeticTask(**{f"num_{split}": 0})


@pytest.mark.parametrize("split", ["dev", "", "Train"])
def test_unknown_split_lists_the_known_ones(task, split):
    with pytest.raises(ValueError, match=rf"split='{split}'.*train, validation, test"):
        task.examples(split)


def test_vocabulary_covers_all_texts():
    known = set(vocabulary())
    seen = set()
    for example in EXAMPLES:
        for text in (f"{example['question']}\n", example["solution"]):
            pieces = re.findall(SPLIT_PATTERN, text)
            assert "".join(pieces) == text
            seen.update(pieces)
    assert seen <= known
    words = {piece.strip() for piece in seen}
    assert {*NAMES, *ITEMS, *CONTAINERS} <= words
    assert len(vocabulary()) == len(known)
