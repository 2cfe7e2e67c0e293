"""RMS norm of series in one pass over the rows; `taylor.normalise` has the plain code.

With m(τ) the mean square plus ε, 2⟨x₀,x₁⟩ and so on, r = m^(−1/2) has r₁ = −½ρ₁r₀, r₂ = r₀(⅜ρ₁² − ½ρ₂) and
r₃ = r₀(−5⁄16 ρ₁³ + ¾ρ₁ρ₂ − ½ρ₃), where ρ_k = m_k/m₀; the result is the series product x·r times the weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.triton_kernels.language import Value, constexpr, jit, launch, power_of_two, tl


def rms_norm(c: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Coefficients [n, ..., D] over the last dimension; orders one to three."""
    n, width = c.shape[0], c.shape[-1]
    rows = c.contiguous()
    out = torch.empty_like(rows)
    count = rows[0].numel() // width
    block = power_of_two(width)
    launch(
        _rms_norm,
        (count,),
        c,
        rows,
        rows if weight is None else weight,
        out,
        count,
        width,
        eps,
        ORDER=n - 1,
        WEIGHTED=weight is not None,
        BLOCK=block,
        warps=min(16, max(1, block // 256)),
        fusion=True,
    )
    return out


@jit
def _rms_norm(
    x: Value,
    weight: Value,
    out: Value,
    rows: Value,
    width: Value,
    eps: Value,
    ORDER: constexpr,
    WEIGHTED: constexpr,
    BLOCK: constexpr,
) -> None:
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    step = tl.cast(rows, tl.int64) * width
    here = tl.program_id(0).to(tl.int64) * width + columns
    scale = 1.0
    if WEIGHTED:
        scale = tl.load(weight + columns, mask=inside, other=0.0)
    x0 = tl.load(x + here, mask=inside, other=0.0)
    x1 = tl.load(x + step + here, mask=inside, other=0.0)
    m0 = tl.sum(x0 * x0, axis=0) / width + eps
    r0 = 1.0 / tl.sqrt(m0)
    per = 1.0 / (m0 * width)
    p1 = 2.0 * tl.sum(x0 * x1, axis=0) * per
    r1 = -0.5 * p1 * r0
    tl.store(out + here, x0 * r0 * scale, mask=inside)
    tl.store(out + step + here, (x0 * r1 + x1 * r0) * scale, mask=inside)
    if ORDER >= 2:
        x2 = tl.load(x + 2 * step + here, mask=inside, other=0.0)
        p2 = tl.sum(2.0 * x0 * x2 + x1 * x1, axis=0) * per
        r2 = (0.375 * p1 * p1 - 0.5 * p2) * r0
        tl.store(out + 2 * step + here, (x0 * r2 + x1 * r1 + x2 * r0) * scale, mask=inside)
        if ORDER >= 3:
            x3 = tl.load(x + 3 * step + here, mask=inside, other=0.0)
            p3 = 2.0 * tl.sum(x0 * x3 + x1 * x2, axis=0) * per
            r3 = (-0.3125 * p1 * p1 * p1 + 0.75 * p1 * p2 - 0.5 * p3) * r0
            tl.store(out + 3 * step + here, (x0 * r3 + x1 * r2 + x2 * r1 + x3 * r0) * scale, mask=inside)
