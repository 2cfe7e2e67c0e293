"""Cache rules: which keys and values later tokens read when tokens stop at different depths.

    latest       a token has no entries past the loop at which it stopped; a deeper query reads those of its last loop.
                 Copying them into all deeper slots ("last-exited") is the same, and that is how it is done here.
    shared       one slot per layer, overwritten in every loop: whatever its depth, a query reads each earlier token's
                 last entries. A prompt, which runs in parallel, reads the entries of its own loop.
    held         a token that stopped stays at its state, and its deeper entries are computed from that state.
    full         every token runs all loops for the sake of its entries; stopping only chooses the state that is read.

`latest` and `shared` save the loops after a stop. `held` and `full` save nothing, and need nothing of a model but its
`step`. Prompts run in parallel, and so do teacher-forced texts, except under `shared`, which is for generation.

Shapes: B rows, S new positions, K key-value heads, P head width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from loopscope.models.layers.attention import KeysValues, KeyValueCache

CacheRule = Literal["latest", "shared", "held", "full"]

_STRIDE = 1 << 20
"""Slots of one call of the block; a family numbers those outside the loop from 0 or below it."""


class LoopCache(KeyValueCache):
    """Keys and values by call of the looped block: the j-th call of loop t, and which of its layers.

    A loop calls the block once, or once for every substep. What a family writes outside the loop (prelude and coda)
    keeps the family's own slots.
    """

    def __init__(self, capacity: int, rule: CacheRule) -> None:
        super().__init__(capacity)
        self._rule = rule
        self._calls: list[tuple[int, int]] = []
        self._call: tuple[int, int] | None = None
        self._layer = 0
        self._kept_BS: Tensor | None = None

    def enter(self, loop: int, substep: int, kept_BS: Tensor | None) -> None:
        """The block is about to be called; positions that are `kept` write what they wrote in the call before."""
        self._call = (0, 0) if self._rule == "shared" else (loop, substep)
        self._layer, self._kept_BS = 0, kept_BS

    def leave(self) -> None:
        """What follows is outside the loop."""
        assert self._call is not None
        if self._call not in self._calls:
            self._calls = sorted([*self._calls, self._call])
        self._call = None

    def write(self, slot: int, keys_BSKP: Tensor, values_BSKP: Tensor, positions_BS: Tensor) -> KeysValues:
        """Stores new keys and values, those of kept positions excepted; returns the slot up to `used`."""
        if self._call is None:
            return super().write(slot, keys_BSKP, values_BSKP, positions_BS)
        layer, self._layer = self._layer, self._layer + 1
        own = self._slot(self._call, layer)
        before = self._before(self._call)
        if own not in self._slots and before is not None:
            # Nobody has come so far: every token's last entries are those of the call before.
            held = self._slots[self._slot(before, layer)]
            self._slots[own] = KeysValues(held.keys.clone(), held.values.clone())
        if self._kept_BS is not None:
            source = self._slots[own if before is None else self._slot(before, layer)]
            kept = self._kept_BS[..., None, None]
            keys_BSKP = torch.where(kept, _at(source.keys, positions_BS), keys_BSKP)
            values_BSKP = torch.where(kept, _at(source.values, positions_BS), values_BSKP)
        return super().write(own, keys_BSKP, values_BSKP, positions_BS)

    def stop(self, loop: int, substep: int, positions_BS: Tensor) -> None:
        """Nobody goes deeper: deeper slots that there are get these positions' last entries."""
        last = (loop, substep)
        if self._rule == "shared" or last not in self._calls:
            return
        rows = torch.arange(positions_BS.shape[0], device=positions_BS.device)[:, None]
        for call in self._calls[self._calls.index(last) + 1 :]:
            layer = 0
            while (slot := self._slot(call, layer)) in self._slots:
                source, target = self._slots[self._slot(last, layer)], self._slots[slot]
                for old, new in zip(source, target, strict=True):
                    new[rows, :, positions_BS] = old[rows, :, positions_BS]
                layer += 1

    def _before(self, call: tuple[int, int]) -> tuple[int, int] | None:
        return max((known for known in self._calls if known < call), default=None)

    def _slot(self, call: tuple[int, int], layer: int) -> int:
        loop, substep = call
        return ((loop * _STRIDE + substep) + 1) * _STRIDE + layer


def _at(held_BKTP: Tensor, positions_BS: Tensor) -> Tensor:
    """What a slot holds at positions, [B, S, K, P]."""
    rows = torch.arange(positions_BS.shape[0], device=positions_BS.device)[:, None]
    return held_BKTP[rows, :, positions_BS]
