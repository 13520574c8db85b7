"""What a model may learn from each task: right, and in the place where the prompt ends."""

import json

import pytest
from machine_needs import FAULTS, needs_sandbox

from diversed.tasks.arithmetic import ArithmeticTask
from diversed.tasks.base import Task
from diversed.tasks.cnndm import CnnDailyMailTask
from diversed.tasks.gsm8k import Gsm8kTask
from diversed.tasks.humaneval import HumanEvalTask
from diversed.tasks.mbpp import MbppTask
from diversed.tasks.wmt import WmtTask
from diversed.tasks.xsum import XSumTask

CODE = {"allow_code_execution": True, "timeout_s": 20}
LOADED = {
    "gsm8k": (
        Gsm8kTask,
        {"question": "What is 3 + 4?", "answer": "It is <<3+4=7>>7.\nYes, $<<7/1=7>>7.\n#### 7"},
        "It is 7.\nYes, $7.\n#### 7",
    ),
    "cnndm": (
        CnnDailyMailTask,
        {"article": "Dogs bark all night.", "highlights": "Dogs bark .\nAll night ."},
        "Dogs bark .\nAll night .",
    ),
    "xsum": (XSumTask, {"document": "Dogs bark.", "summary": "Dogs do bark."}, "Dogs do bark."),
    "wmt": (
        WmtTask,
        {
            "translation": {
                "de": "Der Hund schläft heute.",
                "en": "The dog is asleep now.",
            }
        },
        "The dog is asleep now.",
    ),
    "mbpp": (
        MbppTask,
        {
            "task_id": 11,
            "text": "Double a number.",
            "code": "def double(x):\r\n  return 2 * x\r\n",
            "test_list": ["assert double(1) == 2", "assert double(-2) == -4"],
            "test_setup_code": "",
        },
        "```python\ndef double(x):\n  return 2 * x\n```",
    ),
}


def file_task(name, folder, **options):
    """Return a task with one test row, the row's completion without what leads up to it."""
    kind, row, text = LOADED[name]
    if name == "mbpp":
        if all(FAULTS.values()):
            pytest.skip(f"programs cannot be isolated here: {FAULTS}")
        options |= CODE
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    task = kind(path=str(path), **options)
    return task, task.examples("test")[0], text


@pytest.mark.parametrize("name", LOADED)
def test_they_get_the_full_score(name, tmp_path):
    task, example, _ = file_task(name, tmp_path)
    assert task.score(task.reference_completion(example), example) == pytest.approx(1.0)


@pytest.mark.parametrize("name", LOADED)
def test_behind_a_plain_prompt_they_stand_as_worked_examples_do(name, tmp_path):
    task, example, text = file_task(name, tmp_path, prompt="plain", num_shots=1)
    shot = task.shots[0]
    prompt = task.prompt(example)
    lead = prompt[len(prompt.rstrip()) :] or " "  # what a prompt leaves open in front of an answer
    (before,) = prompt.partition(lead + shot.answer)[0].splitlines()[-1:]
    assert prompt.count(shot.answer) == 1
    assert (prompt + task.reference_completion(example)).endswith(f"{before}{lead}{text}")


@pytest.mark.parametrize("name", LOADED)
def test_in_a_conversation_nothing_leads_up_to_them(name, tmp_path):
    task, example, text = file_task(name, tmp_path, prompt="chat")
    assert task.reference_completion(example) == text


@needs_sandbox
@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_a_function_is_completed_or_written_anew(prompt, tmp_path):
    head = 'def half(x):\n    """Halve a number."""\n'
    row = {
        "task_id": "HumanEval/7",
        "prompt": head,
        "entry_point": "half",
        "canonical_solution": "    return x / 2\n",
        "test": "def check(candidate):\n    assert candidate(2) == 1\n",
    }
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    task = HumanEvalTask(path=str(tmp_path / "test.jsonl"), prompt=prompt, **CODE)
    example = task.examples("test")[0]
    text = task.reference_completion(example)
    whole = f"```python\n{head}    return x / 2\n```"
    assert text == ("    return x / 2\n" if prompt == "plain" else whole)
    assert task.score(text, example) == 1.0


def test_word_problems_have_worked_solutions():
    task = ArithmeticTask(num_test=5)
    for example in task.examples("test"):
        text = task.reference_completion(example)
        assert text == example["solution"]
        assert task.score(text, example) == 1.0


def test_puzzles_have_their_answer_in_a_tag_or_none():
    pytest.importorskip("reasoning_gym.factory", reason="reasoning-gym is not installed")
    from diversed.tasks.reasoning_gym import ReasoningGymTask

    task = ReasoningGymTask("chain_sum", num_train=4, num_validation=1, num_test=2)
    for example in task.examples("test"):
        text = task.reference_completion(example)
        assert text == f"<answer>{example['answer']}</answer>"
        assert task.score(text, example) == 1.0
        assert task.reference_completion({**example, "answer": None}) is None


def test_a_task_of_one_s_own_has_its_answers():
    class Own(ArithmeticTask):
        name = "own"

    assert Own.reference_completion is Task.reference_completion
    assert Own().reference_completion({"answer": 7}) == "7"
    assert Own().reference_completion({"question": "?"}) is None
