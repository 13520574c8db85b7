"""What the processes of a run tell each other; alone, a process talks to itself.

Every process samples and scores its own prompts, however long that takes, and meets the others
afterwards: with counts, returns, gradients (a few kilobytes, the head is all that is trained) and
records. Nothing here starts a process.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed

from diversed.objective.share import BatchShare

_PATIENCE = timedelta(days=2)
"""How long a process waits for the records of the others: the last of a split may be long."""


class HeadStrategy(DDPStrategy):
    """Lightning's DDP without the wrapper that reduces gradients in every backward pass.

    The module adds its gradients up itself, once per update and weighted by the sequences that each
    process holds, before it clips them. With the wrapper they would be reduced twice, and a process
    without a sequence, which has no backward pass, would keep the others waiting.
    """

    def configure_ddp(self) -> None:
        """Leave the module as it is."""


def is_distributed() -> bool:
    """Return whether this process is one of a group."""
    return distributed.is_available() and distributed.is_initialized()


def num_processes() -> int:
    """Return the size of the group."""
    return distributed.get_world_size() if is_distributed() else 1


def process_rank() -> int:
    """Return the number of this process in the group; the first one writes."""
    return distributed.get_rank() if is_distributed() else 0


def add_up(values: Tensor) -> Tensor:
    """Return the sum of the tensors that the processes give."""
    return _combined(values, "sum")


def add_up_numbers(numbers: Sequence[float], device: torch.device) -> list[float]:
    """Return the sums of the numbers that the processes give, exchanged on a device."""
    if not is_distributed():
        return list(numbers)
    return add_up(torch.tensor(numbers, dtype=torch.float64, device=device)).tolist()


def largest_number(number: float, device: torch.device) -> float:
    """Return the largest of the numbers that the processes give."""
    if not is_distributed():
        return number
    return float(_combined(torch.tensor(number, dtype=torch.float64, device=device), "max"))


def _combined(values: Tensor, operation: str) -> Tensor:
    if not is_distributed():
        return values
    values = values.detach().clone()
    reduction = {"sum": distributed.ReduceOp.SUM, "max": distributed.ReduceOp.MAX}[operation]
    distributed.all_reduce(values, op=reduction)
    return values


def batch_share(size: int, device: torch.device) -> BatchShare:
    """Return the place of one's own sequences in the batch of all processes, in order of rank."""
    sizes = torch.zeros(num_processes(), dtype=torch.long, device=device)
    sizes[process_rank()] = size
    sizes = add_up(sizes)
    start = int(sizes[: process_rank()].sum())
    return BatchShare(start=start, size=size, total=int(sizes.sum()), add=add_up)


def own_part(items: list[Any]) -> list[Any]:
    """Return a contiguous part of a list: with those of the others it makes up the whole."""
    rank, number = process_rank(), num_processes()
    return items[len(items) * rank // number : len(items) * (rank + 1) // number]


def from_first(value: Any) -> Any:
    """Return the first process's value."""
    if not is_distributed():
        return value
    values = [value]
    with _host_group() as group:
        distributed.broadcast_object_list(values, src=0, group=group)
    return values[0]


def gather_on_first(value: Any) -> list[Any]:
    """Return every process's value, by rank, on the first one; an empty list on the others."""
    if not is_distributed():
        return [value]
    values = [None] * num_processes() if process_rank() == 0 else None
    with _host_group() as group:
        distributed.gather_object(value, values, dst=0, group=group)
    return values or []


@contextmanager
def _host_group() -> Iterator[Any]:
    """Open a group of all processes over the host's network: records need not fit on a GPU.

    Yields:
        The group.
    """
    group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    try:
        yield group
    finally:
        distributed.destroy_process_group(group)
