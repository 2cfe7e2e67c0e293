"""The product of two BF16 or FP16 matrices in float32, with sums that are rounded.

A tensor core cuts its sum off after every sixteen products, towards zero. Over a long sum that is a bias of some
millionths, the same for every entry, which averages over a vocabulary do not average away: a softmax of such logits is
too flat, and the variance of its displacement is off by seventy times the error of a plain float32 sum. Here a few
products at a time are summed from zero and added with rounding to the sum that registers hold.

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


TILE = Tile()
CANDIDATES = (
    Tile(),
    Tile(64, 128, 32, 4, 4, 16),
    Tile(64, 128, 32, 4, 6, 16),
    Tile(128, 128, 32, 8, 3, 8),
    Tile(64, 256, 32, 8, 4, 16),
)
"""Tiles that `benchmarks/geometry.py --tiles` compares."""
_SMALL = Tile(16, 16, 16, 1, 1, 2)


_CUT_OFF = {torch.bfloat16: 4.96e-8, torch.float16: 8.9e-8}
"""The share of every entry that a Hopper GPU's tensor cores cut off, at `TILE`."""


def cut_off(x_MK: Tensor, weight_NK: Tensor) -> float:
    """The share of itself by which every entry of the product is too small."""
    hopper = x_MK.is_cuda and torch.cuda.get_device_capability(x_MK.device)[0] == 9
    return _CUT_OFF[weight_NK.dtype] if hopper else 0.0


def fits(x_MK: Tensor, weight_NK: Tensor) -> bool:
    """Whether the copy engine can read both: rows follow one another and begin at multiples of sixteen bytes."""
    halves = x_MK.dtype == weight_NK.dtype and x_MK.dtype in (torch.bfloat16, torch.float16)
    inputs = weight_NK.shape[1]
    return halves and inputs % 8 == 0 and weight_NK.stride() == (inputs, 1) and weight_NK.data_ptr() % 16 == 0


def rounded_product(x_MK: Tensor, weight_NK: Tensor, out_MN: Tensor, tile: Tile | None = None) -> None:
    """X · weightᵀ into a float32 matrix."""
    (rows, inputs), outputs = x_MK.shape, weight_NK.shape[0]
    cut = tile or (TILE if x_MK.is_cuda else _SMALL)
    launch(
        _rounded_product,
        (-(-rows // cut.rows) * -(-outputs // cut.outputs),),
        x_MK,
        descriptor(x_MK.contiguous(), [cut.rows, cut.inputs]),
        descriptor(weight_NK, [cut.outputs, cut.inputs]),
        _one(x_MK.device),
        out_MN,
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


@functools.cache
def _one(device: torch.device) -> Tensor:
    return torch.ones(1, device=device)


@jit
def _rounded_product(
    x: Value,
    weight: Value,
    one: Value,
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
    # A factor that only the device knows keeps the compiler from adding inside the tensor core.
    factor = tl.load(one)
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, inputs, INPUTS):
        block = tl.dot(x.load([row, start]), weight.load([output, start]).T)
        total = tl.fma(block, factor, total)
    at = row + tl.arange(0, ROWS)
    to = output + tl.arange(0, OUTPUTS)
    where = out + at.to(tl.int64)[:, None] * outputs + to[None, :]
    tl.store(where, total, mask=(at < rows)[:, None] & (to < outputs)[None, :])
