r"""Bounds of −φ'' and |φ'''| over whole cells of [0, 1] for affine logits, from derivatives at the cells' ends only.

The paper's bounds ask for constants that hold between samples (Cor. beneficial-step, Prop. curvature-partition,
Prop. root-sandwich); a largest sampled value is no such constant. Here they come from a change of measure.

**Setting.** One token, one cell [l, r] of width h, α = l + θh with θ ∈ [0, 1]. Z(α) = Σ exp z_a(α), m(α) = E_α[v],
V = Var_α[v] = −φ''. For fixed c and k = 2, 4 put N_k(α) = Σ exp(z_a(α)) (v_a − c)^k, so E_α[(v − c)^k] = N_k/Z.

**Lemma.** Z, N₂ and N₄ are sums of exponentials of affine functions of α with non-negative weights, so their
logarithms are convex in α. On the cell a convex function lies below its chord and above its tangents. With
a = KL(p_l‖p_r) = log Z(r) − log Z(l) − h m(l) and b = KL(p_r‖p_l) = h m(r) − log Z(r) + log Z(l), both ≥ 0, and
B_l, B_r the values of E[(v − c)^k] at the ends:

1. *Above.* Chord for N_k, tangent of Z at l: log E_α[(v−c)^k] ≤ (1−θ) log B_l + θ (log B_r + a). With the tangent at r:
   log E_α[(v−c)^k] ≤ (1−θ) (log B_l + b) + θ log B_r. Either right-hand side is affine in θ, its exponential convex.
2. *Below.* Tangent of N₂ at l, chord for Z, and e^x ≥ 1 + x:
   E_α[(v−c)²] ≥ B_l + θ (h E_l[(v−c)²(v−m(l))] − a B_l). With the tangent at r:
   E_α[(v−c)²] ≥ B_r − (1−θ) (h E_r[(v−c)²(v−m(r))] + b B_r). Both are affine in θ.

**Second derivative.** Take c halfway between m(l) and m(r). As m' = V ≥ 0, |m(α) − c| ≤ e := (m(r) − m(l))/2, so
E_α[(v−c)²] − e² ≤ V(α) ≤ E_α[(v−c)²], and B_l = V(l) + e², B_r = V(r) + e². So V has a convex upper bound and an
affine lower bound in θ for each token. The mean of convex functions is convex and largest at an end of the cell, the
mean of affine ones is affine and smallest at an end; so −φ'' of the example is bounded on the cell by two numbers
each way. Tokens may each use whichever bound is best for them, also V ≤ R²/4 with R = max v − min v (Popoviciu) and
V ≥ 0. The loss is of second order: a, b ≈ h²V/2 and e² ≈ h²V²/4.

**Third derivative.** κ₄ = μ₄ − 3V² with V² ≤ μ₄ (Jensen), so −2 sup V² ≤ κ₄ ≤ sup μ₄ − 3 inf V² on the cell. By
Minkowski μ₄^{1/4} ≤ E_α[(v−c)⁴]^{1/4} + e, bounded by item 1; also μ₄ ≤ R⁴/12, which among distributions on an
interval two end points attain. Averaged over tokens this gives s₋ ≤ φ'''' ≤ s₊ on the cell, and then φ''' lies under
both φ'''(l) + s₊(α − l) and φ'''(r) − s₋(r − α), and over their mirror images; the extremes are at the ends or where
the two lines cross. Independently |φ'''| ≤ mean √(sup V · sup μ₄) (Cauchy–Schwarz) and |φ'''| ≤ mean R³/(6√3).

All this is exact for real numbers. The ends' derivatives are float64 results; every bound is widened by 1e-11 of its
natural scale, which covers their rounding in practice and is not an outward-rounded certificate. Below the smallest
normal number float64 has no relative accuracy; upper bounds that are not zero are widened by that number, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.readout.blocks import blocks
from loopscope.readout.path import Derivatives

_ALLOWANCE = 1e-11
_TINY = torch.finfo(torch.float64).tiny
_THIRD_CAP = 0.0962250448649377
"""Just above 1/(6√3), the largest third central moment of a distribution on an interval of length 1."""
_CELL_TOKENS = 1 << 20  # tokens times cells at a time


@dataclass(frozen=True)
class Envelope:
    """Constants that bound an affine path's derivatives between its nodes.

    Attributes:
        derivatives: φ … φ'''' at the nodes, the ends of the cells.
        curvature_upper: on each cell, an upper bound of −φ'', [N, cells].
        curvature_lower: on each cell, a lower bound of −φ'', at least 0.
        third: on each cell, an upper bound of |φ'''|: the L_ℓ of Prop. curvature-partition.
        range_moments: means over tokens of R², R³ and R⁴, R the range of the displacement, [N, 3].

    Without a token-to-example index the example axis is absent.
    """

    derivatives: Derivatives
    curvature_upper: Tensor
    curvature_lower: Tensor
    third: Tensor
    range_moments: Tensor

    @property
    def nodes(self) -> Tensor:
        """The partition 0 = t_0 < … < t_N = 1."""
        return self.derivatives.alpha

    @property
    def L_D(self) -> Tensor:  # noqa: N802 - the paper's name
        """φ'' ≥ −L_D on all of [0, 1] (Cor. beneficial-step)."""
        return self.curvature_upper.amax(-1)

    @property
    def mu(self) -> Tensor:
        """φ'' ≤ −μ on all of [0, 1] (Prop. root-sandwich)."""
        return self.curvature_lower.amin(-1)

    @property
    def M(self) -> Tensor:  # noqa: N802 - the paper's name
        """|φ'''| ≤ M on all of [0, 1] (Assumption curvature-variation)."""
        return self.third.amax(-1)

    def single(self) -> Envelope:
        """The first example's, without the example axis."""
        rest = (self.curvature_upper, self.curvature_lower, self.third, self.range_moments)
        return Envelope(Derivatives(self.nodes, self.derivatives.stack[:, 0]), *(each[0] for each in rest))


class Moments(NamedTuple):
    """What the softmax of each token is at K scales, [t, K] each: tensors, or intervals that hold the exact numbers.

    Attributes:
        log_p: log probability of the reference label, but for a constant.
        mean: E v − v_y = −φ'.
        variance: Var v = −φ''.
        third: the third cumulant, −φ'''.
        fourth: the fourth central moment.
    """

    log_p: Any
    mean: Any
    variance: Any
    third: Any
    fourth: Any


class Cells(NamedTuple):
    """Bounds on each cell, averaged over the tokens of each example, [N, L] each: of −φ'' and of |φ'''|.

    `third_scale` is the mean of √(sup V · sup μ₄), the natural size of |φ'''|.
    """

    curvature_low: Tensor
    curvature_high: Tensor
    third: Tensor
    third_scale: Tensor


def cell_bounds(nodes: Moments, spread_t: Tensor, h: float, average: Callable[[Any], Any], exact: Any) -> Cells:
    """From the moments of each token at the ends of the cells, [t, L + 1].

    Args:
        nodes: the moments; where they are intervals, of each bound the end that keeps it true is taken.
        spread_t: at least R.
        h: the width of a cell.
        average: takes numbers of each token [t, L] to means over each example's tokens, [N, L].
        exact: makes a number of a tensor: an interval, or the tensor itself.
    """

    def upper_mean(tensor: Tensor) -> Any:
        return high(average(exact(tensor)))

    def grown(tensor: Tensor, factor: Tensor) -> Tensor:
        return torch.where(tensor == 0.0, 0.0, high(exact(tensor) * exact(factor)))

    left, right = (Moments(*(values[:, part] for values in nodes)) for part in (slice(None, -1), slice(1, None)))
    rise = (right.mean - left.mean).clamp(min=0.0)
    e, together = rise * 0.5, high(rise * h)
    a = capped(left.log_p - right.log_p - left.mean * h, together)
    b = capped(right.log_p - left.log_p + right.mean * h, together)
    grow_a, grow_b = (high(exact(high(each)).exp()) for each in (a, b))

    e2, R = e.square(), exact(spread_t.unsqueeze(1).expand_as(together))
    B_l, B_r = left.variance + e2, right.variance + e2
    popoviciu = high(R.square() * 0.25)
    upper = choose_smallest(
        [
            (high(B_l), grown(high(B_r), grow_a)),
            (grown(high(B_l), grow_b), high(B_r)),
            (popoviciu, popoviciu),
        ]
    )
    from_left = B_l * (1.0 - a) + (left.third - (e * left.variance) * 2.0) * h - e2
    from_right = B_r * (1.0 - b) - (right.third + (e * right.variance) * 2.0) * h - e2
    zero = torch.zeros_like(together)
    lower = choose_largest([(low(left.variance), low(from_left)), (low(from_right), low(right.variance)), (zero, zero)])

    sup_V, inf_V = torch.maximum(*upper), torch.minimum(*lower).clamp(min=0.0)
    M4_l = left.fourth - (e * left.third) * 4.0 + (e2 * left.variance) * 6.0 + e2.square()
    M4_r = right.fourth + (e * right.third) * 4.0 + (e2 * right.variance) * 6.0 + e2.square()
    high_l, high_r = high(M4_l).clamp(min=0.0), high(M4_r).clamp(min=0.0)
    sup_M4 = torch.minimum(torch.maximum(high_l, grown(high_r, grow_a)), torch.maximum(grown(high_l, grow_b), high_r))
    by_minkowski = high((exact(sup_M4).sqrt().sqrt() + e).square().square())
    sup_mu4 = torch.minimum(by_minkowski, high(R.square().square() / 12.0))
    third_scale = high(exact(sup_V).sqrt() * exact(sup_mu4).sqrt())  # each by itself: their product may underflow
    third_cap = torch.minimum(third_scale, high(R.square() * R * _THIRD_CAP))
    rise_t, fall_t = high(exact(sup_V).square() * 2.0), -high(exact(sup_mu4) - exact(inf_V).square() * 3.0)

    ends = [-average(left.third), -average(right.third)]
    third = _third(ends[0], ends[1], upper_mean(rise_t), -upper_mean(-fall_t), h, exact)
    return Cells(
        torch.minimum(*(low(average(exact(end))) for end in lower)).clamp(min=0.0),
        torch.maximum(*map(upper_mean, upper)).clamp(min=0.0),
        torch.minimum(third, upper_mean(third_cap)),
        upper_mean(third_scale),
    )


def high(number: Any) -> Any:
    """The upper end of an interval, a tensor itself."""
    return getattr(number, "high", number)


def low(number: Any) -> Any:
    """The lower end of an interval, a tensor itself."""
    return getattr(number, "low", number)


def capped(found: Any, together: Tensor) -> Any:
    """One of two non-negative divergences, from its definition and from the sum of both."""
    return found.clamp(min=0.0).minimum(together)


def _third(left: Any, right: Any, rise: Tensor, fall: Tensor, h: float, exact: Any) -> Tensor:
    """The largest |φ'''| on each cell, from φ''' at its ends and fall ≤ φ'''' ≤ rise on it."""
    opening = (rise - fall).clamp(min=_TINY)

    def highest(f_l: Tensor, f_r: Tensor, up: Tensor, down: Tensor) -> Tensor:
        # For any x no value left of it exceeds f_l + up · x, and none right of it f_r − down (h − x).
        x = torch.nan_to_num((f_r - f_l - down * h) / opening).clamp(0.0, h)
        from_left, from_right = exact(f_l) + exact(up.clamp(min=0.0)) * x, exact(f_r) - exact(down) * (h - exact(x))
        return torch.stack([f_l, f_r, high(from_left), high(from_right)]).amax(0)

    above = highest(high(left), high(right), rise, fall)
    below = highest(-low(left), -low(right), -fall, -rise)
    found = torch.maximum(above, below).clamp(min=0.0)
    return found.nan_to_num(torch.inf, torch.inf)


def envelope(
    nodes: Tensor, of_tokens: Tensor, of_examples: Tensor, spread_T: Tensor, average: Callable[[Tensor], Tensor]
) -> Envelope:
    """From the derivatives 0..4 of each token and example at the nodes, [5, ..., L + 1], some cells at a time."""
    count, found = len(nodes) - 1, []
    for cells in blocks(count, max(1, _CELL_TOKENS // len(spread_T))):
        phi, first, second, third, fourth = of_tokens[..., cells.start : cells.stop + 1]
        moments = Moments(phi, -first, -second, -third, 3.0 * second**2 - fourth)
        found.append(cell_bounds(moments, spread_T, 1.0 / count, average, lambda tensor: tensor))
    bounds = Cells(*(torch.cat(parts, 1) for parts in zip(*found, strict=True)))
    third, upper = bounds.third + _ALLOWANCE * bounds.third_scale, bounds.curvature_high * (1.0 + _ALLOWANCE)
    third, upper = (torch.where(each > 0, each + _TINY, each) for each in (third, upper))
    ranges = average(torch.stack([spread_T**power for power in (2, 3, 4)], 1))
    return Envelope(Derivatives(nodes, of_examples), upper, bounds.curvature_low * (1.0 - _ALLOWANCE), third, ranges)


def choose_smallest(bounds: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Of several functions given by their two end values, the one with the smallest sum, token by token."""
    left, right = bounds[0]
    for other_left, other_right in bounds[1:]:
        better = other_left + other_right < left + right
        left, right = torch.where(better, other_left, left), torch.where(better, other_right, right)
    return left, right


def choose_largest(bounds: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Of several functions given by their two end values, the one with the largest sum, token by token."""
    left, right = choose_smallest([(-a, -b) for a, b in bounds])
    return -left, -right
