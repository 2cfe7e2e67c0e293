"""Matrix products, and the layers made of them: projections, embeddings, the MLPs.

CPU libraries add up in another order when a product has only a few rows, and a looped model amplifies that from loop to
loop: a short sequence alone would differ from the same sequence in a batch by more than rounding. Small products are
therefore padded to 16 rows.

oneDNN, which multiplies 16-bit matrices on a CPU, compiles a kernel of about 0.7 MB for every shape it meets and keeps
more of them than its cache admits to, so that memory grows with every new number of tokens. 16-bit products therefore
come in groups of a few fixed numbers of rows.

A matrix may be stored in BF16 where the arithmetic is float32 (`kernels.product`).

`Fusing` modules join the matrices that read the same input into one, of which the named parameters become views: half
the kernel launches, and a checkpoint still maps name by name. Unfused, every parameter is its own, as training needs.

The MLP is down(silu(gate(x)) · up(x)), silu(x) = x · sigmoid(x); silu is taken in float32 at least and rounded before
it meets `up`. `plain=True` means elementary operations alone, which autograd differentiates to any order.

Shapes: B rows, S positions, D hidden width, F inner width.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from loopscope.kernels.choice import Implementation, takes_kernel

_ROWS = 16
_BLOCKS = (256, 128, 64, 32, _ROWS)
_HALF = (torch.bfloat16, torch.float16)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X · weightᵀ + bias over the last dimension."""
    if type(x) is not Tensor or x.device.type != "cpu":
        return _product(x, weight, bias)
    rows = x.shape[:-1].numel()
    if rows >= _ROWS and x.dtype not in _HALF:
        return _product(x, weight, bias)
    padded = max(_ROWS, -(-rows // _ROWS) * _ROWS)
    flat = functional.pad(x.reshape(rows, x.shape[-1]), (0, 0, 0, padded - rows))
    whole = torch.cat([_product(block, weight, bias) for block in torch.split(flat, block_sizes(padded))])
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
    if type(x) is Tensor and x.dtype != weight.dtype:
        from loopscope.kernels.product import is_mixed, mixed_linear  # loads Triton

        if is_mixed(x, weight):
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

    def rows(self, outputs: slice) -> Joined:
        """Some of its outputs."""
        return Joined(self.weight[outputs], None if self.bias is None else self.bias[outputs])


class Fusing(nn.Module):
    """A module whose layers `inputs` read the same: one stored matrix, or several that are joined for inference."""

    inputs: list[str]
    joined: Joined | None = None

    def linears(self) -> list[Linear]:
        """The layers that read the same."""
        return [cast(Linear, self._modules[name]) for name in self.inputs]

    def fuse(self) -> None:
        """Joins them."""
        if len(self.inputs) > 1:
            self.joined = join_linears(self.linears())

    def joint(self) -> Joined | None:
        """All of them as one; None where gradients must reach their own parameters, or nothing joined them."""
        first = self.linears()[0]
        if len(self.inputs) == 1:
            return Joined(first.weight, first.bias)
        return None if torch.is_grad_enabled() and first.weight.requires_grad else self.joined


def join_linears(linears: list[Linear]) -> Joined:
    """The joined layer, of which the layers' own parameters become views."""
    weight = torch.cat([layer.weight.detach() for layer in linears])
    bias = None if linears[0].bias is None else torch.cat([layer.bias.detach() for layer in linears])
    start = 0
    for layer in linears:
        rows = slice(start, start + layer.out_features)
        layer.weight = nn.Parameter(weight[rows], requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(bias[rows], requires_grad=False)
        start = rows.stop
    return Joined(weight, bias)


class GatedMLP(Fusing):
    """`names` are the checkpoint's for gate, up and down, or for one matrix of gate and up, gate first, and down."""

    def __init__(self, hidden: int, inner: int, names: str = "gate_proj up_proj down_proj") -> None:
        super().__init__()
        *self.inputs, self.output = names.split()
        for name in self.inputs:
            self.add_module(name, Linear(hidden, inner * (3 - len(self.inputs)), bias=False))
        self.add_module(self.output, Linear(inner, hidden, bias=False))

    def forward(self, x_BSD: Tensor, plain: bool = False) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        joint = self.joint()
        if joint is None:
            gate, up = self.linears()
            active = gated_silu(gate(x_BSD), up(x_BSD), plain)
        else:
            active = gated_silu_joined(joint(x_BSD), plain)
        result: Tensor = self.get_submodule(self.output)(active)
        return result


def gated_silu(gate: Tensor, up: Tensor, plain: bool) -> Tensor:
    """silu(gate) · up."""
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
        from loopscope.kernels.layers import gated_silu as kernel

        return kernel(both)
    inner = both.shape[-1] // 2
    return gated_silu(both[..., :inner], both[..., inner:], plain)


class SquaredReluMLP(nn.Module):
    """proj(½ relu(fc(x))²)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc = Linear(hidden, inner, bias=False)
        self.proj = Linear(inner, hidden, bias=False)

    def forward(self, x_BSD: Tensor, plain: bool = False) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        result: Tensor = self.proj(torch.relu(self.fc(x_BSD)).square() * 0.5)
        return result
