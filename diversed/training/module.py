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

from diversed.core.checks import check_at_least_one
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
from diversed.training.distributed import (
    HeadStrategy,
    add_up,
    add_up_numbers,
    batch_share,
    from_first,
    is_distributed,
    largest_number,
    own_part,
)
from diversed.training.rollout import Rollout, ScoringError, check_rollout_decoder, sample_rollout

OptimizerFactory = Callable[[Iterable[Tensor]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]


class NonFiniteError(RuntimeError):
    """A loss or gradient is not finite; the message names the rollout and its prompts."""


class DiversedModule(LightningModule):
    """Trains an ensemble head on E[R + lambda A].

    The pair is no submodule: it is in no checkpoint, and no optimiser or strategy sees it. One
    training step samples K completions of each of P prompts, scores them, and updates the head one
    or more times from the scalars that the rollout kept.

    Where there are several processes, each gets the same P prompts, samples those of its part, and
    ends the step with the same head: the one that a single process would have come to.
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
        check_at_least_one("objective.samples_per_prompt", samples_per_prompt)
        check_at_least_one("objective.updates_per_rollout", updates_per_rollout)
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
        self.step_metrics: dict[str, float] = {}
        self.baseline = RunningMean()
        self._make_optimizer = optimizer
        self._make_scheduler = scheduler

    def setup(self, stage: str) -> None:
        """Move the frozen pair to the strategy's device.

        Raises:
            ValueError: The strategy would reduce the gradients a second time.
        """
        strategy = self.trainer.strategy
        if self.trainer.world_size > 1 and not isinstance(strategy, HeadStrategy):
            raise ValueError(
                f"trainer.strategy: {type(strategy).__name__} does not fit this module, which "
                "reduces its own gradients; set trainer=ddp"
            )
        self.decoder.pair.to(self.device)

    def on_fit_start(self) -> None:
        """Start from one head on all processes."""
        state = {name: value.cpu() for name, value in self.head.state_dict().items()}
        self.head.load_state_dict(from_first(state))

    def configure_optimizers(self) -> Any:
        """Return the optimiser of the head and its schedule."""
        optimizer = self._make_optimizer(self.head.parameters())
        return {"optimizer": optimizer, "lr_scheduler": self._make_scheduler(optimizer)}

    def training_step(self, batch: list[Example], batch_idx: int) -> None:
        """Sample one rollout and update the head from it."""
        started = time.perf_counter()
        self.head.eval()
        rollout = sample_rollout(
            self.decoder, self.task, own_part(batch), self.samples_per_prompt, self.rollout_step
        )
        sampled_at = time.perf_counter()  # the processes meet below, not before
        share = batch_share(rollout.rewards.numel(), self.device)
        if share.total == 0:
            raise ScoringError(
                f"rollout {self.rollout_step + 1}: none of the {len(batch)} prompts could be "
                f"scored ({rollout.score_error})"
            )
        self.head.train()
        self.head.standardise(
            rollout.draft_hidden, rollout.target_hidden, rollout.features, share.add
        )
        sampled_weight = rollout.target_weight(self.head).detach()
        returns = batch_returns(
            rollout.scalars,
            sampled_weight,
            rollout.rewards,
            self.samples_per_prompt,
            self.objective,
            self.baseline,
            share,
        )
        optimizer = self.optimizers()
        norms, losses = [], []
        for update in range(self.updates_per_rollout):
            optimizer.zero_grad()
            loss = torch.zeros((), device=self.device)
            if share.size:
                own_loss = objective_loss(
                    rollout.scalars,
                    rollout.target_weight(self.head),
                    returns,
                    self.objective,
                    is_first_update=update == 0,
                )
                loss = own_loss * share.fraction
                self.manual_backward(loss)
            loss_value = self._add_up_gradients(loss)
            norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.grad_clip)
            norm_value = norm.item()
            self._check_finite(loss_value, norm_value, batch)
            optimizer.step()
            self._check_head(batch)
            norms.append(norm_value)
            losses.append(loss_value)
        self.lr_schedulers().step()
        self.rollout_step += 1
        metrics = self._metrics(rollout, sampled_weight, sampled_at - started)
        metrics |= {
            "loss": losses[0],
            "grad_norm": norms[0],
            "update_seconds": time.perf_counter() - sampled_at,
        }
        self.step_metrics = {f"train/{name}": float(value) for name, value in metrics.items()}
        for name in ("train/reward", "train/acceptance", "train/mean_w"):
            value = self.step_metrics[name]
            self.log(name, value, prog_bar=True, logger=False, batch_size=len(batch))

    def _add_up_gradients(self, loss: Tensor) -> float:
        """Give the head the sum of all processes' gradients; return the sum of their losses."""
        if not is_distributed():
            return loss.item()
        parameters = list(self.head.parameters())
        parts = [loss.detach().view(1)]
        for parameter in parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parts.append(gradient.flatten())
        total, *gradients = add_up(torch.cat(parts)).split([part.numel() for part in parts])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)
        return total.item()

    def _metrics(self, rollout: Rollout, target_weight: Tensor, seconds: float) -> dict[str, float]:
        """Return the numbers of a rollout under the head that sampled it, of all processes."""
        weight = target_weight[rollout.scalars.mask]
        clamped = weight.clamp(1e-6, 1 - 1e-6)
        entropy = -(clamped * clamped.log() + (1 - clamped) * (1 - clamped).log())
        reduction = self.objective.acceptance_reduction
        acceptance, term = (
            float(acceptance_term(rollout.scalars, target_weight, name).sum())
            for name in ("mean", reduction)
        )
        reward, num_rows = float(rollout.rewards.sum()), rollout.rewards.numel()
        num_tokens = rollout.row.numel()
        ratios = {
            "reward": (reward, num_rows),
            "acceptance": (acceptance, num_rows),
            "weighted_acceptance": (self.objective.acceptance_weight * term, num_rows),
            "objective": (reward + self.objective.acceptance_weight * term, num_rows),
            "acceptance_rate": (rollout.num_accepted, rollout.num_drafted),
            "token_acceptance_rate": (rollout.num_accepted, rollout.num_judged),
            "mean_w": (float(weight.sum()), num_tokens),
            "w_below_0.05_frac": (int((weight < 0.05).sum()), num_tokens),
            "w_above_0.95_frac": (int((weight > 0.95).sum()), num_tokens),
            "w_entropy": (float(entropy.sum()), num_tokens),
            "mean_num_tokens": (num_tokens, num_rows),
        }
        counts = {
            "num_score_errors": rollout.num_score_errors,
            "num_cut_prompts": rollout.num_cut_prompts,
            "num_tokens": num_tokens,
        }
        flat = [number for ratio in ratios.values() for number in ratio]
        sums = iter(add_up_numbers([*flat, *counts.values()], self.device))
        pairs = {name: (next(sums), next(sums)) for name in ratios}
        metrics = {
            name: total / number if number else math.nan for name, (total, number) in pairs.items()
        }
        metrics |= {name: next(sums) for name in counts}
        slowest = largest_number(seconds, self.device)
        metrics["rollout_seconds"] = slowest
        metrics["tokens_per_second"] = metrics.pop("num_tokens") / slowest
        return metrics

    def _check_finite(self, loss: float, norm: float, batch: list[Example]) -> None:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self._not_finite(f"loss {loss} with gradient norm {norm}", batch)

    def _check_head(self, batch: list[Example]) -> None:
        for name, value in self.head.named_parameters():
            if not bool(value.isfinite().all()):
                raise self._not_finite(f"the head's {name} is not finite after an update", batch)

    def _not_finite(self, what: str, batch: list[Example]) -> NonFiniteError:
        ids = ", ".join(str(example["id"]) for example in batch)
        return NonFiniteError(f"rollout {self.rollout_step + 1}: {what}; prompts: {ids}")

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
