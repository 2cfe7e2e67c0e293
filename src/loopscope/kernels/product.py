"""float32 activations times a BF16 matrix on tensor cores: as right as a float32 product, several times as fast.

A row of float32 numbers, scaled by a power of two so that the largest lies just below 2¹⁵, is the sum of two FP16
numbers, eleven bits each (`split`), as good as exactly:

    hi = round(x),   lo = round(x − hi),   |x − hi − lo| ≤ 2⁻²³ |x|, or 2⁻⁴⁰ of the row's largest

which is less than a float32 sum of products rounds. A BF16 matrix has eight bits and, row by row scaled the same way,
fits into FP16 (`halved`); numbers below 2⁻³² of their row's largest lose bits that no float32 sum would show. The
product of two FP16 numbers is exact in float32. So x Wᵀ = lo Wᵀ + hi Wᵀ takes two products that tensor cores do with
float32 sums. The FP16 matrix is kept as long as the BF16 one stays as it is: no float32 copy exists. Infinities and NaN
come out as NaN.

A tensor core cuts its sum off after every sixteen products, towards zero: over a long sum a bias of some millionths.
The kernel sums a block of inputs at a time from zero, the smaller term first, and adds it with rounding to the sum
that registers hold.

`loopscope.kernels.choice` says which implementation runs: `auto` splits on CUDA devices, where nothing is
differentiated; `reference` multiplies a float32 copy of the matrix, `triton` splits anywhere.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.kernels.language import Value, constexpr, descriptor, jit, launch, power_of_two, tl


class Split(NamedTuple):
    """Rows as sums of two FP16 numbers.

    Attributes:
        terms_2MK: lo and hi of the scaled rows.
        unit_M: what a scaled row is multiplied by to be itself again, a power of two.
    """

    terms_2MK: Tensor
    unit_M: Tensor


class Halved(NamedTuple):
    """A BF16 matrix in FP16, its rows scaled.

    Attributes:
        matrix_NK: the scaled rows.
        unit_N: what each is multiplied by to be itself again, a power of two.
    """

    matrix_NK: Tensor
    unit_N: Tensor


def split(x_MK: Tensor, impl: Implementation | None = None) -> Split:
    """The two terms of every float32 row.

    >>> row = torch.tensor([[0.1, 300.0]])
    >>> (lo, hi), unit = split(row)
    >>> off = (lo.double() + hi.double()) * unit.double() - row.double()
    >>> bool((off.abs() <= 2.0**-23 * row).all())
    True
    """
    if takes_kernel(x_MK, impl, (torch.float32,)):
        return _split_in_one_pass(x_MK)
    scale_M, unit_M = _scales(x_MK)
    scaled_MK = x_MK * scale_M.unsqueeze(1)
    out = empty_halves(2, *x_MK.shape, device=x_MK.device)
    out[1] = scaled_MK
    out[0] = scaled_MK.sub_(out[1])
    return Split(out, unit_M)


def _split_in_one_pass(x_MK: Tensor) -> Split:
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
        BLOCK=min(1024, power_of_two(inputs)),
    )
    return Split(out, unit_M)


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


def empty_halves(*shape: int, device: torch.device) -> Tensor:
    """FP16 numbers whose rows begin at multiples of sixteen bytes, as the copy engine of a GPU wants them."""
    *outer, inputs = shape
    return torch.empty(*outer, -(-inputs // 8) * 8, dtype=torch.float16, device=device)[..., :inputs]


LARGEST = 14
"""The exponent that the largest number of a scaled row gets: FP16 ends at 2¹⁶."""


def _scales(x_MK: Tensor) -> tuple[Tensor, Tensor]:
    """What rows are multiplied by, and the inverse, by the bits of the exponent of each row's largest number."""
    exponent_M = (x_MK.abs().amax(1).view(torch.int32) >> 23) & 255
    biased_M = (254 + LARGEST - exponent_M).clamp(1, 253)
    return (biased_M << 23).view(torch.float32), ((254 - biased_M) << 23).view(torch.float32)


_kept = WeakIdKeyDictionary()
_ROWS = 4096


