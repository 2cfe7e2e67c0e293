"""silu(gate) · up straight from the product that holds both side by side; `activation` has the plain code."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl

_BLOCK = 1024


def gated_silu(both: Tensor) -> Tensor:
    """[..., 2F], gate first, → [..., F]."""
    width = both.shape[-1] // 2
    rows = both.contiguous()
    out = torch.empty(*both.shape[:-1], width, dtype=both.dtype, device=both.device)
    block = min(_BLOCK, power_of_two(width))
    grid = (out.numel() // width, -(-width // block))
    launch(_gated_silu, grid, both, rows, out, width, BLOCK=block)
    return out


@jit
def _gated_silu(both: Value, out: Value, width: Value, BLOCK: constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(both + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, (active * up).to(out.dtype.element_ty), mask=inside)
