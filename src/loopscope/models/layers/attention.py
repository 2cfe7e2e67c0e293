"""Causal attention with grouped heads: o(attend(rope(q), rope(k), v)).

    attend(q, k, v) = softmax(q kᵀ / √P) v

over the keys a query attends to. Query head h reads key-value head h // (H / K). `mask` says what is seen.

The fused kernel's blocks depend on the width, and with them the rounding. On a CPU float32 attention is therefore
summed in float64.

Sequences that stand in one row without padding (`Batch.parts`) attend part by part: on a GPU in 16 bits by torch's
kernel for sequences of any lengths, which aligns a part's last position with its last key. A part whose keys are
elsewhere in the row, such as what it shares with others, goes to `kernels.layers`; without Triton it has them
gathered first.

Shapes: B rows, S query positions, T key positions, N positions read, H heads, K key-value heads, P head width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.kernels.choice import chosen, is_differentiating, takes_kernel
from loopscope.models.batch import Parts
from loopscope.models.layers.blocks import Fusing, Linear, RMSNorm, WeightlessNorm
from loopscope.models.layers.positions import AttentionContext, Queries, RotaryTables, rotate_own
from loopscope.models.protocol import LoopedModel

Kind = Literal["query", "key"]


@dataclass(frozen=True)
class AttentionSizes:
    """The widths of one attention layer."""

    hidden: int
    heads: int
    key_value_heads: int
    head_width: int


class Attention(Fusing):
    """Grouped-query attention between projections.

    `names` are the checkpoint's for queries, keys, values and output, or for one matrix of all three and output.
    `qk_norm` norms each query and key head, or the whole flat query and the whole flat key, before the rotation.
    """

    def __init__(
        self,
        sizes: AttentionSizes,
        names: str = "q_proj k_proj v_proj o_proj",
        *,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: Literal["head", "flat"] | None = None,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        *self.inputs, self.output = names.split()
        self.heads, self.shared, self.head_width = sizes.heads, sizes.key_value_heads, sizes.head_width
        self.query, self.key = self.heads * self.head_width, self.shared * self.head_width
        widths = [self.query, self.key, self.key]
        widths = widths if len(self.inputs) == 3 else [sum(widths)]
        for name, width in zip(self.inputs, widths, strict=True):
            self.add_module(name, Linear(sizes.hidden, width, bias=bias))
        self.add_module(self.output, Linear(self.query, sizes.hidden, bias=output_bias))
        self.qk_norm = qk_norm
        if qk_norm is not None:
            flat = qk_norm == "flat"
            self.q_norm = RMSNorm(self.query if flat else self.head_width, norm_eps)
            self.k_norm = RMSNorm(self.key if flat else self.head_width, norm_eps)

    def forward(self, x: Tensor, attention: AttentionContext, slot: int, queries: Queries | None = None) -> Tensor:
        """[B, S, D] → [B, S, D], or [1, N, D] at the queries."""
        asking, tables = (x, attention.rotary) if queries is None else (queries.pick(x), queries.rotary)
        q, k, v = (
            flat.reshape(flat.shape[0], flat.shape[1], -1, self.head_width) for flat in self.projected(x, asking)
        )
        q = self.positioned(q, "query", tables, attention.plain)
        k = self.positioned(k, "key", attention.rotary, attention.plain)
        v = self.values(v, x, attention)
        if queries is None:
            mixed = attend(q, k, v, attention, slot)
        else:
            mixed = queries.in_order(attend(queries.by_row(q), k, v, attention, slot, queries.mask_B1MT))
        return cast(Tensor, self.get_submodule(self.output)(self.gated(mixed, asking)))

    def positioned(self, x_BSHP: Tensor, kind: Kind, tables: RotaryTables | None, plain: bool) -> Tensor:
        """Queries or keys after their norm, if there is one, and their rotation."""
        if self.qk_norm is not None:
            norm = self.q_norm if kind == "query" else self.k_norm
            flat = x_BSHP.flatten(-2) if self.qk_norm == "flat" else x_BSHP
            x_BSHP = norm(flat, plain).reshape(x_BSHP.shape)
        return x_BSHP if tables is None else rotate_own(x_BSHP, tables)

    def values(self, v_BSKP: Tensor, x_BSD: Tensor, attention: AttentionContext) -> Tensor:
        """The values that are mixed."""
        return v_BSKP

    def gated(self, mixed_BSD: Tensor, asking_BSD: Tensor) -> Tensor:
        """What the output projection reads."""
        return mixed_BSD

    def projected(self, x: Tensor, asking: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Flat queries of `asking`, keys and values of x."""
        joint, both = self.joint(), self.query + self.key
        if joint is None:
            query, key, value = self.linears()
            return query(asking), key(x), value(x)
        if asking is x:
            qkv = joint(x)
            return qkv[..., : self.query], qkv[..., self.query : both], qkv[..., both:]
        kv = joint.rows(slice(self.query, None))(x)
        return joint.rows(slice(self.query))(asking), kv[..., : self.key], kv[..., self.key :]


