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

from loopscope.models.activation import gated_silu
from loopscope.models.attention import Surroundings, attend
from loopscope.models.linear import Fusing, Linear, is_trained, join_linears
from loopscope.models.normalisation import RMSNorm
from loopscope.models.rope import rotate


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

    def forward(self, x_BSD: Tensor, around: Surroundings, slot: int) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        sizes = self.sizes
        rows, width = x_BSD.shape[0], x_BSD.shape[1]
        if self.joined is None or is_trained(self.q_proj):
            q = self.q_proj(x_BSD).reshape(rows, width, sizes.heads, sizes.head_width)
            k = self.k_proj(x_BSD).reshape(rows, width, sizes.key_value_heads, sizes.head_width)
            v = self.v_proj(x_BSD).reshape(rows, width, sizes.key_value_heads, sizes.head_width)
            if sizes.head_norm_eps is not None:
                q, k = self.q_norm(q, around.plain), self.k_norm(k, around.plain)
            return self._mix(rotate(q, around.rotary), rotate(k, around.rotary), v, around, slot)
        both = sizes.heads + sizes.key_value_heads
        qkv = self.joined(x_BSD).reshape(rows, width, -1, sizes.head_width)
        qk, v = qkv[:, :, :both], qkv[:, :, both:]
        if sizes.head_norm_eps is not None:
            q, k = qk[:, :, : sizes.heads], qk[:, :, sizes.heads :]
            qk = torch.cat([self.q_norm(q, around.plain), self.k_norm(k, around.plain)], dim=2)
        qk = rotate(qk, around.rotary)
        return self._mix(qk[:, :, : sizes.heads], qk[:, :, sizes.heads :], v, around, slot)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, around: Surroundings, slot: int) -> Tensor:
        mixed: Tensor = self.o_proj(attend(q, k, v, around, slot))
        return mixed


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
            gate, up = self.gate_proj(x_BSD), self.up_proj(x_BSD)
        else:
            both = self.joined(x_BSD)
            inner = self.gate_proj.out_features
            gate, up = both[..., :inner], both[..., inner:]
        result: Tensor = self.down_proj(gated_silu(gate, up, plain))
        return result
