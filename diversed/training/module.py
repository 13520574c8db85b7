"""The Lightning module: frozen pair, trainable head, one rollout per training step."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from diversed.generation import SpeculativeDecoder
from diversed.models.head import EnsembleHead
from diversed.objective.acceptance import (
    ObjectiveSettings,
    acceptance_term,
    batch_returns,
    objective_loss,
)
from diversed.objective.reinforce import RunningMean, check_advantage
from diversed.tasks.base import Example, Task
from diversed.training.rollout import Rollout, check_rollout_decoder, sample_rollout

OptimizerFactory = Callable[[Iterable[Tensor]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]


class NonFiniteError(RuntimeError):
    """A loss or gradient is not finite; the message names the rollout and its prompts."""


class DiversedModule(LightningModule):
    """Trains an ensemble head on E[R + lambda A].

    The pair is no submodule: it is in no checkpoint, and no optimiser or strategy sees it. One
    training step samples K completions of each of P prompts, scores them, and updates the head one
    or more times from the scalars that the rollout kept.
    """

    def __init__(
        self,
        head: EnsembleHead,
        decoder: SpeculativeDecoder,
        task: Task,
        objective: ObjectiveSettings,
        *,
        samples_per_prompt: int,
        updates_per_rollout: int,
        grad_clip: float,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory,
    ) -> None:
        """Set up training.

        Args:
            head: The head to train; the decoder's verifier must hold the same one.
            decoder: Samples the rollouts.
            task: Builds prompts and scores completions.
            objective: What is maximised.
            samples_per_prompt: K.
            updates_per_rollout: Gradient steps on each batch.
            grad_clip: Largest norm of the head's gradient.
            optimizer: Makes the optimiser of the head's parameters.
            scheduler: Makes its schedule, stepped once per rollout.

        Raises:
            ValueError: A setting is out of range, or rollouts would not follow nu.
        """
        super().__init__()
        check_rollout_decoder(decoder)
        check_advantage(objective.advantage, samples_per_prompt)
        for name, number in (
            ("samples_per_prompt", samples_per_prompt),
            ("updates_per_rollout", updates_per_rollout),
        ):
            if number < 1:
                raise ValueError(f"objective.{name}={number}: must be at least 1")
        if not grad_clip > 0:
            raise ValueError(f"objective.grad_clip={grad_clip}: must be above 0")
        self.automatic_optimization = False
        self.head = head
        self.task = task
        self.decoder = decoder
        self.objective = objective
        self.samples_per_prompt = samples_per_prompt
        self.updates_per_rollout = updates_per_rollout
        self.grad_clip = grad_clip
        self.rollout_step = 0
        self.baseline = RunningMean()
        self._make_optimizer = optimizer
        self._make_scheduler = scheduler

    def setup(self, stage: str) -> None:
        """Move the frozen pair to the strategy's device."""
        self.decoder.pair.to(self.device)

    def configure_optimizers(self) -> Any:
        """Return the optimiser of the head and its schedule."""
        optimizer = self._make_optimizer(self.head.parameters())
        return {"optimizer": optimizer, "lr_scheduler": self._make_scheduler(optimizer)}

    def training_step(self, batch: list[Example], batch_idx: int) -> None:
        """Sample one rollout and update the head from it."""
        started = time.perf_counter()
        self.head.eval()
        rollout = sample_rollout(
            self.decoder, self.task, batch, self.samples_per_prompt, self.rollout_step
        )
        sampled_at = time.perf_counter()
        self.head.train()
        self.head.standardise(rollout.draft_hidden, rollout.target_hidden, rollout.features)
        sampled_weight = rollout.target_weight(self.head).detach()
        returns = batch_returns(
            rollout.scalars,
            sampled_weight,
            rollout.rewards,
            self.samples_per_prompt,
            self.objective,
            self.baseline,
        )
        optimizer = self.optimizers()
        norms, losses = [], []
        for update in range(self.updates_per_rollout):
            loss = objective_loss(
                rollout.scalars,
                rollout.target_weight(self.head),
                returns,
                self.objective,
                is_first_update=update == 0,
            )
            optimizer.zero_grad()
            self.manual_backward(loss)
            norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.grad_clip)
            loss_value, norm_value = loss.item(), norm.item()
            self._check_finite(loss_value, norm_value, batch)
            optimizer.step()
            norms.append(norm_value)
            losses.append(loss_value)
        self.lr_schedulers().step()
        self.rollout_step += 1
        metrics = self._metrics(rollout, sampled_weight)
        metrics |= {
            "loss": losses[0],
            "grad_norm": norms[0],
            "rollout_seconds": sampled_at - started,
            "update_seconds": time.perf_counter() - sampled_at,
            "tokens_per_second": rollout.row.numel() / (sampled_at - started),
        }
        bar = {"reward", "acceptance", "mean_w"}
        for name, value in metrics.items():
            on_bar = name in bar
            self.log(f"train/{name}", value, prog_bar=on_bar, batch_size=len(batch))

    def _metrics(self, rollout: Rollout, target_weight: Tensor) -> dict[str, float]:
        """Return the numbers of a rollout under the head that sampled it."""
        weight = target_weight[rollout.scalars.mask]
        clamped = weight.clamp(1e-6, 1 - 1e-6)
        entropy = -(clamped * clamped.log() + (1 - clamped) * (1 - clamped).log())
        reduction = self.objective.acceptance_reduction
        term = acceptance_term(rollout.scalars, target_weight, reduction).mean()
        reward = float(rollout.rewards.mean())
        return {
            "reward": reward,
            "acceptance": float(acceptance_term(rollout.scalars, target_weight, "mean").mean()),
            "objective": reward + self.objective.acceptance_weight * float(term),
            "acceptance_rate": rollout.acceptance_rate,
            "token_acceptance_rate": rollout.token_acceptance_rate,
            "mean_w": float(weight.mean()),
            "w_below_0.05_frac": float((weight < 0.05).float().mean()),
            "w_above_0.95_frac": float((weight > 0.95).float().mean()),
            "w_entropy": float(entropy.mean()),
            "mean_num_tokens": rollout.row.numel() / rollout.rewards.numel(),
            "num_score_errors": float(rollout.num_score_errors),
            "num_cut_prompts": float(rollout.num_cut_prompts),
        }

    def _check_finite(self, loss: float, norm: float, batch: list[Example]) -> None:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            ids = ", ".join(str(example["id"]) for example in batch)
            raise NonFiniteError(
                f"loss {loss} with gradient norm {norm} at rollout "
                f"{self.rollout_step}; prompts: {ids}"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what a resumed run needs beside the head and its optimiser."""
        checkpoint["diversed"] = {
            "rollout_step": self.rollout_step,
            "baseline": {"total": self.baseline.total, "count": self.baseline.count},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up where the checkpoint was written."""
        state = checkpoint["diversed"]
        self.rollout_step = state["rollout_step"]
        self.baseline = RunningMean(**state["baseline"])
