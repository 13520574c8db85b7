"""Plain results of decoding; no logic beyond derived views."""

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor


class Status(IntEnum):
    """What became of a token of the trace."""

    ACCEPTED = 0  # drafted, judged, emitted
    REJECTED = 1  # drafted, judged, replaced by the recovered token
    UNJUDGED = 2  # drafted after the rejected one, thrown away unseen
    RECOVERED = 3  # drawn in the place of the rejected token, emitted
    BONUS = 4  # drawn after a block that was accepted whole, emitted


@dataclass(frozen=True)
class StepOutput:
    """What a model says about the tokens it was just fed.

    Attributes:
        logits: Next-token logits after each fed token, shape [B, n, V].
        hidden: Last hidden states (after the final norm) that the logits come from, [B, n, D].
    """

    logits: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class BlockEmission:
    """What one block added to the completions.

    Attributes:
        rows: Rows of the batch that were still open.
        token_ids: Each row's new tokens; at least one.
        has_ended: Whether each row is complete now.
    """

    rows: list[int]
    token_ids: list[list[int]]
    has_ended: list[bool]


@dataclass(frozen=True)
class DecodeCounts:
    """Integer counts per row, all int64; rates are derived in `counts.py`.

    Attributes:
        drafted: Drafted tokens, [B].
        judged: Drafted tokens that were accepted or rejected, [B].
        accepted: Accepted tokens, [B].
        recovered: Recovered tokens, [B].
        bonus: Bonus tokens (all tokens of plain decoding), [B].
        blocks: Verification rounds = target calls without the prompt's prefill, [B].
        draft_calls: Draft calls that the row itself needed, [B].
        drafted_at: Drafted tokens by position in the block, [B, N].
        judged_at: Judged tokens by position in the block, [B, N].
        accepted_at: Accepted tokens by position in the block, [B, N].
    """

    drafted: Tensor
    judged: Tensor
    accepted: Tensor
    recovered: Tensor
    bonus: Tensor
    blocks: Tensor
    draft_calls: Tensor
    drafted_at: Tensor
    judged_at: Tensor
    accepted_at: Tensor

    @property
    def emitted(self) -> Tensor:
        """Tokens of the completion, [B]."""
        return self.accepted + self.recovered + self.bonus


@dataclass(frozen=True)
class Trace:
    """One entry per drafted, recovered or bonus token, in columns; E entries in order of decoding.

    Attributes:
        row: Row of the batch, int64 [E].
        block: Index of the row's block, int64 [E].
        position: Index among the row's generated tokens, int64 [E].
        block_position: Index within the block, int64 [E].
        token_id: The token, int64 [E].
        status: `Status`, int64 [E].
        target_prob: p(token), [E].
        draft_prob: q(token), [E]; NaN where no draft distribution was computed.
        tv_distance: TV(q, p) at the position, [E]; NaN as above.
        target_weight: w at the position, [E]; NaN as above and for verifiers without w.
        accept_prob: min(1, pi(token) / q(token)) of a drafted token, [E]; NaN for the others.
        expected_acceptance: sum min(q, pi) at the position, [E]; 1 - w TV for a mixture.
        draft_hidden: h_q of the emitted entries, [num emitted, D_q]; None unless asked for.
        target_hidden: h_p of the emitted entries, [num emitted, D_p]; None unless asked for.
        features: `probs.distribution_features` of the emitted entries; None unless asked for.
    """

    row: Tensor
    block: Tensor
    position: Tensor
    block_position: Tensor
    token_id: Tensor
    status: Tensor
    target_prob: Tensor
    draft_prob: Tensor
    tv_distance: Tensor
    target_weight: Tensor
    accept_prob: Tensor
    expected_acceptance: Tensor
    draft_hidden: Tensor | None
    target_hidden: Tensor | None
    features: Tensor | None

    @property
    def is_emitted(self) -> Tensor:
        """Which entries are tokens of a completion, bool [E]."""
        return (
            (self.status == Status.ACCEPTED)
            | (self.status == Status.RECOVERED)
            | (self.status == Status.BONUS)
        )


@dataclass(frozen=True)
class DecodeResult:
    """Completions of a batch.

    Attributes:
        token_ids: One int64 tensor per row, its end token included.
        end_reasons: "eos", "stop" (a stop string) or "length" per row.
        counts: Integer counts per row.
        trace: Per-token trace of all rows.
    """

    token_ids: list[Tensor]
    end_reasons: list[str]
    counts: DecodeCounts
    trace: Trace
