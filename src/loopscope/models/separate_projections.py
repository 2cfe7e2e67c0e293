"""Attention and gated feed-forward with one matrix a projection, as Llama-style checkpoints store them.

`fuse` joins the matrices that read the same input into one, of which the named parameters become views: half
the kernel launches, and a checkpoint still maps name by name. Unfused, every parameter is its own, as
training needs.

Shapes: B rows, S positions, D hidden width, H heads, K key-value heads, P head width, F feed-forward width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.models.activation import gated_silu, gated_silu_joined
from loopscope.models.attention import Surroundings, attend
from loopscope.models.linear import Fusing, Linear, is_trained, join_linears
from loopscope.models.normalisation import RMSNorm
from loopscope.models.queries import Queries
from loopscope.models.rope import RotaryTables, rotate_own


@dataclass(frozen=True)
class AttentionSizes:
    """The widths of one attention layer and which of the optional parts it has."""

    hidden: int
    heads: int
    key_value_heads: int
    head_width: int
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm_eps: float | None = None


class SeparateAttention(Fusing):
    """Grouped-query attention with q, k, v and o projections; optionally a norm over each query and key head."""

    def __init__(self, sizes: AttentionSizes) -> None:
        super().__init__()
        self.sizes = sizes
        query, shared = sizes.heads * sizes.head_width, sizes.key_value_heads * sizes.head_width
        self.q_proj = Linear(sizes.hidden, query, bias=sizes.qkv_bias)
        self.k_proj = Linear(sizes.hidden, shared, bias=sizes.qkv_bias)
        self.v_proj = Linear(sizes.hidden, shared, bias=sizes.qkv_bias)
        self.o_proj = Linear(query, sizes.hidden, bias=sizes.output_bias)
        if sizes.head_norm_eps is not None:
            self.q_norm = RMSNorm(sizes.head_width, sizes.head_norm_eps)
            self.k_norm = RMSNorm(sizes.head_width, sizes.head_norm_eps)

    def fuse(self) -> None:
        """Joins q, k and v."""
        self.joined = join_linears([self.q_proj, self.k_proj, self.v_proj])

    def forward(self, x_BSD: Tensor, around: Surroundings, slot: int, queries: Queries | None = None) -> Tensor:
        """[B, S, D] → [B, S, D], or [1, N, D] at the queries."""
        if queries is not None:
            q, k, v = self._separately(x_BSD, queries.pick(x_BSD), around, queries.rotary)
            mixed = queries.in_order(attend(queries.by_row(q), k, v, around, slot, queries.visible_B1MT))
        elif self.joined is None or is_trained(self.q_proj):
            mixed = attend(*self._separately(x_BSD, x_BSD, around, around.rotary), around, slot)
        else:
            mixed = attend(*self._jointly(self.joined(x_BSD), around), around, slot)
        projected: Tensor = self.o_proj(mixed)
        return projected

    def _separately(
        self, x_BSD: Tensor, asking_BSD: Tensor, around: Surroundings, asking: RotaryTables
    ) -> tuple[Tensor, Tensor, Tensor]:
        q = self._heads(self.q_proj(asking_BSD))
        k, v = self._heads(self.k_proj(x_BSD)), self._heads(self.v_proj(x_BSD))
        if self.sizes.head_norm_eps is not None:
            q, k = self.q_norm(q, around.plain), self.k_norm(k, around.plain)
        return rotate_own(q, asking), rotate_own(k, around.rotary), v

    def _jointly(self, qkv: Tensor, around: Surroundings) -> tuple[Tensor, Tensor, Tensor]:
        sizes = self.sizes
        both = sizes.heads + sizes.key_value_heads
        heads = self._heads(qkv)
        qk, v = heads[:, :, :both], heads[:, :, both:]
        if sizes.head_norm_eps is not None:
            q, k = qk[:, :, : sizes.heads], qk[:, :, sizes.heads :]
            qk = torch.cat([self.q_norm(q, around.plain), self.k_norm(k, around.plain)], dim=2)
        qk = rotate_own(qk, around.rotary)
        return qk[:, :, : sizes.heads], qk[:, :, sizes.heads :], v

    def _heads(self, flat: Tensor) -> Tensor:
        return flat.reshape(flat.shape[0], flat.shape[1], -1, self.sizes.head_width)


class SeparateFeedForward(Fusing):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, inner, bias=False)
        self.up_proj = Linear(hidden, inner, bias=False)
        self.down_proj = Linear(inner, hidden, bias=False)

    def fuse(self) -> None:
        """Joins gate and up."""
        self.joined = join_linears([self.gate_proj, self.up_proj])

    def forward(self, x_BSD: Tensor, plain: bool) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        if self.joined is None or is_trained(self.gate_proj):
            active = gated_silu(self.gate_proj(x_BSD), self.up_proj(x_BSD), plain)
        else:
            active = gated_silu_joined(self.joined(x_BSD), plain)
        result: Tensor = self.down_proj(active)
        return result
