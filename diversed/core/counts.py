"""Rates from integer counts, each defined once; over rows they are ratios of sums."""

import torch
from torch import Tensor

from diversed.core.types import DecodeCounts, Status, Trace


def count_trace(trace: Trace, batch_size: int, draft_length: int) -> DecodeCounts:
    """Return the counts of every row of a trace.

    Args:
        trace: A trace of `batch_size` rows.
        batch_size: B.
        draft_length: N, the number of block positions to count.

    Returns:
        Integer counts, shape [B] and [B, N].
    """

    def per_row(chosen: Tensor) -> Tensor:
        return torch.bincount(trace.row[chosen], minlength=batch_size)

    def per_position(chosen: Tensor) -> Tensor:
        cell = trace.row[chosen] * draft_length + trace.block_position[chosen]
        counts = torch.bincount(cell, minlength=batch_size * draft_length)
        return counts.reshape(batch_size, draft_length)

    is_accepted = trace.status == Status.ACCEPTED
    is_judged = is_accepted | (trace.status == Status.REJECTED)
    is_drafted = is_judged | (trace.status == Status.UNJUDGED)
    is_bonus = trace.status == Status.BONUS
    num_blocks = torch.zeros(batch_size, dtype=torch.long, device=trace.row.device)
    num_blocks.scatter_reduce_(0, trace.row, trace.block + 1, "amax")
    return DecodeCounts(
        drafted=per_row(is_drafted),
        judged=per_row(is_judged),
        accepted=per_row(is_accepted),
        recovered=per_row(trace.status == Status.RECOVERED),
        bonus=per_row(is_bonus),
        blocks=num_blocks,
        draft_calls=per_row(is_drafted | (is_bonus & ~trace.draft_prob.isnan())),
        drafted_at=per_position(is_drafted),
        judged_at=per_position(is_judged),
        accepted_at=per_position(is_accepted),
    )


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else float("nan")


def acceptance_rate(counts: DecodeCounts) -> float:
    """Return accepted / drafted over all rows; NaN where nothing was drafted."""
    return _ratio(int(counts.accepted.sum()), int(counts.drafted.sum()))


def token_acceptance_rate(counts: DecodeCounts) -> float:
    """Return accepted / judged over all rows; tokens after a rejection were never judged."""
    return _ratio(int(counts.accepted.sum()), int(counts.judged.sum()))


def block_efficiency(counts: DecodeCounts) -> float:
    """Return emitted tokens per target call without the prompt's prefill; plain decoding: 1."""
    return _ratio(int(counts.emitted.sum()), int(counts.blocks.sum()))


def mean_accepted(counts: DecodeCounts) -> float:
    """Return accepted tokens per block, the mean of T_N."""
    return _ratio(int(counts.accepted.sum()), int(counts.blocks.sum()))


def acceptance_rate_at(counts: DecodeCounts) -> list[float]:
    """Return accepted / judged by position in the block, one number per position."""
    pairs = zip(counts.accepted_at.sum(0).tolist(), counts.judged_at.sum(0).tolist(), strict=True)
    return [_ratio(accepted, judged) for accepted, judged in pairs]
