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

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.path import Derivatives

_ALLOWANCE = 1e-11
_SMALLEST = torch.finfo(torch.float64).tiny
_EXPONENT_CAP = 600.0  # beyond it a bound is useless anyway; exp stays finite


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


class CellBounds(NamedTuple):
    """Bounds on each cell, per token [t, cells] or averaged over tokens [N, cells]; left and right are θ = 0 and 1."""

    upper_left: Tensor
    upper_right: Tensor
    lower_left: Tensor
    lower_right: Tensor
    fourth_cumulant_high: Tensor
    fourth_cumulant_low: Tensor
    third_cumulant_cap: Tensor
    third_scale: Tensor


def cell_bounds(derivatives: Tensor, spread_t: Tensor, width: float) -> CellBounds:
    """Each token's bounds on each cell, from its derivatives 0..4 at the nodes [5, t, cells+1]."""
    phi, first, second, third, fourth = derivatives
    phi_l, phi_r = phi[:, :-1], phi[:, 1:]
    slope_l, slope_r = first[:, :-1], first[:, 1:]
    V = -second
    V_l, V_r = V[:, :-1], V[:, 1:]
    k3_l, k3_r = -third[:, :-1], -third[:, 1:]
    mu4 = -fourth + 3.0 * V**2
    mu4_l, mu4_r = mu4[:, :-1], mu4[:, 1:]
    h, R = width, spread_t.unsqueeze(1)

    # log Z(α) − αv_y = −φ(α) + const and m(α) − v_y = −φ'(α)
    a = (phi_l - phi_r + h * slope_l).clamp(min=0.0)
    b = (phi_r - phi_l - h * slope_r).clamp(min=0.0)
    e = 0.5 * (slope_l - slope_r).clamp(min=0.0)
    grow_a, grow_b = torch.exp(a.clamp(max=_EXPONENT_CAP)), torch.exp(b.clamp(max=_EXPONENT_CAP))

    B_l, B_r = V_l + e**2, V_r + e**2
    cap = (0.25 * R**2).expand_as(B_l)
    upper = choose_smallest([(B_l, B_r * grow_a), (B_l * grow_b, B_r), (cap, cap)])
    from_left = (V_l, B_l * (1.0 - a) + h * (k3_l - 2.0 * e * V_l) - e**2)
    from_right = (B_r * (1.0 - b) - h * (k3_r + 2.0 * e * V_r) - e**2, V_r)
    zero = torch.zeros_like(V_l)
    lower = choose_largest([from_left, from_right, (zero, zero)])

    sup_V = torch.maximum(*upper)
    inf_V = torch.minimum(*lower).clamp(min=0.0)
    M4_l = (mu4_l - 4.0 * e * k3_l + 6.0 * e**2 * V_l + e**4).clamp(min=0.0)
    M4_r = (mu4_r + 4.0 * e * k3_r + 6.0 * e**2 * V_r + e**4).clamp(min=0.0)
    sup_M4 = torch.minimum(torch.maximum(M4_l, M4_r * grow_a), torch.maximum(M4_l * grow_b, M4_r))
    sup_mu4 = torch.minimum((sup_M4**0.25 + e) ** 4, R**4 / 12.0)
    third_scale = torch.sqrt(sup_V) * torch.sqrt(sup_mu4)  # each by itself: their product may underflow
    third_cap = torch.minimum(third_scale, R**3 / (6.0 * 3.0**0.5))
    return CellBounds(*upper, *lower, sup_mu4 - 3.0 * inf_V**2, -2.0 * sup_V**2, third_cap, third_scale)


def envelope_from_bounds(
    derivatives: Derivatives, cells: CellBounds, range_moments: Tensor, *, single: bool
) -> Envelope:
    """The envelope of each example, from its derivatives at the nodes [N, cells+1] and its averaged cell bounds."""
    width = float(derivatives.alpha[1] - derivatives.alpha[0])
    third = derivatives.third
    f_l, f_r = third[:, :-1], third[:, 1:]
    rise, fall = -cells.fourth_cumulant_low, -cells.fourth_cumulant_high
    opening = rise - fall
    safe = opening.clamp(min=torch.finfo(torch.float64).tiny)
    x_high = ((f_r - f_l - fall * width) / safe).clamp(0.0, width)
    x_low = ((f_l - f_r + rise * width) / safe).clamp(0.0, width)
    highest = torch.maximum(torch.maximum(f_l, f_r), f_l + rise * x_high)
    lowest = torch.minimum(torch.minimum(f_l, f_r), f_l + fall * x_low)
    bound = torch.minimum(torch.maximum(highest, -lowest), cells.third_cumulant_cap)
    bound = bound + _ALLOWANCE * cells.third_scale
    bound = torch.where(bound > 0, bound + _SMALLEST, bound)
    upper = torch.maximum(cells.upper_left, cells.upper_right) * (1.0 + _ALLOWANCE)
    upper = torch.where(upper > 0, upper + _SMALLEST, upper)
    lower = torch.minimum(cells.lower_left, cells.lower_right).clamp(min=0.0) * (1.0 - _ALLOWANCE)
    if not single:
        return Envelope(derivatives, upper, lower, bound, range_moments)
    alone = Derivatives(derivatives.alpha, derivatives.stack[:, 0])
    return Envelope(alone, upper[0], lower[0], bound[0], range_moments[0])


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
