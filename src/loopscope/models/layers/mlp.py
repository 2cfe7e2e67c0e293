"""The gated MLP: down(silu(gate(x)) · up(x)), silu(x) = x · sigmoid(x).

silu is taken in float32 at least and rounded before it meets `up`. `plain=True` means elementary operations alone,
which autograd differentiates to any order.

Shapes: B rows, S positions, D hidden width, F inner width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.models.layers.linear import Fusing, Linear, is_trained, join_linears


class GatedMLP(Fusing):
    """`names` are the checkpoint's for gate, up and down, or for one matrix of gate and up, gate first, and down."""

    def __init__(self, hidden: int, inner: int, names: str = "gate_proj up_proj down_proj") -> None:
        super().__init__()
        *self.inputs, self.output = names.split()
        for name in self.inputs:
            self.add_module(name, Linear(hidden, inner * (3 - len(self.inputs)), bias=False))
        self.add_module(self.output, Linear(inner, hidden, bias=False))

    def fuse(self) -> None:
        """Joins gate and up."""
        if len(self.inputs) == 2:
            self.joined = join_linears(self._linears())

    def _linears(self) -> list[Linear]:
        return [self.get_submodule(name) for name in self.inputs]  # type: ignore[misc]

    def forward(self, x_BSD: Tensor, plain: bool = False) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        linears = self._linears()
        if len(linears) == 1:
            active = gated_silu_joined(linears[0](x_BSD), plain)
        elif self.joined is None or is_trained(linears[0]):
            active = gated_silu(linears[0](x_BSD), linears[1](x_BSD), plain)
        else:
            active = gated_silu_joined(self.joined(x_BSD), plain)
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


class SquaredReluMLP(torch.nn.Module):
    """proj(½ relu(fc(x))²)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc = Linear(hidden, inner, bias=False)
        self.proj = Linear(inner, hidden, bias=False)

    def forward(self, x_BSD: Tensor, plain: bool = False) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        result: Tensor = self.proj(half_squared_relu(self.fc(x_BSD), plain))
        return result


def half_squared_relu(x: Tensor, plain: bool, impl: Implementation | None = None) -> Tensor:
    """½ relu(x)²."""
    if not plain and takes_kernel(x, impl):
        from loopscope.kernels.layers import half_squared_relu as kernel

        return kernel(x)
    return torch.relu(x).square() * 0.5
