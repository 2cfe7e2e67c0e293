"""Root-mean-square normalisation, rounded as the published models round it.

    y = round(x / sqrt(mean(x²) + eps)) · weight

The mean and the quotient are taken in float32 (float64 stays float64), rounded to x's dtype, and only then
multiplied by the weight: in BF16 the order matters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """`plain=True` uses elementary operations alone, which autograd differentiates to any order."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, plain: bool = False) -> Tensor:
        """Normalises over the last dimension."""
        if plain:
            return _normalise_plain(x, self.eps) * self.weight
        return functional.rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight


def _normalise_plain(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    scaled = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + eps)
    return scaled.to(x.dtype) if wide is not x else scaled
