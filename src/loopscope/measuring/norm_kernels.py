"""‖H‖², ‖H⁺‖² and ‖D‖² of every position in one look at both states; `update.squared_norms` has the plain code."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl

_BLOCK = 1024


def squared_norms(h_RSD: Tensor, h_plus_RSD: Tensor) -> Tensor:
    """The three, float64 [3, R, S]: FP32 squares, added up in float64."""
    rows, positions, width = h_RSD.shape
    h, h_plus = h_RSD.contiguous(), h_plus_RSD.contiguous()
    out = torch.empty(3, rows, positions, dtype=torch.float64, device=h.device)
    block = min(_BLOCK, power_of_two(width))
    launch(_squared_norms, (rows * positions,), h, h, h_plus, out, rows * positions, width, BLOCK=block)
    return out


@jit
def _squared_norms(h: Value, h_plus: Value, out: Value, positions: Value, width: Value, BLOCK: constexpr) -> None:
    position = tl.program_id(0).to(tl.int64)
    sum_h = tl.zeros([BLOCK], dtype=tl.float64)
    sum_plus = tl.zeros([BLOCK], dtype=tl.float64)
    sum_d = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        a = tl.load(h + position * width + columns, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(h_plus + position * width + columns, mask=inside, other=0.0).to(tl.float32)
        d = b - a
        sum_h += (a * a).to(tl.float64)
        sum_plus += (b * b).to(tl.float64)
        sum_d += (d * d).to(tl.float64)
    tl.store(out + position, tl.sum(sum_h, 0))
    tl.store(out + positions + position, tl.sum(sum_plus, 0))
    tl.store(out + 2 * positions + position, tl.sum(sum_d, 0))
