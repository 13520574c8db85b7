"""MBPP: splits by number, prompts, programs, scores; all references where the data are there."""

import ast
import json
import re
import warnings

import pytest
from machine_needs import SAMPLE_DATA, needs_sample_data, needs_sandbox

from diversed.tasks.base import Score, TaskDataError
from diversed.tasks.execution import CodeJudge, Verdict
from diversed.tasks.mbpp import SHOTS, MbppTask, split_of
from diversed.tasks.sandbox import TOOLS

ROW = {
    "text": "Write a function to double a number. ",
    "code": "def double(x):\r\n  return 2 * x",
    "test_list": ["assert double(1) == 2", "assert double(-2) == -4 ", "assert double(0) == 0"],
    "test_setup_code": "",
    "challenge_test_list": [],
}
WITH_SETUP = {
    "text": "Write a function to count nodes.",
    "code": (
        "class Node:\r\n  def __init__(self, rest):\r\n    self.rest = rest\r\n"
        "def count(node):\r\n  return 1 + count(node.rest) if node else 0"
    ),
    "test_list": ["assert count(root) == 2", "assert (count(root.rest)) == 1"],
    "test_setup_code": "root = Node(None) \r\nroot = Node(root)",
    "challenge_test_list": [],
}


def write_rows(path, numbers, row=ROW):
    path.write_text("".join(json.dumps(row | {"task_id": number}) + "\n" for number in numbers))
    return str(path)


@pytest.fixture
def task(tmp_path):
    path = write_rows(tmp_path / "mbpp.jsonl", [1, 4, 11, 12, 510, 511, 600, 601, 974])
    return MbppTask(path=path, allow_code_execution=True, timeout_s=20)


@pytest.fixture
def example(task):
    return task.examples("test")[0]


def test_off_unless_allowed(tmp_path):
    with pytest.raises(PermissionError, match=r"data\.allow_code_execution=true"):
        MbppTask(path=write_rows(tmp_path / "mbpp.jsonl", [11]))


@needs_sandbox
def test_one_file_has_all_official_splits(task):
    ids = {split: list(task.examples(split)["id"]) for split in ("train", "validation", "test")}
    assert ids == {
        "train": ["mbpp/601", "mbpp/974"],
        "validation": ["mbpp/511", "mbpp/600"],
        "test": ["mbpp/11", "mbpp/12", "mbpp/510"],
    }


def test_numbers_and_splits():
    splits = [split_of({"task_id": number}) for number in range(1, 975)]
    assert [splits.count(name) for name in (None, "test", "validation", "train")] == [
        10,
        500,
        90,
        374,
    ]


@needs_sandbox
def test_a_number_that_is_not_mbpps_is_refused(tmp_path):
    path = write_rows(tmp_path / "mbpp.jsonl", [11, 975])
    with pytest.raises(TaskDataError, match="task_id=975"):
        MbppTask(path=path, allow_code_execution=True).examples("test")


@needs_sandbox
def test_a_folder_may_hold_any_numbers(tmp_path):
    write_rows(tmp_path / "test.jsonl", [5000])
    task = MbppTask(path=str(tmp_path), allow_code_execution=True)
    assert task.examples("test")["id"] == ["mbpp/5000"]


@needs_sandbox
def test_a_problem_without_tests_is_refused(tmp_path):
    path = write_rows(tmp_path / "mbpp.jsonl", [11], ROW | {"test_list": []})
    with pytest.raises(TaskDataError, match="problem 11"):
        MbppTask(path=path, allow_code_execution=True).examples("test")


@needs_sandbox
def test_the_prompt_of_a_base_model(task, example):
    prompt = task.prompt(example)
    assert prompt.endswith(
        "\n\nTask:\nWrite a function to double a number.\nYour code should pass these tests:\n"
        "assert double(1) == 2\nassert double(-2) == -4\nassert double(0) == 0\nAnswer:\n"
    )
    assert prompt.count("\nTask:\n") == 4
    assert prompt.count("```python\n") == 3
    assert task.stop_strings == ("\nTask:",)


@needs_sandbox
def test_the_prompt_of_an_instruct_model(task, example):
    task.settle(has_chat_template=True, context_length=4096)
    (message,) = task.prompt(example)
    assert message["role"] == "user"
    assert "Python" in message["content"]
    assert message["content"].endswith("assert double(0) == 0")
    assert task.stop_strings == ()


@needs_sandbox
def test_scores(task, example):
    right = "Sure!\n```python\ndef double(x):\n    return x + x\n```\n\nIt adds."
    assert task.score(example["code"], example) == 1.0
    assert task.score(right, example) == 1.0
    assert task.score(right.replace("+", "*"), example) == 0.0
    assert task.score(right.replace("double", "twice"), example) == 0.0
    assert task.score("", example) == 0.0
    assert task.score("def double(x):\n    raise SystemExit(0)", example) == 0.0


@needs_sandbox
def test_scores_of_a_batch(task, example):
    texts = [example["code"], "no code", example["code"], "def double(x): return 2"]
    assert task.score_batch(texts, [example] * 4) == [
        Score(1.0),
        Score(0.0),
        Score(1.0),
        Score(0.0),
    ]
    assert task.score_batch([], []) == []
    with pytest.raises(ValueError, match="argument 2"):
        task.score_batch(texts, [example])


