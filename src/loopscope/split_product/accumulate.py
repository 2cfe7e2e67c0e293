"""The split product by the BLAS library: one BF16 product after another, added up in float32.

A tensor core adds sixteen products at a time to its sum and cuts the result off instead of rounding it, which drifts
towards zero with the length of the sum (for Huginn's 17,920 inputs ten times the error of a rounded float32 sum). The
largest parts are therefore multiplied a stretch of inputs at a time, and the stretches added with rounding. The smaller
parts are so much smaller that their drift does not show.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

STRETCH = 896  # of inputs summed by the tensor cores alone; longer ones drift by more than float32's own rounding


def accumulated(parts_3MK: Tensor, weight_NK: Tensor, stretch: int = STRETCH) -> Tensor:
    """Σ parts Wᵀ in float32, [M, N], smallest first."""
    terms = [(parts_3MK[0], weight_NK), (parts_3MK[1], weight_NK)]
    terms += [(parts_3MK[2, :, inputs], weight_NK[:, inputs]) for inputs in stretches(weight_NK.shape[1], stretch)]
    with _float32_reductions():
        if not weight_NK.is_cuda:
            return _summed(terms)
        first, *others = terms
        out = torch.mm(first[0], first[1].T, out_dtype=torch.float32)
        for part_MK, matrix_NK in others:
            if _adds_in_place(weight_NK.device):
                torch.addmm(out, part_MK, matrix_NK.T, out_dtype=torch.float32, out=out)
            else:
                out += torch.mm(part_MK, matrix_NK.T, out_dtype=torch.float32)
    return out


def stretches(inputs: int, longest: int) -> Iterator[slice]:
    """Stretches of nearly equal length, no longer than `longest`, that begin at multiples of 16.

    >>> list(stretches(40, 32))
    [slice(0, 32, None), slice(32, 40, None)]
    """
    count = max(1, -(-inputs // longest))
    step = -(-inputs // (16 * count)) * 16
    for start in range(0, inputs, step):
        yield slice(start, min(start + step, inputs))


def _summed(terms: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The same where there are no tensor cores: BF16 parts multiplied in float32, which holds each product exactly."""
    out = terms[0][0].float() @ terms[0][1].float().T
    for part_MK, matrix_NK in terms[1:]:
        out += part_MK.float() @ matrix_NK.float().T
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
