"""Sums over a block of the vocabulary, and those of two blocks together: the pairwise updates behind every sweep.

A block's sums are in units of its own likeliest entry d. To merge two blocks, the sums of the one whose d is less
likely are multiplied by exp(−|gap|), with gap the difference of the two logits at α. With W = W_a + W_b the masses, δ
the difference of the two means and s_a = W_a/W, s_b = W_b/W their shares (Pébay's updates),

    M₂ = M₂ₐ + M₂ᵦ + δ² W_a s_b,
    M₃ = M₃ₐ + M₃ᵦ + δ³ W_a s_b (s_a − s_b) + 3δ (s_a M₂ᵦ − s_b M₂ₐ),
    M₄ = M₄ₐ + M₄ᵦ + δ⁴ W_a s_b (s_a² − s_a s_b + s_b²) + 6δ² (s_a² M₂ᵦ + s_b² M₂ₐ) + 4δ (s_a M₃ᵦ − s_b M₃ₐ).

The torch functions serve the ways `moments` and `even`. In the kernels of `fp64_kernel`, `merge_states` does what
`merge_moments` does in plain code. `merged_third` and `merged_fourth` are shared with the sweep of `fused`, which adds
up M₂ with compensation and so has its own line for it.

Shapes: t tokens, K scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import Value, jit, tl


@dataclass(frozen=True)
class Moments:
    """Sums over a block, weighted by w_a = exp(z_a(α) − z_d(α)) with d the block's likeliest entry.

    Every field is [t, K]. `z0_d` and `v_d` are the logit and displacement of d; `others` is Σ_{a≠d} w_a, kept
    without the 1 of d itself; `mean` is the weighted mean of v, less v_d; `central[i]` is Σ w_a c_a^(i+2) about
    that mean; `slope` is Σ w_a (v_y − v_a).
    """

    z0_d: Tensor
    v_d: Tensor
    others: Tensor
    mean: Tensor
    central: tuple[Tensor, ...]
    slope: Tensor

    @property
    def mass(self) -> Tensor:
        """Σ w_a over the block."""
        return 1.0 + self.others


@dataclass(frozen=True)
class GainSums:
    """What the gain needs from a block.

    With e the block's likeliest entry at α = 0 and x_a = α(v_a − v_y): `z0_e` [t] is its logit, `others` [t] is
    Σ_{a≠e} exp(z0_a − z0_e), `small` [t, K] is Σ exp(z0_a − z0_e) · (expm1(x_a) where x_a ≤ 1, else −1), and `big`
    [t, K] is the α-weighted mass (in the units of `Moments`) of the entries with x_a > 1.
    """

    z0_e: Tensor
    others: Tensor
    small: Tensor
    big: Tensor


class LogMass(NamedTuple):
    """log Σ exp z(α) over some of the vocabulary as an unevaluated sum, z0_d + α v_d + log1p(others); [t, K] each."""

    z0_d: Tensor
    v_d: Tensor
    others: Tensor


class _Union(NamedTuple):
    """Which block leads, the other one's factor exp(−|gap|), and the mass of the union without its leading entry."""

    b_leads: Tensor
    factor: Tensor
    others: Tensor

    def pick(self, a: Tensor, b: Tensor) -> Tensor:
        """The leading block's."""
        return torch.where(self.b_leads, b, a)

    def factors(self) -> tuple[Tensor, Tensor]:
        """What brings each block's weights to the union's units."""
        return torch.where(self.b_leads, self.factor, 1.0), torch.where(self.b_leads, 1.0, self.factor)


def _union(gap: Tensor, others_a: Tensor, others_b: Tensor) -> _Union:
    """`gap` is the logit of b's leading entry less that of a's."""
    b_leads = gap > 0.0
    factor = torch.exp(-gap.abs())
    others = torch.where(b_leads, others_b + factor * (1.0 + others_a), others_a + factor * (1.0 + others_b))
    return _Union(b_leads, factor, others)


def merge_log_mass(a: LogMass, b: LogMass, scales_K: Tensor) -> LogMass:
    """The mass of the union of two blocks."""
    union = _union((b.z0_d - a.z0_d) + scales_K * (b.v_d - a.v_d), a.others, b.others)
    return LogMass(union.pick(a.z0_d, b.z0_d), union.pick(a.v_d, b.v_d), union.others)


