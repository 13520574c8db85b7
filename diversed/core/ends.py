"""Where completions end: end-of-sequence ids, stop strings, the token cap."""

from collections.abc import Callable

import torch
from torch import Tensor

EndFinder = Callable[[list[int], int], int | None]
"""(generated ids of one row, first index to look at) -> index of the first token that ends it."""


class Ends:
    """The ends of a batch's rows, and why each row ended."""

    def __init__(
        self,
        eos_ids: tuple[int, ...],
        max_new_tokens: int,
        find_end: EndFinder | None,
        batch_size: int,
        device: torch.device,
    ) -> None:
        """Start with every row open.

        Args:
            eos_ids: Ids that end a completion.
            max_new_tokens: Most tokens of a completion.
            find_end: Finds stop strings; None where there are none.
            batch_size: B.
            device: Where the ids are.
        """
        self._eos_set = set(eos_ids)
        self._eos_ids = torch.tensor(eos_ids, dtype=torch.long, device=device)
        self._max_new_tokens = max_new_tokens
        self._find_end = find_end
        self._written: list[list[int]] = [[] for _ in range(batch_size)]  # for stop strings alone
        self.reasons = [""] * batch_size
        """ "eos", "stop", "length", or "" while a row is open."""

    def has_eos(self, ids: Tensor) -> bool:
        """Return whether an end-of-sequence id is among ids [A, 1]."""
        return not self._eos_set.isdisjoint(ids[:, 0].tolist())

    def is_eos(self, ids: Tensor) -> Tensor:
        """Return which ids end a sequence, bool of the same shape."""
        if self._eos_ids.numel() == 1:
            return ids == self._eos_ids
        return torch.isin(ids, self._eos_ids)

    def cut_draft(
        self, rows: Tensor, ids: Tensor, budget: Tensor, has_eos: bool
    ) -> tuple[Tensor, Tensor]:
        """Return how many drafted tokens of each row count: those up to its budget or its end.

        Args:
            rows: Index of each row in the batch, [A].
            ids: Drafted tokens, [A, n].
            budget: Most tokens that each row may draft, [A].
            has_eos: Whether an end-of-sequence id is among the drafted tokens.

        Returns:
            Number of tokens, int64 [A], and whether the last of them is an end, bool [A].
        """
        num_tokens = budget.clamp(max=ids.shape[1])
        has_ended = torch.zeros_like(budget, dtype=torch.bool)
        if has_eos:
            is_end = self.is_eos(ids)
            until_end = is_end.int().argmax(1) + 1
            has_ended = is_end.any(1) & (until_end <= num_tokens)
            num_tokens = torch.where(has_ended, until_end, num_tokens)
        if self._find_end is not None:
            until_stop = self._num_until_stop(self._find_end, rows, ids, num_tokens)
            has_ended = has_ended | (until_stop > 0)
            num_tokens = torch.where(until_stop > 0, until_stop, num_tokens)
        return num_tokens, has_ended

    def close_rows(
        self, rows: list[int], new_ids: list[list[int]], num_emitted: list[int]
    ) -> list[bool]:
        """Note the rows that a block ends.

        Args:
            rows: Index of each row in the batch.
            new_ids: What the block emitted for each; an end can stand last only.
            num_emitted: Tokens of each completion so far, the new ones included.

        Returns:
            Whether each row is complete.
        """
        for row, ids, count in zip(rows, new_ids, num_emitted, strict=True):
            has_stop = False
            if self._find_end is not None:
                written = self._written[row]
                written += ids
                has_stop = self._find_end(written, len(written) - 1) is not None
            if ids[-1] in self._eos_set:
                self.reasons[row] = "eos"
            elif has_stop:
                self.reasons[row] = "stop"
            elif count >= self._max_new_tokens:
                self.reasons[row] = "length"
        return [bool(self.reasons[row]) for row in rows]

    def _num_until_stop(
        self, find_end: EndFinder, rows: Tensor, ids: Tensor, num_tokens: Tensor
    ) -> Tensor:
        """Return how many drafted tokens there are up to the one that completes a stop, or 0."""
        numbers = []
        for row, tokens, count in zip(
            rows.tolist(), ids.tolist(), num_tokens.tolist(), strict=True
        ):
            written = self._written[row]
            end = find_end(written + tokens[:count], len(written))
            numbers.append(0 if end is None else end - len(written) + 1)
        return torch.tensor(numbers, dtype=torch.long, device=ids.device)
