r"""Enclosures of −φ'' and bounds of |φ'''| over whole cells of [0, 1], rounding included.

The lemma and its proof are those of `readout.affine.envelope`: on a cell [l, r] of width h, log Z, log N₂ and log N₄
are convex, so chords and tangents bound them, with a = KL(p_l‖p_r) and b = KL(p_r‖p_l). There the ends' derivatives are
float64 results; here they are intervals that contain the true ones, every operation is rounded outward, and of each
bound the end that keeps it true is taken. Two things differ:

- a and b are enclosed twice: from log p_y, a = φ(l) − φ(r) + hφ'(l), and from a + b = h(m(r) − m(l)) with both ≥ 0,
  which stays accurate for small displacements. Their meet is used.
- For the largest φ''' between two lines f_l + s₊x and f_r − s₋(h − x): for any x₀ no value left of x₀ exceeds
  max{f_l, f_l + s₊x₀} (s₊ ≥ 0) and none right of it max{f_r, f_r − s₋(h − x₀)}. Where the lines cross only decides how
  good this is, so x₀ needs no care.

h is a power of two: products with it are exact but for underflow. Shapes: t tokens, N examples, L cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.certified.intervals import Interval
from loopscope.readout.certified.tokens import Moments

_EXPONENT_CAP = 600.0
_THIRD_CAP = 0.0962250448649377
"""Just above 1/(6√3), the largest third central moment of a distribution on an interval of length 1."""
Average = Callable[[Interval], Interval]


@dataclass(frozen=True)
class Cells:
    """Bounds on each cell, averaged over the tokens of each example, [N, L] each.

    Attributes:
        curvature: −φ'' lies in it throughout the cell.
        third: |φ'''| is at most this throughout the cell.
    """

    curvature: Interval
    third: Tensor


def cell_bounds(nodes: Moments, spread_t: Tensor, average: Average) -> Cells:
    """From the moments of each token at the ends of the cells [t, L + 1]; `average` takes [t, L] to [N, L]."""
    cells = nodes.mean.low.shape[1] - 1
    h = 1.0 / cells
    left, right = _ends(nodes, slice(None, -1)), _ends(nodes, slice(1, None))
    spread = Interval.point(spread_t.unsqueeze(1).expand_as(left.mean.low))
    rise = (right.mean - left.mean).clamped(0.0)
    e = rise.times(0.5)
    together = rise.times(h)
    a = _divergence(left.log_p - right.log_p - left.mean.times(h), together)
    b = _divergence(right.log_p - left.log_p + right.mean.times(h), together)
    grow_a, grow_b = (Interval.point(x.high.clamp(max=_EXPONENT_CAP)).exp().high for x in (a, b))
    capped = (a.high > _EXPONENT_CAP) | (b.high > _EXPONENT_CAP)
    grow_a, grow_b = (torch.where(capped, torch.inf, x) for x in (grow_a, grow_b))

    e2 = e.square()
    B_l, B_r = left.variance + e2, right.variance + e2
    popoviciu = spread.square().times(0.25).high
    upper = _smallest(
        [
            (B_l.high, _times(B_r.high, grow_a)),
            (_times(B_l.high, grow_b), B_r.high),
            (popoviciu, popoviciu),
        ]
    )
    one = Interval.point(torch.ones_like(spread_t).unsqueeze(1).expand_as(e.low))
    from_left = B_l * (one - a) + (left.third - (e * left.variance).times(2.0)).times(h) - e2
    from_right = B_r * (one - b) - (right.third + (e * right.variance).times(2.0)).times(h) - e2
    zero = torch.zeros_like(e.low)
    lower = _largest([(left.variance.low, from_left.low), (from_right.low, right.variance.low), (zero, zero)])

    sup = Interval.point(torch.maximum(*upper))
    inf = Interval.point(torch.minimum(*lower).clamp(min=0.0))
    M4_l = left.fourth - (e * left.third).times(4.0) + (e2 * left.variance).times(6.0) + e2.square()
    M4_r = right.fourth + (e * right.third).times(4.0) + (e2 * right.variance).times(6.0) + e2.square()
    high_l, high_r = M4_l.high.clamp(min=0.0), M4_r.high.clamp(min=0.0)
    sup_M4 = torch.minimum(torch.maximum(high_l, _times(high_r, grow_a)), torch.maximum(_times(high_l, grow_b), high_r))
    by_minkowski = (Interval.point(sup_M4).sqrt().sqrt() + e).square().square().high
    twelfth = (spread.square().square() / Interval.point(torch.full_like(e.low, 12.0))).high
    sup_mu4 = Interval.point(torch.minimum(by_minkowski, twelfth))
    by_schwarz = (sup.sqrt() * sup_mu4.sqrt()).high
    cap = torch.minimum(by_schwarz, (spread.square() * spread).times(_THIRD_CAP).high)
    fourth_low = -(sup.square().times(2.0).high)
    fourth_high = (sup_mu4 - inf.square().times(3.0)).high

    mean_upper = [average(Interval.point(end)).high for end in upper]
    mean_lower = [average(Interval.point(end)).low for end in lower]
    curvature = Interval(torch.minimum(*mean_lower).clamp(min=0.0), torch.maximum(*mean_upper).clamp(min=0.0))
    third = _third(
        -average(left.third), -average(right.third),
        -average(Interval.point(fourth_low)).low, -average(Interval.point(fourth_high)).high, h,
    )  # fmt: skip
    return Cells(curvature, torch.minimum(third, average(Interval.point(cap)).high))


def _ends(nodes: Moments, places: slice) -> Moments:
    return Moments(*(getattr(nodes, name)[:, places] for name in Moments.__dataclass_fields__))


def _divergence(found: Interval, together: Interval) -> Interval:
    """One of two non-negative divergences, from its definition and from the sum of both."""
    return Interval(found.low.clamp(min=0.0), torch.minimum(found.high, together.high).clamp(min=0.0))


def _third(left: Interval, right: Interval, rise: Tensor, fall: Tensor, h: float) -> Tensor:
    """The largest |φ'''| on each cell, from φ''' at its ends and fall ≤ φ'''' ≤ rise on it."""
    opening = (rise - fall).clamp(min=torch.finfo(torch.float64).tiny)

    def highest(f_l: Tensor, f_r: Tensor, up: Tensor, low: Tensor) -> Tensor:
        x0 = torch.nan_to_num((f_r - f_l - low * h) / opening).clamp(0.0, h)
        start, rest = Interval.point(x0), Interval.point(torch.full_like(x0, h)) - Interval.point(x0)
        from_left = (Interval.point(f_l) + Interval.point(up.clamp(min=0.0)) * start).high
        from_right = (Interval.point(f_r) - Interval.point(low) * rest).high
        return torch.stack([f_l, f_r, from_left, from_right]).amax(0)

    above, below = highest(left.high, right.high, rise, fall), highest(-left.low, -right.low, -fall, -rise)
    found = torch.maximum(above, below).clamp(min=0.0)
    return torch.where(found.isnan(), torch.inf, found)


def _times(value: Tensor, factor: Tensor) -> Tensor:
    """An upper bound of a product of non-negative numbers; 0 · ∞ is ∞ unless the value is exactly zero."""
    return (Interval.point(value) * Interval.point(factor)).high


def _smallest(bounds: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Of several functions given by their end values, the one with the smallest sum, token by token."""
    left, right = bounds[0]
    for other_left, other_right in bounds[1:]:
        better = other_left + other_right < left + right
        left, right = torch.where(better, other_left, left), torch.where(better, other_right, right)
    return left, right


def _largest(bounds: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    left, right = _smallest([(-a, -b) for a, b in bounds])
    return -left, -right
