"""What transformer blocks are made of besides attention itself: norms, projections, feed-forward, the residual stream.

    y = round(x / sqrt(mean(x²) + eps)) · weight                              (`RMSNorm`)
    x ← sum_norm(x + branch_norm(branch(input_norm(x))))                      (`Branch`, two in a `Block`)
    feed_forward(x) = down(silu(gate(x)) · up(x)),   silu(x) = x · sigmoid(x)

The norm's mean and quotient are taken in float32 (float64 stays float64), rounded to x's dtype, and only then
multiplied by the weight, as the published models do: in BF16 the order matters. A norm left out is the identity. The
norm ahead of the next branch is taken where the sum is made: one pass over the states instead of two.

`plain=True` means elementary operations alone, which autograd differentiates to any order.

Shapes: B rows, S positions, N positions asked for, D hidden width, H heads, K key-value heads, P head width, F
feed-forward width.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.models.base import LoopedModule, needs_elementary_operations, select
from loopscope.models.layers.attention import Queries, Surroundings, attend, counted_surroundings, queries_at
from loopscope.models.layers.linear import Fusing, Linear, is_trained, join_linears
from loopscope.models.layers.rope import Positions, RotaryTables, rotate_own


class RMSNorm(nn.Module):
    """`plain=True` uses elementary operations alone, which autograd differentiates to any order."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def scale(self, x: Tensor) -> Tensor:
        """What a normed `x` is multiplied by."""
        return self.weight

    def forward(self, x: Tensor, plain: bool = False, impl: Implementation | None = None) -> Tensor:
        """Normalises over the last dimension."""
        weight = self.scale(x)
        if plain:
            return _normalise_plain(x, self.eps) * weight
        if takes_kernel(x, impl) and x.dtype == weight.dtype:
            from loopscope.models.layers.kernels import rms_norm

            return rms_norm(x, weight, self.eps)
        if type(x) is not Tensor:
            return functional.rms_norm(x, (x.shape[-1],), weight, self.eps)
        return functional.rms_norm(x, (x.shape[-1],), None, self.eps) * weight


