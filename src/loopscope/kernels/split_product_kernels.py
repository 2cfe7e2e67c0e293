"""The kernels of `split_product`: the two FP16 terms of float32 rows in one pass, and the product of both.

In the product every block of inputs is summed from zero on the tensor cores, smaller term first, and then added with
rounding to the sum that the registers hold: a tensor core's own sum is cut off at every step, which drifts. Nothing but
the finished sum is written.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, descriptor, jit, launch, power_of_two, tl
from loopscope.kernels.split_product import LARGEST, Halved, Split, empty_halves

_BLOCK = 1024


def split_in_one_pass(x_MK: Tensor) -> tuple[Tensor, Tensor]:
    """The terms, FP16 [2, M, K], and the units of the rows; `split_product.split` has the plain code."""
    values = x_MK.contiguous()
    rows, inputs = values.shape
    out = empty_halves(2, rows, inputs, device=x_MK.device)
    unit_M = torch.empty(rows, dtype=torch.float32, device=x_MK.device)
    launch(
        _split,
        (rows,),
        x_MK,
        values,
        out,
        unit_M,
        rows,
        inputs,
        out.stride(1),
        LARGEST=LARGEST,
        BLOCK=min(_BLOCK, power_of_two(inputs)),
    )
    return out, unit_M


@jit
def _split(
    x: Value,
    out: Value,
    unit: Value,
    rows: Value,
    inputs: Value,
    stride: Value,
    LARGEST: constexpr,
    BLOCK: constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    here = x + row * inputs
    most = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, inputs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.abs(tl.load(here + at, mask=at < inputs, other=0.0)))
    exponent = (tl.max(most, axis=0).to(tl.int32, bitcast=True) >> 23) & 255
    biased = tl.minimum(tl.maximum(254 + LARGEST - exponent, 1), 253)
    scale = (biased << 23).to(tl.float32, bitcast=True)
    tl.store(unit + row, ((254 - biased) << 23).to(tl.float32, bitcast=True))
    to = out + row * stride
    whole = tl.cast(rows, tl.int64) * stride
    for start in range(0, inputs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(here + at, mask=at < inputs, other=0.0) * scale
        hi = value.to(tl.float16)
        tl.store(to + at, (value - hi.to(tl.float32)).to(tl.float16), mask=at < inputs)
        tl.store(to + whole + at, hi, mask=at < inputs)


class Tile(NamedTuple):
    """How the kernel cuts the product up: rows, outputs and inputs of a tile, warps and loads ahead."""

    rows: int = 128
    outputs: int = 128
    inputs: int = 64
    warps: int = 8
    stages: int = 4
    group: int = 8


TILE = Tile()
_SMALL = Tile(16, 16, 16, 1, 1, 2)


def fused(x: Split, weight: Halved, tile: Tile | None = None) -> Tensor:
    """The product in float32, [M, N]; rows begin at multiples of sixteen bytes, as `empty_halves` has them."""
    terms_2MK, matrix_NK = x.terms_2MK, weight.matrix_NK
    _, rows, inputs = terms_2MK.shape
    outputs = matrix_NK.shape[0]
    cut = tile or (TILE if terms_2MK.is_cuda else _SMALL)
    out = torch.empty(rows, outputs, dtype=torch.float32, device=terms_2MK.device)
    launch(
        _fused,
        (-(-rows // cut.rows) * -(-outputs // cut.outputs),),
        terms_2MK,
        # Both terms one below the other: a block at the end of the first reads some of the second, which is not stored.
        descriptor(terms_2MK.flatten(0, 1), [cut.rows, cut.inputs]),
        descriptor(matrix_NK, [cut.outputs, cut.inputs]),
        x.unit_M,
        weight.unit_N,
        out,
        rows,
        outputs,
        inputs,
        ROWS=cut.rows,
        OUTPUTS=cut.outputs,
        INPUTS=cut.inputs,
        GROUP=cut.group,
        warps=cut.warps,
        num_stages=cut.stages,
    )
    return out


@jit
def _fused(
    terms: Value,
    weight: Value,
    row_unit: Value,
    output_unit: Value,
    out: Value,
    rows: Value,
    outputs: Value,
    inputs: Value,
    ROWS: constexpr,
    OUTPUTS: constexpr,
    INPUTS: constexpr,
    GROUP: constexpr,
) -> None:
    # Neighbouring programs share rows and columns of tiles, so that what one loads another finds in the cache.
    row_tiles = tl.cdiv(rows, ROWS)
    output_tiles = tl.cdiv(outputs, OUTPUTS)
    in_group = GROUP * output_tiles
    first = (tl.program_id(0) // in_group) * GROUP
    height = min(row_tiles - first, GROUP)
    row = (first + (tl.program_id(0) % in_group) % height) * ROWS
    output = ((tl.program_id(0) % in_group) // height) * OUTPUTS

    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, inputs, INPUTS):
        w = weight.load([output, start]).T
        block = tl.dot(terms.load([row, start]), w)
        block = tl.dot(terms.load([rows + row, start]), w, block)
        total += block
    at = row + tl.arange(0, ROWS)
    to = output + tl.arange(0, OUTPUTS)
    unit = tl.load(row_unit + at, mask=at < rows, other=0.0)
    total = total * unit[:, None] * tl.load(output_unit + to, mask=to < outputs, other=0.0)[None, :]
    where = out + at.to(tl.int64)[:, None] * outputs + to[None, :]
    tl.store(where, total, mask=(at < rows)[:, None] & (to < outputs)[None, :])
