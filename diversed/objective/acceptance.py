"""The acceptance term A, and the loss of reward plus lambda times acceptance.

The objective is E[R + lambda A] over completions that follow the product of the nu_t, with A the
mean (or sum) over a completion's tokens of 1 - w_t TV(q_t, p_t). A depends on the head twice:
through w_t at the tokens of a completion (direct part) and through which completions are drawn
(score-function part: A is part of the return).

Everything needs three scalars per token, p(x_t), q(x_t) and TV(q_t, p_t), which the rollout's own
verification pass has computed; no forward pass of the models is repeated.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diversed.core.checks import check_same_shape
from diversed.core.probs import expected_acceptance
from diversed.objective.reinforce import RunningMean, advantages, check_advantage, policy_loss
from diversed.objective.share import BatchShare

REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class ObjectiveSettings:
    """What is maximised, and how its gradient is estimated.

    Attributes:
        acceptance_weight: lambda, at least 0; the key `lambda` of the command line.
        acceptance_reduction: "mean" over a completion's tokens (lambda means the same for any
            length) or "sum" (the paper's letter).
        advantage: One of `reinforce.ADVANTAGES`.
        clip_ratio: Clip of importance ratios where a batch is used more than once.
        uses_direct_gradient: Keep the direct part of the gradient of A.
        uses_score_gradient: Keep the score-function part: A counts in the return.
    """

    acceptance_weight: float
    acceptance_reduction: str = "mean"
    advantage: str = "rloo"
    clip_ratio: float = 0.5
    uses_direct_gradient: bool = True
    uses_score_gradient: bool = True

    def __post_init__(self) -> None:
        """Raise ValueError, naming the key as users type it, for values out of range."""
        weight = self.acceptance_weight
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (is_number and math.isfinite(weight) and weight >= 0):
            raise ValueError(f"lambda={weight}: must be a finite number >= 0")
        if self.acceptance_reduction not in REDUCTIONS:
            raise ValueError(
                f"objective.acceptance_reduction={self.acceptance_reduction!r}: must be one of "
                f"{', '.join(REDUCTIONS)}"
            )
        if not self.clip_ratio > 0:
            raise ValueError(f"objective.clip_ratio={self.clip_ratio}: must be above 0")
        check_advantage(self.advantage, samples_per_prompt=2)


@dataclass(frozen=True)
class TokenScalars:
    """What is kept of each sampled token; all of shape [S, T], padded on the right.

    Attributes:
        target_prob: p(x_t).
        draft_prob: q(x_t).
        tv_distance: TV(q_t, p_t).
        mask: True where a token counts, bool.
    """

    target_prob: Tensor
    draft_prob: Tensor
    tv_distance: Tensor
    mask: Tensor


def mixture_log_probs(scalars: TokenScalars, target_weight: Tensor) -> Tensor:
    """Return log nu(x_t) = log(w p(x_t) + (1 - w) q(x_t)); 0 where the mask is False.

    Args:
        scalars: Probabilities of the sampled tokens.
        target_weight: w, [S, T]; the result is differentiable in it.

    Returns:
        Shape [S, T], finite.
    """
    check_same_shape("target_weight", target_weight, "target_prob", scalars.target_prob)
    probs = target_weight * scalars.target_prob + (1 - target_weight) * scalars.draft_prob
    probs = probs.clamp(min=torch.finfo(probs.dtype).tiny)
    return torch.where(scalars.mask, probs, torch.ones_like(probs)).log()


def acceptance_term(scalars: TokenScalars, target_weight: Tensor, reduction: str) -> Tensor:
    """Return A of each completion.

    Args:
        scalars: Distances at the sampled tokens.
        target_weight: w, [S, T]; the result is differentiable in it.
        reduction: "mean" or "sum" over the completion's own tokens.

    Returns:
        Shape [S].

    Source: DIVERSED, the acceptance term of its objective, there a sum.
    """
    accepted = expected_acceptance(scalars.tv_distance, target_weight)
    total = torch.where(scalars.mask, accepted, torch.zeros_like(accepted)).sum(1)
    return total if reduction == "sum" else total / scalars.mask.sum(1)


@dataclass(frozen=True)
class BatchReturns:
    """Returns of one sampled batch, fixed before the first update on it.

    Attributes:
        advantage: [S], completions of a prompt next to each other.
        sampled_log_probs: log nu(x_t) under the head that sampled, [S, T].
        acceptance: A under the head that sampled, [S].
    """

    advantage: Tensor
    sampled_log_probs: Tensor
    acceptance: Tensor


@torch.no_grad()
def batch_returns(
    scalars: TokenScalars,
    target_weight: Tensor,
    rewards: Tensor,
    samples_per_prompt: int,
    settings: ObjectiveSettings,
    baseline: RunningMean,
    share: BatchShare | None = None,
) -> BatchReturns:
    """Return advantages of a batch of S = P K completions.

    With a share, S counts the completions of this process; what an advantage takes from the batch
    (a mean, a spread, the running mean) is taken from all processes' returns, in order.

    Args:
        scalars: Of the sampled tokens.
        target_weight: w of the head that sampled them, [S, T].
        rewards: R, [S], ordered by prompt.
        samples_per_prompt: K.
        settings: Of the objective.
        baseline: Running mean of returns; used and updated by advantage "running_mean".
        share: Which part of a larger batch these are; None where they are all of it.

    Returns:
        What `objective_loss` needs beside the current head.
    """
    acceptance = acceptance_term(scalars, target_weight, settings.acceptance_reduction)
    returns = rewards
    if settings.uses_score_gradient:
        returns = rewards + settings.acceptance_weight * acceptance
    everyone = returns if share is None else share.whole(returns)
    advantage = advantages(settings.advantage, everyone.view(-1, samples_per_prompt), baseline)
    advantage = advantage.flatten()
    return BatchReturns(
        advantage=advantage if share is None else share.own(advantage),
        sampled_log_probs=mixture_log_probs(scalars, target_weight),
        acceptance=acceptance,
    )


def objective_loss(
    scalars: TokenScalars,
    target_weight: Tensor,
    returns: BatchReturns,
    settings: ObjectiveSettings,
    is_first_update: bool,
) -> Tensor:
    """Return the loss whose gradient estimates minus the gradient of E[R + lambda A].

    The sign changes here: the objective is maximised, the loss minimised. On later updates of the
    same batch importance ratios are clipped and the direct part is left unweighted, so these are
    biased towards the head that sampled.

    Args:
        scalars: Of the sampled tokens.
        target_weight: w of the current head, differentiable, [S, T].
        returns: From `batch_returns`.
        settings: Of the objective.
        is_first_update: Whether the current head is the one that sampled.

    Returns:
        Scalar.
    """
    loss = policy_loss(
        mixture_log_probs(scalars, target_weight),
        returns.sampled_log_probs,
        scalars.mask,
        returns.advantage,
        None if is_first_update else settings.clip_ratio,
    )
    if settings.uses_direct_gradient:
        acceptance = acceptance_term(scalars, target_weight, settings.acceptance_reduction)
        loss = loss - settings.acceptance_weight * acceptance.mean()
    return loss
