"""A task over a data set: rows from a `SplitLoader`, prompts from a `PromptBuilder`."""

from abc import abstractmethod
from typing import Any

from datasets import Dataset

from diversed.tasks.base import Example, Prompt, Task
from diversed.tasks.loading import NUM_CARVED_VALIDATION, DataSource, SplitLoader
from diversed.tasks.prompts import PromptBuilder, PromptTemplate, Shot


class LoadedTask(Task):
    """What the tasks over data sets share; a subclass says what a row is and how it is scored.

    Attributes:
        source: The data set.
        template: Wording of the prompts.
        shots: Worked examples for prompts, best first.
    """

    source: DataSource
    template: PromptTemplate
    shots: tuple[Shot, ...] = ()

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str = "main",
        limit: int | None = None,
        seed: int = 0,
        num_carved_validation: int = NUM_CARVED_VALIDATION,
        split_file: bool | None = None,
        prompt: str | None = None,
        num_shots: int | None = None,
    ) -> None:
        """Set where rows come from and how they are posed.

        Args:
            path: See `SplitLoader`, as all up to `split_file`.
            revision: Branch, tag or commit on the hub.
            limit: Rows of each split at most.
            seed: Of everything that is drawn.
            num_carved_validation: Validation rows where the data set has none.
            split_file: Whether one file serves for all splits.
            prompt: See `PromptBuilder`, as `num_shots`.
            num_shots: Worked examples in a prompt.

        Raises:
            ValueError: A setting is out of range, or there is nothing at `path`.
        """
        self.loader = SplitLoader(
            self.source,
            path=path,
            revision=revision,
            limit=limit,
            seed=seed,
            num_carved_validation=num_carved_validation,
            split_file=split_file,
        )
        self.prompts = PromptBuilder(self.template, self.shots, prompt=prompt, num_shots=num_shots)
        self.stop_strings = self.prompts.stop_strings

    def settle(
        self, *, has_chat_template: bool, context_length: int, is_training: bool = False
    ) -> None:
        """Choose style and shots of the prompts by the models, and how one file is used."""
        self.prompts.settle(has_chat_template=has_chat_template, context_length=context_length)
        self.loader.settle(is_training=is_training)
        self.stop_strings = self.prompts.stop_strings

    def examples(self, split: str) -> Dataset:
        """Return the rows of a split as this task's examples."""
        return Dataset.from_list([self.example(row, split) for row in self.loader.rows(split)])

    def prompt(self, example: Example) -> Prompt:
        """Return what poses an example."""
        return self.prompts.build(self.posed_text(example))

    def reference_completion(self, example: Example) -> str | None:
        """Return the data's own answer as it stands behind a prompt of the settled style."""
        answer = super().reference_completion(example)
        return None if answer is None else self.prompts.completion(answer)

    def provenance(self) -> dict[str, Any]:
        """Return where the rows came from and how they are posed."""
        return self.loader.provenance() | self.prompts.describe()

    @abstractmethod
    def example(self, row: Example, split: str) -> Example:
        """Return a raw row as an example with an `id`; TaskDataError where it cannot be one."""

    @abstractmethod
    def posed_text(self, example: Example) -> str:
        """Return the text that a prompt poses."""
