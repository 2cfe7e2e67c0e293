"""Where tokens are and which see which: rotary positions, the attention mask, the cache of keys and values.

    angle(p, i) = p · f_i,   f_i = theta^(-2i / P)
    (a, b) → (a cos − b sin, b cos + a sin)

for the i-th pair (a, b) of a head. Pairs are (i, i + P/2) in the "half" layout and (2i, 2i + 1) in the "interleaved"
one. Frequencies and angles are float32 whatever the model's dtype. `rounded` tables are rounded to the dtype of the
arithmetic before they are used, which some published implementations do and others do not; in BF16 the difference
shows. Parcae and Attractor store their tables with the weights: those are rounded to the dtype of the weights
(`stored`) and used in float32.

With no padding, or padding on the right, causality alone hides the padding from every valid position and no mask is
built. All sequences of a batch in one row, without padding, attend part by part (`Batch.parts`).

A looped model applies one layer at several depths, and the keys differ from depth to depth, so every (loop, layer) has
its own slot in the cache, numbered as in the published implementations. Rows may have different lengths: a row writes
at its own positions and reads only keys at or before the query's position, so a batch of right-padded prompts needs no
padding between a prompt and its continuation.

`Queries`: a readout needs the logits of some positions only. The last block before the head then computes keys and
values everywhere, but queries, projections and MLP only where logits are read. The N positions form one row,
[1, N, …]; attention takes them by row of the batch, padded to the row with most of them, [B, M, …].

Shapes: B rows, S query positions (or new ones), T key positions, N positions read, M the most of them in one row,
H heads, K key-value heads, P head width, R = P/2 pairs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.models.batch import Batch, Parts

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Scaling:
    """Frequencies divided by `factor`: all of them, or in Llama 3 those that turn slowly within the original context.

    With t_i = original · f_i / 2π turns and m = clip((t_i − low) / (high − low), 0, 1):
    f_i ← m f_i + (1 − m) f_i / factor.
    """

    factor: float
    low: float | None = None
    high: float = 0.0
    original: int = 0


class RotaryTables(NamedTuple):
    """cos and sin, [1 or B, S, 1, P] (each frequency twice), with the layout that says which entries form a pair."""

    cos: Tensor
    sin: Tensor
    layout: Layout


@dataclass(frozen=True)
class Rotary:
    """What a model's positions mean."""

    head_width: int
    theta: float
    layout: Layout = "half"
    rounded: bool = False
    scaling: Scaling | None = None
    stored: torch.dtype | None = None

    def frequencies(self) -> Tensor:
        """f_i, [R] float32 on the CPU (another device's power function differs in the last bit)."""
        exponent = torch.arange(0, self.head_width, 2, dtype=torch.float32, device="cpu") / self.head_width
        plain = 1.0 / (self.theta**exponent)
        scaling = self.scaling
        if scaling is None or scaling.low is None:
            return plain if scaling is None else plain / scaling.factor
        turns = scaling.original * plain / (2 * math.pi)
        kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / scaling.factor

    def tables(self, positions: Tensor, dtype: torch.dtype) -> RotaryTables:
        """Tables for positions [1 or B, S], ready for queries and keys of `dtype`."""
        angles = positions.to(torch.float32)[..., None, None] * _frequencies_on(self, positions.device)
        keep = torch.float64 if dtype == torch.float64 else dtype if self.rounded else torch.float32
        cos, sin = (table.to(self.stored or keep).to(keep) for table in (angles.cos(), angles.sin()))
        if self.layout == "half":
            return RotaryTables(torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1), "half")
        return RotaryTables(cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1), "interleaved")


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)
def _frequencies_on(rotary: Rotary, device: torch.device) -> Tensor:
    # Inside a function transform every result belongs to the transform; what is kept must outlive it.
    with torch._C._DisableFuncTorch():
        return rotary.frequencies().to(device)


def rotate(x_BSHP: Tensor, tables: RotaryTables) -> Tensor:
    """Queries or keys rotated by their positions, in the dtype they came in.

    The products are rounded before they are added, as in the published implementations. Without gradients the
    sum goes into the first product's memory; the numbers are the same.
    """
    straight, crossed = x_BSHP * tables.cos, x_BSHP * tables.sin
    if tables.layout == "half":
        width = x_BSHP.shape[-1] // 2
        one, two = slice(None, width), slice(width, None)
    else:
        one, two = slice(0, None, 2), slice(1, None, 2)
    if type(straight) is Tensor and not torch.is_grad_enabled() and forward_mode._current_level < 0:
        straight[..., one].sub_(crossed[..., two])
        straight[..., two].add_(crossed[..., one])
        return straight.to(x_BSHP.dtype)
    rotated = (straight[..., one] - crossed[..., two], straight[..., two] + crossed[..., one])
    if tables.layout == "half":
        return torch.cat(rotated, dim=-1).to(x_BSHP.dtype)
    return torch.stack(rotated, dim=-1).reshape(x_BSHP.shape).to(x_BSHP.dtype)


