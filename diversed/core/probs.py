"""From logits to distributions, and what verification does with two distributions.

Everything here works on probabilities in fp32 (or fp64 where the input is): the method mixes
probabilities, and a mixture of logits is another distribution.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diversed.core.checks import check_same_shape

NUM_FEATURES = 5
"""Length of the last dimension of `distribution_features`."""


@dataclass(frozen=True)
class Sampling:
    """How logits become the distribution that is sampled from, the same for both models.

    Applied in the order temperature, top-k, top-p, as transformers does. Temperature 0 is a case
    of its own, decided by argmax (`Verifier.judge_greedy`), in which top-k and top-p have no part.

    Attributes:
        temperature: At least 0; 0 is deterministic decoding.
        top_k: Keep the k most probable tokens (ties with the k-th stay); 0 keeps all.
        top_p: Keep the smallest set of most probable tokens that reaches this mass; 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError, naming the setting, for values out of range."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"decoding.temperature={self.temperature}: must be finite and >= 0")
        if self.top_k < 0:
            raise ValueError(f"decoding.top_k={self.top_k}: must be >= 0 (0 keeps every token)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"decoding.top_p={self.top_p}: must lie in (0, 1]")

    @property
    def is_greedy(self) -> bool:
        """Whether decoding is deterministic."""
        return self.temperature == 0

    @property
    def is_plain(self) -> bool:
        """Whether the distributions are the softmax of the raw logits (so at temperature 0 too)."""
        has_filter = self.top_k > 0 or self.top_p < 1
        return self.is_greedy or (self.temperature == 1 and not has_filter)


def logits_to_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the distribution that `sampling` makes of logits.

    Args:
        logits: Shape [..., V]; -inf entries get probability 0.
        sampling: The transforms; at temperature 0 the temperature-1 distribution without top-k
            and top-p is returned, from which the greedy rules are made.

    Returns:
        Shape [..., V], fp32 (fp64 for fp64 logits), rows sum to 1.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    if sampling.is_greedy:
        return logits.softmax(-1)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        threshold = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < threshold, -math.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1)
        removed = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        removed[..., -1] = False
        logits = logits.masked_fill(removed.scatter(-1, order, removed), -math.inf)
    return logits.softmax(-1)


def mix(target_probs: Tensor, draft_probs: Tensor, target_weight: Tensor) -> Tensor:
    """Return the verification distribution nu = w p + (1 - w) q.

    Args:
        target_probs: p, shape [..., V].
        draft_probs: q, same shape.
        target_weight: w, shape [...], in [0, 1].

    Returns:
        nu, shape [..., V].

    Raises:
        ValueError: The shapes of p and q differ.

    Source: DIVERSED (arXiv:2604.07622), the ensemble distribution. No difference.
    """
    check_same_shape("target_probs", target_probs, "draft_probs", draft_probs)
    weight = target_weight.unsqueeze(-1)
    return weight * target_probs + (1 - weight) * draft_probs


def residual(verify_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Return (pi - q)+, unnormalised: what a rejected token is replaced from.

    For a mixture nu = w p + (1 - w) q the residual (nu - q)+ = w (p - q)+ has the same direction
    for every w > 0, so mixtures pass p itself: no cancellation at small w. Where nothing is left
    (pi = q, reached by rounding only) pi itself is returned.

    Args:
        verify_probs: pi (p for a mixture), shape [..., V].
        draft_probs: q, same shape.

    Returns:
        Non-negative weights, shape [..., V], with a positive sum.

    Raises:
        ValueError: Shapes differ.
    """
    check_same_shape("verify_probs", verify_probs, "draft_probs", draft_probs)
    positive = (verify_probs - draft_probs).clamp_(min=0)
    is_empty = positive.sum(-1, keepdim=True) == 0
    return torch.where(is_empty, verify_probs, positive)


def tv_distance(first: Tensor, second: Tensor) -> Tensor:
    """Return the total variation distance: sum of max(0, second - first).

    Args:
        first: Distributions, shape [..., V].
        second: Distributions, same shape.

    Returns:
        Shape [...], in [0, 1].

    Raises:
        ValueError: Shapes differ.
    """
    check_same_shape("first", first, "second", second)
    return (second - first).clamp_(min=0).sum(-1).clamp_(max=1)


def mixture_accept_probs(
    target_token_probs: Tensor, draft_token_probs: Tensor, target_weight: Tensor
) -> Tensor:
    """Return the probability of accepting each drafted token under nu = w p + (1 - w) q.

    Args:
        target_token_probs: p(x), any shape.
        draft_token_probs: q(x) > 0, same shape.
        target_weight: w, same shape.

    Returns:
        min(1, nu(x) / q(x)), computed as min(1, 1 - w + (w p) / q); in this order it stays finite
        for w = 0 with a denormal q, where w (p / q) is 0 times infinity.

    Source: Leviathan et al. 2023 (arXiv:2211.17192) with nu in the place of their p.
    """
    ratio = (target_weight * target_token_probs) / draft_token_probs
    return (1 - target_weight + ratio).clamp(max=1)


def expected_acceptance(tv: Tensor, target_weight: Tensor) -> Tensor:
    """Return the probability that a token drawn from q is accepted under the mixture.

    Args:
        tv: Total variation distance of p and q, any shape.
        target_weight: w, same shape; the result is differentiable in it.

    Returns:
        1 - w TV(q, p), in [0, 1].

    Source: DIVERSED, acceptance of the ensemble: sum min(q, nu) = 1 - TV(q, nu) = 1 - w TV(q, p).
    """
    return 1 - target_weight * tv


def distribution_features(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Return scalar descriptions of the two distributions for the ensemble head.

    Args:
        target_probs: p, shape [..., V].
        draft_probs: q, same shape.

    Returns:
        Shape [..., 5]: entropy of p and of q (nats), TV(q, p), max p, max q.
    """
    return torch.stack(
        [
            torch.special.entr(target_probs).sum(-1),
            torch.special.entr(draft_probs).sum(-1),
            tv_distance(target_probs, draft_probs),
            target_probs.amax(-1),
            draft_probs.amax(-1),
        ],
        dim=-1,
    )
