"""Which prompts each rollout sees: a function of seed and rollout number alone."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from datasets import Dataset
from lightning import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from diversed.core.checks import check_at_least_one
from diversed.tasks.base import Example, Task


class PromptBatches(IterableDataset[list[Example]]):
    """Batches of prompts from `start()` to `num_rollouts`; shuffled anew in every pass."""

    def __init__(
        self,
        examples: Dataset,
        prompts_per_step: int,
        num_rollouts: int,
        seed: int,
        start: Callable[[], int],
    ) -> None:
        """Set what is drawn.

        Args:
            examples: The training split.
            prompts_per_step: P, at most the size of the split.
            num_rollouts: Number of the rollout to end before.
            seed: Seeds the order.
            start: Asked for the number of the first rollout when iteration begins.

        Raises:
            ValueError: A number is below 1, or a rollout would repeat a prompt.
        """
        if not 1 <= prompts_per_step <= len(examples):
            raise ValueError(
                f"objective.prompts_per_step={prompts_per_step}: must be at least 1 and at most "
                f"the {len(examples)} training examples"
            )
        check_at_least_one("objective.num_rollouts", num_rollouts)
        self._examples = examples
        self._prompts_per_step = prompts_per_step
        self._num_rollouts = num_rollouts
        self._seed = seed
        self._start = start
        self._order: tuple[int, list[int]] = (-1, [])

    def batch(self, step: int) -> list[Example]:
        """Return the prompts of one rollout."""
        batches_per_pass = len(self._examples) // self._prompts_per_step
        shuffle, index = divmod(step, batches_per_pass)
        if self._order[0] != shuffle:
            order = list(range(len(self._examples)))
            random.Random(f"prompts/{self._seed}/{shuffle}").shuffle(order)
            self._order = (shuffle, order)
        chosen = self._order[1][
            index * self._prompts_per_step : (index + 1) * self._prompts_per_step
        ]
        return [self._examples[position] for position in chosen]

    def __iter__(self) -> Iterator[list[Example]]:
        """Yield the prompts of the rollouts that are still to do."""
        for step in range(self._start(), self._num_rollouts):
            yield self.batch(step)


class PromptDataModule(LightningDataModule):
    """Training prompts of a task, batched by rollout."""

    def __init__(self, task: Task, *, max_prompts: int | None = None, **options: Any) -> None:
        """Build the `batches` from the task's training split.

        Args:
            task: Has the rows.
            max_prompts: How many of the split's first rows are used; None, or more than there are:
                all of them.
            options: As in `PromptBatches`.

        Raises:
            ValueError: A number is out of range.
        """
        super().__init__()
        rows = task.examples("train")
        if max_prompts is not None:
            check_at_least_one("objective.max_train_prompts", max_prompts)
            rows = rows.select(range(min(max_prompts, len(rows))))
        self.batches = PromptBatches(rows, **options)

    def train_dataloader(self) -> DataLoader[list[Example]]:
        """Return the batches as they are."""
        return DataLoader(self.batches, batch_size=None)
