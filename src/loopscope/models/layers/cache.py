"""The cache of keys and values.

A looped model applies one layer at several depths, and the keys differ from depth to depth, so every (loop, layer) has
its own slot, numbered as in the published implementations. Rows may have different lengths: a row writes at its own
positions and reads only keys at or before the query's position, so a batch of right-padded prompts needs no padding
between a prompt and its continuation.

Shapes: B rows, S new positions, T key positions, K key-value heads, P head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class KeysValues(NamedTuple):
    """Of one slot, [B, K, T, P] each, rotated already."""

    keys: Tensor
    values: Tensor


class KeyValueCache:
    """Keys and values of up to `capacity` positions per slot, allocated when first written. Inference only."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._slots: dict[int, KeysValues] = {}

    def write(self, slot: int, keys_BSKP: Tensor, values_BSKP: Tensor, positions_BS: Tensor) -> KeysValues:
        """Stores new keys and values at their rows' positions; returns the slot up to `used`."""
        rows, _, heads, width = keys_BSKP.shape
        if slot not in self._slots:
            shape = (rows, heads, self.capacity, width)
            self._slots[slot] = KeysValues(keys_BSKP.new_zeros(shape), values_BSKP.new_zeros(shape))
        held = self._slots[slot]
        row = torch.arange(rows, device=positions_BS.device)[:, None]
        held.keys[row, :, positions_BS] = keys_BSKP
        held.values[row, :, positions_BS] = values_BSKP
        return self.read(slot)

    def read(self, slot: int) -> KeysValues:
        """What the slot holds, up to the positions in use."""
        held = self._slots[slot]
        return KeysValues(held.keys[:, :, : self.used], held.values[:, :, : self.used])

    def slots(self) -> list[int]:
        """The slots written so far."""
        return sorted(self._slots)
