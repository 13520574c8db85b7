"""What happens between rollouts: validation, choice of the best head, checkpoints, a calm stop.

Everything is keyed by the number of the rollout, so a resumed run validates and saves where the
unbroken one would have.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from diversed.core.checks import check_at_least_one
from diversed.evaluation.runner import evaluate_task
from diversed.models.checkpoint import save_head
from diversed.records.store import replace_file
from diversed.tasks.base import Example
from diversed.training.distributed import add_up_numbers
from diversed.training.module import DiversedModule
from diversed.training.rollout import ScoringError

logger = logging.getLogger(__name__)


@runtime_checkable
class HeadLogger(Protocol):
    """A logger that keeps heads beside numbers."""

    def log_head(self, write: Callable[[Path], None], step: int, *, is_best: bool) -> None:
        """Keep the head of a validation.

        Args:
            write: Writes the head into a folder.
            step: After which rollout.
            is_best: Whether no earlier one is better.
        """


class HeadKeeper(Callback):
    """Validates the head, remembers the best one, and checkpoints the run.

    The best head is the one with the highest R + lambda A on validation prompts.

    Attributes:
        best_objective: Its value; None before the first validation.
        best_step: After which rollout it was reached.
        history: One mapping of numbers per validation.
    """

    def __init__(
        self,
        checkpoint: Path,
        examples: Sequence[Example],
        *,
        validate_every: int,
        save_every: int,
        num_rollouts: int,
        batch_size: int,
    ) -> None:
        """Set when to do what.

        Args:
            checkpoint: File that holds the latest state of the run.
            examples: Validation rows.
            validate_every: Rollouts between validations; one always follows the last rollout.
            save_every: Rollouts between checkpoints; the last is always saved.
            num_rollouts: Rollouts of the whole run.
            batch_size: Rows decoded together.

        Raises:
            ValueError: An interval is below 1.
        """
        check_at_least_one("objective.validate_every", validate_every)
        check_at_least_one("objective.save_every", save_every)
        self._checkpoint = checkpoint
        self._examples = examples
        self._validate_every = validate_every
        self._save_every = save_every
        self._num_rollouts = num_rollouts
        self._batch_size = batch_size
        self._should_stop = False
        self.best_objective: float | None = None
        self.best_step = 0
        self._best_state: dict[str, Tensor] = {}
        self.history: list[dict[str, float]] = []

    def request_stop(self) -> None:
        """End the run after the current rollout, with a checkpoint."""
        self._should_stop = True

    def load_best(self, module: DiversedModule) -> None:
        """Give the module the best head that was seen."""
        if self._best_state:
            module.head.load_state_dict(self._best_state)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Validate, log and save as scheduled; what is logged is on disk before the checkpoint."""
        if not isinstance(pl_module, DiversedModule):
            raise TypeError(f"HeadKeeper goes with DiversedModule, not {type(pl_module).__name__}")
        step = pl_module.rollout_step
        is_last = step == self._num_rollouts
        numbers: dict[str, float] = {}
        if is_last or step % self._validate_every == 0:
            numbers = self._validate(trainer, pl_module)
        should_stop = trainer.strategy.reduce_boolean_decision(self._should_stop, all=False)
        if numbers or should_stop or step % trainer.log_every_n_steps == 0:
            for run_logger in trainer.loggers:
                run_logger.log_metrics({**pl_module.step_metrics, **numbers}, step=step)
                run_logger.save()
        if is_last or should_stop or step % self._save_every == 0:
            self._save(trainer)
        if should_stop:
            trainer.should_stop = True

    def _save(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            replace_file(self._checkpoint, trainer.save_checkpoint)
        else:
            trainer.save_checkpoint(self._checkpoint)  # takes part, and writes nothing

    def _validate(self, trainer: Trainer, module: DiversedModule) -> dict[str, float]:
        """Score the head on the validation prompts, remember it if it is the best yet."""
        module.head.eval()
        evaluation = evaluate_task(
            module.decoder,
            module.task,
            self._examples,
            batch_size=self._batch_size,
            part=trainer.global_rank,
            num_parts=trainer.world_size,
        )
        rows = [row for row in evaluation.rows if row["error"] is None]
        is_sum = module.objective.acceptance_reduction == "sum"
        column = "expected_acceptance_sum" if is_sum else "expected_acceptance"
        sums = [sum(row[name] for row in rows) for name in ("quality", column)]
        number, quality, acceptance = add_up_numbers([len(rows), *sums], module.device)
        if number == 0:
            error = next((row["error"] for row in evaluation.rows), "the other processes say why")
            raise ScoringError(f"none of the validation prompts could be scored ({error})")
        quality, acceptance = quality / number, acceptance / number
        numbers = {
            "quality": quality,
            "acceptance": acceptance,
            "objective": quality + module.objective.acceptance_weight * acceptance,
        }
        self.history.append({"rollout": module.rollout_step, **numbers})
        is_best = self.best_objective is None or numbers["objective"] > self.best_objective
        if is_best:
            self.best_objective = numbers["objective"]
            self.best_step = module.rollout_step
            state = module.head.state_dict()
            self._best_state = {name: value.detach().clone() for name, value in state.items()}
        for run_logger in trainer.loggers:
            if isinstance(run_logger, HeadLogger):
                write = partial(save_head, module.head)
                run_logger.log_head(write, module.rollout_step, is_best=is_best)
        return {f"val/{name}": value for name, value in numbers.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the best head and the history for the checkpoint."""
        return {
            "best_objective": self.best_objective,
            "best_step": self.best_step,
            "best_state": self._best_state,
            "history": self.history,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them back."""
        self.best_objective = state_dict["best_objective"]
        self.best_step = state_dict["best_step"]
        self._best_state = state_dict["best_state"]
        self.history = state_dict["history"]


def read_checkpoint_step(path: Path) -> int:
    """Return after how many rollouts a checkpoint was written."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    return int(state["diversed"]["rollout_step"])
