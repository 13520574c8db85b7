"""A key-value cache that rolls back by row and does not copy itself at every step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_MIN_ROOM = 32
"""Least number of slots allocated ahead; storage grows by at least a quarter of its length."""

_SPARE_SLOTS = 16
"""Slots that a selection leaves free."""


class RollbackLayer(DynamicLayer):
    """Keys and values of one layer in storage with room to spare.

    `keys` and `values` are views of the filled part, so cropping (inherited) and appending touch
    the new slots only, where concatenation would copy the whole cache at every step.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append [B, H, n, D] states and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._key_storage = key_states.new_empty(*key_states.shape[:2], 0, key_states.shape[-1])
            self._value_storage = value_states.new_empty(
                *value_states.shape[:2], 0, value_states.shape[-1]
            )
            self.keys, self.values = self._key_storage, self._value_storage
        old, new = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if new > self._key_storage.shape[-2]:
            self._key_storage = _with_room(self.keys, new)
            self._value_storage = _with_room(self.values, new)
        self._key_storage[:, :, old:new] = key_states
        self._value_storage[:, :, old:new] = value_states
        self.keys = self._key_storage[:, :, :new]
        self.values = self._value_storage[:, :, :new]
        return self.keys, self.values

    def choose(self, rows: Tensor, slots: Tensor) -> None:
        """Keep the slots int64 [B', W'] of the rows int64 [B'], in the order given."""
        width = slots.shape[1]
        # Room for the next block comes with the copy: the spare slots repeat the last one.
        slots = torch.cat([slots, slots[:, -1:].expand(-1, _SPARE_SLOTS)], dim=1)
        self._key_storage = _select(self._key_storage, rows, slots)
        self._value_storage = _select(self._value_storage, rows, slots)
        self.keys = self._key_storage[:, :, :width]
        self.values = self._value_storage[:, :, :width]


def new_cache() -> Cache:
    """Return an empty cache whose layers are made as the model asks for them."""
    return Cache(layer_class_to_replicate=RollbackLayer)


def repeated_cache(cache: Cache, times: int) -> Cache:
    """Return a cache with the one row of another, several times."""
    repeated = new_cache()
    for index, layer in enumerate(cache.layers):
        if layer.is_initialized:
            keys, values = (part.expand(times, -1, -1, -1) for part in (layer.keys, layer.values))
            repeated.update(keys, values, index)
    return repeated


def align_cache(cache: Cache, rows: Tensor, ends: Tensor, width: int) -> None:
    """Choose rows of a cache and move what each has to the right edge.

    Args:
        cache: Is changed in place.
        rows: Rows to keep, int64 [B'], in the order given.
        ends: For each of them, the slot behind its last entry, [B'].
        width: Slots of the result; where a row has fewer, junk stands on its left.
    """
    slots = ends.unsqueeze(1) - width + torch.arange(width, device=ends.device)
    for layer in cache.layers:
        if layer.is_initialized:
            layer.choose(rows, slots.clamp(min=0))


def joined_cache(parts: Sequence[Cache], order: Sequence[int]) -> Cache:
    """Return the rows of caches of one width as one cache.

    Args:
        parts: The caches.
        order: For each of their rows, one part after the other, which row of the whole it becomes.
    """
    if len(parts) == 1 and list(order) == sorted(order):
        return parts[0]
    rows = [row for row, _ in sorted(enumerate(order), key=lambda pair: pair[1])]
    joined = new_cache()
    for index, layer in enumerate(parts[0].layers):
        if layer.is_initialized:
            keys = torch.cat([part.layers[index].keys for part in parts])[rows]
            values = torch.cat([part.layers[index].values for part in parts])[rows]
            joined.update(keys, values, index)
    return joined


def _with_room(states: Tensor, width: int) -> Tensor:
    """Return storage of more than `width` slots that begins with `states`."""
    batch_size, num_heads, filled, size = states.shape
    storage = states.new_empty(batch_size, num_heads, width + max(_MIN_ROOM, width // 4), size)
    storage[:, :, :filled] = states
    return storage


def _select(storage: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """Return [B', H, W', D]: the chosen slots of the chosen rows of contiguous [B, H, W, D]."""
    batch_size, num_heads, width, size = storage.shape
    heads = torch.arange(num_heads, device=rows.device)
    line = ((rows.unsqueeze(1) * num_heads + heads) * width).unsqueeze(-1)  # [B', H, 1]
    index = (line + slots.unsqueeze(1)).flatten()
    flat = storage.view(batch_size * num_heads * width, size)
    return flat.index_select(0, index).view(rows.numel(), num_heads, slots.shape[1], size)
