"""Supervised fine-tuning of the draft: next-token loss on completions; the target has no part."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from diversed.training.completions import CompletionBatch
from diversed.training.module import NonFiniteError, OptimizerFactory


def completion_loss(logits: Tensor, batch: CompletionBatch) -> tuple[Tensor, int]:
    """Return the negative log-likelihood of a batch's completions, and how many tokens they have.

    Args:
        logits: Of a model that has read `batch.ids`, [B, T, V]; those at a position predict the
            next token.
        batch: B sequences. Tokens outside `loss_mask` have no part in the loss.

    Returns:
        The sum over tokens in nats, fp32, and their number.
    """
    counts = batch.loss_mask[:, 1:]  # no position predicts the first token
    loss = nn.functional.cross_entropy(
        logits[:, :-1][counts].float(), batch.ids[:, 1:][counts], reduction="sum"
    )
    return loss, int(counts.sum())


class FinetuneModule(LightningModule):
    """Trains a causal model on completions; validates by the mean loss of a token.

    Attributes:
        validation_loss: Of the last validation, in nats per token; NaN before the first.
        step_metrics: Numbers of the last batch, for a logger.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_steps: int,
        warmup_frac: float,
        grad_clip: float,
        optimizer: OptimizerFactory,
    ) -> None:
        """Set up training of the parameters of `model` that require a gradient.

        Args:
            model: A transformers model, or one with an adapter.
            num_steps: Optimiser steps of the whole run.
            warmup_frac: Share of them over which the learning rate rises from 0; then it falls to 0
                along a cosine.
            grad_clip: Largest norm of the gradient.
            optimizer: Makes the optimiser.

        Raises:
            ValueError: A setting is out of range.
        """
        super().__init__()
        if not 0 <= warmup_frac <= 1:
            raise ValueError(f"finetune.warmup_frac={warmup_frac}: must lie in [0, 1]")
        if not grad_clip > 0:
            raise ValueError(f"finetune.grad_clip={grad_clip}: must be above 0")
        self.model = model
        self.validation_loss = math.nan
        self.step_metrics: dict[str, float] = {}
        self._num_steps = num_steps
        self._num_warmup_steps = round(warmup_frac * num_steps)
        self._grad_clip = grad_clip
        self._make_optimizer = optimizer
        self._validation = (0.0, 0)
        self._example_ids: list[str] = []

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that training changes, by name."""
        named = self.model.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    def configure_optimizers(self) -> Any:
        """Return the optimiser and its schedule, stepped after every batch."""
        optimizer = self._make_optimizer(self.trained_parameters().values())
        schedule = LambdaLR(optimizer, self._rate_at)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _rate_at(self, step: int) -> float:
        """Return the learning rate of a step, from 0, as a share of the largest."""
        if step < self._num_warmup_steps:
            return (step + 1) / (self._num_warmup_steps + 1)
        done = (step - self._num_warmup_steps) / max(1, self._num_steps - self._num_warmup_steps)
        return (1 + math.cos(math.pi * min(done, 1.0))) / 2

    def _learning_rate(self) -> float:
        optimizer = self.optimizers()
        return float(optimizer.param_groups[0]["lr"])

    def _loss(self, batch: CompletionBatch) -> tuple[Tensor, int]:
        logits = self.model(
            input_ids=batch.ids, attention_mask=batch.attention_mask.long(), use_cache=False
        ).logits
        return completion_loss(logits, batch)

    def training_step(self, batch: CompletionBatch, batch_idx: int) -> Tensor:
        """Return the mean loss of the batch's completion tokens."""
        total, number = self._loss(batch)
        loss = total / number
        self._example_ids = batch.example_ids
        if not math.isfinite(loss.item()):
            raise self._not_finite(f"loss {loss.item()}", batch.example_ids)
        self.step_metrics = {"train/loss": loss.item(), "train/lr": self._learning_rate()}
        self.log("train/loss", loss.item(), prog_bar=True, logger=False, batch_size=number)
        return loss

    def configure_gradient_clipping(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        """Clip the gradient's norm, and stop where it is not finite."""
        norm = nn.utils.clip_grad_norm_(self.trained_parameters().values(), self._grad_clip)
        if not math.isfinite(norm.item()):
            raise self._not_finite(f"gradient norm {norm.item()}", self._example_ids)
        self.step_metrics["train/grad_norm"] = norm.item()

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self._validation = (0.0, 0)

    def validation_step(self, batch: CompletionBatch, batch_idx: int) -> None:
        """Add the batch's tokens."""
        total, number = self._loss(batch)
        self._validation = (self._validation[0] + total.item(), self._validation[1] + number)

    def on_validation_epoch_end(self) -> None:
        """Set and log the mean loss of a token."""
        total, number = self._validation
        self.validation_loss = total / number
        if not math.isfinite(self.validation_loss):
            raise self._not_finite(f"validation loss {self.validation_loss}", ["validation"])
        self.log("val/loss", self.validation_loss, prog_bar=True, logger=False)

    def _not_finite(self, what: str, example_ids: Sequence[str]) -> NonFiniteError:
        return NonFiniteError(
            f"after step {self.global_step}: {what}; prompts: {', '.join(example_ids)}; try a "
            "smaller optimizer.lr"
        )


class BestDraft(Callback):
    """Remembers the trained weights with the lowest validation loss, on the CPU, and logs.

    Attributes:
        best_step: Optimiser steps before them; None before the first validation.
        best_loss: Their validation loss.
        history: Step and loss of every validation.
        should_stop: Whether a stop was asked for.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.best_step: int | None = None
        self.best_loss = math.inf
        self.history: list[dict[str, float]] = []
        self._best_state: dict[str, Tensor] = {}
        self._unlogged: tuple[int, dict[str, float]] = (0, {})
        self.should_stop = False

    def request_stop(self) -> None:
        """End training after the current batch."""
        self.should_stop = True

    def load_best(self, module: FinetuneModule) -> None:
        """Give the module the best weights that were seen."""
        with torch.no_grad():
            for name, parameter in module.trained_parameters().items():
                parameter.copy_(self._best_state[name])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Keep the batch's numbers for the logger; stop where it was asked for."""
        self._add(trainer, _own(pl_module).step_metrics)
        if self.should_stop:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare with the best so far."""
        module = _own(pl_module)
        step, loss = trainer.global_step, module.validation_loss
        self.history.append({"step": step, "loss": loss})
        self._add(trainer, {"val/loss": loss})
        if loss < self.best_loss:
            self.best_loss, self.best_step = loss, step
            self._best_state = {
                name: parameter.detach().to("cpu", copy=True)
                for name, parameter in module.trained_parameters().items()
            }

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what is left."""
        self._log(trainer)

    def _add(self, trainer: Trainer, numbers: Mapping[str, float]) -> None:
        """Log a step once all its numbers are there: trackers take each step once."""
        step, known = self._unlogged
        if step != trainer.global_step:
            self._log(trainer)
            known = {}
        self._unlogged = (trainer.global_step, {**known, **numbers})

    def _log(self, trainer: Trainer) -> None:
        step, numbers = self._unlogged
        for run_logger in trainer.loggers if numbers else ():
            run_logger.log_metrics(numbers, step=step)
            run_logger.save()
        self._unlogged = (step, {})


def _own(module: LightningModule) -> FinetuneModule:
    if not isinstance(module, FinetuneModule):
        raise TypeError(f"BestDraft goes with FinetuneModule, not {type(module).__name__}")
    return module