def halved(weight_NK: Tensor) -> Halved:
    """The FP16 matrix of a BF16 one or of some of its rows, made once for the tensor whose rows they are."""
    base = weight_NK._base if weight_NK._base is not None else weight_NK
    version = None if base.is_inference() else base._version
    stamp = (base.data_ptr(), version)
    if base.ndim != 2 or not base.is_contiguous() or weight_NK.stride() != base.stride():
        return _halve(weight_NK)
    held: tuple[Any, Halved] | None = _kept.get(base)  # type: ignore[no-untyped-call]
    if held is None or held[0] != stamp:
        _kept[base] = held = (stamp, _halve(base))
    first, rest = divmod(int(weight_NK.storage_offset()) - int(base.storage_offset()), max(1, base.stride(0)))
    if rest or weight_NK.shape[1] != base.shape[1]:
        return _halve(weight_NK)
    rows = slice(first, first + weight_NK.shape[0])
    return Halved(held[1].matrix_NK[rows], held[1].unit_N[rows])


def forget_halves(weights: Iterable[Tensor]) -> None:
    """Drop what `halved` kept of some tensors: they may have changed in ways that leave no trace."""
    for weight in weights:
        _kept.pop(weight, None)  # type: ignore[no-untyped-call]


def _halve(weight_NK: Tensor) -> Halved:
    matrix_NK, units = empty_halves(*weight_NK.shape, device=weight_NK.device), []
    for wide, part in zip(torch.split(weight_NK, _ROWS), torch.split(matrix_NK, _ROWS), strict=True):
        wide_nK = wide.float()
        scale_n, unit_n = _scales(wide_nK)
        part.copy_(wide_nK.mul_(scale_n.unsqueeze(1)))
        units.append(unit_n)
    return Halved(matrix_NK, torch.cat(units))


def splits_apply(device: torch.device, impl: Implementation | None = None) -> bool:
    """Whether products of float32 tensors with BF16 matrices on the device are split."""
    return takes_kernel(torch.empty(1, device=device), impl, (torch.float32,))


def is_mixed(x: Tensor, weight: Tensor) -> bool:
    """Whether x is float32 and the matrix stored in BF16."""
    return x.dtype == torch.float32 and weight.dtype == torch.bfloat16


def mixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, impl: Implementation | None = None) -> Tensor:
    """X · weightᵀ + bias over the last dimension, in float32, with the weight stored in BF16.

    >>> x, weight = torch.tensor([[0.1, 0.2]]), torch.tensor([[3.0, 5.0]], dtype=torch.bfloat16)
    >>> torch.equal(mixed_linear(x, weight), torch.tensor([[0.1 * 3 + 0.2 * 5]]))
    True
    """
    if not is_mixed(x, weight) or x.numel() == 0 or not splits_apply(x.device, impl):
        return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    product_MN = _product(split(x.reshape(-1, x.shape[-1]), impl), halved(weight), impl)
    out = product_MN.reshape(*x.shape[:-1], weight.shape[0])
    return out if bias is None else out.add_(bias)


def _product(x: Split, weight: Halved, impl: Implementation | None) -> Tensor:
    """By the kernel; elsewhere in float32, which holds each product exactly, smaller terms first."""
    out_MN = x.unit_M.new_empty(x.unit_M.shape[0], weight.unit_N.shape[0])
    if takes_kernel(x.terms_2MK, impl):
        product(x.terms_2MK, weight.matrix_NK, out_MN, (x.unit_M, weight.unit_N))
        return out_MN
    matrix_KN = weight.matrix_NK.float().T
    out_MN = x.terms_2MK[0].float() @ matrix_KN
    out_MN += x.terms_2MK[1].float() @ matrix_KN
    return out_MN.mul_(x.unit_M.unsqueeze(1)).mul_(weight.unit_N)


@dataclass(frozen=True)
class Tile:
    """How the product is cut up: rows, outputs and inputs of a tile, warps, loads ahead, rows of tiles of a group.

    `part` is how many inputs a tensor core adds up before their sum is rounded.
    """

    rows: int = 128
    outputs: int = 256
    inputs: int = 64
    warps: int = 8
    stages: int = 3
    group: int = 8
    part: int = 512


TILE = Tile()


