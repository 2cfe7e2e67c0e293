r"""The paper's bounds, certified end to end: safe scale, C̲ ≤ C(1) ≤ C̄, residual envelope and regret of the float α̂.

All of them follow from enclosures of φ'' on every cell, of φ' and φ'' at the nodes, and bounds L_ℓ of |φ'''| where
there are some (they are infinite for joint options). g = φ'' − φ''(0), h the width of a cell, interval arithmetic
throughout.

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

Shapes: N examples, L cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.certified.intervals import Interval, total

_SAFE = 1.8  # 0.9 · 2


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
    """From a path, the enclosures of its A and Q (perhaps better than the path's own), and the float α̂."""
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
    missed = Interval.point(_distance(_maximiser(slope, quadratic), scale))
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
    inside = Interval(ratio.low.clamp(0.0, 1.0), ratio.high.clamp(0.0, 1.0))
    end = slope + quadratic
    zero, one = torch.zeros_like(slope.low), torch.ones_like(slope.low)
    at_end = Interval(torch.where(end.low > 0, one, zero), torch.where(end.high <= 0, zero, one))
    unknown = Interval(zero, one)
    return inside.where(quadratic.high < 0, at_end.where(quadratic.low >= 0, unknown))


def _distance(where: Interval, scale: Tensor) -> Tensor:
    point = Interval.point(scale)
    return torch.maximum((where - point).magnitude, torch.zeros_like(scale))


def _regret(epsilon: Tensor, quadratic: Interval) -> Tensor:
    kappa = Interval.point((-quadratic.high).clamp(min=0.0)).times(2.0).low.clamp(min=0.0)
    error, curved = Interval.point(epsilon), Interval.point(kappa)
    integrated = (error.square() / curved.times(2.0)).high
    linear = (error - curved.times(0.5)).high
    return torch.where((kappa > 0) & (epsilon <= kappa), integrated, linear)
