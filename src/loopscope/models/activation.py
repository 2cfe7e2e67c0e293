"""The gated activation of every feed-forward layer: silu(gate) · up, with silu(x) = x · sigmoid(x)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