class RotatedThenNormed(Attention):
    """Attention whose queries and keys are rotated and then normed head by head, without a weight."""

    def __init__(self, sizes: AttentionSizes, names: str) -> None:
        super().__init__(sizes, names)
        # What torch's own norm takes where no eps is given.
        self.norm = WeightlessNorm(sizes.head_width, torch.finfo(torch.float32).eps)

    def positioned(self, x_BSHP: Tensor, kind: Kind, tables: RotaryTables | None, plain: bool) -> Tensor:
        """Rotated, then divided by their root mean square."""
        assert tables is not None
        return cast(Tensor, self.norm(rotate_own(x_BSHP, tables), plain))


def attend(
    q_BSHP: Tensor, k_BSKP: Tensor, v_BSKP: Tensor, attention: AttentionContext, slot: int, mask: Tensor | None = None
) -> Tensor:
    """The attended values, heads side by side: [B, S, H·P]. `slot` matters only with a cache.

    `mask` replaces that of the context where there are queries at a few positions only.
    """
    batch, width, heads, head_width = q_BSHP.shape
    q, k, v = q_BSHP.transpose(1, 2), k_BSKP.transpose(1, 2), v_BSKP.transpose(1, 2)
    if attention.cache is not None:
        assert attention.cache_positions is not None
        held = attention.cache.write(slot, k_BSKP, v_BSKP, attention.cache_positions)
        if attention.mask is not None:
            k, v = held
    seen = attention.mask if mask is None else mask
    if attention.parts is not None:
        assert mask is None, "readouts that attend get sequences in rows of their own"
        mixed = _attend_parts(q, k, v, attention.parts, plain=attention.plain)
    elif attention.plain:
        mixed = _attend_plain(q, k, v, seen)
    else:
        mixed = _attend_fused(q, k, v, seen)
    return mixed.transpose(1, 2).reshape(batch, width, heads * head_width)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    dtype = q.dtype
    if type(q) is Tensor and dtype == torch.float32 and q.device.type == "cpu" and not torch.is_grad_enabled():
        # The fused kernel sums in blocks that depend on the width; in float64 that vanishes in the rounding.
        q, k, v = q.double(), k.double(), v.double()
    grouped = q.shape[1] != k.shape[1]
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    return mixed.to(dtype)


def _attend_parts(q: Tensor, k: Tensor, v: Tensor, parts: Parts, *, plain: bool) -> Tensor:
    """Each part by itself; by one kernel where there is one."""
    if not plain and (takes_varlen(q) or takes_shared(q, parts)):
        q_NHP, k_NKP, v_NKP = (x[0].transpose(0, 1) for x in (q, k, v))
        return _attend_by_kernel(q_NHP, k_NKP, v_NKP, parts).transpose(0, 1)[None]
    queries, keys = parts.queries.tolist(), parts.keys.tolist()
    if parts.places is not None:
        k, v = k[:, :, parts.places], v[:, :, parts.places]
    mixed = []
    for asked, known in zip(pairwise(queries), pairwise(keys), strict=True):
        part = q[:, :, slice(*asked)], k[:, :, slice(*known)], v[:, :, slice(*known)]
        counts = part[0].shape[2], part[1].shape[2]
        earlier = None
        if counts[0] != counts[1]:
            earlier = torch.ones(1, 1, *counts, dtype=torch.bool, device=q.device).tril(counts[1] - counts[0])
        mixed.append((_attend_plain if plain else _attend_fused)(*part, earlier))
    return torch.cat(mixed, dim=2)


