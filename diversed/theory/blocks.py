"""How many drafted tokens of a block are accepted, from the trace of a run.

A counted T is 0, 1, ... N and noisy. The trace also holds a_i = min(1, pi_i / q_i)(x_i) of *every*
drafted token, those behind the rejected one too, and given the draft x_1..x_n of a block

    P(T >= k | x_1..x_n) = prod_{i <= k} a_i,  k <= n.

Its mean over blocks is the Rao-Blackwellised estimate of P(T >= k): same expectation as the counted
frequency of T >= k, with the noise of the accept-or-reject draws averaged out.

Blocks shorter than N: a draft is closed by an end token, by a stop string and by the room that is
left. T is then the accepted tokens of the n < N that were drafted, and P(T >= k | draft) = 0 for
k > n. What is estimated is therefore the mean, over the blocks *as decoded*, of P(T >= k) and E[T],
the expectation of the counted accepted / blocks. `DraftedBlocks.full` keeps the blocks with n = N:
n is a function of the draft and of the room, never of a judgement, so count and estimate still
agree there; what they then estimate is conditional on N tokens having been drafted.

Prompts are independent, blocks of one prompt are not; standard errors are clustered by prompt.

Source: the identity is DIVERSED's (arXiv:2604.07622, expected accepted length) before the sum over
drafts; taking conditional expectations is Rao-Blackwell. Standard errors: linearised ratio of sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diversed.core.types import Status, Trace
from diversed.theory.bootstrap import FloatArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_ROUNDING = 1e-5  # of a sum of products of fp32 probabilities


@dataclass(frozen=True, eq=False)
class DraftedBlocks:
    """The M blocks of a run, one number each.

    Attributes:
        prompt: Index of the block's prompt, the cluster, [M].
        num_drafted: n, drafted tokens, [M]; 0 where there was room for a bonus token alone.
        num_accepted: T, accepted tokens, [M].
        products: P(T >= k | draft) = prod_{i <= k} a_i for k = 1..N, 0 for k > n, [M, N].
    """

    prompt: IntArray
    num_drafted: IntArray
    num_accepted: IntArray
    products: FloatArray

    @property
    def draft_length(self) -> int:
        """N."""
        return int(self.products.shape[1])

    def full(self) -> "DraftedBlocks":
        """Return the blocks that drafted all N tokens."""
        return self.where(self.num_drafted == self.draft_length)

    def where(self, is_kept: BoolArray) -> "DraftedBlocks":
        """Return some of the blocks, chosen by bool [M]; ValueError if none is left."""
        if not is_kept.any():
            raise ValueError(f"none of {is_kept.size} blocks is left")
        return replace(
            self,
            prompt=self.prompt[is_kept],
            num_drafted=self.num_drafted[is_kept],
            num_accepted=self.num_accepted[is_kept],
            products=self.products[is_kept],
        )


@dataclass(frozen=True, eq=False)
class SurvivalEstimate:
    """Accepted tokens per block with standard errors clustered by prompt (NaN for one prompt).

    Attributes:
        survival: P(T >= k), k = 1..N, [N]; its first n entries sum to the E[T_n] of a shorter
            draft that starts where these blocks start.
        survival_se: Standard errors, [N].
        acceptance_at: Acceptance of the k-th token where it is judged, [N]: over the blocks that
            drafted it, P(T >= k) / P(T >= k - 1); NaN where none did.
        acceptance_at_se: Standard errors, [N].
        mean: E[T], the sum of the survival.
        mean_se: Standard error.
        num_blocks: M.
        num_prompts: Clusters.
    """

    survival: FloatArray
    survival_se: FloatArray
    acceptance_at: FloatArray
    acceptance_at_se: FloatArray
    mean: float
    mean_se: float
    num_blocks: int
    num_prompts: int


def drafted_blocks(
    *,
    prompt: ArrayLike,
    sample: ArrayLike,
    block: ArrayLike,
    block_position: ArrayLike,
    is_accepted: ArrayLike,
    accept_prob: ArrayLike,
    draft_length: int,
) -> DraftedBlocks:
    """Return the blocks of one run's trace, given by its columns (`records.schema.TRACE_COLUMNS`).

    Args:
        prompt: What prompt each entry belongs to (numbers or names), the cluster, shape [E].
        sample: Which completion of the prompt, [E]; with `prompt` it tells the rows apart.
        block: Index of the block within the row, [E].
        block_position: Position within the block, from 0, [E].
        is_accepted: Which entries are accepted tokens, bool [E].
        accept_prob: min(1, pi / q) of drafted entries, NaN for recovered and bonus tokens, [E].
        draft_length: N.

    Raises:
        ValueError: Shapes differ, nothing was drafted, or the entries are not those of one run: two
            drafted tokens in one place, a gap, an accepted token behind one that was not.
    """
    accept = np.asarray(accept_prob, dtype=np.float64)
    accepted = np.asarray(is_accepted, dtype=bool)
    columns = [_codes(prompt), _codes(sample), *(np.asarray(c) for c in (block, block_position))]
    shapes = {column.shape for column in (*columns, accept, accepted)}
    if len(shapes) > 1 or accept.ndim != 1:
        raise ValueError(f"the columns of a trace must share one shape [E], got {sorted(shapes)}")
    row = columns[0] * (columns[1].max(initial=0) + 1) + columns[1]
    key = row * (columns[2].max(initial=0) + 1) + columns[2]
    keys, first, index = np.unique(key, return_index=True, return_inverse=True)
    is_drafted = ~np.isnan(accept)
    position = columns[3][is_drafted]
    _check_entries(accept[is_drafted], position, is_drafted | ~accepted, draft_length)
    cell = index[is_drafted] * draft_length + position
    shape = (keys.size, draft_length)

    def grid(values: FloatArray) -> FloatArray:
        sums = np.bincount(cell, values, minlength=shape[0] * shape[1])
        return sums.astype(np.float64).reshape(shape)

    num_entries, num_passed = grid(np.ones(cell.size)), grid(accepted[is_drafted].astype(float))
    _check_grid(num_entries, num_passed)
    return DraftedBlocks(
        prompt=columns[0][first],
        num_drafted=num_entries.sum(1).astype(np.int64),
        num_accepted=num_passed.sum(1).astype(np.int64),
        products=grid(accept[is_drafted]).cumprod(1),
    )


def trace_blocks(traces: Sequence[Trace], draft_length: int) -> DraftedBlocks:
    """Return the blocks of decoded batches; every row of every batch is a prompt of its own.

    Args:
        traces: One per batch.
        draft_length: N.

    Raises:
        ValueError: As `drafted_blocks`, or there is no trace.
    """
    if not traces:
        raise ValueError("traces is empty")
    sizes = [int(trace.row.max()) + 1 for trace in traces]
    offsets = np.cumsum([0, *sizes[:-1]])

    def column(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(trace, name).cpu().numpy() for trace in traces])

    row = column("row") + np.repeat(offsets, [trace.row.numel() for trace in traces])
    return drafted_blocks(
        prompt=row,
        sample=np.zeros_like(row),
        block=column("block"),
        block_position=column("block_position"),
        is_accepted=column("status") == Status.ACCEPTED,
        accept_prob=column("accept_prob"),
        draft_length=draft_length,
    )


def estimate_survival(blocks: DraftedBlocks) -> SurvivalEstimate:
    """Return the Rao-Blackwellised estimate: the mean over blocks of the running products."""
    return _estimate(blocks, blocks.products)


def count_survival(blocks: DraftedBlocks) -> SurvivalEstimate:
    """Return the frequencies that were counted: of T >= k, and of acceptance where judged."""
    return _estimate(blocks, _reached(blocks))


def agreement_z(blocks: DraftedBlocks) -> float:
    """Return how many standard errors counted and estimated accepted tokens lie apart.

    Given its draft a block accepts sum_k prod_{i <= k} a_i tokens on average, so the sum of the
    differences over a prompt's blocks has mean 0 if tokens pass with the stated probability.
    Prompts are independent, which gives the standard error. The result is about normal for many
    prompts; positive where more was accepted than stated; 0 where no block differs by more than
    rounding, as with a rule that leaves nothing to chance.
    """
    gap = blocks.num_accepted - blocks.products.sum(1)
    gap = np.where(np.abs(gap) < _ROUNDING, 0, gap)
    by_prompt = np.bincount(blocks.prompt, gap)
    spread = np.sqrt(np.square(by_prompt).sum())
    return float(by_prompt.sum() / spread) if spread > 0 else 0.0


def _estimate(blocks: DraftedBlocks, reached: FloatArray) -> SurvivalEstimate:
    """Return the estimate that P(T >= k) of each block, [M, N], gives."""
    one = np.ones((len(reached), 1))
    before = np.hstack([one, reached[:, :-1]])
    has_token = np.arange(blocks.draft_length) < blocks.num_drafted[:, None]
    survival, survival_se = _clustered_ratio(reached, one, blocks.prompt)
    rate, rate_se = _clustered_ratio(reached, before * has_token, blocks.prompt)
    mean, mean_se = _clustered_ratio(reached.sum(1, keepdims=True), one, blocks.prompt)
    return SurvivalEstimate(
        survival=survival,
        survival_se=survival_se,
        acceptance_at=rate,
        acceptance_at_se=rate_se,
        mean=float(mean[0]),
        mean_se=float(mean_se[0]),
        num_blocks=len(reached),
        num_prompts=np.unique(blocks.prompt).size,
    )


def _reached(blocks: DraftedBlocks) -> FloatArray:
    """Return 1 where a block accepted k tokens or more, shape [M, N]."""
    counts = np.arange(1, blocks.draft_length + 1)
    return (blocks.num_accepted[:, None] >= counts).astype(np.float64)


def _clustered_ratio(
    above: FloatArray, below: FloatArray, cluster: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return sums of `above` over sums of `below`, [K], and standard errors from clusters."""
    codes = _codes(cluster)
    num_clusters = int(codes.max()) + 1
    below = np.broadcast_to(below, above.shape)
    tops, bottoms = np.zeros((2, num_clusters, above.shape[1]))
    np.add.at(tops, codes, above)
    np.add.at(bottoms, codes, below)
    total = bottoms.sum(0)
    ratio, variance = np.full((2, above.shape[1]), np.nan)
    is_known = total > 0
    np.divide(tops.sum(0), total, out=ratio, where=is_known)
    if num_clusters > 1:
        spread = np.square(tops - ratio * bottoms).sum(0) * num_clusters / (num_clusters - 1)
        np.divide(spread, np.square(total), out=variance, where=is_known)
    return ratio, np.sqrt(variance)


