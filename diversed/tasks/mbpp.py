"""MBPP: short Python functions asked for in one sentence, checked by three assertions each.

Source: Austin et al. 2021, "Program Synthesis with Large Language Models", and its data set of 974
problems (CC-BY 4.0). The split of a problem follows from its number, as in the data set: 11 to 510
test, 511 to 600 validation, 601 to 974 training; 1 to 10 are for prompts. The worked examples are
2, 3 and 4, as is usual. Differences: the wording of prompts; answers stand in a fence.
"""

import builtins
import re

from diversed.tasks.base import Example, TaskDataError
from diversed.tasks.code import extract_program, in_fence
from diversed.tasks.code_task import CodeTask
from diversed.tasks.execution import Program
from diversed.tasks.loading import DataSource
from diversed.tasks.prompts import PromptTemplate, Shot

OFFICIAL_SPLITS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}

_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")


def posed_text(text: str, tests: list[str]) -> str:
    """Return a problem as it is posed: the sentence, and the assertions that name the function."""
    return "\n".join([text.strip(), "Your code should pass these tests:", *map(str.strip, tests)])


def _shot(text: str, tests: list[str], code: str) -> Shot:
    return Shot(posed_text(text, tests), in_fence(code))


SHOTS = (
    _shot(
        "Write a function to find the similar elements from the given two tuple lists.",
        [
            "assert similar_elements((3, 4, 5, 6),(5, 7, 4, 10)) == (4, 5)",
            "assert similar_elements((1, 2, 3, 4),(5, 4, 3, 7)) == (3, 4)",
            "assert similar_elements((11, 12, 14, 13),(17, 15, 14, 13)) == (13, 14)",
        ],
        "def similar_elements(test_tup1, test_tup2):\n"
        "    res = tuple(set(test_tup1) & set(test_tup2))\n"
        "    return res",
    ),
    _shot(
        "Write a python function to identify non-prime numbers.",
        [
            "assert is_not_prime(2) == False",
            "assert is_not_prime(10) == True",
            "assert is_not_prime(35) == True",
        ],
        "import math\n"
        "def is_not_prime(n):\n"
        "    result = False\n"
        "    for i in range(2, int(math.sqrt(n)) + 1):\n"
        "        if n % i == 0:\n"
        "            result = True\n"
        "    return result",
    ),
    _shot(
        "Write a function to find the largest integers from a given list of numbers using heap "
        "queue algorithm.",
        [
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],3)==[85, 75, 65]",
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],2)==[85, 75]",
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],5)=="
            "[85, 75, 65, 58, 35]",
        ],
        "import heapq as hq\n"
        "def heap_queue_largest(nums, n):\n"
        "    largest_nums = hq.nlargest(n, nums)\n"
        "    return largest_nums",
    ),
)


def split_of(row: Example) -> str | None:
    """Return the official split of a row, None for those that are kept for prompts.

    Args:
        row: Has a `task_id`.

    Raises:
        TaskDataError: The number is not MBPP's.
    """
    for split, numbers in OFFICIAL_SPLITS.items():
        if row["task_id"] in numbers:
            return None if split == "prompt" else split
    raise TaskDataError(
        f"task_id={row['task_id']}: MBPP's problems are numbered from 1 to 974; rows of your own "
        "go into a folder with train, validation and test files"
    )


class MbppTask(CodeTask):
    """The 974 problems of the full data set; right is what passes all assertions."""

    name = "mbpp"
    max_new_tokens = 512
    source = DataSource(
        hub_id="google-research-datasets/mbpp",
        config_name="full",
        columns=("task_id", "text", "code", "test_list", "test_setup_code"),
        splits={"train": "train", "validation": "validation", "test": "test"},
        key=("task_id",),
        split_of=split_of,
    )
    template = PromptTemplate(
        instruction=(
            "Write a Python function that solves the task. Answer with one block of Python code "
            "and nothing else: no explanation, no comments."
        ),
        text_label="Task",
        answer_label="Answer",
        is_multiline=True,
    )
    shots = SHOTS

    def example(self, row: Example, split: str) -> Example:
        """Return `id`, `text`, `tests`, `setup` (runs after the solution) and `code`."""
        if not row["test_list"]:
            raise TaskDataError(f"mbpp: problem {row['task_id']} ({split}) has no tests")
        return {
            "id": f"mbpp/{row['task_id']}",
            "text": row["text"],
            "tests": list(row["test_list"]),
            "setup": row["test_setup_code"],
            "code": row["code"],
        }

    def posed_text(self, example: Example) -> str:
        """Return the sentence and the assertions."""
        return posed_text(example["text"], example["tests"])

    def reference(self, example: Example) -> str | None:
        """Return the data set's own solution."""
        code: str = example["code"]
        return code

    def reference_completion(self, example: Example) -> str | None:
        """Return the data set's own solution in a fence, as the worked examples show answers."""
        code = example["code"].replace("\r\n", "\n").rstrip()
        return self.prompts.completion(in_fence(code))

    def extract(self, text: str) -> str | None:
        """Return the program in a completion, or None where there is none."""
        return extract_program(text) or None

    def program(self, text: str, example: Example) -> Program:
        """Return the program in a completion with setup and assertions behind it."""
        names = dict.fromkeys(_CALL.findall("\n".join(example["tests"])))
        wanted = [name for name in names if not hasattr(builtins, name)] or list(names)
        setup = [example["setup"]] if example["setup"].strip() else []
        tests = (*setup, *example["tests"])
        return Program(extract_program(text, wanted), tests, tuple(wanted))
