"""The quadratic scale where the coefficients are: `loopscope.path.predicted_scale` for tensors on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.path import scale_case


def predicted_scale(slope: Tensor, quadratic: Tensor) -> Tensor:
    """α̂ = min argmax over [0, 1] of Aα + Qα² (Eq. predicted-step), by the same rule (`scale_case`), to the bit.

    What is not finite is not refused here; it is where the columns are put together on the host.

    >>> predicted_scale(torch.tensor([0.5, -0.5, 4.0, 1.0]), torch.tensor([-1.0, -1.0, -1.0, 0.0])).tolist()
    [0.25, 0.0, 1.0, 1.0]
    """
    case = scale_case(slope, quadratic)
    half = 0.5 * (slope / torch.where(case.interior, -quadratic, 1.0))
    return torch.where(case.at_one, 1.0, torch.where(case.interior, half, 0.0))
