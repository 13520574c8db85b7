"""A batch whose sequences lie on several processes, as one of them sees it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Add = Callable[[Tensor], Tensor]
"""Returns the sum of the tensors that the processes give; all must call it, with equal shapes."""


@dataclass(frozen=True)
class BatchShare:
    """The sequences of a batch that one process holds, and how it learns of the others.

    Attributes:
        start: Number of the first of them in the whole batch.
        size: How many they are; there may be none.
        total: Sequences of the whole batch, at least 1.
        add: Sums over processes; where there is one, it returns what it is given.
    """

    start: int
    size: int
    total: int
    add: Add

    @property
    def fraction(self) -> float:
        """What a mean over these sequences counts for in the mean over the whole batch."""
        return self.size / self.total

    def whole(self, values: Tensor) -> Tensor:
        """Return every process's values, [total], given one's own, [size]."""
        everyone = values.new_zeros(self.total)
        everyone[self.start : self.start + self.size] = values
        return self.add(everyone)

    def own(self, values: Tensor) -> Tensor:
        """Return one's own part, [size], of values of the whole batch, [total]."""
        return values[self.start : self.start + self.size]
