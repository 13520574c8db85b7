"""The static ensemble as the Pareto front of one context.

Symbols: q draft, p target, pi any distribution over the same tokens; a verifier with law pi accepts
with probability 1 - TV(pi, q) and has bias TV(pi, p). For b >= 0

    min { TV(pi, p) : TV(pi, q) <= b } = max(0, TV(q, p) - b),

attained by nu = w p + (1 - w) q with w = min(1, b / TV(q, p)).

Why: TV(q, p) <= TV(q, pi) + TV(pi, p) bounds every pi from below, and TV(nu, q) = w TV(q, p),
TV(nu, p) = (1 - w) TV(q, p) reaches the bound. It is a statement on one context: nothing follows
for the curve of a task's quality against acceptance (see `theory.front` for that).

Source: DIVERSED (arXiv:2604.07622), optimality of the static ensemble.
"""

import torch
from torch import Tensor

from diversed.core.probs import mix, tv_distance


def least_bias(tv: Tensor, max_rejection: Tensor) -> Tensor:
    """Return the least TV(pi, p) of all verifiers that reject at most so much.

    Args:
        tv: TV(q, p), in [0, 1], any shape.
        max_rejection: b, the most TV(pi, q) that is allowed, in [0, 1], same shape.

    Returns:
        max(0, TV(q, p) - b), same shape.

    Raises:
        ValueError: A value lies outside [0, 1].
    """
    _check_unit_range("tv", tv)
    _check_unit_range("max_rejection", max_rejection)
    return (tv - max_rejection).clamp(min=0)


def front_weight(tv: Tensor, max_rejection: Tensor) -> Tensor:
    """Return the weight of the target that reaches the least bias; arguments as above.

    Returns:
        w = min(1, b / TV(q, p)), in [0, 1]; 1 where p = q, as every weight does there.

    Raises:
        ValueError: A value lies outside [0, 1].
    """
    _check_unit_range("tv", tv)
    _check_unit_range("max_rejection", max_rejection)
    return torch.where(max_rejection < tv, max_rejection / tv, torch.ones_like(tv))


def front_law(target_probs: Tensor, draft_probs: Tensor, max_rejection: Tensor) -> Tensor:
    """Return the law nu of least bias among all that reject at most so much.

    Args:
        target_probs: p, shape [..., V].
        draft_probs: q, same shape.
        max_rejection: b, in [0, 1], shape [...].

    Returns:
        nu, shape [..., V].

    Raises:
        ValueError: The shapes of p and q differ, or b lies outside [0, 1].
    """
    weight = front_weight(tv_distance(draft_probs, target_probs), max_rejection)
    return mix(target_probs, draft_probs, weight)


def _check_unit_range(name: str, values: Tensor) -> None:
    is_inside = (values >= 0) & (values <= 1)  # False for NaN
    if not bool(is_inside.all()):
        raise ValueError(f"{name} must lie in [0, 1], got {values[~is_inside].flatten()[0]}")
