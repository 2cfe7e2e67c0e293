"""The linear map of a float32 tensor and a BF16 matrix, and where it is taken apart.

`loopscope.triton_kernels.choice` says which implementation runs: `auto` splits on CUDA devices with BF16 tensor cores
where nothing is differentiated, `reference` multiplies a float32 copy of the matrix, `triton` splits anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.split_product.accumulate import accumulated, has_float32_output
from loopscope.split_product.parts import split
from loopscope.triton_kernels.choice import Implementation, chosen, is_differentiating, takes_kernel


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
    parts_3MK = split(x.reshape(-1, x.shape[-1]), impl)
    out_MN = _product(parts_3MK, weight, impl).reshape(*x.shape[:-1], weight.shape[0])
    return out_MN if bias is None else out_MN.add_(bias)


def _product(parts_3MK: Tensor, weight_NK: Tensor, impl: Implementation | None) -> Tensor:
    """By the kernel, which is as fast as the library's products and rounds four times as well; by those without it."""
    matrix_NK = weight_NK if weight_NK.stride(1) == 1 else weight_NK.contiguous()
    if not takes_kernel(parts_3MK, impl):
        return accumulated(parts_3MK, matrix_NK)
    from loopscope.split_product.product_kernel import fused

    return fused(parts_3MK, matrix_NK)