class WeightlessNorm(RMSNorm):
    """The norm alone: it is multiplied by one, which changes no bit."""

    def __init__(self, width: int, eps: float) -> None:
        nn.Module.__init__(self)
        self.width, self.eps = width, eps

    def scale(self, x: Tensor) -> Tensor:
        """Ones of x's own dtype."""
        return _ones(self.width, x.dtype, x.device)


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)
def _ones(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Inside a function transform every result belongs to the transform; what is kept must outlive it.
    with torch._C._DisableFuncTorch():
        return torch.ones(width, dtype=dtype, device=device)


def _normalise_plain(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    scaled = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + eps)
    return scaled.to(x.dtype) if wide is not x else scaled


@dataclass(frozen=True)
class AttentionSizes:
    """The widths of one attention layer and which optional weights it has."""

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
        projected: Tensor = self.o_proj(self.mixed(x_BSD, around, slot, queries))
        return projected

    def mixed(self, x_BSD: Tensor, around: Surroundings, slot: int, queries: Queries | None) -> Tensor:
        """The attended values, heads side by side: [B, S, H·P], or [1, N, H·P] at the queries."""
        if queries is not None:
            q, k, v = self._separately(x_BSD, queries.pick(x_BSD), around, queries.rotary)
            return queries.in_order(attend(queries.by_row(q), k, v, around, slot, queries.visible_B1MT))
        if self.joined is None or is_trained(self.q_proj):
            return attend(*self._separately(x_BSD, x_BSD, around, around.rotary), around, slot)
        return attend(*self._jointly(self.joined(x_BSD), around), around, slot)

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


class GatedAttention(SeparateAttention):
    """The same with a gate on every entry of what was attended to: o(sigmoid(gate(x)) · attended)."""

    def __init__(self, sizes: AttentionSizes) -> None:
        super().__init__(sizes)
        self.gate_proj = Linear(sizes.hidden, sizes.heads * sizes.head_width, bias=False)

    def forward(self, x_BSD: Tensor, around: Surroundings, slot: int, queries: Queries | None = None) -> Tensor:
        """[B, S, D] → [B, S, D], or [1, N, D] at the queries."""
        gate = torch.sigmoid(self.gate_proj(x_BSD if queries is None else queries.pick(x_BSD)))
        projected: Tensor = self.o_proj(gate * self.mixed(x_BSD, around, slot, queries))
        return projected


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


def gated_silu(gate: Tensor, up: Tensor, plain: bool) -> Tensor:
    """`plain=True` uses elementary operations alone, which autograd differentiates to any order.

    Either way silu is taken in float32 at least and rounded before it meets `up`.
    """
    if not plain:
        return functional.silu(gate) * up
    low = gate.dtype in (torch.bfloat16, torch.float16)
    wide = gate.to(torch.float32) if low else gate
    active = wide * torch.sigmoid(wide)
    return (active.to(gate.dtype) if low else active) * up


def gated_silu_joined(both: Tensor, plain: bool, impl: Implementation | None = None) -> Tensor:
    """The same from gate and up side by side, [..., 2F] → [..., F], gate first."""
    if type(both) is not Tensor and has_torch_function_unary(both):
        # A tensor-like object of another kind may know the operation whole.
        return handle_torch_function(gated_silu_joined, (both,), both, plain, impl)
    if not plain and takes_kernel(both, impl):
        from loopscope.models.layers.kernels import gated_silu as kernel

        return kernel(both)
    inner = both.shape[-1] // 2
    return gated_silu(both[..., :inner], both[..., inner:], plain)


class Stream(NamedTuple):
    """The residual stream between two branches.

    Attributes:
        state: the sum so far, [B, S, D].
        normed: what the next branch reads: the sum after that branch's norm, or the sum itself.
    """

    state: Tensor
    normed: Tensor


def start_stream(state: Tensor, norm: RMSNorm | None, plain: bool) -> Stream:
    """The stream ahead of the first branch, which reads `norm` of it."""
    return Stream(state, state if norm is None else norm(state, plain))


def add_branch(
    state: Tensor,
    branch: Tensor,
    *,
    branch_norm: RMSNorm | None = None,
    sum_norm: RMSNorm | None = None,
    next_norm: RMSNorm | None = None,
    plain: bool = False,
    impl: Implementation | None = None,
) -> Stream:
    """sum_norm(state + branch_norm(branch)), together with next_norm of it; a norm left out is the identity."""
    norms = (branch_norm, sum_norm, next_norm)
    weights = [None if norm is None else norm.scale(state) for norm in norms]
    same = all(weight is None or weight.dtype == state.dtype for weight in weights)
    if same and not plain and takes_kernel(state, impl):
        from loopscope.models.layers.kernels import add_branch as kernel

        return Stream(*kernel(state, branch, weights, [0.0 if norm is None else norm.eps for norm in norms]))
    state = state + (branch if branch_norm is None else branch_norm(branch, plain, impl))
    if sum_norm is not None:
        state = sum_norm(state, plain, impl)
    return Stream(state, state if next_norm is None else next_norm(state, plain, impl))


class Branch(NamedTuple):
    """A layer beside the residual stream x: x ← sum_norm(x + branch_norm(layer(input_norm(x))))."""

    layer: nn.Module
    input_norm: RMSNorm | None = None
    branch_norm: RMSNorm | None = None
    sum_norm: RMSNorm | None = None

    def add(self, state: Tensor, branch: Tensor, next_norm: RMSNorm | None, plain: bool) -> Stream:
        """The stream after the layer's output `branch` is added."""
        return add_branch(
            state, branch, branch_norm=self.branch_norm, sum_norm=self.sum_norm, next_norm=next_norm, plain=plain
        )


class Block(nn.Module):
    """Attention, then feed-forward, on the residual stream; a family says which norms they have."""

    def branches(self) -> tuple[Branch, Branch]:
        """Attention and feed-forward."""
        raise NotImplementedError

    def forward(
        self, stream: Stream, around: Surroundings, slot: int, next_norm: RMSNorm | None, queries: Queries | None
    ) -> Stream:
        """The stream after both branches; `normed` is `next_norm` of the state."""
        attention, feed_forward = self.branches()
        plain, state = around.plain, stream.state if queries is None else queries.pick(stream.state)
        mixed = attention.layer(stream.normed, around, slot, queries)
        stream = attention.add(state, mixed, feed_forward.input_norm, plain)
        return feed_forward.add(stream.state, feed_forward.layer(stream.normed, plain), next_norm, plain)


def run_blocks(
    state: Tensor,
    blocks: Iterable[nn.Module],
    around: Surroundings,
    slots: Iterable[int],
    last_norm: RMSNorm | None = None,
    queries: Queries | None = None,
) -> Stream:
    """The stream after all blocks, with `last_norm` of it; at the queries alone, [1, N, D], where there are any.

    Every block but the last still runs at all positions, because the last one's keys need them.
    """
    listed = [cast(Block, block) for block in blocks]
    if not listed:
        return start_stream(state if queries is None else queries.pick(state), last_norm, around.plain)
    stream = start_stream(state, listed[0].branches()[0].input_norm, around.plain)
    for index, (block, slot) in enumerate(zip(listed, slots, strict=True)):
        is_last = index == len(listed) - 1
        next_norm = last_norm if is_last else listed[index + 1].branches()[0].input_norm
        stream = block(stream, around, slot, next_norm, queries if is_last else None)
    return stream


def read_blocks(
    state: Tensor,
    blocks: Iterable[nn.Module],
    around: Surroundings,
    slots: Iterable[int],
    last_norm: RMSNorm,
    positions_N2: Tensor | None,
) -> Tensor:
    """What the head reads: [N, D] at positions of (row, position), or [B, S, D] where None."""
    if positions_N2 is None:
        return run_blocks(state, blocks, around, slots, last_norm).normed
    if positions_N2.shape[0] == 0:
        return select(run_blocks(state, blocks, around, slots, last_norm).normed, positions_N2)
    queries = queries_at(positions_N2, around, state.shape[0], state.shape[1])
    hidden = run_blocks(state, blocks, around, slots, last_norm, queries).normed
    return hidden.reshape(hidden.shape[1:])


def readout_surroundings(
    model: LoopedModule, state: Tensor, rotary: Positions, dtype: torch.dtype | None
) -> Surroundings:
    """What blocks of a readout see around them: it gets nothing but the state, so rows begin at position 0."""
    arithmetic = model.dtype if dtype is None else dtype
    return counted_surroundings(
        state.shape[1], model.device, rotary, arithmetic, plain=needs_elementary_operations(state)
    )
