"""Matrix products, and the layers made of them.

CPU libraries add up in another order when a product has only a few rows, and a looped model amplifies that from loop to
loop: a short sequence alone would differ from the same sequence in a batch by more than rounding. Small products are
therefore padded to 16 rows.

oneDNN, which multiplies 16-bit matrices on a CPU, compiles a kernel of about 0.7 MB for every shape it meets and keeps
more of them than its cache admits to, so that memory grows with every new number of tokens. 16-bit products therefore
come in groups of a few fixed numbers of rows.

A matrix may be stored in BF16 where the arithmetic is float32 (`kernels.split_product`).

`Fusing` modules join the matrices that read the same input into one, of which the named parameters become views: half
the kernel launches, and a checkpoint still maps name by name. Unfused, every parameter is its own, as training needs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.kernels.split_product import is_mixed, mixed_linear

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
    if type(x) is Tensor and x.dtype != weight.dtype and is_mixed(x, weight):
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
