"""Which prompts a rollout sees."""

import itertools

import pytest

from diversed.tasks.arithmetic import ArithmeticTask
from diversed.training.data import PromptBatches, PromptDataModule

EXAMPLES = [{"id": str(index)} for index in range(12)]


def batches(num_rollouts=9, seed=0, start=0, prompts_per_step=4):
    made = PromptBatches(EXAMPLES, prompts_per_step, num_rollouts, seed, lambda: start)
    return [[example["id"] for example in batch] for batch in made]


def test_batches_are_a_function_of_the_seed():
    assert batches() == batches()
    assert batches(seed=1) != batches()


def test_every_pass_has_each_example_once_in_an_order_of_its_own():
    drawn = batches()
    passes = [list(itertools.chain(*drawn[start : start + 3])) for start in (0, 3, 6)]
    for one_pass in passes:
        assert sorted(one_pass, key=int) == [example["id"] for example in EXAMPLES]
    assert passes[0] != passes[1] != passes[2]


def test_an_incomplete_batch_is_left_out_and_none_repeats_a_prompt():
    drawn = batches(prompts_per_step=5, num_rollouts=4)
    assert [len(set(batch)) for batch in drawn] == [5, 5, 5, 5]
    for first, second in (drawn[:2], drawn[2:]):
        assert not set(first) & set(second)


@pytest.mark.parametrize("start", [0, 1, 4, 9])
def test_a_resumed_run_sees_what_the_unbroken_one_would_have(start):
    assert batches(start=start) == batches()[start:]


def test_batches_may_be_asked_for_in_any_order():
    made = PromptBatches(EXAMPLES, 4, 9, 0, lambda: 0)
    jumps = [8, 0, 5, 4, 8]
    assert [[example["id"] for example in made.batch(step)] for step in jumps] == [
        batches()[step] for step in jumps
    ]


@pytest.mark.parametrize("number", [0, 13])
def test_prompts_per_step_out_of_range_is_refused_by_name(number):
    with pytest.raises(ValueError, match=rf"objective\.prompts_per_step={number}: .* 12 training"):
        batches(prompts_per_step=number)


def test_no_rollouts_are_refused_by_name():
    with pytest.raises(ValueError, match=r"objective\.num_rollouts=0"):
        batches(num_rollouts=0)


@pytest.mark.parametrize(("most", "wanted"), [(4, 4), (12, 12), (99, 12), (None, 12)])
def test_the_first_rows_of_the_split_are_used_at_most(most, wanted):
    task = ArithmeticTask(num_train=12, num_validation=3, num_test=3)
    options = {"prompts_per_step": 2, "num_rollouts": 9, "seed": 0, "start": lambda: 0}
    data = PromptDataModule(task, max_prompts=most, **options)
    seen = {example["id"] for batch in data.train_dataloader() for example in batch}
    assert seen == set(task.examples("train")["id"][:wanted])


def test_no_rows_are_refused_by_name():
    task = ArithmeticTask(num_train=12, num_validation=3, num_test=3)
    with pytest.raises(ValueError, match=r"objective\.max_train_prompts=0: must be at least 1"):
        PromptDataModule(task, max_prompts=0, prompts_per_step=2, num_rollouts=9, seed=0, start=int)
