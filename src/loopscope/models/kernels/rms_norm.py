"""RMS norm with its weight in one pass over the rows; `normalisation` has the plain code."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, tl
from loopscope.models.kernels.row_norm import normed_row, row_block, row_warps


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension; `weight` has x's dtype."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(
        _rms_norm,
        (rows.shape[0],),
        x,
        rows,
        weight,
        out,
        rows.stride(0),
        width,
        eps,
        BLOCK=row_block(width),
        warps=row_warps(width),
    )
    return out


@jit
def _rms_norm(x: Value, weight: Value, out: Value, stride: Value, width: Value, eps: Value, BLOCK: constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    normed = normed_row(values, weight, columns, inside, width, eps)
    tl.store(out + row * width + columns, normed.to(out.dtype.element_ty), mask=inside)