def _codes(labels: ArrayLike) -> IntArray:
    """Return labels as integers from 0."""
    return np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)


def _check_entries(
    accept: FloatArray, position: NDArray[np.int64], is_consistent: BoolArray, draft_length: int
) -> None:
    if accept.size == 0:
        raise ValueError("accept_prob is NaN throughout: the run drafted nothing")
    if not is_consistent.all():
        raise ValueError("accept_prob is NaN for an accepted token")
    if accept.min() < 0 or accept.max() > 1:
        raise ValueError(
            f"accept_prob must lie in [0, 1], got values in [{accept.min()}, {accept.max()}]"
        )
    if position.min() < 0 or position.max() >= draft_length:
        raise ValueError(
            f"draft_length={draft_length}: tokens were drafted at block positions "
            f"{position.min()} to {position.max()}"
        )


def _check_grid(num_entries: FloatArray, num_passed: FloatArray) -> None:
    """Check drafted and accepted entries per block and position, [M, N]."""
    if num_entries.max() > 1:
        raise ValueError(
            "two drafted tokens stand at one position of a block: give the trace of one run, with "
            "`sample` telling the completions of a prompt apart"
        )
    for name, grid in (("drafted", num_entries), ("accepted", num_passed)):
        if (grid[:, 1:] > grid[:, :-1]).any():
            raise ValueError(f"{name} tokens of a block do not begin at its start, or have a gap")
