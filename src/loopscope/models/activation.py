"""The gated activation of every feed-forward layer: silu(gate) · up, with silu(x) = x · sigmoid(x).

Shapes: F feed-forward width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from loopscope.kernels.choice import Implementation, takes_kernel


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
        from loopscope.models.kernels.gated_silu import gated_silu as kernel

        return kernel(both)
    inner = both.shape[-1] // 2
    return gated_silu(both[..., :inner], both[..., inner:], plain)
