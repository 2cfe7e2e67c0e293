"""A float32 number as the exact sum of three BF16 numbers, eight bits each, the smallest first.

    hi = round(x),   mid = round(x − hi),   lo = x − hi − mid

Both differences are exact. So is the sum for |x| ≥ 2⁻¹¹⁰; below, BF16 runs out of exponents and the sum is off by at
most 2⁻¹³⁴. Infinities and NaN, and the numbers beyond 3.39e38 that BF16 rounds to infinity, come out as NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.triton_kernels.choice import Implementation, takes_kernel


def split(x: Tensor, impl: Implementation | None = None) -> Tensor:
    """(lo, mid, hi) of a float32 tensor, BF16 [3, *x.shape], contiguous.

    >>> lo, mid, hi = split(torch.tensor([0.1])).double()
    >>> float(lo + mid + hi) == float(torch.tensor([0.1]).double())
    True
    """
    if takes_kernel(x, impl, (torch.float32,)):
        from loopscope.split_product.parts_kernel import split_in_one_pass

        return split_in_one_pass(x)
    out = torch.empty(3, *x.shape, dtype=torch.bfloat16, device=x.device)
    out[2] = x
    rest = x - out[2]
    out[1] = rest
    out[0] = rest.sub_(out[1])
    return out
