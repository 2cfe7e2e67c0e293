"""Root-mean-square normalisation, rounded as the published models round it, and the residual stream around it.

    y = round(x / sqrt(mean(x²) + eps)) · weight

The mean and the quotient are taken in float32 (float64 stays float64), rounded to x's dtype, and only then
multiplied by the weight: in BF16 the order matters.

Shapes: B rows, S positions, D hidden width.

The gated activation of every feed-forward layer: silu(gate) · up, with silu(x) = x · sigmoid(x).

Shapes: F feed-forward width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from loopscope.kernels.choice import Implementation, takes_kernel


class RMSNorm(nn.Module):
    """`plain=True` uses elementary operations alone, which autograd differentiates to any order."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, plain: bool = False, impl: Implementation | None = None) -> Tensor:
        """Normalises over the last dimension."""
        if plain:
            return _normalise_plain(x, self.eps) * self.weight
        if takes_kernel(x, impl) and x.dtype == self.weight.dtype:
            from loopscope.models.layers.kernels import rms_norm

            return rms_norm(x, self.weight, self.eps)
        if type(x) is not Tensor:
            return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        return functional.rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight


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
    weights = [None if norm is None else norm.weight for norm in norms]
    same = all(weight is None or weight.dtype == state.dtype for weight in weights)
    if same and not plain and takes_kernel(state, impl):
        from loopscope.models.layers.kernels import add_branch as kernel

        return Stream(*kernel(state, branch, weights, [0.0 if norm is None else norm.eps for norm in norms]))
    state = state + (branch if branch_norm is None else branch_norm(branch, plain, impl))
    if sum_norm is not None:
        state = sum_norm(state, plain, impl)
    return Stream(state, state if next_norm is None else next_norm(state, plain, impl))


def _normalise_plain(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    scaled = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + eps)
    return scaled.to(x.dtype) if wide is not x else scaled


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
