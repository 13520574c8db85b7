"""An evaluation that is dealt out, or gone on with: its parts make up the whole."""

import pandas as pd
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


def evaluate_again(decoder, examples, finished=None, **options):
    """Evaluate in batches of two; return the evaluation, its batches and the prompts decoded."""
    batches, prompts = [], []

    class Counting(SpeculativeDecoder):
        def generate(self, texts, *rest):
            prompts.extend(texts)
            return super().generate(texts, *rest)

    counting = Counting(decoder.pair, decoder.verifier, decoder.settings)
    evaluation = evaluate_task(
        *(counting, TASK, examples),
        samples_per_prompt=3,
        batch_size=2,
        finished=finished,
        keep=batches.append,
        **options,
    )
    return evaluation, batches, prompts


def check_same_evaluation(one, other):
    untimed = [[row | {"seconds": 0} for row in each.rows] for each in (one, other)]
    assert untimed[0] == untimed[1]
    pd.testing.assert_frame_equal(one.trace, other.trace, check_exact=True)


def test_finished_batches_are_taken_as_they_are_and_not_decoded_again(decoder, examples):
    whole, batches, prompts = evaluate_again(decoder, examples)
    assert [len(batch.rows) for batch in batches] == [2, 2, 2]
    finished = joined_parts(batches[:2], [example["id"] for example in examples])
    seen = []
    again, left, decoded = evaluate_again(decoder, examples, finished, progress=seen.append)
    check_same_evaluation(again, whole)
    assert decoded == prompts[4:]
    check_same_evaluation(left[0], batches[2])
    assert seen == [4, 2]
    times = [row["seconds"] for row in again.rows if row["seconds"] is not None]
    assert times[:4] == [row["seconds"] for row in finished.rows]


def test_an_evaluation_that_lacks_nothing_decodes_nothing(decoder, examples):
    whole, batches, _ = evaluate_again(decoder, examples)
    finished = joined_parts(batches, [example["id"] for example in examples])
    again, left, decoded = evaluate_again(decoder, examples, finished)
    assert (left, decoded) == ([], [])
    assert again.rows == whole.rows
    check_same_evaluation(again, whole)


def test_rows_that_one_process_has_finished_are_dealt_out_to_two(decoder, examples):
    whole, batches, prompts = evaluate_again(decoder, examples)
    ids = [example["id"] for example in examples]
    finished = joined_parts(batches[:1], ids)
    parts = [evaluate_again(decoder, examples, finished, part=part, num_parts=2) for part in (0, 1)]
    assert sorted(decoded for part in parts for decoded in part[2]) == sorted(prompts[2:])
    joined = joined_parts([part[0] for part in parts], ids)
    assert keys(joined) == keys(whole)
    assert [row["text"] for row in joined.rows] == [row["text"] for row in whole.rows]
    assert len(joined.trace) == len(whole.trace)
