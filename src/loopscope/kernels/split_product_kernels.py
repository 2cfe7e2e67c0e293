"""The kernels of `split_product`: the three BF16 terms of float32 numbers in one pass, and the product of all three.

In the product every block of inputs is summed from zero on the tensor cores, smallest term first, and then added with
rounding to the sum that the registers hold: a tensor core's own sum is cut off at every step, which drifts. Nothing but
the finished sum is written.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, tl

_BLOCK = 1024


def split_in_one_pass(x: Tensor) -> Tensor:
    """(lo, mid, hi), BF16 [3, *x.shape]; `split_product.split` has the plain code."""
    values = x.contiguous()
    out = torch.empty(3, *x.shape, dtype=torch.bfloat16, device=x.device)
    size = x.numel()
    launch(_split, (-(-size // _BLOCK),), x, values, out, size, BLOCK=_BLOCK)
    return out


@jit
def _split(x: Value, out: Value, size: Value, BLOCK: constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + at, mask=inside, other=0.0)
    hi = value.to(tl.bfloat16)
    rest = value - hi.to(tl.float32)
    mid = rest.to(tl.bfloat16)
    lo = (rest - mid.to(tl.float32)).to(tl.bfloat16)
    whole = tl.cast(size, tl.int64)
    tl.store(out + at, lo, mask=inside)
    tl.store(out + whole + at, mid, mask=inside)
    tl.store(out + 2 * whole + at, hi, mask=inside)


class Tile(NamedTuple):
    """How the kernel cuts the product up: rows, outputs and inputs of a tile, warps and loads ahead."""

    rows: int = 128
    outputs: int = 128
    inputs: int = 64
    warps: int = 8
    stages: int = 3
    group: int = 16


TILE = Tile()
_SMALL = Tile(16, 16, 16, 1, 1, 2)


def fused(terms_3MK: Tensor, weight_NK: Tensor, tile: Tile | None = None) -> Tensor:
    """Σ terms Wᵀ in float32, [M, N]; entries of a row must be neighbours in memory."""
    _, rows, inputs = terms_3MK.shape
    outputs = weight_NK.shape[0]
    cut = tile or (TILE if terms_3MK.is_cuda else _SMALL)
    out = torch.empty(rows, outputs, dtype=torch.float32, device=terms_3MK.device)
    launch(
        _fused,
        (-(-rows // cut.rows) * -(-outputs // cut.outputs),),
        terms_3MK,
        terms_3MK,
        weight_NK,
        out,
        rows,
        outputs,
        inputs,
        terms_3MK.stride(0),
        terms_3MK.stride(1),
        weight_NK.stride(0),
        ROWS=cut.rows,
        OUTPUTS=cut.outputs,
        INPUTS=cut.inputs,
        GROUP=cut.group,
        EVEN=inputs % cut.inputs == 0,
        warps=cut.warps,
        num_stages=cut.stages,
    )
    return out


@jit
def _fused(
    terms: Value,
    weight: Value,
    out: Value,
    rows: Value,
    outputs: Value,
    inputs: Value,
    term_stride: Value,
    row_stride: Value,
    output_stride: Value,
    ROWS: constexpr,
    OUTPUTS: constexpr,
    INPUTS: constexpr,
    GROUP: constexpr,
    EVEN: constexpr,
) -> None:
    # Neighbouring programs share rows and columns of tiles, so that what one loads another finds in the cache.
    row_tiles = tl.cdiv(rows, ROWS)
    output_tiles = tl.cdiv(outputs, OUTPUTS)
    in_group = GROUP * output_tiles
    first = (tl.program_id(0) // in_group) * GROUP
    height = min(row_tiles - first, GROUP)
    row_tile = first + (tl.program_id(0) % in_group) % height
    output_tile = (tl.program_id(0) % in_group) // height

    row = row_tile * ROWS + tl.arange(0, ROWS)
    output = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    along = tl.arange(0, INPUTS)
    # Rows and outputs beyond the end read those at the beginning; what they give is not stored.
    lo = terms + (row % rows).to(tl.int64)[:, None] * row_stride + along[None, :]
    mid = lo + tl.cast(term_stride, tl.int64)
    hi = mid + tl.cast(term_stride, tl.int64)
    matrix = weight + (output % outputs).to(tl.int64)[None, :] * output_stride + along[:, None]

    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, inputs, INPUTS):
        if EVEN:
            w = tl.load(matrix + start)
            x0 = tl.load(lo + start)
            x1 = tl.load(mid + start)
            x2 = tl.load(hi + start)
        else:
            inside = along < inputs - start
            w = tl.load(matrix + start, mask=inside[:, None], other=0.0)
            x0 = tl.load(lo + start, mask=inside[None, :], other=0.0)
            x1 = tl.load(mid + start, mask=inside[None, :], other=0.0)
            x2 = tl.load(hi + start, mask=inside[None, :], other=0.0)
        block = tl.dot(x0, w)
        block = tl.dot(x1, w, block)
        block = tl.dot(x2, w, block)
        total += block
    where = out + row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(where, total, mask=(row < rows)[:, None] & (output < outputs)[None, :])
