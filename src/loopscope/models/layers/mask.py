"""Which positions see which: the attention mask, the cache of keys and values, what else the layers of a pass share.

With no padding, or padding on the right, causality alone hides the padding from every valid position and no mask is
built. Sequences packed into one row (`packing`) see what they share and themselves; all of a batch in one row, without
padding, attend part by part (`Batch.parts`).

A looped model applies one layer at several depths, and the keys differ from depth to depth, so every (loop, layer) has
its own slot in the cache, numbered as in the published implementations. Rows may have different lengths: a row writes
at its own positions and reads only keys at or before the query's position, so a batch of right-padded prompts needs no
padding between a prompt and its continuation.

`Queries`: a readout needs the logits of some positions only. The last block before the head then computes keys and
values everywhere, but queries, projections and MLP only where logits are read. The N positions form one row,
[1, N, …]; attention takes them by row of the batch, padded to the row with most of them, [B, M, …].

Shapes: B rows, S query positions (or new ones), T key positions, N positions read, M the most of them in one row,
H heads, K key-value heads, P head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.models.batch import Batch, Parts
from loopscope.models.layers.rope import Rotary, RotaryTables


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
        at = (_rows(positions_BS), slice(None), positions_BS)
        held.keys[at], held.values[at] = keys_BSKP, values_BSKP
        return self.read(slot)

    def read(self, slot: int) -> KeysValues:
        """What the slot holds, up to the positions in use."""
        held = self._slots[slot]
        return KeysValues(held.keys[:, :, : self.used], held.values[:, :, : self.used])

    def slots(self) -> list[int]:
        """The slots written so far."""
        return sorted(self._slots)


class LoopCache(KeyValueCache):
    """Keys and values by loop, and which of its layers; a family's slots outside the loop stay as they are.

    A position may stop at a loop. It has no entries past that loop: deeper queries read those of its last loop.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._loop = self._last = self._deepest = self._layer = 0
        self._kept_BS: Tensor | None = None

    def enter(self, loop: int, kept_BS: Tensor) -> None:
        """The block is about to be called; positions that are `kept` write what they wrote in the loop before."""
        self._loop = self._last = loop
        self._layer, self._kept_BS = 0, kept_BS if bool(kept_BS.any()) else None

    def leave(self) -> None:
        """What follows is outside the loop."""
        self._loop, self._deepest = 0, max(self._deepest, self._loop)

    def write(self, slot: int, keys_BSKP: Tensor, values_BSKP: Tensor, positions_BS: Tensor) -> KeysValues:
        """Stores new keys and values, those of kept positions excepted; returns the slot up to `used`."""
        if not self._loop:
            return super().write(slot, keys_BSKP, values_BSKP, positions_BS)
        target, source = (loop * _LOOP_SLOTS + self._layer + 1 for loop in (self._loop, self._loop - 1))
        self._layer += 1
        if target not in self._slots and self._loop > 1:
            # No token has come so far: every token's last entries are those of the loop before.
            self._slots[target] = KeysValues(*(entry.clone() for entry in self._slots[source]))
        if self._kept_BS is not None:
            kept, rows = self._kept_BS[..., None, None], _rows(positions_BS)
            keys_BSKP, values_BSKP = (
                torch.where(kept, held[rows, :, positions_BS], new)
                for held, new in zip(self._slots[source], (keys_BSKP, values_BSKP), strict=True)
            )
        return super().write(target, keys_BSKP, values_BSKP, positions_BS)

    def stop(self, positions_BS: Tensor) -> None:
        """No position goes deeper: deeper slots get these positions' last entries."""
        rows = _rows(positions_BS)
        for loop in range(self._last + 1, self._deepest + 1):
            layer = 1
            while (slot := loop * _LOOP_SLOTS + layer) in self._slots:
                for old, new in zip(self._slots[self._last * _LOOP_SLOTS + layer], self._slots[slot], strict=True):
                    new[rows, :, positions_BS] = old[rows, :, positions_BS]
                layer += 1


def _rows(positions_BS: Tensor) -> Tensor:
    return torch.arange(positions_BS.shape[0], device=positions_BS.device)[:, None]


_LOOP_SLOTS = 1 << 20
"""Slots of one loop; a family numbers those outside the loop from 0 or below it."""


@dataclass(frozen=True)
class AttentionContext:
    """What every layer of one pass needs besides its input.

    Attributes:
        rotary: the position tables; None where nothing is rotated.
        mask: [B, 1, S, T] bool, True where a query sees a key; None for plain causal attention.
        cache: where keys and values go, if they are kept.
        cache_positions: [B, S], where in the cache this pass writes.
        plain: elementary operations alone, which autograd differentiates to any order.
        parts: which stretches of the one row see which, where sequences stand in it without padding.
        token_values: what tokens add to the values of a layer, [B, S, K·P] by the layer's number.
    """

    rotary: RotaryTables | None
    mask: Tensor | None = None
    cache: KeyValueCache | None = None
    cache_positions: Tensor | None = None
    plain: bool = False
    parts: Parts | None = None
    token_values: Mapping[int, Tensor] = field(default_factory=dict)


def attention_context(
    batch: Batch, rotary: Rotary | None, dtype: torch.dtype, *, prefix: bool = False
) -> AttentionContext:
    """Of a whole batch, padded on either side, packed or not; `prefix` as in `causal_mask`."""
    tables = None if rotary is None else rotary.tables(positions_of(batch), dtype)
    if batch.parts is not None:
        return AttentionContext(tables, parts=batch.parts)
    return AttentionContext(tables, causal_mask(batch, prefix=prefix))