def product(
    terms_nMK: Tensor,
    weight_NK: Tensor,
    out_MN: Tensor,
    units: tuple[Tensor, Tensor] | None = None,
    bias_N: Tensor | None = None,
    least: float = -math.inf,
    tile: Tile = TILE,
) -> None:
    """Σ_n terms[n] · weightᵀ of 16-bit matrices into a float32 one, on a GPU: with units of rows and outputs multiplied
    by, with a bias, and at least `least`.
    """
    if terms_nMK.shape[2] % 8:
        terms_nMK, weight_NK = (functional.pad(x, (0, -x.shape[-1] % 8)) for x in (terms_nMK, weight_NK))
    _multiply(terms_nMK, weight_NK, out_MN, units, bias_N, least, _missing(out_MN.device, terms_nMK.dtype, tile), tile)


def _multiply(
    terms_nMK: Tensor,
    weight_NK: Tensor,
    out_MN: Tensor,
    units: tuple[Tensor, Tensor] | None,
    bias_N: Tensor | None,
    least: float,
    missing: float,
    tile: Tile,
) -> None:
    terms, rows, inputs = terms_nMK.shape
    outputs = weight_NK.shape[0]
    row_units, output_units = units or (out_MN, out_MN)
    launch(
        _product,
        (-(-rows // tile.rows) * -(-outputs // tile.outputs),),
        out_MN,
        # Terms lie one below the other: a block at the end of the first reads some of the second, which is not stored.
        descriptor(terms_nMK.view(terms * rows, inputs), [tile.rows, tile.inputs]),
        descriptor(weight_NK, [tile.outputs, tile.inputs]),
        row_units,
        output_units,
        out_MN if bias_N is None else bias_N,
        out_MN,
        rows,
        outputs,
        inputs,
        out_MN.stride(0),
        missing,
        least,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        PART=tile.part,
        GROUP=tile.group,
        TWO=terms == 2,
        UNITS=units is not None,
        BIAS=bias_N is not None,
        warps=tile.warps,
        num_stages=tile.stages,
    )


@functools.cache
def _missing(device: torch.device, dtype: torch.dtype, tile: Tile) -> float:
    """The share of themselves by which sums of `part` inputs are too small: a tensor core cuts them off."""
    if device.type != "cuda":
        return 0.0
    g = torch.Generator(device).manual_seed(0)
    x, weight = torch.randn(2, 512, tile.part, generator=g, device=device).to(dtype)
    found = torch.empty(512, 512, device=device)
    _multiply(x.unsqueeze(0), weight, found, None, None, -math.inf, 0.0, tile)
    exact = x.double() @ weight.double().T
    return float((exact * (exact - found)).sum() / exact.square().sum())


@jit
def _product(
    x: Value, weight: Value, row_units: Value, output_units: Value, bias: Value, out: Value, rows: Value,
    outputs: Value, inputs: Value, stride: Value, missing: Value, least: Value, ROWS: constexpr, OUTPUTS: constexpr,
    INPUTS: constexpr, PART: constexpr, GROUP: constexpr, TWO: constexpr, UNITS: constexpr, BIAS: constexpr,
) -> None:  # fmt: skip
    # Neighbouring programs share rows and columns of tiles, so that what one loads another finds in the cache.
    row_tiles = tl.cdiv(rows, ROWS)
    output_tiles = tl.cdiv(outputs, OUTPUTS)
    in_group = GROUP * output_tiles
    first = (tl.program_id(0) // in_group) * GROUP
    height = min(row_tiles - first, GROUP)
    row = (first + (tl.program_id(0) % in_group) % height) * ROWS
    output = ((tl.program_id(0) % in_group) // height) * OUTPUTS
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    part = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, inputs, INPUTS):
        w = weight.load([output, start]).T
        part = tl.dot(x.load([row, start]), w, part)
        if TWO:
            part = tl.dot(x.load([rows + row, start]), w, part)
        if (start + INPUTS) % PART == 0:
            total += part
            part = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    total += part
    total = tl.fma(total, missing, total)
    at = row + tl.arange(0, ROWS)
    to = output + tl.arange(0, OUTPUTS)
    if UNITS:
        total = total * tl.load(row_units + at, mask=at < rows, other=0.0)[:, None]
        total = total * tl.load(output_units + to, mask=to < outputs, other=0.0)[None, :]
    if BIAS:
        total += tl.load(bias + to, mask=to < outputs, other=0.0).to(tl.float32)[None, :]
    total = tl.maximum(total, least, propagate_nan=tl.PropagateNan.ALL)
    where = out + at.to(tl.int64)[:, None] * stride + to[None, :]
    tl.store(where, total, mask=(at < rows)[:, None] & (to < outputs)[None, :])
