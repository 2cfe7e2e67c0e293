"""What each token brings beside the sweep: the reference label's own logits at both states, and how moments grow.

**Reference labels.** Products of BF16 numbers are exact in FP32 and added up in float64, so these are the true logits
rounded once.

**Moments** grow by as much as tensor cores took from this token's displacements (`growth`).

Shapes: T tokens, V rows of the head, D hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl
from loopscope.readout.affine.fused.growth import Growth

_BLOCK, _WARPS = 256, 1


def target_logits(
    h_TD: Tensor, h_plus_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_T: Tensor, growth: Growth
) -> Tensor:
    """z_y(0), z_y(1) and β of the moments of every token, float32 [3, T]."""
    tokens, width = h_TD.shape
    out = torch.empty(3, tokens, dtype=torch.float32, device=h_TD.device)
    launch(
        _target_logits,
        (tokens,),
        h_TD,
        h_TD,
        h_plus_TD,
        weight_VD,
        weight_VD if bias_V is None else bias_V,
        targets_T,
        growth.energy_D,
        growth.logits,
        growth.spread,
        out,
        tokens,
        width,
        growth.halfway,
        h_TD.stride(0),
        h_plus_TD.stride(0),
        weight_VD.stride(0),
        warps=_WARPS,
        HAS_BIAS=bias_V is not None,
        BLOCK=min(_BLOCK, power_of_two(width)),
    )
    return out


@jit
def _target_logits(
    h: Value,
    h_plus: Value,
    weight: Value,
    bias: Value,
    targets: Value,
    energy: Value,
    logits_growth: Value,
    spread: Value,
    out: Value,
    tokens: Value,
    width: Value,
    halfway: Value,
    h_stride: Value,
    h_plus_stride: Value,
    weight_stride: Value,
    HAS_BIAS: constexpr,
    BLOCK: constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + token)
    sum0 = tl.zeros([BLOCK], dtype=tl.float64)
    sum1 = tl.zeros([BLOCK], dtype=tl.float64)
    square0 = tl.zeros([BLOCK], dtype=tl.float32)
    square = tl.zeros([BLOCK], dtype=tl.float32)
    ahead = tl.zeros([BLOCK], dtype=tl.float32)
    given = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        entry = tl.load(weight + target * weight_stride + columns, mask=inside, other=0.0).to(tl.float32)
        x0 = tl.load(h + token * h_stride + columns, mask=inside, other=0.0).to(tl.float32)
        x1 = tl.load(h_plus + token * h_plus_stride + columns, mask=inside, other=0.0).to(tl.float32)
        sum0 += (x0 * entry).to(tl.float64)
        sum1 += (x1 * entry).to(tl.float64)
        share = tl.load(energy + columns, mask=inside, other=0.0)
        moved = (x1 - x0) * (x1 - x0) * share
        square0 += x0 * x0 * share
        square += moved
        ahead += moved * (width - columns)
        given += tl.where(columns < halfway, moved, 0.0)
    z0 = tl.sum(sum0, 0)
    z1 = tl.sum(sum1, 0)
    if HAS_BIAS:
        shift = tl.load(bias + target).to(tl.float64)
        z0 += shift
        z1 += shift
    tl.store(out + token, z0.to(tl.float32))
    tl.store(out + tokens + token, z1.to(tl.float32))
    tilt = tl.sum(square0, 0)
    length = tl.maximum(tl.sum(square, 0), 1.0e-37)
    growth = (tl.load(spread) + tl.load(spread + 1) * 5.0 * tilt / (4.0 + tilt)) * (tl.sum(ahead, 0) / width / length)
    growth -= (tl.load(logits_growth + 1) - 1.0) * (tl.sum(given, 0) / length)
    tl.store(out + 2 * tokens + token, growth)
