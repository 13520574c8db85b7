"""An evaluation that is dealt out: its parts make up the whole."""

import pytest

from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import StaticVerifier
from diversed.evaluation.runner import evaluate_task, joined_parts
from diversed.generation import PromptError, SpeculativeDecoder
from diversed.models.loading import load_tiny_pair
from diversed.records.schema import TRACE_COLUMNS
from diversed.tasks.arithmetic import ArithmeticTask

TASK = ArithmeticTask(num_test=3)


@pytest.fixture(scope="module")
def decoder():
    settings = DecodeSettings(max_new_tokens=8, draft_length=3, seed=1)
    return SpeculativeDecoder(load_tiny_pair(), StaticVerifier(0.5), settings)


def overlong(example):
    return example | {"question": example["question"] * 40}


@pytest.fixture(scope="module")
def examples():
    """Return three examples, the first of which cannot be decoded."""
    first, *others = TASK.examples("test")
    return [overlong(first), *others]


def keys(evaluation):
    return [(row["prompt_id"], row["sample"]) for row in evaluation.rows]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_parts_make_up_the_whole_in_its_order(decoder, examples, num_parts):
    whole = evaluate_task(decoder, TASK, examples, samples_per_prompt=2)
    parts = [
        evaluate_task(decoder, TASK, examples, samples_per_prompt=2, part=part, num_parts=num_parts)
        for part in range(num_parts)
    ]
    assert sorted(key for part in parts for key in keys(part)) == sorted(keys(whole))
    sizes = [len(part.rows) - (2 if number == 0 else 0) for number, part in enumerate(parts)]
    assert max(sizes) - min(sizes) <= 1
    joined = joined_parts(parts, [example["id"] for example in examples])
    assert keys(joined) == keys(whole)
    assert [row["text"] for row in joined.rows] == [row["text"] for row in whole.rows]
    assert len(joined.trace) == len(whole.trace)
    assert list(joined.trace.columns) == list(TRACE_COLUMNS)
    assert dict(joined.trace.dtypes) == dict(whole.trace.dtypes)


def test_every_part_raises_where_nothing_can_be_decoded(decoder, examples):
    for part in (0, 1):
        with pytest.raises(PromptError, match="context"):
            evaluate_task(decoder, TASK, [overlong(examples[1])], part=part, num_parts=2)


@pytest.mark.parametrize(("part", "num_parts"), [(2, 2), (-1, 2), (0, 0)])
def test_a_part_that_there_is_not_is_refused(decoder, examples, part, num_parts):
    with pytest.raises(ValueError, match=f"part {part} of {num_parts} parts"):
        evaluate_task(decoder, TASK, examples, part=part, num_parts=num_parts)