@needs_sandbox
def test_setup_runs_after_the_solution(tmp_path):
    path = write_rows(tmp_path / "mbpp.jsonl", [20], WITH_SETUP)
    task = MbppTask(path=path, allow_code_execution=True)
    (example,) = task.examples("test")
    assert task.score(example["code"], example) == 1.0
    assert task.score(example["code"].replace("1 +", "2 +"), example) == 0.0


@needs_sandbox
def test_a_failure_of_the_sandbox_is_no_score(task, example, monkeypatch):
    broken = Verdict("error", "no namespace today")
    monkeypatch.setattr(CodeJudge, "judge", lambda self, programs: [broken] * len(programs))
    assert task.score_batch(["x"], [example]) == [Score(None, "no namespace today")]
    assert task.corpus_metrics(["x"], [example]) == {}
    with pytest.raises(RuntimeError, match="no namespace today"):
        task.score("x", example)


@needs_sandbox
def test_pass_at_k(task):
    first, second = task.examples("test").select(range(2))
    right, wrong = "double = lambda x: 2 * x", "double = abs"
    texts = [right, wrong, wrong, wrong, wrong] + [right] * 4 + [wrong]
    examples = [first] * 5 + [second] * 5
    metrics = task.corpus_metrics(texts, examples)
    assert metrics == {"pass@1": pytest.approx((0.2 + 0.8) / 2), "pass@5": 1.0}
    assert task.corpus_metrics(texts[:9], examples[:9]).keys() == {"pass@1"}


@needs_sandbox
def test_the_wanted_function_is_the_one_that_the_tests_call(task, example):
    text = (
        "```python\ndef double(x):\n    return 2 * x\n```\nAlso:\n"
        "```python\ndef half(x):\n    return x / 2\n```"
    )
    assert task.score(text, example) == 1.0
    named_like_a_builtin = example | {"tests": ["assert sum(1, 2) == 3"]}
    assert (
        task.score(
            text.replace("double(x)", "sum(x, y)").replace("2 * x", "x + y"), named_like_a_builtin
        )
        == 1.0
    )


@needs_sandbox
def test_what_records_show(task, example):
    assert task.extract("Hm.\n```python\nx = 1\n```") == "x = 1\n"
    assert task.extract("Hm.") is None
    assert task.reference(example) == ROW["code"]
    assert task.reference_completion(example) == "```python\ndef double(x):\n  return 2 * x\n```"
    provenance = task.provenance()
    assert provenance["sandbox"] in TOOLS
    assert provenance["limits"]["timeout_s"] == 20


def test_the_worked_examples_pass_their_tests():
    for shot in SHOTS:
        scope = {}
        code = re.fullmatch(r"```python\n(.*)\n```", shot.answer, re.DOTALL)[1]
        tests = shot.text.split("these tests:\n")[1]
        exec(compile(f"{code}\n{tests}", "shot", "exec"), scope)  # noqa: S102 (text of our own)


def rows_of_the_data_set():
    text = (SAMPLE_DATA / "mbpp" / "mbpp.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@needs_sample_data
def test_the_worked_examples_are_those_of_the_data_set():
    rows = {row["task_id"]: row for row in rows_of_the_data_set()}
    for number, shot in zip((2, 3, 4), SHOTS, strict=True):
        row = rows[number]
        assert shot.text.startswith(row["text"])
        assert [line.strip() for line in row["test_list"]] == shot.text.splitlines()[2:]
        own = ast.dump(ast.parse(shot.answer[10:-4]))
        assert own == ast.dump(ast.parse(row["code"].replace("\r\n", "\n")))


def with_body(code, wanted, body):
    """Return code whose functions of a name do nothing but `body`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one has '\\w' in it
        tree = ast.parse(code.replace("\r\n", "\n"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == wanted:
            node.body = ast.parse(body).body
    return ast.unparse(tree)


def judge_all(examples, task, change):
    texts = [change(example) for example in examples]
    scores = task.score_batch(texts, examples)
    assert [score.error for score in scores] == [None] * len(scores)
    return [score.value for score in scores]


def wrongly_passed(examples, task, body):
    values = judge_all(
        examples, task, lambda example: with_body(example["code"], name_under_test(example), body)
    )
    return {example["id"] for example, value in zip(examples, values, strict=True) if value}


def name_under_test(example):
    return re.search(r"assert\s+[(]*(?:int\()?([A-Za-z_]\w*)\s*\(", example["tests"][0])[1]


@needs_sandbox
@needs_sample_data
@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_references_pass_and_emptied_ones_do_not(step):
    path = str(SAMPLE_DATA / "mbpp" / "mbpp.jsonl")
    task = MbppTask(path=path, allow_code_execution=True)
    few = [row for split in ("test", "validation", "train") for row in task.examples(split)]
    rows = {row["task_id"]: row for row in rows_of_the_data_set()}
    few += [task.example(rows[number], "prompt") for number in range(1, 11)]
    assert len(few) == 974
    few = few[::step]
    assert judge_all(few, task, lambda example: example["code"]) == [1.0] * len(few)
    assert judge_all(few, task, task.reference_completion) == [1.0] * len(few)
    assert wrongly_passed(few, task, "pass") == set()
    assert wrongly_passed(few, task, "return 'no such answer'") == set()
