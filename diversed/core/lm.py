"""What the decoding loop asks of a language model."""

from typing import Protocol

from torch import Tensor

from diversed.core.types import StepOutput


class LanguageModel(Protocol):
    """A causal model with a cache per row, rows of different length, and a way back.

    Attributes:
        vocab_size: V; ids below it are tokens, the logits are V wide.
    """

    vocab_size: int

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        """Forget everything, then read all but the last token of each prompt.

        Args:
            prompt_ids: Left-padded ids, int64 [B, T].
            prompt_mask: True where a token counts, bool [B, T].
        """
        ...

    def step(self, input_ids: Tensor) -> StepOutput:
        """Read n more tokens of every row (int64 [B, n]) and return what follows each."""
        ...

    def retain(self, rows: Tensor, num_drop: Tensor) -> None:
        """Keep only some rows, and forget the newest entries of each.

        Args:
            rows: Indices of the rows to keep, ascending, int64 [B'].
            num_drop: How many of a kept row's newest tokens to forget, int64 [B'].
        """
        ...
