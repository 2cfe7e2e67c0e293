"""The same comparison as `endpoint_parts.compare` for one vocabulary block, with a third of the passes over it.

With δ = log q − log p and E = e^δ − 1 everything follows from p, δ and E: q = p(1 + E), and

    p (e^δ − 1 − δ) = p (E − δ),        q (e^{−δ} − 1 + δ) = p (δE − (E − δ)),        q − p = pE.

|δ| is at most the range R of v, which decides how E − δ is taken. From `_SMALL` on, E is expm1 δ and E − δ a
difference: its error ε|δ| is 2ε/|δ| of the δ²/2 that it is, which is little where δ is of the size of R; and where p is
peaked and δ nearly zero for that reason, |δ| is no larger than what the other entries add. Below `_SMALL`, E − δ is its
series. Beyond `_LARGE`, p may underflow where q does not; such rows go through `compare`.

Shapes: t tokens, c of them at a time, b vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from loopscope.readout.endpoint_parts import compare, entropy_change, excess
from loopscope.readout.sources import blocks

_SMALL, _LARGE = 0.05, 30.0
_TERMS = 8  # of the series for |δ| ≤ 0.05: the first neglected is below 1e-17 of the first
_ELEMENTS = 1 << 16  # half a megabyte of float64: a few such arrays stay in a core's cache


def compare_block(z0_tb: Tensor, v_tb: Tensor) -> Tensor:
    """Compare softmax(z0) with softmax(z0 + v) over one block: `Part.stacked`, [11, t]."""
    if z0_tb.is_cuda:  # to sort the rows by their range would wait for the device
        return _by_parts(z0_tb, v_tb)
    chunk = max(1, _ELEMENTS // z0_tb.shape[1])
    parts = []
    for rows in blocks(z0_tb.shape[0], chunk):
        v_cb = v_tb[rows]
        parts.append(_sorted(z0_tb[rows], v_cb, v_cb.amax(1) - v_cb.amin(1)))
    return torch.cat(parts, 1)


def _sorted(z0_cb: Tensor, v_cb: Tensor, spread_c: Tensor) -> Tensor:
    """Each row in the way that suits its range."""
    small_c, large_c = spread_c < _SMALL, ~(spread_c <= _LARGE)
    ways: tuple[tuple[Tensor, Callable[[Tensor, Tensor], Tensor]], ...] = (
        (~(small_c | large_c), _close),
        (small_c, _closer),
        (large_c, _by_parts),
    )
    out = z0_cb.new_empty(11, z0_cb.shape[0])
    for rows_c, way in ways:
        if bool(rows_c.all()):
            return way(z0_cb, v_cb)
        if bool(rows_c.any()):
            out[:, rows_c] = way(z0_cb[rows_c], v_cb[rows_c])
    return out


def _by_parts(z0_cb: Tensor, v_cb: Tensor) -> Tensor:
    nothing = torch.zeros_like(z0_cb)
    return compare(z0_cb, v_cb, nothing, nothing, nothing).part.stacked()


def _closer(z0_cb: Tensor, v_cb: Tensor) -> Tensor:
    return _close(z0_cb, v_cb, small=True)


def _close(z0_cb: Tensor, v_cb: Tensor, small: bool = False) -> Tensor:
    e_c1 = z0_cb.argmax(1, keepdim=True)
    z0_e_c1, v_e_c1 = z0_cb.gather(1, e_c1), v_cb.gather(1, e_c1)
    below_cb, u_cb = z0_cb - z0_e_c1, v_cb - v_e_c1
    q_cb = below_cb + u_cb
    d_c1 = q_cb.argmax(1, keepdim=True)
    lead_c1 = q_cb.gather(1, d_c1)
    torch.sub(z0_cb, z0_cb.gather(1, d_c1), out=q_cb)
    scratch_cb = v_cb - v_cb.gather(1, d_c1)
    below_q_cb = q_cb.add_(scratch_cb)

    weight_q_cb = torch.exp(below_q_cb, out=scratch_cb)
    others_q_c1 = _without(weight_q_cb, d_c1)
    log_q_c1 = torch.log1p(others_q_c1)
    final_entropy = log_q_c1 - below_q_cb.mul_(weight_q_cb).sum(1, keepdim=True) / (1.0 + others_q_c1)

    weight_cb = torch.exp(below_cb, out=scratch_cb)
    others_c1 = _without(weight_cb, e_c1)
    mass_c1, log_c1 = 1.0 + others_c1, torch.log1p(others_c1)
    growth_c1 = lead_c1 + (log_q_c1 - log_c1)
    if small:
        growth_c1 = torch.log1p(torch.expm1(u_cb).mul_(weight_cb).sum(1, keepdim=True) / mass_c1)
    delta_cb = u_cb.sub_(growth_c1)
    if small:
        rest_cb = excess(delta_cb, _TERMS)
        grown_cb = rest_cb + delta_cb
    else:
        grown_cb = torch.expm1(delta_cb, out=q_cb)
        rest_cb = grown_cb - delta_cb
    delta_cb.mul_(grown_cb).sub_(rest_cb)
    divergence = rest_cb.mul_(weight_cb).sum(1, keepdim=True) / mass_c1
    reverse = delta_cb.mul_(weight_cb).sum(1, keepdim=True) / mass_c1
    below_cb.mul_(weight_cb)
    mean_below = below_cb.sum(1, keepdim=True) / mass_c1
    gone_cb = below_cb.mul_(grown_cb)
    moved = -gone_cb.sum(1, keepdim=True) / mass_c1 - reverse
    moved_scale = gone_cb.abs_().sum(1, keepdim=True) / mass_c1 + reverse
    entropy = log_c1 - mean_below
    change, scale = entropy_change(entropy, final_entropy, moved, moved_scale)
    fields = (
        divergence,
        reverse,
        entropy,
        final_entropy,
        change,
        scale,
        z0_e_c1,
        v_e_c1,
        log_c1,
        growth_c1,
        mean_below,
    )
    return torch.cat(fields, 1).T


def _without(weight_cb: Tensor, entry_c1: Tensor) -> Tensor:
    """The mass of all entries but one, whose weight is 1: added up without it."""
    weight_cb.scatter_(1, entry_c1, 0.0)
    others_c1 = weight_cb.sum(1, keepdim=True)
    weight_cb.scatter_(1, entry_c1, 1.0)
    return others_c1
