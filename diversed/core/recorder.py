"""Collects the per-token trace while a batch is decoded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diversed.core.kernel import ModelView
from diversed.core.probs import distribution_features
from diversed.core.types import Status, Trace
from diversed.core.verdict import Verdict
from diversed.core.verify import draft_status


@dataclass(frozen=True)
class BlockEntries:
    """One decoded block: A active rows, n drafted columns and the column behind them.

    Attributes:
        rows: Index of each row in the batch, [A].
        start: Tokens that each row had emitted before the block, [A].
        draft_ids: Drafted tokens, [A, n].
        num_draft_tokens: How many of them each row drafted, [A].
        num_accepted: Accepted tokens, [A]; the block's last token stands in this column.
        next_ids: Recovered or bonus token, [A].
        has_next: Whether `next_ids` was emitted, [A].
        is_recovered: Whether it replaces a rejected token, [A].
        target_probs: p at the n + 1 columns, [A, n + 1, V].
        view: Both models at the n + 1 columns; None where nothing was drafted.
        verdict: The verdict on the n drafted columns; None likewise.
        behind: The verdict on the column behind them; None where the verifier has no say in it.
    """

    rows: Tensor
    start: Tensor
    draft_ids: Tensor
    num_draft_tokens: Tensor
    num_accepted: Tensor
    next_ids: Tensor
    has_next: Tensor
    is_recovered: Tensor
    target_probs: Tensor
    view: ModelView | None
    verdict: Verdict | None
    behind: Verdict | None


class Recorder:
    """Gathers a block's numbers as they come, and puts them in order once, at the end."""

    def __init__(self, keep_head_inputs: bool) -> None:
        """Start an empty trace."""
        self._keep_head_inputs = keep_head_inputs
        self._shapes: list[tuple[int, int]] = []
        self._by_row: list[dict[str, Tensor]] = []  # [A]
        self._by_draft: list[dict[str, Tensor]] = []  # [A, n], flat
        self._by_column: list[dict[str, Tensor]] = []  # [A, n + 1], flat
        self._head_inputs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add_block(self, block: BlockEntries) -> None:
        """Note a block's drafted tokens and its recovered and bonus tokens."""
        probs, view, verdict = block.target_probs, block.view, block.verdict
        num_rows, width = block.draft_ids.shape
        index = block.draft_ids.unsqueeze(-1)
        column = block.num_accepted
        every_row = torch.arange(num_rows, device=column.device)
        unknown = torch.full((num_rows, 1), torch.nan, device=column.device)
        drafted = {"token_id": block.draft_ids}
        drafted["target_prob"] = probs[:, :width].gather(-1, index).squeeze(-1)
        next_draft_prob = unknown[:, 0]
        columns = dict.fromkeys(("tv_distance", "target_weight", "expected_acceptance"), unknown)
        drafted["draft_prob"] = drafted["accept_prob"] = drafted["target_prob"]
        if view is not None and verdict is not None:
            draft_probs = view.draft_probs
            drafted["draft_prob"] = draft_probs[:, :width].gather(-1, index).squeeze(-1)
            drafted["accept_prob"] = verdict.judgement.accept_probs
            next_draft_prob = draft_probs[every_row, column, block.next_ids]
            columns = _columns(verdict, block.behind, unknown)
        self._shapes.append((num_rows, width))
        self._by_draft.append({name: values.flatten() for name, values in drafted.items()})
        self._by_column.append({name: values.flatten() for name, values in columns.items()})
        self._by_row.append(
            {
                "row": block.rows,
                "start": block.start,
                "num_accepted": column,
                "num_draft_tokens": block.num_draft_tokens,
                "next_id": block.next_ids,
                "has_next": block.has_next,
                "is_recovered": block.is_recovered,
                "target_prob": probs[every_row, column, block.next_ids],
                "draft_prob": next_draft_prob,
                "is_foreign": torch.full_like(block.has_next, block.behind is None),
            }
        )
        if self._keep_head_inputs and view is not None:
            self._add_head_inputs(view, block)

    def _add_head_inputs(self, view: ModelView, block: BlockEntries) -> None:
        columns = torch.arange(block.draft_ids.shape[1], device=block.rows.device)
        is_accepted = columns < block.num_accepted.unsqueeze(1)
        row, column = is_accepted.nonzero(as_tuple=True)
        next_row = block.has_next.nonzero(as_tuple=True)[0]
        row = torch.cat([row, next_row])
        column = torch.cat([column, block.num_accepted[next_row]])
        features = distribution_features(
            view.target_probs[row, column], view.draft_probs[row, column]
        )
        self._head_inputs.append(
            (view.draft_hidden[row, column], view.target_hidden[row, column], features)
        )

    def trace(self) -> Trace:
        """Return everything recorded so far, block by block, a block's last tokens behind it."""
        by_row, by_draft = _joined(self._by_row), _joined(self._by_draft)
        by_column = _joined(self._by_column)
        device = by_row["row"].device
        num_rows, widths = torch.tensor(self._shapes, device=device).T
        block = torch.arange(len(self._shapes), device=device).repeat_interleave(num_rows)
        width = widths.repeat_interleave(num_rows)  # of each (block, row)
        owner = torch.arange(width.numel(), device=device).repeat_interleave(width)
        column = torch.arange(owner.numel(), device=device) - (width.cumsum(0) - width)[owner]
        first_column = (width + 1).cumsum(0) - (width + 1)

        drafted_status = draft_status(
            column, by_row["num_accepted"][owner], by_row["num_draft_tokens"][owner]
        )
        is_drafted, has_next = drafted_status >= 0, by_row["has_next"]
        owner, column = owner[is_drafted], column[is_drafted]
        next_owner = has_next.nonzero(as_tuple=True)[0]
        next_status = torch.where(by_row["is_recovered"], int(Status.RECOVERED), int(Status.BONUS))
        owners = torch.cat([owner, next_owner])
        columns = torch.cat([column, by_row["num_accepted"][next_owner]])
        is_last = torch.arange(owners.numel(), device=device) >= owner.numel()
        order = (block[owners] * 2 + is_last).argsort(stable=True)

        def entries(drafted: Tensor, following: Tensor) -> Tensor:
            return torch.cat([drafted[is_drafted], following[has_next]])[order]

        owners, columns = owners[order], columns[order]
        cell = first_column[owners] + columns
        unknown = torch.full_like(by_row["target_prob"], torch.nan)
        status = entries(drafted_status, next_status)
        draft_prob = entries(by_draft["draft_prob"], by_row["draft_prob"])
        # no verdict: nothing was drafted, or the bonus token was the target's alone
        is_unknown = by_column["tv_distance"][cell].isnan()
        is_unknown |= (status == Status.BONUS) & by_row["is_foreign"][owners]
        inputs: list[Tensor | None] = [None, None, None]
        if self._head_inputs:
            inputs = [torch.cat(parts) for parts in zip(*self._head_inputs, strict=True)]
        return Trace(
            row=by_row["row"][owners],
            block=block[owners],
            position=by_row["start"][owners] + columns,
            block_position=columns,
            token_id=entries(by_draft["token_id"], by_row["next_id"]),
            status=status,
            target_prob=entries(by_draft["target_prob"], by_row["target_prob"]),
            draft_prob=draft_prob.masked_fill(is_unknown, torch.nan),
            accept_prob=entries(by_draft["accept_prob"], unknown),
            draft_hidden=inputs[0],
            target_hidden=inputs[1],
            features=inputs[2],
            **{
                name: values[cell].masked_fill(is_unknown, torch.nan)
                for name, values in by_column.items()
            },
        )


def _columns(verdict: Verdict, behind: Verdict | None, unknown: Tensor) -> dict[str, Tensor]:
    """Return the verdict's numbers at the n + 1 columns, [A, n + 1]; NaN where there are none."""
    judgement, last = verdict.judgement, behind.judgement if behind else None
    weight = judgement.target_weight
    if weight is None:
        weight = unknown.expand_as(verdict.tv)
    last_weight = last.target_weight if last else None
    return {
        "tv_distance": torch.cat([verdict.tv, behind.tv if behind else unknown], dim=1),
        "target_weight": torch.cat(
            [weight, unknown if last_weight is None else last_weight], dim=1
        ),
        "expected_acceptance": torch.cat(
            [judgement.expected_acceptance, last.expected_acceptance if last else unknown], dim=1
        ),
    }


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
