"""Matrix products whose rows do not depend on how many rows there are.

CPU libraries take another path, with another order of summation, when a product has only a few rows: a short
sequence alone would then differ in the last bits from the same sequence in a batch, and a looped model amplifies
that from loop to loop. Small products are therefore padded to a fixed number of rows. Together with what
`attention` does, results on the CPU do not depend on padding or on the batch at all.

cuBLAS does the same with 16-bit products: with few rows and many inputs it splits the sum (on an H200 below 160 rows
for Ouro-1.4B's feed-forward layer, below 400 for Huginn's). There products of 16 to 511 rows are padded to 512; fewer
are the steps of a generation, where that would cost several times the product.

oneDNN, which multiplies 16-bit matrices on a CPU, compiles a kernel of about 0.7 MB for every shape it meets and keeps
more of them than its cache admits to, so that memory grows with every new number of tokens. 16-bit products therefore
come in blocks of a few fixed numbers of rows.

A matrix may be stored in BF16 where the arithmetic is float32 (`split_product`).

Attention and gated feed-forward with one matrix a projection, as Llama-style checkpoints store them.

`fuse` joins the matrices that read the same input into one, of which the named parameters become views: half
the kernel launches, and a checkpoint still maps name by name. Unfused, every parameter is its own, as
training needs.

Shapes: B rows, S positions, D hidden width, H heads, K key-value heads, P head width, F feed-forward width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.kernels.split_product import is_mixed, mixed_linear
from loopscope.models.layers.attention import Queries, Surroundings, attend
from loopscope.models.layers.norms import RMSNorm, gated_silu, gated_silu_joined
from loopscope.models.layers.rope import RotaryTables, rotate_own

_ROWS = 16
_BLOCKS = (256, 128, 64, 32, _ROWS)
_HALF = (torch.bfloat16, torch.float16)
_CUDA_ROWS = 512


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X · weightᵀ + bias over the last dimension."""
    if type(x) is not Tensor:
        return _product(x, weight, bias)
    rows = x.shape[:-1].numel()
    if x.is_cuda and x.dtype in _HALF and _ROWS <= rows < _CUDA_ROWS:
        padded, blocks = _CUDA_ROWS, [_CUDA_ROWS]
    elif x.device.type == "cpu" and (rows < _ROWS or x.dtype in _HALF):
        padded = max(_ROWS, -(-rows // _ROWS) * _ROWS)
        blocks = block_sizes(padded) if x.dtype in _HALF else [padded]
    else:
        return _product(x, weight, bias)
    flat = functional.pad(x.reshape(rows, x.shape[-1]), (0, 0, 0, padded - rows))
    found = [_product(block, weight, bias) for block in torch.split(flat, blocks)]
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole[:rows].reshape(*x.shape[:-1], weight.shape[0])


def block_sizes(rows: int) -> list[int]:
    """A multiple of 16 as a sum of a few numbers.

    >>> block_sizes(608)
    [256, 256, 64, 32]
    """
    sizes = []
    for size in _BLOCKS:
        sizes += [size] * (rows // size)
        rows %= size
    return sizes


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # A tensor-like object of another kind brings its own rule for products, mixed ones too.
    if type(x) is Tensor and is_mixed(x, weight):
        return mixed_linear(x, weight, bias)
    return functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` by way of `linear`."""

    def reset_parameters(self) -> None:
        """Draws the usual weights, but none on the meta device, where there is nothing to hold them."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return linear(input, self.weight, self.bias)


class Embedding(nn.Embedding):
    """`nn.Embedding` that draws nothing on the meta device: torch would load its compiler for that, in seconds."""

    def reset_parameters(self) -> None:
        """Draws the usual weights where there is something to hold them."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Joined(NamedTuple):
    """Layers that read the same input as one: weight [Σ out, in], bias [Σ out]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] → [..., Σ out]."""
        return linear(x, self.weight, self.bias)


class Fusing(nn.Module):
    """A module that joins some of its layers for inference."""

    joined: Joined | None = None

    def fuse(self) -> None:
        """Joins them."""
        raise NotImplementedError


def is_trained(layer: nn.Linear) -> bool:
    """Whether gradients must reach the layer's own parameters, which joined ones do not pass on."""
    return torch.is_grad_enabled() and layer.weight.requires_grad


def join_linears(linears: list[Linear]) -> Joined:
    """The joined layer, of which the layers' own parameters become views."""
    weight = torch.cat([part.weight.detach() for part in linears])
    bias = None if linears[0].bias is None else torch.cat([part.bias.detach() for part in linears])
    start = 0
    for part in linears:
        rows = slice(start, start + part.out_features)
        part.weight = nn.Parameter(weight[rows], requires_grad=False)
        if bias is not None:
            part.bias = nn.Parameter(bias[rows], requires_grad=False)
        start = rows.stop
    return Joined(weight, bias)


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
