"""float32 activations times a BF16 matrix on tensor cores: as right as a float32 product, several times as fast.

A row of float32 numbers, scaled by a power of two so that the largest lies just below 2¹⁵, is the sum of two FP16
numbers, eleven bits each (`split`), as good as exactly:

    hi = round(x),   lo = round(x − hi),   |x − hi − lo| ≤ 2⁻²³ |x|, or 2⁻⁴⁰ of the row's largest

which is less than a float32 sum of products rounds. A BF16 matrix has eight bits and, row by row scaled the same way,
fits into FP16 (`halved`); numbers below 2⁻³² of their row's largest lose bits that no float32 sum would show. The
product of two FP16 numbers is exact in float32. So x Wᵀ = lo Wᵀ + hi Wᵀ takes two products that tensor cores do with
float32 sums. The FP16 matrix is kept as long as the BF16 one stays as it is: no float32 copy exists. Infinities and NaN
come out as NaN.

A tensor core adds sixteen products at a time to its sum and cuts the result off instead of rounding it, which drifts
towards zero with the length of the sum (for Huginn's 17,920 inputs ten times the error of a rounded float32 sum). The
large terms are therefore multiplied a block of inputs at a time, and the blocks added with rounding. The small
terms are so much smaller that their drift does not show.

`loopscope.kernels.choice` says which implementation runs: `auto` splits on CUDA devices with tensor cores that give
float32 sums, where nothing is differentiated; `reference` multiplies a float32 copy of the matrix, `triton` splits
anywhere.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from loopscope.kernels.choice import Implementation, chosen, is_differentiating, takes_kernel


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
        from loopscope.kernels.split_product_kernels import split_in_one_pass

        return Split(*split_in_one_pass(x_MK))
    scale_M, unit_M = _scales(x_MK)
    scaled_MK = x_MK * scale_M.unsqueeze(1)
    out = empty_halves(2, *x_MK.shape, device=x_MK.device)
    out[1] = scaled_MK
    out[0] = scaled_MK.sub_(out[1])
    return Split(out, unit_M)


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


BLOCK = 768  # of inputs summed by the tensor cores alone; longer ones drift by more than float32's own rounding


def accumulated(x: Split, weight: Halved, block: int = BLOCK) -> Tensor:
    """The product in float32, [M, N], smaller terms first; the plain code of `split_product_kernels.fused`."""
    terms_2MK, matrix_NK = x.terms_2MK, weight.matrix_NK
    factors = [(terms_2MK[0], matrix_NK)]
    factors += [(terms_2MK[1, :, inputs], matrix_NK[:, inputs]) for inputs in input_blocks(matrix_NK.shape[1], block)]
    with _float32_reductions():
        if not matrix_NK.is_cuda:
            out = _summed(factors)
        else:
            first, *others = factors
            out = torch.mm(first[0], first[1].T, out_dtype=torch.float32)
            for term_MK, part_NK in others:
                if _adds_in_place(matrix_NK.device):
                    torch.addmm(out, term_MK, part_NK.T, out_dtype=torch.float32, out=out)
                else:
                    out += torch.mm(term_MK, part_NK.T, out_dtype=torch.float32)
    return out.mul_(x.unit_M.unsqueeze(1)).mul_(weight.unit_N)


def input_blocks(inputs: int, longest: int) -> Iterator[slice]:
    """Blocks of nearly equal length, no longer than `longest`, that begin at multiples of 16.

    >>> list(input_blocks(40, 32))
    [slice(0, 32, None), slice(32, 40, None)]
    """
    count = max(1, -(-inputs // longest))
    step = -(-inputs // (16 * count)) * 16
    for start in range(0, inputs, step):
        yield slice(start, min(start + step, inputs))


def _summed(factors: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The same where there are no tensor cores: terms multiplied in float32, which holds each product exactly."""
    out = factors[0][0].float() @ factors[0][1].float().T
    for term_MK, matrix_NK in factors[1:]:
        out += term_MK.float() @ matrix_NK.float().T
    return out


@contextmanager
def _float32_reductions() -> Iterator[None]:
    """No reduction in FP16 inside the library, whatever the process has chosen for itself."""
    flags = torch.backends.cuda.matmul
    before = flags.allow_fp16_reduced_precision_reduction
    flags.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        flags.allow_fp16_reduced_precision_reduction = before


@functools.cache
def _adds_in_place(device: torch.device) -> bool:
    """Whether this torch adds an FP16 product to a float32 matrix in one call: releases before 2.9 or so do not."""
    factor, out = torch.ones(16, 16, dtype=torch.float16, device=device), torch.ones(16, 16, device=device)
    try:
        torch.addmm(out, factor, factor, out_dtype=torch.float32, out=out)
    except (RuntimeError, TypeError):
        return False
    return bool((out == 17.0).all())


@functools.cache
def has_float32_output(device: torch.device) -> bool:
    """Whether this torch multiplies FP16 matrices into a float32 one on the device."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    factor = torch.full((16, 16), 1.0 + 2.0**-10, dtype=torch.float16, device=device)
    try:
        out = torch.mm(factor, factor, out_dtype=torch.float32)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return bool((out == 16.0 * (1.0 + 2.0**-10) ** 2).all())


def splits_apply(device: torch.device, impl: Implementation | None = None) -> bool:
    """Whether products of float32 tensors with BF16 matrices on the device are split."""
    if is_differentiating() or torch.compiler.is_compiling():
        return False
    how = chosen(impl)
    return how == "triton" or (how == "auto" and device.type == "cuda" and has_float32_output(device))


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
    """By the kernel, which is as fast as the library's products and rounds four times as well; by those without it."""
    if not takes_kernel(x.terms_2MK, impl):
        return accumulated(x, weight)
    from loopscope.kernels.split_product_kernels import fused

    return fused(x, weight)
