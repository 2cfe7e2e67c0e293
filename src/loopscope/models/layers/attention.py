"""Causal attention with grouped heads, what the layers of one pass share, and the cache of keys and values.

    attention(q, k, v) = softmax(q kᵀ / √P) v

over the keys a query may see. Query head h reads key-value head h // (H / K). With no padding, or padding on
the right, causality alone hides the padding from every valid position and no mask is built. Sequences packed into
one row (`packing`) see what they share and themselves; all of a batch in one row, without padding, go to `varlen`
part by part (`Batch.parts`).

The fused kernel's blocks depend on the width, and with them the rounding. On a CPU float32 attention is therefore
summed in float64.

`Queries`: a readout needs the logits of some positions only. The last block before the head then computes keys and
values everywhere, but queries, projections and feed-forward only where they are asked for. The N positions asked for
form one row, [1, N, …]; attention takes them by row of the batch, padded to the row with most of them, [B, M, …].

`KeyValueCache`: a looped model applies one layer at several depths, and the keys differ from depth to depth, so every
(loop, layer) has its own slot, numbered as in the published implementations. Rows may have different lengths: a row
writes at its own positions and reads only keys at or before the query's position, so a batch of right-padded prompts
needs no padding between a prompt and its continuation.

Shapes: B rows, S query positions (or new ones), T key positions, N positions asked for, M the most of them in one row,
H heads, K key-value heads, P head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.models.batch import Batch, Parts
from loopscope.models.layers.rope import UNROTATED, Positions, RotaryTables
from loopscope.models.layers.varlen import attend_parts, takes_shared, takes_varlen


@dataclass(frozen=True)
class Queries:
    """The positions asked for.

    Attributes:
        rows_N: the batch row of each.
        positions_N: the position of each in its row.
        slots_N: which of its row's queries each is.
        order_BM: which of the N each row's queries are; places left over repeat some query.
        visible_B1MT: True where a query sees a key.
        rotary: the position tables of the N.
    """

    rows_N: Tensor
    positions_N: Tensor
    slots_N: Tensor
    order_BM: Tensor
    visible_B1MT: Tensor
    rotary: RotaryTables

    def pick(self, x_BSD: Tensor) -> Tensor:
        """What stands at the positions asked for, [1, N, D]."""
        chosen = x_BSD[self.rows_N, self.positions_N]
        return chosen.reshape(1, chosen.shape[0], chosen.shape[1])

    def by_row(self, x_1NHP: Tensor) -> Tensor:
        """The queries of each row, [B, M, H, P]."""
        return x_1NHP.reshape(x_1NHP.shape[1:])[self.order_BM]

    def in_order(self, x_BMD: Tensor) -> Tensor:
        """Back to one row, [1, N, D]."""
        chosen = x_BMD[self.rows_N, self.slots_N]
        return chosen.reshape(1, chosen.shape[0], chosen.shape[1])


def queries_at(positions_N2: Tensor, around: Surroundings, rows: int, width: int) -> Queries:
    """The queries at (row, position), in any order, any of them more than once; negative ones count from the end.

    Everything but the tables is worked out where `positions_N2` is, so that positions on the CPU make no
    accelerator wait.
    """
    device = around.rotary.cos.device
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
    if around.visible is None:
        visible = torch.arange(width, device=device) <= at_BM[:, None, :, None]
    else:
        visible = around.visible[torch.arange(rows, device=device)[:, None], 0, at_BM][:, None]
    cos, sin, layout = around.rotary
    table = row if cos.shape[0] > 1 else torch.zeros_like(row)
    tables = RotaryTables(cos[table, position][None], sin[table, position][None], layout)
    return Queries(row, position, slots, order_BM, visible, tables)


@dataclass(frozen=True)
class Surroundings:
    """What every layer of one pass needs besides its input.

    Attributes:
        rotary: the position tables.
        visible: [B, 1, S, T] bool, True where a query sees a key; None where causality says it all.
        cache: where keys and values go, if they are kept.
        cache_positions: [B, S], where in the cache this pass writes.
        plain: elementary operations alone, which autograd differentiates to any order.
        parts: which stretches of the one row see which, where sequences stand in it without padding.
        token_values: what tokens add to the values of a layer, [B, S, K·P] by the layer's number.
    """

    rotary: RotaryTables
    visible: Tensor | None = None
    cache: KeyValueCache | None = None
    cache_positions: Tensor | None = None
    plain: bool = False
    parts: Parts | None = None
    token_values: Mapping[int, Tensor] = field(default_factory=dict)


def surroundings(batch: Batch, rotary: Positions | None, dtype: torch.dtype, *, prefix: bool = False) -> Surroundings:
    """The surroundings of a whole batch, padded on either side, packed or not; `prefix` as in `visible_keys`.

    Without `rotary` nothing is rotated.
    """
    tables = UNROTATED if rotary is None else rotary.tables(positions_of(batch), dtype)
    if batch.parts is not None:
        return Surroundings(tables, parts=batch.parts)
    return Surroundings(tables, visible_keys(batch, prefix=prefix))


def positions_of(batch: Batch) -> Tensor:
    """The position of every token, [1 or B, S]: as given, or each row's valid tokens counted from 0."""
    if batch.position_ids is not None:
        return batch.position_ids
    if batch.padding == "left":
        return (batch.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    return torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)[None]


