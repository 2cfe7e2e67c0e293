"""Products of BF16 or FP16 matrices in float32, with sums that are rounded.

A tensor core cuts its sum off after every sixteen products, towards zero. Over a long sum that is a bias of some
millionths, the same for every entry, which averages over a vocabulary do not average away: a softmax of such logits is
too flat, and the variance of its displacement is off by seventy times the error of a plain float32 sum. Here a block of
inputs at a time is summed from zero and added with rounding to the sum that registers hold.

Rows may be sums of two terms, the smaller one first (`split_product`), and rows and outputs may have units.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, descriptor, jit, launch, tl


class Tile(NamedTuple):
    """How the product is cut up: rows, outputs and inputs of a tile, warps, loads ahead, rows of tiles of a group."""

    rows: int = 64
    outputs: int = 128
    inputs: int = 64
    warps: int = 4
    stages: int = 3
    group: int = 16


_TILE = Tile()
_TILE_BF16 = Tile(128, 128, 128, 8, 3, 8)
_SMALL = Tile(16, 16, 16, 1, 1, 2)
_CUT_OFF = {torch.bfloat16: 9.55e-8, torch.float16: 8.9e-8}
"""The share of every entry that a Hopper GPU's tensor cores cut off, at these tiles."""


def cut_off(x_MK: Tensor, weight_NK: Tensor) -> float:
    """The share of itself by which every entry of the product is too small."""
    hopper = x_MK.is_cuda and torch.cuda.get_device_capability(x_MK.device)[0] == 9
    return _CUT_OFF[weight_NK.dtype] if hopper else 0.0


def fits(x_MK: Tensor, weight_NK: Tensor) -> bool:
    """Whether the copy engine can read both: rows follow one another and begin at multiples of sixteen bytes."""
    halves = x_MK.dtype == weight_NK.dtype and x_MK.dtype in (torch.bfloat16, torch.float16)
    inputs = weight_NK.shape[1]
    return halves and inputs % 8 == 0 and weight_NK.stride() == (inputs, 1) and weight_NK.data_ptr() % 16 == 0


def rounded_product(
    x: Tensor,
    weight_NK: Tensor,
    out_MN: Tensor,
    units: tuple[Tensor, Tensor] | None = None,
    tile: Tile | None = None,
) -> None:
    """X · weightᵀ into a float32 matrix; X is [M, K] or two terms, [2, M, K].

    Args:
        x: of the weight's dtype.
        weight_NK: rows begin at multiples of sixteen bytes.
        out_MN: is filled.
        units: by what rows [M] and outputs [N] are multiplied in the end.
        tile: another one than the fastest known.
    """
    rows, inputs = x.shape[-2:]
    outputs = weight_NK.shape[0]
    if tile is None:
        tile = _SMALL if not x.is_cuda else _TILE_BF16 if x.dtype == torch.bfloat16 and x.ndim == 2 else _TILE
    one = _one(x.device)
    row_units, output_units = units or (one, one)
    launch(
        _rounded_product,
        (-(-rows // tile.rows) * -(-outputs // tile.outputs),),
        x,
        # Terms lie one below the other: a block at the end of the first reads some of the second, which is not stored.
        descriptor(x.flatten(0, -2), [tile.rows, tile.inputs]),
        descriptor(weight_NK, [tile.outputs, tile.inputs]),
        one,
        row_units,
        output_units,
        out_MN,
        rows,
        outputs,
        inputs,
        TERMS=x.ndim - 1,
        HAS_UNITS=units is not None,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        GROUP=tile.group,
        warps=tile.warps,
        num_stages=tile.stages,
    )


@functools.cache
def _one(device: torch.device) -> Tensor:
    return torch.ones(1, device=device)


@jit
def _rounded_product(
    x: Value,
    weight: Value,
    one: Value,
    row_units: Value,
    output_units: Value,
    out: Value,
    rows: Value,
    outputs: Value,
    inputs: Value,
    TERMS: constexpr,
    HAS_UNITS: constexpr,
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
    # A factor that only the device knows keeps the compiler from adding inside the tensor core.
    factor = tl.load(one)
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, inputs, INPUTS):
        w = weight.load([output, start]).T
        block = tl.dot(x.load([row, start]), w)
        if TERMS == 2:
            block = tl.dot(x.load([rows + row, start]), w, block)
        total = tl.fma(block, factor, total)
    at = row + tl.arange(0, ROWS)
    to = output + tl.arange(0, OUTPUTS)
    if HAS_UNITS:
        total = total * tl.load(row_units + at, mask=at < rows, other=0.0)[:, None]
        total = total * tl.load(output_units + to, mask=to < outputs, other=0.0)[None, :]
    where = out + at.to(tl.int64)[:, None] * outputs + to[None, :]
    tl.store(where, total, mask=(at < rows)[:, None] & (to < outputs)[None, :])
