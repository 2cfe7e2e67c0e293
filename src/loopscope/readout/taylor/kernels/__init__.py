"""Kernels for Taylor mode on a GPU: one operation a file, all coefficients up to the third in one pass, in float32.

The plain rules make a pass over memory for every product of two coefficients, ten of them for a product of series; on a
GPU they would cost about as much as the matrix products. Nothing here imports Triton until a kernel is launched. The
rules that call the kernels have the plain code; `takes_series_kernel` says which of the two runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.triton_kernels.choice import Implementation, takes_kernel

HIGHEST_ORDER = 3


def takes_series_kernel(coefficients: Tensor, impl: Implementation | None = None) -> bool:
    """Whether a kernel acts on these coefficients."""
    few = 2 <= coefficients.shape[0] <= HIGHEST_ORDER + 1
    return few and takes_kernel(coefficients, impl, (torch.float32,))