def merge_moments(a: Moments, b: Moments, scales_K: Tensor) -> tuple[Moments, Tensor, Tensor]:
    """Moments of the union of two blocks, and the factors that bring each block's weights to the union's units."""
    union = _union((b.z0_d - a.z0_d) + scales_K * (b.v_d - a.v_d), a.others, b.others)
    factor_a, factor_b = union.factors()
    mass_a, mass_b, mass = factor_a * a.mass, factor_b * b.mass, 1.0 + union.others
    share_a, share_b = mass_a / mass, mass_b / mass
    pair = mass_a * share_b
    delta = (b.v_d - a.v_d) + (b.mean - a.mean)
    central_a = [factor_a * m for m in a.central]
    central_b = [factor_b * m for m in b.central]
    central: list[Tensor] = []
    if central_a:
        central.append(central_a[0] + central_b[0] + delta**2 * pair)
    if len(central_a) >= 2:
        shift = 3.0 * delta * (share_a * central_b[0] - share_b * central_a[0])
        central.append(central_a[1] + central_b[1] + delta**3 * pair * (share_a - share_b) + shift)
    if len(central_a) >= 3:
        spread = delta**4 * pair * (share_a**2 - share_a * share_b + share_b**2)
        shift = 6.0 * delta**2 * (share_a**2 * central_b[0] + share_b**2 * central_a[0])
        skew = 4.0 * delta * (share_a * central_b[1] - share_b * central_a[1])
        central.append(central_a[2] + central_b[2] + spread + shift + skew)
    merged = Moments(
        union.pick(a.z0_d, b.z0_d),
        union.pick(a.v_d, b.v_d),
        union.others,
        union.pick(a.mean + delta * share_b, b.mean - delta * share_a),
        tuple(central),
        factor_a * a.slope + factor_b * b.slope,
    )
    return merged, factor_a, factor_b


def merge_gain_sums(a: GainSums, b: GainSums, factor_a: Tensor, factor_b: Tensor) -> GainSums:
    """Gain sums of the union; the factors are those of `merge_moments`."""
    union = _union(b.z0_e - a.z0_e, a.others, b.others)
    zero_a, zero_b = union.factors()
    return GainSums(
        union.pick(a.z0_e, b.z0_e),
        union.others,
        zero_a.unsqueeze(1) * a.small + zero_b.unsqueeze(1) * b.small,
        factor_a * a.big + factor_b * b.big,
    )


@jit
def merged_third(
    second_a: Value, second_b: Value, third_a: Value, third_b: Value, delta: Value, pair: Value, share_a: Value,
    share_b: Value,
) -> Any:  # fmt: skip
    """M₃ of the union of two blocks, in common units; `pair` is W_a s_b."""
    third = third_a + third_b + delta * delta * delta * pair * (share_a - share_b)
    return third + 3.0 * delta * (share_a * second_b - share_b * second_a)


@jit
def merged_fourth(
    second_a: Value, second_b: Value, third_a: Value, third_b: Value, fourth: Value, delta: Value, pair: Value,
    share_a: Value, share_b: Value,
) -> Any:  # fmt: skip
    """M₄ of the union of two blocks; `fourth` is the sum of theirs."""
    square = delta * delta
    fourth += square * square * pair * (share_a * share_a - share_a * share_b + share_b * share_b)
    fourth += 6.0 * square * (share_a * share_a * second_b + share_b * share_b * second_a)
    return fourth + 4.0 * delta * (share_a * third_b - share_b * third_a)


@jit
def merge_states(a: Value, b: Value, alpha: Value) -> Any:
    """The state of the union: z_d, v_d, others, mean, slope and Σ w c², Σ w c³, Σ w c⁴, as in `Moments`."""
    z_a, v_a, others_a, mean_a, slope_a, second_a, third_a, fourth_a = a
    z_b, v_b, others_b, mean_b, slope_b, second_b, third_b, fourth_b = b
    gap = (z_b - z_a) + alpha * (v_b - v_a)
    b_leads = gap > 0.0
    factor = tl.exp(-tl.abs(gap))
    factor_a = tl.where(b_leads, factor, 1.0)
    factor_b = tl.where(b_leads, 1.0, factor)
    mass_a = factor_a * (1.0 + others_a)
    mass_b = factor_b * (1.0 + others_b)
    others = tl.where(b_leads, others_b + mass_a, others_a + mass_b)
    mass = 1.0 + others
    share_a = mass_a / mass
    share_b = mass_b / mass
    delta = (v_b - v_a) + (mean_b - mean_a)
    mean = tl.where(b_leads, mean_b - delta * share_a, mean_a + delta * share_b)
    pair = mass_a * share_b
    second_a = factor_a * second_a
    second_b = factor_b * second_b
    third_a = factor_a * third_a
    third_b = factor_b * third_b
    # In this order the compiler contracts the same products into sums whichever of the three are wanted.
    fourth = factor_a * fourth_a + factor_b * fourth_b
    fourth = merged_fourth(second_a, second_b, third_a, third_b, fourth, delta, pair, share_a, share_b)
    third = merged_third(second_a, second_b, third_a, third_b, delta, pair, share_a, share_b)
    second = second_a + second_b + delta * delta * pair
    slope = factor_a * slope_a + factor_b * slope_b
    return (
        tl.where(b_leads, z_b, z_a),
        tl.where(b_leads, v_b, v_a),
        others,
        mean,
        slope,
        second,
        third,
        fourth,
    )
