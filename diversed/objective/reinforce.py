"""Advantages and the policy-gradient loss of sampled sequences.

Sequences are rows of a padded matrix; `token_mask` is True where a token counts. Losses average
over sequences, never over the tokens of the batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from diversed.core.checks import check_same_shape, check_shape

ADVANTAGES = ("rloo", "running_mean", "none", "group", "reinforce_pp")
"""Unbiased: rloo, running_mean, none. Biased as published: group, reinforce_pp."""

_EPSILON = 1e-6


def check_advantage(name: str, samples_per_prompt: int) -> None:
    """Raise ValueError for an unknown advantage, or one that needs more samples per prompt."""
    if name not in ADVANTAGES:
        raise ValueError(f"objective.advantage={name!r}: must be one of {', '.join(ADVANTAGES)}")
    if name in ("rloo", "group") and samples_per_prompt < 2:
        raise ValueError(
            f"objective.samples_per_prompt={samples_per_prompt}: objective.advantage={name} "
            "compares the samples of a prompt and needs at least 2"
        )


def rloo_advantage(returns: Tensor) -> Tensor:
    """Return each return less the mean of the prompt's other samples.

    Args:
        returns: Shape [P, K], K >= 2.

    Returns:
        Shape [P, K].

    Source: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!". No difference.
    """
    num_samples = returns.shape[1]
    others = (returns.sum(1, keepdim=True) - returns) / (num_samples - 1)
    return returns - others


def group_advantage(returns: Tensor) -> Tensor:
    """Return returns standardised within each prompt; a zero spread gives zeros.

    Args:
        returns: Shape [P, K], K >= 2.

    Returns:
        Shape [P, K].

    Source: GRPO (arXiv:2402.03300), outcome supervision. The spread is the population's.
    """
    wide = returns.double()  # in fp32 the rounding of a mean would not vanish beside _EPSILON
    centred = wide - wide.mean(1, keepdim=True)
    return (centred / (wide.std(1, correction=0, keepdim=True) + _EPSILON)).to(returns.dtype)


def reinforce_pp_advantage(returns: Tensor) -> Tensor:
    """Return returns standardised over the whole batch; a zero spread gives zeros.

    Args:
        returns: Any shape.

    Returns:
        Same shape.

    Source: REINFORCE++ (arXiv:2501.03262), the batch normalisation of advantages; its per-token KL
    penalty has no counterpart here.
    """
    wide = returns.double()  # see group_advantage
    return ((wide - wide.mean()) / (wide.std(correction=0) + _EPSILON)).to(returns.dtype)


@dataclass
class RunningMean:
    """Mean of all earlier returns, each batch weighted by its size; the baseline `running_mean`.

    Attributes:
        total: Sum of the returns seen.
        count: How many were seen.
    """

    total: float = 0.0
    count: int = 0

    @property
    def value(self) -> float:
        """The baseline: 0 before the first batch."""
        return self.total / self.count if self.count else 0.0

    def update(self, returns: Tensor) -> None:
        """Take in a batch, after its own advantages were computed: so the baseline is unbiased."""
        self.total += float(returns.double().sum())
        self.count += returns.numel()


def advantages(name: str, returns: Tensor, baseline: RunningMean) -> Tensor:
    """Return advantages of one batch.

    Args:
        name: One of `ADVANTAGES`.
        returns: Returns of K samples for each of P prompts, shape [P, K].
        baseline: Read, and then updated, by "running_mean" alone.

    Returns:
        Shape [P, K].

    Raises:
        ValueError: Unknown name, or K = 1 where samples are compared.
    """
    check_shape("returns", returns, (None, None))
    check_advantage(name, returns.shape[1])
    if name == "rloo":
        return rloo_advantage(returns)
    if name == "group":
        return group_advantage(returns)
    if name == "reinforce_pp":
        return reinforce_pp_advantage(returns)
    if name == "running_mean":
        result = returns - baseline.value
        baseline.update(returns)
        return result
    return returns


def policy_loss(
    log_probs: Tensor,
    sampled_log_probs: Tensor,
    token_mask: Tensor,
    advantage: Tensor,
    clip_ratio: float | None,
) -> Tensor:
    """Return the policy-gradient loss, whose gradient is minus that of the expected return.

    Args:
        log_probs: log nu(x_t) under the current head, differentiable, shape [S, T].
        sampled_log_probs: The same when the sequences were sampled, no gradient, [S, T].
        token_mask: bool [S, T].
        advantage: No gradient, [S].
        clip_ratio: None for plain REINFORCE (right for the first update on a batch). A number c > 0
            clips each token's importance ratio to [1 - c, 1 + c] in PPO's pessimistic way, which
            allows several updates per batch at the price of a bias.

    Returns:
        Scalar.

    Raises:
        ValueError: Shapes do not fit.

    Source: Williams 1992; clipping from PPO (arXiv:1707.06347) equation 7, summed over a sequence.
    """
    check_same_shape("log_probs", log_probs, "sampled_log_probs", sampled_log_probs)
    check_same_shape("log_probs", log_probs, "token_mask", token_mask)
    check_shape("advantage", advantage, (log_probs.shape[0],))
    if clip_ratio is None:
        sequence_log_probs = torch.where(token_mask, log_probs, 0).sum(1)
        objective = advantage * sequence_log_probs
    else:
        ratio = (log_probs - sampled_log_probs).exp()
        weighted = ratio * advantage.unsqueeze(1)
        clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantage.unsqueeze(1)
        objective = torch.where(token_mask, torch.minimum(weighted, clipped), 0).sum(1)
    return -objective.mean()
