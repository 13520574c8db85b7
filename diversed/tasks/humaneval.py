"""HumanEval: functions to be completed from signature and docstring, checked by hidden tests.

Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", with its data set of
164 problems (MIT), its prompts as plain text and its stop strings. Its own checker differs in that
it runs completions without namespaces, and lets an object pass that equals everything. There is
only a test split.
"""

from typing import Any

from diversed.tasks.base import Example, Prompt
from diversed.tasks.code import complete_function, in_fence
from diversed.tasks.code_task import CodeTask
from diversed.tasks.execution import Program
from diversed.tasks.loading import DataSource
from diversed.tasks.prompts import PromptTemplate

STOP_STRINGS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where a function that is continued as plain text has ended; the stop sequences of the paper."""


class HumanEvalTask(CodeTask):
    """The 164 problems; right is what passes `check`."""

    name = "humaneval"
    max_new_tokens = 512
    source = DataSource(
        hub_id="openai/openai_humaneval",
        config_name=None,
        columns=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        splits={"test": "test"},
        key=("task_id",),
        hint="train on data=mbpp",
    )
    template = PromptTemplate(
        instruction=(
            "Complete this Python function. Answer with one block of Python code that holds the "
            "whole function."
        ),
        text_label="Function",
        answer_label="Answer",
        is_multiline=True,
    )

    def __init__(self, **settings: Any) -> None:
        """Set how programs are run and where rows come from; see `CodeTask`."""
        super().__init__(**settings)
        self._choose_stop_strings()

    def settle(
        self, *, has_chat_template: bool, context_length: int, is_training: bool = False
    ) -> None:
        """Choose the style of the prompts by the models."""
        super().settle(
            has_chat_template=has_chat_template,
            context_length=context_length,
            is_training=is_training,
        )
        self._choose_stop_strings()

    def example(self, row: Example, split: str) -> Example:
        """Return `id`, `prompt`, `entry_point`, `code` (the rest of the function) and `test`."""
        return {
            "id": f"humaneval/{row['task_id'].rpartition('/')[2]}",
            "prompt": row["prompt"],
            "entry_point": row["entry_point"],
            "code": row["canonical_solution"],
            "test": row["test"],
        }

    def prompt(self, example: Example) -> Prompt:
        """Return the function's head to be continued, or a conversation that shows it."""
        head: str = example["prompt"]
        return head if self.prompts.style == "plain" else super().prompt(example)

    def posed_text(self, example: Example) -> str:
        """Return the function's head in a fence."""
        return in_fence(example["prompt"].strip())

    def reference(self, example: Example) -> str | None:
        """Return the data set's own body of the function."""
        code: str = example["code"]
        return code

    def reference_completion(self, example: Example) -> str | None:
        """Return the function's body, or the whole function in a fence for a conversation."""
        if self.prompts.style == "plain":
            return self.reference(example)
        return in_fence(f"{example['prompt']}{example['code']}".strip())

    def program(self, text: str, example: Example) -> Program:
        """Return the completed function, with the data set's check behind it."""
        entry_point = example["entry_point"]
        solution = complete_function(example["prompt"], text, entry_point)
        return Program(solution, (example["test"], f"check({entry_point})"), (entry_point,))

    def _choose_stop_strings(self) -> None:
        self.stop_strings = STOP_STRINGS if self.prompts.style == "plain" else ()
