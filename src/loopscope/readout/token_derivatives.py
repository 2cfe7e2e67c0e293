"""log softmax(z)_y of reference tokens and its derivatives from the Taylor coefficients of their logits, in float64.

Shapes: n = order + 1 coefficients, t tokens, V vocabulary entries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from loopscope.readout.composition import log_softmax_derivatives
from loopscope.readout.reference import log_probability_at_start
from loopscope.readout.sources import blocks
from loopscope.triton_kernels.choice import Implementation, takes_kernel

_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 23}  # of one coefficient's logits at once, in float64
_KERNEL_ORDER = 3


def token_derivatives(c_ntV: Tensor, targets_t: Tensor, impl: Implementation | None = None) -> Tensor:
    """The log probability u = log softmax(z)_y and u', u'', … along z(τ) = Σ_k c_k τ^k at τ = 0, float64 [n, t].

    Args:
        c_ntV: coefficients, order 4 at most; NaN and +∞ come out as NaN, a logit of −∞ has probability 0.
        targets_t: y, int64.
        impl: one pass over the logits by a kernel, or plain torch; see `loopscope.triton_kernels.choice`.
    """
    if c_ntV.shape[0] <= _KERNEL_ORDER + 1 and takes_kernel(c_ntV, impl, (torch.float32, torch.float64)):
        from loopscope.readout.logit_sums_kernel import logit_sums

        return _from_sums(c_ntV, targets_t, *logit_sums(c_ntV))
    size = _ELEMENTS.get(c_ntV.device.type, _ELEMENTS["cpu"])
    parts = []
    for rows in blocks(c_ntV.shape[1], max(1, size // c_ntV.shape[2])):
        z = [c_ntV[k, rows].double() * math.factorial(k) for k in range(c_ntV.shape[0])]
        value = log_probability_at_start(z[0], targets_t[rows])
        parts.append(torch.stack([value, *log_softmax_derivatives(z[0], z[1:], targets_t[rows].unsqueeze(1))]))
    return torch.cat(parts, 1)


def _from_sums(c_ntV: Tensor, targets_t: Tensor, likeliest_t: Tensor, sums_7t: Tensor) -> Tensor:
    """The same from sums over the vocabulary, everything seen from the likeliest entry d.

    With weights e^{z_a − z_d} and x_k = z_k − z_k,d: Σ_{a≠d} 1, then Σ x₁, x₂, x₃, x₁², x₁x₂, x₁³, of coefficients.
    """
    n = c_ntV.shape[0]
    y_nt1 = targets_t[None, :, None].expand(n, -1, 1)
    d_nt1 = likeliest_t[None, :, None].expand(n, -1, 1)
    gap_nt = (c_ntV.gather(2, y_nt1).double() - c_ntV.gather(2, d_nt1).double())[:, :, 0]
    out = [gap_nt[0] - torch.log1p(sums_7t[0])]
    m1, m2, m3, m11, m12, m111 = sums_7t[1:] / (1.0 + sums_7t[0])
    if n >= 2:
        out.append(gap_nt[1] - m1)
    if n >= 3:
        variance = m11 - m1 * m1
        out.append(2.0 * (gap_nt[2] - m2) - variance)
    if n >= 4:
        skew = m111 - 3.0 * m1 * m11 + 2.0 * m1**3
        out.append(6.0 * (gap_nt[3] - m3) - 6.0 * (m12 - m1 * m2) - skew)
    return torch.stack(out)
