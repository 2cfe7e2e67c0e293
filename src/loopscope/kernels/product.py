"""Products of 16-bit matrices with float32 sums, and through them float32 activations times a BF16 matrix.

**Sums.** The product of two 16-bit numbers is exact in float32. A tensor core cuts its sum off, towards zero, after
every sixteen products: over a long sum that is a bias of some millionths, and averages over a vocabulary do not average
it away. The kernel lets it add up some inputs at a time, from zero, and adds these sums with rounding. The share by
which they are too small is measured once for a device and put back.

**Float32 activations.** A row of float32 numbers, scaled by a power of two so that the largest lies just below 2¹⁵, is
the sum of two FP16 numbers, eleven bits each (`split`), as good as exactly:

    hi = round(x),   lo = round(x − hi),   |x − hi − lo| ≤ 2⁻²³ |x|, or 2⁻⁴⁰ of the row's largest

which is less than a float32 sum of products rounds. A BF16 matrix has eight bits and, row by row scaled the same way,
fits into FP16 (`halved`); numbers below 2⁻³² of their row's largest lose bits that no float32 sum would show. So x Wᵀ =
lo Wᵀ + hi Wᵀ takes two products on tensor cores. The FP16 matrix is kept as long as the BF16 one stays as it is: no
float32 copy exists. Infinities and NaN come out as NaN.

`loopscope.kernels.choice` says which implementation runs: `auto` splits on CUDA devices, where nothing is
differentiated; `reference` multiplies a float32 copy of the matrix, `triton` splits anywhere.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.kernels.language import Value, constexpr, descriptor, jit, launch, power_of_two, tl


class Tile(NamedTuple):
    """How a product is cut up: rows, outputs and inputs of a tile; warps; loads ahead; tiles of a column in a row.

    `part` is how many inputs a tensor core adds up.
    """

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    group: int
    part: int


WIDE = Tile(128, 256, 64, 8, 3, 16, 512)
"""For many rows and outputs, where its 144 KiB fit into what a multiprocessor's programs share."""
NARROW = Tile(64, 128, 64, 4, 3, 16, 64)
"""For two terms, and for fewer rows: every block is rounded."""