_WIDEST, _MULTIPLE = 256, 8
"""Of a head: what the kernels take."""


def runs_unpadded(model: LoopedModel) -> bool:
    """Whether a model's sequences best stand in one row: it promises that it can, and the kernel is there."""
    return bool(getattr(model, "unpadded", False)) and _has_varlen(model.device, getattr(model, "dtype", torch.float32))


def takes_varlen(q: Tensor) -> bool:
    """Whether torch's kernel takes such queries, [..., P]."""
    if type(q) is not Tensor or not q.is_cuda or q.shape[-1] > _WIDEST or is_differentiating():
        return False
    return _has_varlen(q.device, q.dtype)


def takes_shared(q: Tensor, parts: Parts) -> bool:
    """Whether `attend_shared` takes such queries, [..., P]: where something is shared, and Triton works."""
    return parts.places is not None and q.shape[-1] <= _WIDEST and takes_kernel(q)


def _has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or chosen() == "reference":
        return False
    return varlen_kernel() is not None and torch.cuda.get_device_capability(device) >= (8, 0)


@functools.cache
def varlen_kernel() -> Callable[..., Tensor] | None:
    """What `torch.nn.attention.varlen` calls; by way of that, a first call would load torch's compiler, in seconds."""
    op: Any = getattr(torch.ops.aten, "_flash_attention_forward", None)
    known = ["query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"]
    if op is None or [argument.name for argument in op.default._schema.arguments][: len(known)] != known:
        return None  # another version of torch: batches are padded
    return lambda *given, scale: op(*given, 0.0, True, False, scale=scale)[0]


def _attend_by_kernel(q_NHP: Tensor, k_NKP: Tensor, v_NKP: Tensor, parts: Parts) -> Tensor:
    """The attended values of every position, [N, H, P]."""
    if takes_shared(q_NHP, parts):
        from loopscope.kernels.layers import attend_shared

        return attend_shared(q_NHP, k_NKP, v_NKP, parts.rows, parts.shared, parts.own_N, parts.longest_row)
    kernel, width = varlen_kernel(), q_NHP.shape[-1]
    assert kernel is not None
    if parts.places is not None:
        k_NKP, v_NKP = k_NKP.index_select(0, parts.places), v_NKP.index_select(0, parts.places)
    q, k, v = (functional.pad(x, (0, -width % _MULTIPLE)) if width % _MULTIPLE else x for x in (q_NHP, k_NKP, v_NKP))
    mixed = kernel(q, k, v, parts.queries, parts.keys, parts.longest, parts.longest_keys, scale=width**-0.5)
    return mixed[..., :width]


def _attend_plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    batch, heads, width, head_width = q.shape
    shared = k.shape[1]
    if shared != heads:
        q = q.reshape(batch, shared, heads // shared, width, head_width)
        k = k.reshape(batch, shared, 1, k.shape[2], head_width)
        v = v.reshape(batch, shared, 1, v.shape[2], head_width)
        mask = None if mask is None else mask[:, :, None]
    scores = torch.matmul(q, k.transpose(-1, -2)) * head_width**-0.5
    if mask is None:
        mask = torch.ones(width, k.shape[-2], dtype=torch.bool, device=scores.device).tril()
    low = scores.dtype in (torch.bfloat16, torch.float16)
    dtype = torch.float32 if low else scores.dtype
    # A finite bias keeps every derivative of the softmax free of inf − inf.
    hidden = torch.zeros(mask.shape, dtype=dtype, device=scores.device).masked_fill(~mask, torch.finfo(dtype).min / 2)
    weights = torch.softmax((scores.to(dtype) if low else scores) + hidden, dim=-1)
    mixed = torch.matmul(weights.to(q.dtype) if low else weights, v)
    return mixed.reshape(batch, heads, width, head_width) if shared != heads else mixed
