"""RMSNorm: y = round(x / sqrt(mean(x²) + eps)) · g, with g the weight, 1 + weight, or one.

The mean and the quotient are taken in float32 (float64 stays float64), rounded to x's dtype, and only then multiplied
by g, as the published models do: in BF16 the order matters. `plain=True` means elementary operations alone, which
autograd differentiates to any order.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.kernels.choice import Implementation, takes_kernel


class RMSNorm(nn.Module):
    """Over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def gain(self, x: Tensor) -> Tensor:
        """What a normed `x` is multiplied by."""
        return self.weight

    def forward(self, x: Tensor, plain: bool = False, impl: Implementation | None = None) -> Tensor:
        """Normalises over the last dimension."""
        gain = self.gain(x)
        if plain:
            return _normalise_plain(x, self.eps) * gain
        if takes_kernel(x, impl) and x.dtype == gain.dtype:
            from loopscope.kernels.layers import rms_norm

            return rms_norm(x, gain, self.eps)
        if type(x) is not Tensor:
            return functional.rms_norm(x, (x.shape[-1],), gain, self.eps)
        return functional.rms_norm(x, (x.shape[-1],), None, self.eps) * gain


class OffsetNorm(RMSNorm):
    """Its weight is stored as an offset: g = 1 + weight."""

    def gain(self, x: Tensor) -> Tensor:
        """One more than the weight, rounded as the weight is."""
        return 1 + self.weight


class WeightlessNorm(RMSNorm):
    """Multiplied by one, which changes no bit."""

    def __init__(self, width: int, eps: float) -> None:
        nn.Module.__init__(self)
        self.width, self.eps = width, eps

    def gain(self, x: Tensor) -> Tensor:
        """Ones of x's dtype."""
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
