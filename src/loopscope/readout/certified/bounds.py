r"""The paper's bounds from enclosures of a path: safe scale, C(1), residual, regret.

They follow from enclosures of φ'' on every cell, of φ' and φ'' at the nodes, and bounds L_ℓ of |φ'''| where there
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

Shapes: N examples, L cells; their width h is a power of two.
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
    """From a path, the enclosures of its A and Q (perhaps better than the path's), and the float α̂."""
    h, start = 1.0 / path.third.shape[1], (quadratic * 2.0).unsqueeze(1)
    g, third = path.cells - start, Interval.point(path.third)
    from_start = path.curvatures - start
    farthest, nearest = from_start.magnitude, from_start.mignitude
    farthest[:, 0] = nearest[:, 0] = 0.0
    least, most = ((Interval.point(ends[:, :-1]) + ends[:, 1:]) * (0.5 * h) for ends in (nearest, farthest))
    slack = third * (0.25 * h * h)
    by_cells, by_nodes = total(Interval(g.mignitude, g.magnitude) * h, 1), total((least - slack).clamp(0.0), 1).low
    C = Interval(
        torch.maximum(by_cells.low, by_nodes).clamp(min=0.0),
        torch.minimum(by_cells.high, total(most + slack, 1).high),
    )
    residual = torch.minimum(_residual(path, slope, quadratic, g.magnitude), C.high)
    L_D = (-path.cells.low).amax(1).clamp(min=0.0)
    steepest = Interval.point(slope.magnitude) + path.cells.magnitude.amax(1)
    missed = Interval.point((_maximiser(slope, quadratic) - scale).magnitude)
    regret = (missed * steepest + _regret(residual, quadratic)).high
    return CertifiedBounds(L_D, *_safe(slope, L_D), C, residual, regret)


def _residual(path: PathEnclosure, slope: Interval, quadratic: Interval, steepest: Tensor) -> Tensor:
    count = path.third.shape[1]
    h = 1.0 / count
    nodes = torch.arange(count + 1, dtype=torch.float64, device=steepest.device).expand(len(steepest), -1) / count
    line = slope.unsqueeze(1) + (quadratic * 2.0).unsqueeze(1) * nodes
    at_nodes = (path.slopes - line).magnitude
    at_nodes[:, 0] = 0.0
    by_third, by_slope = Interval.point(path.third) * (0.125 * h * h), Interval.point(steepest) * (0.5 * h)
    ends = Interval.point(torch.maximum(at_nodes[:, :-1], at_nodes[:, 1:]))
    return (ends + torch.minimum(by_third.high, by_slope.high)).high.amax(1)


def _safe(slope: Interval, L_D: Tensor) -> tuple[Tensor, Tensor]:
    least = Interval.point(slope.low)
    scale = torch.where(L_D == 0, 1.0, (least * _SAFE / L_D).low).clamp(max=1.0)
    gain = (scale * (least - (Interval.point(L_D) * scale) * 0.5)).low
    promised = (slope.low > 0) & (scale > 0) & (gain > 0)
    return torch.where(promised, scale, torch.nan), torch.where(promised, gain, torch.nan)


def _maximiser(slope: Interval, quadratic: Interval) -> Interval:
    """The exact α̂: clip(−A/(2Q)) where Q < 0; for Q ≥ 0 one if A + Q > 0, else zero."""
    inside = (slope / (-quadratic * 2.0)).clamp(0.0, 1.0)
    end = slope + quadratic
    zero, one = torch.zeros_like(slope.low), torch.ones_like(slope.low)
    at_end = Interval(torch.where(end.low > 0, one, zero), torch.where(end.high <= 0, zero, one))
    return inside.where(quadratic.high < 0, at_end.where(quadratic.low >= 0, Interval(zero, one)))


def _regret(epsilon: Tensor, quadratic: Interval) -> Tensor:
    kappa = (Interval.point((-quadratic.high).clamp(min=0.0)) * 2.0).low.clamp(min=0.0)
    error, curved = Interval.point(epsilon), Interval.point(kappa)
    integrated, linear = (error.square() / (curved * 2.0)).high, (error - curved * 0.5).high
    return torch.where((kappa > 0) & (epsilon <= kappa), integrated, linear)
