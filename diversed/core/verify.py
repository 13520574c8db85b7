"""Judge a drafted block from left to right."""

import torch
from torch import Tensor

from diversed.core.checks import check_same_shape, check_shape
from diversed.core.types import Status


def verify_block(is_accepted: Tensor, num_draft_tokens: Tensor) -> Tensor:
    """Return how many drafted tokens come before the first one that fails.

    Args:
        is_accepted: Outcome of each token's own test, bool [B, n]; columns past a row's drafted
            tokens may hold anything.
        num_draft_tokens: How many tokens each row drafted, int64 [B], at most n.

    Returns:
        Accepted tokens per row, int64 [B], at most `num_draft_tokens`.

    Raises:
        ValueError: Shapes do not fit.
    """
    check_shape("num_draft_tokens", num_draft_tokens, (is_accepted.shape[0],))
    return is_accepted.long().cumprod(1).sum(1).minimum(num_draft_tokens)


def draft_status(block_position: Tensor, num_accepted: Tensor, num_draft_tokens: Tensor) -> Tensor:
    """Return the `Status` of drafted tokens.

    Args:
        block_position: Index of each token within its block, int64, any shape.
        num_accepted: Accepted tokens of its block, same shape.
        num_draft_tokens: Drafted tokens of its block, same shape.

    Returns:
        int64, same shape; -1 at positions where nothing was drafted.
    """
    relative = block_position - num_accepted
    status = relative.sign() + int(Status.REJECTED)  # before: 0, at: 1, behind: 2
    return status.masked_fill(block_position >= num_draft_tokens, -1)


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
    return torch.lt(uniforms, accept_probs)