def visible_keys(batch: Batch, *, prefix: bool = False) -> Tensor | None:
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
        theirs, own = segments_BS[:, None, None, :], segments_BS[:, None, :, None]
        seen = seen & ((theirs == 0) | (theirs == own))
    if prefix:
        assert batch.prompt_lengths is not None
        prompt = mask_BS & (mask_BS.cumsum(1) <= batch.prompt_lengths[:, None])
        seen = seen | (prompt[:, None, None, :] & prompt[:, None, :, None])
    return seen | itself


def counted_surroundings(
    width: int, device: torch.device, rotary: Positions, dtype: torch.dtype, *, plain: bool
) -> Surroundings:
    """The surroundings of rows that begin at position 0 and are padded, if at all, on the right."""
    positions = torch.arange(width, device=device)[None]
    return Surroundings(rotary.tables(positions, dtype), plain=plain)


def cached_surroundings(
    positions_BS: Tensor,
    cache: KeyValueCache,
    rotary: Positions,
    dtype: torch.dtype,
    first_visible: Tensor | None = None,
) -> Surroundings:
    """The surroundings of new positions that continue what the cache holds.

    The caller has set `cache.used` to one more than the largest position. The first pass into an empty cache
    starts at position 0 in every row and needs no mask but `first_visible`, where not all that is seen came before.
    """
    tables = rotary.tables(positions_BS, dtype)
    if not cache.slots():
        return Surroundings(tables, first_visible, cache, positions_BS)
    keys = torch.arange(cache.used, device=positions_BS.device)
    return Surroundings(tables, keys <= positions_BS[:, None, :, None], cache, positions_BS)


def attend(
    q_BSHP: Tensor,
    k_BSKP: Tensor,
    v_BSKP: Tensor,
    around: Surroundings,
    slot: int,
    visible: Tensor | None = None,
) -> Tensor:
    """The attended values, heads side by side: [B, S, H·P]. `slot` matters only with a cache.

    `visible` stands in for that of the surroundings where there are queries at a few positions only.
    """
    batch, width, heads, head_width = q_BSHP.shape
    q, k, v = q_BSHP.transpose(1, 2), k_BSKP.transpose(1, 2), v_BSKP.transpose(1, 2)
    if around.cache is not None:
        assert around.cache_positions is not None
        held = around.cache.write(slot, k_BSKP, v_BSKP, around.cache_positions)
        if around.visible is not None:
            k, v = held
    seen = around.visible if visible is None else visible
    if around.parts is not None:
        assert visible is None, "readouts that attend get sequences in rows of their own"
        mixed = _attend_parts(q, k, v, around.parts, plain=around.plain)
    elif around.plain:
        mixed = _attend_plain(q, k, v, seen)
    else:
        mixed = _attend_fused(q, k, v, seen)
    return mixed.transpose(1, 2).reshape(batch, width, heads * head_width)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    dtype = q.dtype
    if type(q) is Tensor and dtype == torch.float32 and q.device.type == "cpu" and not torch.is_grad_enabled():
        # The fused kernel sums in blocks that depend on the width; in float64 that vanishes in the rounding.
        q, k, v = q.double(), k.double(), v.double()
    grouped = q.shape[1] != k.shape[1]
    mixed = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, is_causal=visible is None, enable_gqa=grouped
    )
    return mixed.to(dtype)


def _attend_parts(q: Tensor, k: Tensor, v: Tensor, parts: Parts, *, plain: bool) -> Tensor:
    """Each part by itself; by one kernel where there is one."""
    if not plain and (takes_varlen(q) or takes_shared(q, parts)):
        q_NHP, k_NKP, v_NKP = (x[0].transpose(0, 1) for x in (q, k, v))
        return attend_parts(q_NHP, k_NKP, v_NKP, parts).transpose(0, 1)[None]
    queries, keys = parts.queries.tolist(), parts.keys.tolist()
    if parts.places is not None:
        k, v = k[:, :, parts.places], v[:, :, parts.places]
    mixed = []
    for asked, known in zip(pairwise(queries), pairwise(keys), strict=True):
        own_q, own_k, own_v = q[:, :, slice(*asked)], k[:, :, slice(*known)], v[:, :, slice(*known)]
        counts = own_q.shape[2], own_k.shape[2]
        earlier = None
        if counts[0] != counts[1]:
            earlier = torch.ones(1, 1, *counts, dtype=torch.bool, device=q.device).tril(counts[1] - counts[0])
        mixed.append((_attend_plain if plain else _attend_fused)(own_q, own_k, own_v, earlier))
    return torch.cat(mixed, dim=2)


def _attend_plain(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    batch, heads, width, head_width = q.shape
    shared = k.shape[1]
    if shared != heads:
        q = q.reshape(batch, shared, heads // shared, width, head_width)
        k = k.reshape(batch, shared, 1, k.shape[2], head_width)
        v = v.reshape(batch, shared, 1, v.shape[2], head_width)
        visible = None if visible is None else visible[:, :, None]
    scores = torch.matmul(q, k.transpose(-1, -2)) * head_width**-0.5
    if visible is None:
        visible = torch.ones(width, k.shape[-2], dtype=torch.bool, device=scores.device).tril()
    low = scores.dtype in (torch.bfloat16, torch.float16)
    dtype = torch.float32 if low else scores.dtype
    # A finite bias keeps every derivative of the softmax free of inf − inf.
    hidden = torch.zeros(visible.shape, dtype=dtype, device=scores.device).masked_fill(
        ~visible, torch.finfo(dtype).min / 2
    )
    weights = torch.softmax((scores.to(dtype) if low else scores) + hidden, dim=-1)
    mixed = torch.matmul(weights.to(q.dtype) if low else weights, v)
    return mixed.reshape(batch, heads, width, head_width) if shared != heads else mixed


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
