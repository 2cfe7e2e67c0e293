"""float32 activations times a BF16 matrix on tensor cores: as right as a float32 product, several times as fast.

A float32 number is exactly the sum of three BF16 numbers, eight bits each (`split`),

    hi = round(x),   mid = round(x − hi),   lo = x − hi − mid,

and the product of two BF16 numbers is exact in float32. So x Wᵀ = lo Wᵀ + mid Wᵀ + hi Wᵀ takes three products that
tensor cores do with float32 sums, and the matrix is read as it is stored: no float32 copy of it exists. Both
differences are exact. So is the sum for |x| ≥ 2⁻¹¹⁰; below, BF16 runs out of exponents and the sum is off by at most
2⁻¹³⁴. Infinities and NaN, and the numbers beyond 3.39e38 that BF16 rounds to infinity, come out as NaN.

A tensor core adds sixteen products at a time to its sum and cuts the result off instead of rounding it, which drifts
towards zero with the length of the sum (for Huginn's 17,920 inputs ten times the error of a rounded float32 sum). The
largest terms are therefore multiplied a block of inputs at a time, and the blocks added with rounding. The smaller
terms are so much smaller that their drift does not show.

`loopscope.kernels.choice` says which implementation runs: `auto` splits on CUDA devices with BF16 tensor cores
where nothing is differentiated, `reference` multiplies a float32 copy of the matrix, `triton` splits anywhere.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.kernels.choice import Implementation, chosen, is_differentiating, takes_kernel


def split(x: Tensor, impl: Implementation | None = None) -> Tensor:
    """(lo, mid, hi) of a float32 tensor, BF16 [3, *x.shape], contiguous.

    >>> lo, mid, hi = split(torch.tensor([0.1])).double()
    >>> float(lo + mid + hi) == float(torch.tensor([0.1]).double())
    True
    """
    if takes_kernel(x, impl, (torch.float32,)):
        from loopscope.kernels.split_product_kernels import split_in_one_pass

        return split_in_one_pass(x)
    out = torch.empty(3, *x.shape, dtype=torch.bfloat16, device=x.device)
    out[2] = x
    rest = x - out[2]
    out[1] = rest
    out[0] = rest.sub_(out[1])
    return out


BLOCK = 896  # of inputs summed by the tensor cores alone; longer ones drift by more than float32's own rounding


def accumulated(terms_3MK: Tensor, weight_NK: Tensor, block: int = BLOCK) -> Tensor:
    """Σ terms Wᵀ in float32, [M, N], smallest first; the plain code of `split_product_kernels.fused`."""
    factors = [(terms_3MK[0], weight_NK), (terms_3MK[1], weight_NK)]
    factors += [(terms_3MK[2, :, inputs], weight_NK[:, inputs]) for inputs in input_blocks(weight_NK.shape[1], block)]
    with _float32_reductions():
        if not weight_NK.is_cuda:
            return _summed(factors)
        first, *others = factors
        out = torch.mm(first[0], first[1].T, out_dtype=torch.float32)
        for term_MK, matrix_NK in others:
            if _adds_in_place(weight_NK.device):
                torch.addmm(out, term_MK, matrix_NK.T, out_dtype=torch.float32, out=out)
            else:
                out += torch.mm(term_MK, matrix_NK.T, out_dtype=torch.float32)
    return out


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
    """The same where there are no tensor cores: BF16 terms multiplied in float32, which holds each product exactly."""
    out = factors[0][0].float() @ factors[0][1].float().T
    for term_MK, matrix_NK in factors[1:]:
        out += term_MK.float() @ matrix_NK.float().T
    return out


@contextmanager
def _float32_reductions() -> Iterator[None]:
    """No reduction in BF16 inside the library, whatever the process has chosen for itself."""
    flags = torch.backends.cuda.matmul
    before = flags.allow_bf16_reduced_precision_reduction
    flags.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        flags.allow_bf16_reduced_precision_reduction = before


@functools.cache
def _adds_in_place(device: torch.device) -> bool:
    """Whether this torch adds a BF16 product to a float32 matrix in one call: releases before 2.9 or so do not."""
    factor, out = torch.ones(16, 16, dtype=torch.bfloat16, device=device), torch.ones(16, 16, device=device)
    try:
        torch.addmm(out, factor, factor, out_dtype=torch.float32, out=out)
    except (RuntimeError, TypeError):
        return False
    return bool((out == 17.0).all())


@functools.cache
def has_float32_output(device: torch.device) -> bool:
    """Whether this torch multiplies BF16 matrices into a float32 one on the device."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    factor = torch.full((16, 16), 1.0 + 2.0**-7, dtype=torch.bfloat16, device=device)
    try:
        out = torch.mm(factor, factor, out_dtype=torch.float32)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return bool((out == 16.0 * (1.0 + 2.0**-7) ** 2).all())


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
    terms_3MK = split(x.reshape(-1, x.shape[-1]), impl)
    out_MN = _product(terms_3MK, weight, impl).reshape(*x.shape[:-1], weight.shape[0])
    return out_MN if bias is None else out_MN.add_(bias)


def _product(terms_3MK: Tensor, weight_NK: Tensor, impl: Implementation | None) -> Tensor:
    """By the kernel, which is as fast as the library's products and rounds four times as well; by those without it."""
    matrix_NK = weight_NK if weight_NK.stride(1) == 1 else weight_NK.contiguous()
    if not takes_kernel(terms_3MK, impl):
        return accumulated(terms_3MK, matrix_NK)
    from loopscope.kernels.split_product_kernels import fused

    return fused(terms_3MK, matrix_NK)
