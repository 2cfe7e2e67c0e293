"""Causal attention with grouped heads, and what the layers of one pass share.

    attention(q, k, v) = softmax(q kᵀ / √P) v

over the keys a query may see. Query head h reads key-value head h // (H / K). With no padding, or padding on
the right, causality alone hides the padding from every valid position and no mask is built. Sequences packed into
one row (`packing`) see what they share and themselves.

The fused kernel's blocks depend on the width, and with them the rounding. On a CPU float32 attention is therefore
summed in float64, and 16-bit attention, which is to round as the published code does, takes rows of one length at a
time, without their padding.

Shapes: B rows, S query positions, T key positions, H heads, K key-value heads, G = H/K, P head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.models.batch import Batch
from loopscope.models.cache import KeyValueCache
from loopscope.models.rope import Rotary, RotaryTables


@dataclass(frozen=True)
class Surroundings:
    """What every layer of one pass needs besides its input.

    Attributes:
        rotary: the position tables.
        visible: [B, 1, S, T] bool, True where a query sees a key; None where causality says it all.
        cache: where keys and values go, if they are kept.
        cache_positions: [B, S], where in the cache this pass writes.
        plain: elementary operations alone, which autograd differentiates to any order.
        lengths: of the rows without their padding, where each length is attended to by itself.
    """

    rotary: RotaryTables
    visible: Tensor | None = None
    cache: KeyValueCache | None = None
    cache_positions: Tensor | None = None
    plain: bool = False
    lengths: tuple[int, ...] | None = None


def surroundings(batch: Batch, rotary: Rotary, dtype: torch.dtype) -> Surroundings:
    """The surroundings of a whole batch, padded on either side, packed or not."""
    if batch.position_ids is not None:
        positions = batch.position_ids
    elif batch.padding == "left":
        positions = (batch.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    else:
        positions = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)[None]
    return Surroundings(rotary.tables(positions, dtype), visible_keys(batch), lengths=_own_lengths(batch, dtype))


def _own_lengths(batch: Batch, dtype: torch.dtype) -> tuple[int, ...] | None:
    """Of rows in 16 bits on a CPU, padded on the right; None for others, and where there is no padding."""
    mask = batch.attention_mask
    if dtype.itemsize != 2 or mask.device.type != "cpu" or batch.padding == "left" or batch.segments is not None:
        return None
    lengths = mask.sum(1).tolist()
    return None if min(lengths) == mask.shape[1] else tuple(lengths)


def visible_keys(batch: Batch) -> Tensor | None:
    """[B, 1, S, S] bool, True where a position sees a key; None where causality says it all.

    Earlier, valid and not another segment's, or itself, so that no query at a pad sees nothing (a NaN).
    """
    if batch.padding != "left" and batch.segments is None:
        return None
    mask_BS, segments_BS = batch.attention_mask, batch.segments
    width = mask_BS.shape[1]
    earlier = torch.ones(width, width, dtype=torch.bool, device=mask_BS.device).tril()
    itself = torch.eye(width, dtype=torch.bool, device=mask_BS.device)
    seen = earlier & mask_BS[:, None, None, :]
    if segments_BS is not None:
        theirs, own = segments_BS[:, None, None, :], segments_BS[:, None, :, None]
        seen = seen & ((theirs == 0) | (theirs == own))
    return seen | itself


def counted_surroundings(
    width: int, device: torch.device, rotary: Rotary, dtype: torch.dtype, *, plain: bool
) -> Surroundings:
    """The surroundings of rows that begin at position 0 and are padded, if at all, on the right."""
    positions = torch.arange(width, device=device)[None]
    return Surroundings(rotary.tables(positions, dtype), plain=plain)


def cached_surroundings(positions_BS: Tensor, cache: KeyValueCache, rotary: Rotary, dtype: torch.dtype) -> Surroundings:
    """The surroundings of new positions that continue what the cache holds.

    The caller has set `cache.used` to one more than the largest position. The first pass into an empty cache
    starts at position 0 in every row and needs no mask.
    """
    tables = rotary.tables(positions_BS, dtype)
    if not cache.slots():
        return Surroundings(tables, None, cache, positions_BS)
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
    if around.plain:
        mixed = _attend_plain(q, k, v, seen)
    elif around.lengths is not None and seen is None and type(q) is Tensor and not torch.is_grad_enabled():
        mixed = _attend_by_length(q, k, v, around.lengths)
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


def _attend_by_length(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...]) -> Tensor:
    mixed = torch.zeros_like(q)
    for length in set(lengths):
        rows = [row for row, own in enumerate(lengths) if own == length]
        own_q, own_k, own_v = (x[rows, :, :length] for x in (q, k, v))
        mixed[rows, :, :length] = _attend_fused(own_q, own_k, own_v, None)
    return mixed


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
