"""What a task is to the rest of the project: examples, prompts and a score for a completion.

A task knows nothing of models, tokens or decoding; texts go in and numbers come out.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")

Example = dict[str, Any]
"""One row of a split: always a unique string `id`, otherwise the task's own columns."""

Message = dict[str, str]
"""One turn of a conversation: `role` (system, user or assistant) and `content`."""

Prompt = str | list[Message]
"""Text that the models continue, or a conversation for the tokenizer's chat template."""


@dataclass(frozen=True)
class Score:
    """The reward of one completion.

    Attributes:
        value: In [0, 1]; None where scoring itself failed.
        error: What failed inside the scorer (never the completion's own fault); None otherwise.
    """

    value: float | None
    error: str | None = None


class TaskDataError(ValueError):
    """A task's rows cannot be had as asked; the message is one line that says what would do."""


class Task(ABC):
    """Examples of one data set and the reward of a completion.

    Attributes:
        name: Short name used in records and run names.
        quality_name: Name of the score in figures, such as "accuracy".
        max_new_tokens: Completion length that a good answer fits into.
        stop_strings: Strings that end a completion, besides the end-of-sequence token.
        long_column: Column of an example that is cut from its end where a prompt is too long for
            the models; None where nothing may be cut.
    """

    name: str
    quality_name: str
    max_new_tokens: int
    stop_strings: tuple[str, ...] = ()
    long_column: str | None = None

    @abstractmethod
    def examples(self, split: str) -> Dataset:
        """Return the rows of "train", "validation" or "test"; other names raise ValueError."""

    @abstractmethod
    def prompt(self, example: Example) -> Prompt:
        """Return what the models continue or answer."""

    @abstractmethod
    def score(self, text: str, example: Example) -> float:
        """Return the reward of a completion, in [0, 1]; a pure function that accepts any text."""

    def extract(self, text: str) -> str | None:
        """Return the answer stated in a completion, or None where there is none."""
        return text.strip() or None

    def reference(self, example: Example) -> str | None:
        """Return the right answer as records show it, or None where there is none to show."""
        answer = example.get("answer")
        return None if answer is None else str(answer)

    def reference_completion(self, example: Example) -> str | None:
        """Return a right completion of the prompt from the data, or None where there is none.

        It is what a model learns from: the worked solution if there is one, else the answer.
        """
        solution = example.get("solution")
        return self.reference(example) if solution is None else str(solution)

    def settle(  # noqa: B027 - most tasks leave nothing open
        self, *, has_chat_template: bool, context_length: int, is_training: bool = False
    ) -> None:
        """Fix what was left open in the settings and depends on the models or the job.

        Called once, before the first prompt. A task without such settings has nothing to do.

        Args:
            has_chat_template: Whether the models' tokenizer takes conversations.
            context_length: Tokens that the models can attend to.
            is_training: Whether rows of the training split will be asked for.
        """

    def score_batch(self, texts: Sequence[str], examples: Sequence[Example]) -> list[Score]:
        """Return the reward of each completion; a failure of the scorer is a `Score.error`."""
        return [
            self._try_score(text, example) for text, example in zip(texts, examples, strict=True)
        ]

    def _try_score(self, text: str, example: Example) -> Score:
        try:
            return Score(self.score(text, example))
        except Exception as error:  # one row must not end a run of hours
            logger.debug("scoring %s failed", example.get("id"), exc_info=True)
            return Score(None, _describe(error))

    def corpus_metrics(self, texts: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
        """Return metrics of a whole evaluation by name; empty where means of scores say all."""
        return {}

    def provenance(self) -> dict[str, Any]:
        """Return where the rows came from (source, commit, sizes), for the manifest."""
        return {}


def check_split(split: str) -> None:
    """Raise ValueError, naming the known splits, unless `split` is one of them."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")


def score_completions(task: Task, texts: Sequence[str], examples: Sequence[Example]) -> list[Score]:
    """Return `task.score_batch`, with everything that may go wrong in it as a `Score.error`.

    Args:
        task: Scores the completions.
        texts: Completions.
        examples: The example of each.

    Returns:
        One score each: a value in [0, 1], or an error.
    """
    try:
        scores = task.score_batch(texts, examples)
    except Exception as error:  # a batch must not end a run of hours
        logger.debug("scoring a batch failed", exc_info=True)
        return [Score(None, _describe(error)) for _ in texts]
    if len(scores) != len(texts):
        text = f"{type(task).__name__} gave {len(scores)} scores for {len(texts)} completions"
        return [Score(None, text) for _ in texts]
    return [_checked(score) for score in scores]


def _checked(score: Score) -> Score:
    if score.error is not None:
        return Score(None, score.error)
    if score.value is None or not 0 <= score.value <= 1:  # NaN is not between them either
        return Score(None, f"the score {score.value} is not in [0, 1]")
    return Score(float(score.value))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
