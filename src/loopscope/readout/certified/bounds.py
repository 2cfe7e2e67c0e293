r"""Enclosures of φ'' and φ''' over whole cells of [0, 1], and the paper's bounds from them: safe scale, C(1), regret.

**Cells.** The lemma and its proof are those of `readout.affine.envelope`: on a cell [l, r] of width h, log Z, log N₂
and log N₄ are convex, so chords and tangents bound them, with a = KL(p_l‖p_r) and b = KL(p_r‖p_l). There the ends'
derivatives are float64 results; here they are intervals that contain the true ones, every operation is rounded outward,
and of each bound the end that keeps it true is taken. Two things differ:

- a and b are enclosed twice: from log p_y, a = φ(l) − φ(r) + hφ'(l), and from a + b = h(m(r) − m(l)) with both ≥ 0,
  which stays accurate for small displacements. Their meet is used.
- For the largest φ''' between two lines f_l + s₊x and f_r − s₋(h − x): for any x₀ no value left of x₀ exceeds
  max{f_l, f_l + s₊x₀} (s₊ ≥ 0) and none right of it max{f_r, f_r − s₋(h − x₀)}. Where the lines cross only decides how
  good this is, so x₀ needs no care.

h is a power of two: products with it are exact but for underflow.

**Bounds** follow from enclosures of φ'' on every cell, of φ' and φ'' at the nodes, and bounds L_ℓ of |φ'''| where there
are some (they are infinite for joint options). g = φ'' − φ''(0), interval arithmetic throughout.

**Safe scale** (Corollary, Beneficial Step Scales). L_D ≥ −φ'' on [0, 1] gives φ(α) ≥ αA − L_D α²/2 > 0 for 0 < α <
2A/L_D. With A's lower end and 1.8 instead of 2, rounded down, every 0 < α ≤ `safe_scale` has a gain, and at
`safe_scale` it is at least `safe_gain`. Null where A > 0 is not certain.

**Curvature deviation** C(1) = ∫₀¹|g|. On each cell |g| lies between the smallest and the largest absolute value of its
enclosure, which bounds h times it; and Proposition (Finite-Partition Curvature Bounds) bounds it by
max{0, T − P} and T + P, T = (h/2)(|g(t_ℓ)| + |g(t_{ℓ+1})|), P = L_ℓ h²/4. Each sum is a bound; the better one is taken.

**Residual envelope** (Proposition, Signed-Residual Approximation Bounds). e(t) = φ'(t) − A − 2Qt, e' = g. A point is
at most h/2 from a node, so |e| ≤ max at the cell's ends + min{L_ℓ h²/8, (h/2) max|g|}, and |e| ≤ C̄.

**Regret** (Theorem, Integrated Curvature Approximation, with its refinement by the scale domain; Proposition, Value
Bound for an Arbitrary Quadratic). With ε ≥ |e| on [0, 1] and κ = max{0, −2Q}: φ(α*) − φ(α̂) ≤ ε²/(2κ) if ε ≤ κ, else
ε − κ/2. Either falls as κ grows, so the smallest κ of Q's enclosure is taken. This is about α̂ = the exact maximiser of
the exact Aα + Qα². The float that is stored differs from it by at most some δ, the distance to the far end of α̂'s own
enclosure, and |φ'| ≤ |A| + max|φ''|; so the float's regret is at most that bound + δ (|A| + max|φ''|).

Shapes: t tokens, N examples, L cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.affine.envelope import choose_largest, choose_smallest
from loopscope.readout.certified.intervals import Interval, total
from loopscope.readout.certified.tokens import Moments

_EXPONENT_CAP = 600.0
_THIRD_CAP = 0.0962250448649377
"""Just above 1/(6√3), the largest third central moment of a distribution on an interval of length 1."""
_SAFE = 1.8  # 0.9 · 2
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
    left, right = (Moments(*(values[:, part] for values in nodes)) for part in (slice(None, -1), slice(1, None)))
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
    upper = choose_smallest(
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
    lower = choose_largest([(left.variance.low, from_left.low), (from_right.low, right.variance.low), (zero, zero)])

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


@dataclass(frozen=True)
class PathEnclosure:
    """What is enclosed of each example's path.

    Attributes:
        slopes: φ' at the nodes, [N, L + 1].
        curvatures: φ'' at the nodes, [N, L + 1].
        cells: φ'' throughout each cell, [N, L].
        third: at least |φ'''| on each cell, [N, L]; infinite where no bound is known.
    """

    slopes: Interval
    curvatures: Interval
    cells: Interval
    third: Tensor


@dataclass(frozen=True)
class CertifiedBounds:
    """The bounds of each example, [N] each; NaN where the paper promises nothing or nothing is certain."""

    L_D: Tensor
    safe_scale: Tensor
    safe_gain: Tensor
    C: Interval
    residual: Tensor
    regret: Tensor


def certified_bounds(path: PathEnclosure, slope: Interval, quadratic: Interval, scale: Tensor) -> CertifiedBounds:
    """From a path, the enclosures of its A and Q (perhaps better than the path's), and the float α̂."""
    count = path.third.shape[1]
    h, start = 1.0 / count, quadratic.times(2.0).unsqueeze(1)
    g = path.cells - start
    at_nodes = (path.curvatures - start).magnitude
    at_nodes_low = (path.curvatures - start).mignitude
    at_nodes[:, 0] = at_nodes_low[:, 0] = 0.0
    trapezoid_low = _sum(at_nodes_low[:, :-1], at_nodes_low[:, 1:]).times(0.5 * h)
    trapezoid_high = _sum(at_nodes[:, :-1], at_nodes[:, 1:]).times(0.5 * h)
    third = Interval.point(path.third)
    slack = third.times(0.25 * h * h)
    C = Interval(
        torch.maximum(
            total(Interval.point(g.mignitude).times(h), 1).low, total((trapezoid_low - slack).clamped(0.0), 1).low
        ).clamp(min=0.0),
        torch.minimum(total(Interval.point(g.magnitude).times(h), 1).high, total(trapezoid_high + slack, 1).high),
    )
    residual = torch.minimum(_residual(path, slope, quadratic, g.magnitude), C.high)
    L_D = (-path.cells.low).amax(1).clamp(min=0.0)
    safe_scale, safe_gain = _safe(slope, L_D)
    steepest = Interval.point(slope.magnitude) + Interval.point(path.cells.magnitude.amax(1))
    missed = Interval.point((_maximiser(slope, quadratic) - Interval.point(scale)).magnitude)
    regret = (Interval.point(_regret(residual, quadratic)) + missed * steepest).high
    return CertifiedBounds(L_D, safe_scale, safe_gain, C, residual, regret)


def _sum(a: Tensor, b: Tensor) -> Interval:
    return Interval.point(a) + Interval.point(b)


def _residual(path: PathEnclosure, slope: Interval, quadratic: Interval, steepest: Tensor) -> Tensor:
    count = path.third.shape[1]
    h = 1.0 / count
    nodes = torch.arange(count + 1, dtype=torch.float64, device=steepest.device).expand(len(steepest), -1) / count
    line = slope.unsqueeze(1) + quadratic.times(2.0).unsqueeze(1) * Interval.point(nodes)
    at_nodes = (path.slopes - line).magnitude
    at_nodes[:, 0] = 0.0
    between = torch.minimum(
        Interval.point(path.third).times(0.125 * h * h).high, Interval.point(steepest).times(0.5 * h).high
    )
    return (Interval.point(torch.maximum(at_nodes[:, :-1], at_nodes[:, 1:])) + Interval.point(between)).high.amax(1)


def _safe(slope: Interval, L_D: Tensor) -> tuple[Tensor, Tensor]:
    least, bend = Interval.point(slope.low), Interval.point(L_D)
    limit = (least.times(_SAFE) / bend).low
    scale = torch.where(L_D == 0, 1.0, limit).clamp(max=1.0)
    gain = (Interval.point(scale) * (least - (bend * Interval.point(scale)).times(0.5))).low
    promised = (slope.low > 0) & (scale > 0) & (gain > 0)
    return torch.where(promised, scale, torch.nan), torch.where(promised, gain, torch.nan)


def _maximiser(slope: Interval, quadratic: Interval) -> Interval:
    """The exact α̂: clip(−A/(2Q)) where Q < 0; for Q ≥ 0 one if A + Q > 0, else zero."""
    ratio = slope / (-quadratic.times(2.0))
    inside = ratio.each(lambda end: end.clamp(0.0, 1.0))
    end = slope + quadratic
    zero, one = torch.zeros_like(slope.low), torch.ones_like(slope.low)
    at_end = Interval(torch.where(end.low > 0, one, zero), torch.where(end.high <= 0, zero, one))
    unknown = Interval(zero, one)
    return inside.where(quadratic.high < 0, at_end.where(quadratic.low >= 0, unknown))


def _regret(epsilon: Tensor, quadratic: Interval) -> Tensor:
    kappa = Interval.point((-quadratic.high).clamp(min=0.0)).times(2.0).low.clamp(min=0.0)
    error, curved = Interval.point(epsilon), Interval.point(kappa)
    integrated = (error.square() / curved.times(2.0)).high
    linear = (error - curved.times(0.5)).high
    return torch.where((kappa > 0) & (epsilon <= kappa), integrated, linear)