def rotate_own(
    x_BSHP: Tensor, tables: RotaryTables, bias_HP: Tensor | None = None, impl: Implementation | None = None
) -> Tensor:
    """`rotate` of x + bias. `x` must be the caller's own: it may be overwritten."""
    if type(x_BSHP) is not Tensor and has_torch_function_unary(x_BSHP):
        # A tensor-like object of another kind may know the operation whole.
        return handle_torch_function(rotate_own, (x_BSHP,), x_BSHP, tables, bias_HP, impl)
    same = bias_HP is None or bias_HP.dtype == x_BSHP.dtype
    known = tables.cos.dtype in (x_BSHP.dtype, torch.float32)
    if same and known and takes_kernel(x_BSHP, impl) and x_BSHP.stride(-1) == 1:
        from loopscope.kernels.layers import rotate_in_place

        interleaved = tables.layout == "interleaved"
        return rotate_in_place(x_BSHP, tables.cos, tables.sin, bias_HP, interleaved=interleaved)
    return rotate(x_BSHP if bias_HP is None else x_BSHP + bias_HP, tables)


Slot: TypeAlias = int | tuple[int, int]
"""The number of a layer's call, or a loop and one of its layers."""


class KeysValues(NamedTuple):
    """Of one slot, [B, K, T, P] each, rotated already."""

    keys: Tensor
    values: Tensor


class KeyValueCache:
    """Keys and values of up to `capacity` positions per slot, allocated when first written. Inference only."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._slots: dict[Slot, KeysValues] = {}

    def write(self, slot: Slot, keys_BSKP: Tensor, values_BSKP: Tensor, positions_BS: Tensor) -> KeysValues:
        """Stores new keys and values at their rows' positions; returns the slot up to `used`."""
        rows, _, heads, width = keys_BSKP.shape
        if slot not in self._slots:
            shape = (rows, heads, self.capacity, width)
            self._slots[slot] = KeysValues(keys_BSKP.new_zeros(shape), values_BSKP.new_zeros(shape))
        held = self._slots[slot]
        at = (_rows(positions_BS), slice(None), positions_BS)
        held.keys[at], held.values[at] = keys_BSKP, values_BSKP
        return self.read(slot)

    def read(self, slot: Slot) -> KeysValues:
        """What the slot holds, up to the positions in use."""
        held = self._slots[slot]
        return KeysValues(held.keys[:, :, : self.used], held.values[:, :, : self.used])

    def slots(self) -> list[Slot]:
        """The slots written so far."""
        return list(self._slots)


class LoopCache(KeyValueCache):
    """Keys and values by loop, and which of its layers; a family's slots outside the loop stay as they are.

    A position may stop at a loop. It has no entries past that loop: deeper queries read those of its last loop.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._loop = self._last = self._layer = 0
        self._kept_BS: Tensor | None = None

    def enter(self, loop: int, kept_BS: Tensor) -> None:
        """The block is about to be called; positions that are `kept` write what they wrote in the loop before."""
        self._loop = self._last = loop
        self._layer, self._kept_BS = 0, kept_BS if bool(kept_BS.any()) else None

    def leave(self) -> None:
        """What follows is outside the loop."""
        self._loop = 0

    def write(self, slot: Slot, keys_BSKP: Tensor, values_BSKP: Tensor, positions_BS: Tensor) -> KeysValues:
        """Stores new keys and values, those of kept positions excepted; returns the slot up to `used`."""
        if not self._loop:
            return super().write(slot, keys_BSKP, values_BSKP, positions_BS)
        target, source = (self._loop, self._layer), (self._loop - 1, self._layer)
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
        for slot, deeper in self._slots.items():
            if isinstance(slot, tuple) and slot[0] > self._last:
                for old, new in zip(self._slots[self._last, slot[1]], deeper, strict=True):
                    new[rows, :, positions_BS] = old[rows, :, positions_BS]


def _rows(positions_BS: Tensor) -> Tensor:
    return torch.arange(positions_BS.shape[0], device=positions_BS.device)[:, None]


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
        slots: the numbers of slots that are free: blocks take the next ones in the order in which they run.
    """

    rotary: RotaryTables | None
    mask: Tensor | None = None
    cache: KeyValueCache | None = None
    cache_positions: Tensor | None = None
    plain: bool = False
    parts: Parts | None = None
    token_values: Mapping[int, Tensor] = field(default_factory=dict)
    slots: Iterator[int] = field(default_factory=itertools.count)


def attention_context(
    batch: Batch,
    rotary: Rotary | None,
    dtype: torch.dtype,
    *,
    prefix: bool = False,
    cache: KeyValueCache | None = None,
) -> AttentionContext:
    """Of a whole batch, padded on either side or unpadded; with a cache, of new positions that continue it.

    `prefix` is as in `causal_mask`. With a cache the positions are `batch.position_ids`, and the caller has set
    `cache.used` to one more than the largest. The first pass into an empty cache starts at position 0 in every row.
    """
    positions = positions_of(batch)
    tables = None if rotary is None else rotary.tables(positions, dtype)
    if cache is None:
        return AttentionContext(
            tables, None if batch.parts is not None else causal_mask(batch, prefix=prefix), parts=batch.parts
        )
    if cache.slots():
        mask: Tensor | None = seen_in_cache(cache, positions)
    else:
        mask = causal_mask(batch, prefix=True) if prefix else None
    return AttentionContext(tables, mask, cache, positions)


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

    Earlier and valid, or itself, so that no query at a pad sees nothing (a NaN). With `prefix` the positions of a row's
    prompt (`Batch.prompt_lengths`) see each other whichever comes first.
    """
    if batch.padding != "left" and not prefix:
        return None
    mask_BS = batch.attention_mask
    width = mask_BS.shape[1]
    earlier = torch.ones(width, width, dtype=torch.bool, device=mask_BS.device).tril()
    itself = torch.eye(width, dtype=torch.bool, device=mask_BS.device)
    seen = earlier & mask_BS[:, None, None, :]
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
