"""silu(gate) · up of series whose two halves lie side by side; `taylor.blocks` has the plain code.

With σ = sigmoid(g₀) and δ = σ(1−σ), the coefficients of sigmoid(g) are σ, δg₁, δg₂ + ½δ'g₁² and
δg₃ + δ'g₁g₂ + ⅙δ''g₁³, where δ' = δ(1−2σ) and δ'' = δ(1−6δ).
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.triton_kernels.language import Value, constexpr, jit, launch, power_of_two, tl

_BLOCK = 512


def gated_silu(c: Tensor) -> Tensor:
    """Coefficients [n, ..., 2F], gate first, → [n, ..., F]; orders one to three."""
    n, width = c.shape[0], c.shape[-1] // 2
    both = c.contiguous()
    out = torch.empty(*c.shape[:-1], width, dtype=c.dtype, device=c.device)
    rows = out[0].numel() // width
    block = min(_BLOCK, power_of_two(width))
    launch(
        _gated_silu,
        (rows, -(-width // block)),
        c,
        both,
        out,
        rows,
        width,
        ORDER=n - 1,
        BLOCK=block,
        fusion=True,
    )
    return out


@jit
def _gated_silu(both: Value, out: Value, rows: Value, width: Value, ORDER: constexpr, BLOCK: constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    step_in = tl.cast(rows, tl.int64) * 2 * width
    step_out = tl.cast(rows, tl.int64) * width
    gate = both + row * 2 * width + columns
    up = gate + width
    to = out + row * width + columns

    g0 = tl.load(gate, mask=inside, other=0.0)
    u0 = tl.load(up, mask=inside, other=0.0)
    # Both sigmoid(g) and 1 − sigmoid(g) without a difference, so that a saturated gate keeps its derivatives.
    small = tl.exp(-tl.abs(g0))
    near, far = 1.0 / (1.0 + small), small / (1.0 + small)
    y0 = tl.where(g0 >= 0, near, far)
    delta = near * far
    a0 = g0 * y0
    tl.store(to, a0 * u0, mask=inside)

    g1 = tl.load(gate + step_in, mask=inside, other=0.0)
    u1 = tl.load(up + step_in, mask=inside, other=0.0)
    y1 = delta * g1
    a1 = g0 * y1 + g1 * y0
    tl.store(to + step_out, a0 * u1 + a1 * u0, mask=inside)
    if ORDER >= 2:
        g2 = tl.load(gate + 2 * step_in, mask=inside, other=0.0)
        u2 = tl.load(up + 2 * step_in, mask=inside, other=0.0)
        tilt = tl.where(g0 >= 0, far - near, near - far)
        y2 = delta * (g2 + 0.5 * tilt * g1 * g1)
        a2 = g0 * y2 + g1 * y1 + g2 * y0
        tl.store(to + 2 * step_out, a0 * u2 + a1 * u1 + a2 * u0, mask=inside)
        if ORDER >= 3:
            g3 = tl.load(gate + 3 * step_in, mask=inside, other=0.0)
            u3 = tl.load(up + 3 * step_in, mask=inside, other=0.0)
            y3 = delta * (g3 + tilt * g1 * g2 + (1.0 - 6.0 * delta) * g1 * g1 * g1 * (1.0 / 6.0))
            a3 = g0 * y3 + g1 * y2 + g2 * y1 + g3 * y0
            tl.store(to + 3 * step_out, a0 * u3 + a1 * u2 + a2 * u1 + a3 * u0, mask=inside)