def cached_context(
    batch: Batch, cache: KeyValueCache, rotary: Rotary | None, dtype: torch.dtype, *, prefix: bool = False
) -> AttentionContext:
    """Of new positions (`batch.position_ids`) that continue the cache.

    The caller has set `cache.used` to one more than the largest position. The first pass into an empty cache starts at
    position 0 in every row and needs no mask, except for a prefix.
    """
    positions = batch.position_ids
    assert positions is not None
    tables = None if rotary is None else rotary.tables(positions, dtype)
    if not cache.slots():
        return AttentionContext(tables, causal_mask(batch, prefix=True) if prefix else None, cache, positions)
    return AttentionContext(tables, seen_in_cache(cache, positions), cache, positions)


def seen_in_cache(cache: KeyValueCache, positions_BS: Tensor) -> Tensor:
    """[B, 1, S, T] bool, True for the keys at or before each position."""
    return torch.arange(cache.used, device=positions_BS.device) <= positions_BS[:, None, :, None]


def readout_context(
    width: int, device: torch.device, rotary: Rotary | None, dtype: torch.dtype, *, plain: bool
) -> AttentionContext:
    """Of a readout's layers: it gets nothing but states, so rows begin at position 0 and pad on the right."""
    positions = torch.arange(width, device=device)[None]
    return AttentionContext(None if rotary is None else rotary.tables(positions, dtype), plain=plain)


def positions_of(batch: Batch) -> Tensor:
    """The position of every token, [1 or B, S]: as given, or each row's valid tokens counted from 0."""
    if batch.position_ids is not None:
        return batch.position_ids
    if batch.padding == "left":
        return (batch.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    return torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)[None]


def causal_mask(batch: Batch, *, prefix: bool = False) -> Tensor | None:
    """[B, 1, S, S] bool, True where a position sees a key; None where causality says it all.

    Earlier, valid and not another segment's, or itself, so that no query at a pad sees nothing (a NaN). With `prefix`
    the positions of a row's prompt (`Batch.prompt_lengths`) see each other whichever comes first.
    """
    if batch.padding != "left" and batch.segments is None and not prefix:
        return None
    mask_BS, segments_BS = batch.attention_mask, batch.segments
    width = mask_BS.shape[1]
    earlier = torch.ones(width, width, dtype=torch.bool, device=mask_BS.device).tril()
    itself = torch.eye(width, dtype=torch.bool, device=mask_BS.device)
    seen = earlier & mask_BS[:, None, None, :]
    if segments_BS is not None:
        keys, queries = segments_BS[:, None, None, :], segments_BS[:, None, :, None]
        seen = seen & ((keys == 0) | (keys == queries))
    if prefix:
        assert batch.prompt_lengths is not None
        prompt = mask_BS & (mask_BS.cumsum(1) <= batch.prompt_lengths[:, None])
        seen = seen | (prompt[:, None, None, :] & prompt[:, None, :, None])
    return seen | itself


@dataclass(frozen=True)
class Queries:
    """The positions read.

    Attributes:
        rows_N: the batch row of each.
        positions_N: the position of each in its row.
        slots_N: which of its row's queries each is.
        order_BM: which of the N each row's queries are; places left over repeat some query.
        mask_B1MT: True where a query sees a key.
        rotary: the position tables of the N.
    """

    rows_N: Tensor
    positions_N: Tensor
    slots_N: Tensor
    order_BM: Tensor
    mask_B1MT: Tensor
    rotary: RotaryTables | None

    def pick(self, x_BSD: Tensor) -> Tensor:
        """The entries at the positions read, [1, N, D]."""
        chosen = x_BSD[self.rows_N, self.positions_N]
        return chosen.reshape(1, chosen.shape[0], chosen.shape[1])

    def by_row(self, x_1NHP: Tensor) -> Tensor:
        """The queries of each row, [B, M, H, P]."""
        return x_1NHP.reshape(x_1NHP.shape[1:])[self.order_BM]

    def in_order(self, x_BMD: Tensor) -> Tensor:
        """Back to one row, [1, N, D]."""
        chosen = x_BMD[self.rows_N, self.slots_N]
        return chosen.reshape(1, chosen.shape[0], chosen.shape[1])


def queries_at(
    positions_N2: Tensor, attention: AttentionContext, rows: int, width: int, device: torch.device
) -> Queries:
    """The queries at (row, position), in any order, any of them more than once; negative ones count from the end.

    Everything but the tables is worked out where `positions_N2` is, so that positions on the CPU make no
    accelerator wait.
    """
    row = torch.where(positions_N2[:, 0] < 0, positions_N2[:, 0] + rows, positions_N2[:, 0])
    position = torch.where(positions_N2[:, 1] < 0, positions_N2[:, 1] + width, positions_N2[:, 1])
    counts = torch.bincount(row, minlength=rows)
    sorted_row, order = torch.sort(row, stable=True)
    slot_sorted = torch.arange(row.shape[0], device=row.device) - (counts.cumsum(0) - counts)[sorted_row]
    slots = torch.empty_like(order).scatter_(0, order, slot_sorted)
    order_BM = torch.zeros(rows, int(counts.max()), dtype=torch.int64, device=row.device)
    order_BM[row, slots] = torch.arange(row.shape[0], device=row.device)

    row, position, slots, order_BM = (index.to(device, non_blocking=True) for index in (row, position, slots, order_BM))
    at_BM = position[order_BM]
    if attention.mask is None:
        mask = torch.arange(width, device=device) <= at_BM[:, None, :, None]
    else:
        mask = attention.mask[torch.arange(rows, device=device)[:, None], 0, at_BM][:, None]
    tables = attention.rotary
    if tables is not None:
        cos, sin, layout = tables
        table = row if cos.shape[0] > 1 else torch.zeros_like(row)
        tables = RotaryTables(cos[table, position][None], sin[table, position][None], layout)
    return Queries(row, position, slots, order_BM, mask, tables)
