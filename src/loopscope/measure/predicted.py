"""The quadratic scale where the coefficients are: `loopscope.path.predicted_scale` for tensors on a device."""

from __future__ import annotations

import torch
from torch import Tensor


def predicted_scale(slope: Tensor, quadratic: Tensor) -> Tensor:
    """α̂ = min argmax over [0, 1] of Aα + Qα² (Eq. predicted-step), by the same comparisons, to the bit.

    Q < 0: clip(−A/(2Q)) to [0, 1]. Q ≥ 0: 1 if A + Q > 0, else 0. What is not finite is not refused here; it is
    where the columns are put together on the host.

    >>> predicted_scale(torch.tensor([0.5, -0.5, 4.0, 1.0]), torch.tensor([-1.0, -1.0, -1.0, 0.0])).tolist()
    [0.25, 0.0, 1.0, 1.0]
    """
    concave = quadratic < 0
    at_one = torch.where(concave, slope >= -2 * quadratic, slope > -quadratic)
    interior = concave & (slope > 0) & ~at_one
    half = 0.5 * (slope / torch.where(interior, -quadratic, 1.0))
    return torch.where(at_one, 1.0, torch.where(interior, half, 0.0))
