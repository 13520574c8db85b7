"""Judge a drafted block from left to right."""

import torch
from torch import Tensor

from diversed.core.checks import check_same_shape, check_shape
from diversed.core.types import BlockResult, Status


def verify_block(is_accepted: Tensor, num_draft_tokens: Tensor) -> BlockResult:
    """Accept the drafted tokens up to the first one that fails.

    Args:
        is_accepted: Outcome of each token's own test, bool [B, n]; columns past a row's drafted
            tokens may hold anything.
        num_draft_tokens: How many tokens each row drafted, int64 [B], at most n.

    Returns:
        Accepted tokens per row and the status of every drafted token.

    Raises:
        ValueError: Shapes do not fit.
    """
    batch_size, width = is_accepted.shape
    check_shape("num_draft_tokens", num_draft_tokens, (batch_size,))
    columns = torch.arange(width, device=is_accepted.device)
    is_drafted = columns < num_draft_tokens.unsqueeze(1)
    num_accepted = (is_accepted & is_drafted).long().cumprod(1).sum(1)
    relative = columns - num_accepted.unsqueeze(1)
    status = relative.sign() + int(Status.REJECTED)  # before: 0, at: 1, behind: 2
    status = status.masked_fill(~is_drafted, -1)
    return BlockResult(num_accepted=num_accepted, status=status)


def stochastic_accepts(accept_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Return which tokens pass: uniform < accept probability.

    Args:
        accept_probs: In [0, 1], shape [B, n]; 1 always passes, 0 never does.
        uniforms: In (0, 1), same shape.

    Returns:
        bool [B, n].

    Raises:
        ValueError: Shapes differ.
    """
    check_same_shape("accept_probs", accept_probs, "uniforms", uniforms)
    return uniforms < accept_probs
