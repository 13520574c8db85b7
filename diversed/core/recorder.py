"""Collects the per-token trace while a batch is decoded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diversed.core.kernel import Judgement, ModelView
from diversed.core.probs import distribution_features
from diversed.core.types import Status, Trace


@dataclass(frozen=True)
class BlockEntries:
    """One decoded block: A active rows, n drafted columns and the column behind them.

    Attributes:
        rows: Index of each row in the batch, [A].
        start: Tokens that each row had emitted before the block, [A].
        draft_ids: Drafted tokens, [A, n].
        status: `Status` of the drafted tokens, -1 where a row drafted none, [A, n].
        num_accepted: Accepted tokens, [A]; the block's last token stands in this column.
        next_ids: Recovered or bonus token, [A].
        has_next: Whether `next_ids` was emitted, [A].
        is_recovered: Whether it replaces a rejected token, [A].
        judges_bonus: Whether bonus tokens are the verifier's; the target's own have no verdict.
        view: Both models at the n + 1 columns; None without a draft.
        target_probs: p at the n + 1 columns, [A, n + 1, V].
        judgement: The verdict on the n + 1 columns, NaN where q is unknown; None without a draft.
        tv: TV(q, p) likewise, [A, n + 1].
    """

    rows: Tensor
    start: Tensor
    draft_ids: Tensor
    status: Tensor
    num_accepted: Tensor
    next_ids: Tensor
    has_next: Tensor
    is_recovered: Tensor
    judges_bonus: bool
    view: ModelView | None
    target_probs: Tensor
    judgement: Judgement | None
    tv: Tensor | None


class Recorder:
    """Turns blocks into the columns of a `Trace`."""

    def __init__(self, keep_head_inputs: bool) -> None:
        """Start an empty trace."""
        self._keep_head_inputs = keep_head_inputs
        self._parts: list[dict[str, Tensor]] = []
        self._head_inputs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._num_blocks = 0

    def add_block(self, block: BlockEntries) -> None:
        """Append a block's drafted tokens, then its recovered and bonus tokens."""
        drafted_row, drafted_column = (block.status >= 0).nonzero(as_tuple=True)
        next_row = block.has_next.nonzero(as_tuple=True)[0]
        row = torch.cat([drafted_row, next_row])
        column = torch.cat([drafted_column, block.num_accepted[next_row]])
        next_status = torch.where(
            block.is_recovered[next_row], int(Status.RECOVERED), int(Status.BONUS)
        )
        drafted_status = block.status[drafted_row, drafted_column]
        status = torch.cat([drafted_status, next_status])
        token_id = torch.cat(
            [block.draft_ids[drafted_row, drafted_column], block.next_ids[next_row]]
        )
        part = {
            "row": block.rows[row],
            "block": torch.full_like(row, self._num_blocks),
            "position": block.start[row] + column,
            "block_position": column,
            "token_id": token_id,
            "status": status,
            "target_prob": block.target_probs[row, column, token_id],
        }
        unknown = torch.full_like(part["target_prob"], torch.nan)
        if block.view is None or block.judgement is None or block.tv is None:
            names = ("draft_prob", "tv_distance", "target_weight", "accept_prob")
            part |= dict.fromkeys((*names, "expected_acceptance"), unknown)
        else:
            tv = block.tv[row, column]
            is_unknown = tv.isnan()
            if not block.judges_bonus:
                is_unknown = is_unknown | (status == Status.BONUS)
            weight = block.judgement.target_weight
            accept_prob = block.judgement.accept_probs[drafted_row, drafted_column]
            part |= {
                "draft_prob": block.view.draft_probs[row, column, token_id],
                "tv_distance": tv,
                "target_weight": weight[row, column] if weight is not None else unknown,
                "accept_prob": torch.cat([accept_prob, unknown[: next_row.numel()]]),
                "expected_acceptance": block.judgement.expected_acceptance[row, column],
            }
            for name in ("draft_prob", "tv_distance", "target_weight", "expected_acceptance"):
                part[name] = part[name].masked_fill(is_unknown, torch.nan)
            if self._keep_head_inputs:
                self._add_head_inputs(block.view, row, column, _is_emitted(status))
        self._parts.append(part)
        self._num_blocks += 1

    def _add_head_inputs(
        self, view: ModelView, row: Tensor, column: Tensor, emitted: Tensor
    ) -> None:
        row, column = row[emitted], column[emitted]
        features = distribution_features(
            view.target_probs[row, column], view.draft_probs[row, column]
        )
        self._head_inputs.append(
            (view.draft_hidden[row, column], view.target_hidden[row, column], features)
        )

    def trace(self) -> Trace:
        """Return everything recorded so far."""
        columns = {name: torch.cat([p[name] for p in self._parts]) for name in self._parts[0]}
        inputs: list[Tensor | None] = [None, None, None]
        if self._head_inputs:
            inputs = [torch.cat(parts) for parts in zip(*self._head_inputs, strict=True)]
        return Trace(**columns, draft_hidden=inputs[0], target_hidden=inputs[1], features=inputs[2])


def _is_emitted(status: Tensor) -> Tensor:
    return (status != Status.REJECTED) & (status != Status.UNJUDGED)
