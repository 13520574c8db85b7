"""What a task is to the rest of the project: examples, prompts and a score for a completion.

A task knows nothing of models, tokens or decoding; texts go in and numbers come out.
"""

from typing import Any, Protocol, runtime_checkable

from datasets import Dataset

SPLITS = ("train", "validation", "test")

Example = dict[str, Any]
"""One row of a split: always a unique string `id`, otherwise the task's own columns."""


@runtime_checkable
class Task(Protocol):
    """Examples of one data set and the reward of a completion.

    Attributes:
        name: Short name used in records and run names.
        quality_name: Name of the score in figures, such as "accuracy".
        max_new_tokens: Completion length that a good answer fits into.
        stop_strings: Strings that end a completion, besides the end-of-sequence token.
    """

    name: str
    quality_name: str
    max_new_tokens: int
    stop_strings: tuple[str, ...]

    def examples(self, split: str) -> Dataset:
        """Return the rows of "train", "validation" or "test"; other names raise ValueError."""
        ...

    def prompt(self, example: Example) -> str:
        """Return the text that the models continue."""
        ...

    def extract(self, text: str) -> str | None:
        """Return the answer stated in a completion, or None where there is none."""
        ...

    def score(self, text: str, example: Example) -> float:
        """Return the reward of a completion, in [0, 1]; never raises on any text."""
        ...


def check_split(split: str) -> None:
    """Raise ValueError, naming the known splits, unless `split` is one of them."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