def multiply(
    terms_nMK: Tensor,
    weight_NK: Tensor,
    tile: Tile,
    out_MN: Tensor,
    *,
    units: tuple[Tensor, Tensor] | None = None,
    bias_N: Tensor | None = None,
    least: float = -math.inf,
    missing: float | None = None,
) -> None:
    """Σ_n terms[n] · weightᵀ of one or two terms by the kernel, times units of rows and outputs, plus a bias.

    `least` is the smallest number that comes out, `missing` the share by which sums are too small, if it is known.
    """
    terms_nMK, weight_NK = _aligned(terms_nMK), _aligned(weight_NK)
    if missing is None:
        missing = _missing(out_MN.device, terms_nMK.dtype, tile, terms_nMK.shape[2]) if out_MN.is_cuda else 0.0
    terms, rows, inputs = terms_nMK.shape
    outputs = weight_NK.shape[0]
    launch(
        _product,
        (-(-rows // tile.rows) * -(-outputs // tile.outputs),),
        out_MN,
        # Terms lie one below the other: a block at the end of the first reads some of the second, which is not stored.
        descriptor(terms_nMK.reshape(terms * rows, inputs), [tile.rows, tile.inputs]),
        descriptor(weight_NK, [tile.outputs, tile.inputs]),
        *(units or (out_MN, out_MN)),
        out_MN if bias_N is None else bias_N,
        out_MN,
        *(rows, outputs, inputs, out_MN.stride(0), 1.0, missing, least),
        warps=tile.warps,
        num_stages=tile.stages,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        GROUP=tile.group,
        PART=tile.part,
        TWO=terms == 2,
        UNITS=units is not None,
        BIAS=bias_N is not None,
    )


def widest(device: torch.device) -> Tile:
    """The tile of one term."""
    return WIDE if torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor >= 160_000 else NARROW


def _aligned(x: Tensor) -> Tensor:
    """With rows that begin at multiples of sixteen bytes, as the copy engine of a GPU wants them."""
    begins = x.data_ptr() % 16 == 0 and x.stride(-2) % 8 == 0
    return x if begins else functional.pad(x, (0, -x.shape[-1] % 8))


@functools.cache
def _missing(device: torch.device, dtype: torch.dtype, tile: Tile, inputs: int) -> float:
    """By which share of themselves the device's sums of so many inputs are too small."""
    g = torch.Generator(device).manual_seed(0)
    x, weight = torch.randn(2, 1024, inputs, generator=g, device=device).to(dtype)
    found, exact = torch.empty(1024, 1024, device=device), x.double() @ weight.double().T
    multiply(x.unsqueeze(0), weight, tile, found, missing=0.0)
    return float((exact * (exact - found)).sum() / exact.square().sum())


@jit
def _product(
    x: Value, weight: Value, row_units: Value, output_units: Value, bias: Value, out: Value, rows: Value,
    outputs: Value, inputs: Value, stride: Value, one: Value, missing: Value, least: Value, ROWS: constexpr,
    OUTPUTS: constexpr, INPUTS: constexpr, GROUP: constexpr, PART: constexpr, TWO: constexpr, UNITS: constexpr,
    BIAS: constexpr,
) -> None:  # fmt: skip
    # Neighbouring programs share rows and columns of tiles, so that what one loads another finds in the cache.
    in_group = GROUP * tl.cdiv(outputs, OUTPUTS)
    first = (tl.program_id(0) // in_group) * GROUP
    height = min(tl.cdiv(rows, ROWS) - first, GROUP)
    row = (first + (tl.program_id(0) % in_group) % height) * ROWS
    output = ((tl.program_id(0) % in_group) // height) * OUTPUTS
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    part = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, inputs, INPUTS):
        w = weight.load([output, start]).T
        if PART == INPUTS:
            part = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
        part = tl.dot(x.load([row, start]), w, part)
        if TWO:
            part = tl.dot(x.load([rows + row, start]), w, part)
        if PART == INPUTS:
            # A factor that only the device knows keeps the compiler from adding inside the tensor core.
            total = tl.fma(part, one, total)
        elif (start + INPUTS) % PART == 0:
            total += part
            part = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    if PART > INPUTS:
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


LARGEST = 14
"""The exponent that the largest number of a scaled row gets: FP16 ends at 2¹⁶."""


def split(x_MK: Tensor, impl: Implementation | None = None) -> tuple[Tensor, Tensor]:
    """Of float32 rows lo and hi of each, scaled, [2, M, K], and what makes a row itself again, powers of two [M].

    >>> row = torch.tensor([[0.1, 300.0]])
    >>> (lo, hi), unit = split(row)
    >>> off = (lo.double() + hi.double()) * unit.double() - row.double()
    >>> bool((off.abs() <= 2.0**-23 * row).all())
    True
    """
    terms_2MK = _empty_halves(2, *x_MK.shape, device=x_MK.device)
    if not takes_kernel(x_MK, impl, (torch.float32,)):
        scale_M, unit_M = _scales(x_MK)
        scaled_MK = x_MK * scale_M.unsqueeze(1)
        terms_2MK[1] = scaled_MK
        terms_2MK[0] = scaled_MK.sub_(terms_2MK[1])
        return terms_2MK, unit_M
    (rows, inputs), values = x_MK.shape, x_MK.contiguous()
    unit_M = torch.empty(rows, dtype=torch.float32, device=x_MK.device)
    sizes, block = (rows, inputs, terms_2MK.stride(1)), min(1024, power_of_two(inputs))
    launch(_split, (rows,), x_MK, values, terms_2MK, unit_M, *sizes, LARGEST=LARGEST, BLOCK=block)
    return terms_2MK, unit_M


@jit
def _split(
    x: Value, out: Value, unit: Value, rows: Value, inputs: Value, stride: Value, LARGEST: constexpr, BLOCK: constexpr
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


def _empty_halves(*shape: int, device: torch.device) -> Tensor:
    """FP16 numbers whose rows begin at multiples of sixteen bytes."""
    *outer, inputs = shape
    return torch.empty(*outer, -(-inputs // 8) * 8, dtype=torch.float16, device=device)[..., :inputs]


def _scales(x_MK: Tensor) -> tuple[Tensor, Tensor]:
    """What rows are multiplied by, and the inverse, by the bits of the exponent of each row's largest number."""
    exponent_M = (x_MK.abs().amax(1).view(torch.int32) >> 23) & 255
    biased_M = (254 + LARGEST - exponent_M).clamp(1, 253)
    return (biased_M << 23).view(torch.float32), ((254 - biased_M) << 23).view(torch.float32)


_kept = WeakIdKeyDictionary()
_ROWS = 4096


def halved(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """A BF16 matrix, or some of its rows, in FP16, its rows scaled, and what makes each itself again, [N].

    It is made once for the tensor whose rows they are.
    """
    base = weight_NK._base if weight_NK._base is not None else weight_NK
    stamp = base.data_ptr(), None if base.is_inference() else base._version
    first, rest = divmod(int(weight_NK.storage_offset()) - int(base.storage_offset()), max(1, base.stride(0)))
    whole_rows = base.ndim == 2 and base.is_contiguous() and weight_NK.stride() == base.stride()
    if not whole_rows or rest or weight_NK.shape[1] != base.shape[1]:
        return _halve(weight_NK)
    held: Any = _kept.get(base)  # type: ignore[no-untyped-call]
    if held is None or held[0] != stamp:
        _kept[base] = held = stamp, _halve(base)
    matrix_NK, unit_N = held[1]
    rows = slice(first, first + weight_NK.shape[0])
    return matrix_NK[rows], unit_N[rows]


def forget_halves(weights: Iterable[Tensor]) -> None:
    """Drop what `halved` kept of some tensors: they may have changed in ways that leave no trace."""
    for weight in weights:
        _kept.pop(weight, None)  # type: ignore[no-untyped-call]


def _halve(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    matrix_NK, units = _empty_halves(*weight_NK.shape, device=weight_NK.device), []
    for wide, part in zip(torch.split(weight_NK, _ROWS), torch.split(matrix_NK, _ROWS), strict=True):
        wide_nK = wide.float()
        scale_n, unit_n = _scales(wide_nK)
        part.copy_(wide_nK.mul_(scale_n.unsqueeze(1)))
        units.append(unit_n)
    return matrix_NK, torch.cat(units)


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
    (terms_2MK, unit_M), (matrix_NK, unit_N) = split(x.reshape(-1, x.shape[-1]), impl), halved(weight)
    if takes_kernel(terms_2MK, impl):
        out_MN = torch.empty(x.numel() // x.shape[-1], weight.shape[0], device=x.device)
        multiply(terms_2MK, matrix_NK, NARROW, out_MN, units=(unit_M, unit_N), bias_N=bias)
    else:  # float32 holds each product exactly; smaller terms first
        lo_MN, hi_MN = (terms_2MK.float() @ matrix_NK.float().T) * unit_M[:, None] * unit_N
        out_MN = lo_MN + hi_MN if bias is None else lo_MN + hi_MN + bias
    return out_MN.reshape(*x.shape[:-1], weight.shape[0])
