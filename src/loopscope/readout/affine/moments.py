"""Sums over a block of the vocabulary, and those of two blocks together: the pairwise updates behind every sweep.

A block's sums are in units of its own likeliest entry d. To merge two blocks, the sums of the one whose d is less
likely are multiplied by exp(−|gap|), with gap the difference of the two logits at α. With W = W_a + W_b the masses, δ
the difference of the two means and s_a = W_a/W, s_b = W_b/W their shares (Pébay's updates),

    M₂ = M₂ₐ + M₂ᵦ + δ² W_a s_b,
    M₃ = M₃ₐ + M₃ᵦ + δ³ W_a s_b (s_a − s_b) + 3δ (s_a M₂ᵦ − s_b M₂ₐ),
    M₄ = M₄ₐ + M₄ᵦ + δ⁴ W_a s_b (s_a² − s_a s_b + s_b²) + 6δ² (s_a² M₂ᵦ + s_b² M₂ₐ) + 4δ (s_a M₃ᵦ − s_b M₃ₐ).

The torch functions serve the ways `moments` and `even`. In the kernels of `fp64_kernel`, `merge_states` does what
`merge_moments` does in plain code.

Shapes: t tokens, K scales.

Softmax moments of a logit displacement, swept over vocabulary blocks and merged in a fixed order.

For affine logits z(α) = z(0) + αv (Appendix C) every derivative of a token's utility is a cumulant of v under
p(α) = softmax z(α):

    φ'(α) = v_y − E[v],   φ''(α) = −Var[v],   φ'''(α) = −κ₃[v],   φ''''(α) = −κ₄[v] = −(E[c⁴] − 3 Var²),  c = v − E[v],

and the gain itself is φ(α) = −log E_{p(0)}[exp(α(v − v_y))].

Where the digits go, and how they are kept. A peaked softmax puts all but 1e-15 of its mass on one entry d, and
every derivative is then a sum over the others. So each block measures logits and displacements from its own
likeliest entry d, whose terms vanish exactly; central moments are taken about the block's mean in a second look at
the block, which is still in cache, and blocks are merged by the formulas above, in which variances add up
from non-negative terms. The slope is summed as Σ p_a (v_y − v_a), which does not cancel when the reference
itself is nearly certain. The gain is −log1p(Σ p_a(0) expm1(α(v_a − v_y))) while it is small, and a difference of
two log-sum-exps when it is not. Entries of the sum with α(v_a − v_y) > 1 are read off p(α) instead, so that
nothing overflows.

Shapes: t tokens, b vocabulary entries, K scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import Value, jit, tl
from loopscope.readout.affine.sources import LogitSource, TargetLogits, blocks


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
def _merged_third(
    second_a: Value, second_b: Value, third_a: Value, third_b: Value, delta: Value, pair: Value, share_a: Value,
    share_b: Value,
) -> Any:  # fmt: skip
    """M₃ of the union of two blocks, in common units; `pair` is W_a s_b."""
    third = third_a + third_b + delta * delta * delta * pair * (share_a - share_b)
    return third + 3.0 * delta * (share_a * second_b - share_b * second_a)


@jit
def _merged_fourth(
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
    fourth = _merged_fourth(second_a, second_b, third_a, third_b, fourth, delta, pair, share_a, share_b)
    third = _merged_third(second_a, second_b, third_a, third_b, delta, pair, share_a, share_b)
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


def block_sums(
    z0_tb: Tensor, v_tb: Tensor, v_y_t1: Tensor, scales: list[float], order: int
) -> tuple[Moments, GainSums]:
    """Moments and gain sums of one block at all scales; only one scale's weights exist at a time."""
    e_t1 = torch.argmax(z0_tb, dim=1, keepdim=True)
    z0_e_t1 = z0_tb.gather(1, e_t1)
    w0_tb = torch.exp(z0_tb - z0_e_t1)
    others0_t = mass_without(w0_tb, e_t1)[:, 0]
    t_tb = v_tb - v_y_t1
    moments: list[Moments] = []
    small, big = [], []
    for alpha in scales:
        d_t1 = torch.argmax(z0_tb + alpha * v_tb, dim=1, keepdim=True)
        z0_d_t1, v_d_t1 = z0_tb.gather(1, d_t1), v_tb.gather(1, d_t1)
        u_tb = v_tb - v_d_t1
        w_tb = torch.exp((z0_tb - z0_d_t1) + alpha * u_tb)
        others_t = mass_without(w_tb, d_t1)[:, 0]
        moments.append(
            Moments(
                z0_d_t1[:, 0],
                v_d_t1[:, 0],
                others_t,
                *_central_moments(w_tb, u_tb, 1.0 + others_t, order),
                -(w_tb * t_tb).sum(1) if order >= 1 else torch.zeros_like(others_t),
            )
        )
        x_tb = alpha * t_tb
        far_tb = x_tb > 1.0
        small.append((w0_tb * torch.expm1(x_tb).masked_fill_(far_tb, -1.0)).sum(1))
        big.append((w_tb * far_tb).sum(1))
    gain = GainSums(z0_e_t1[:, 0], others0_t, torch.stack(small, 1), torch.stack(big, 1))
    return _stack_scales(moments), gain


def mass_without(w_tb: Tensor, d_t1: Tensor) -> Tensor:
    """Σ_{a≠d} w_a, [t, 1], added up without the 1 of w_d, whose last digits it would lose."""
    w_tb.scatter_(1, d_t1, 0.0)
    others_t1 = w_tb.sum(1, keepdim=True)
    w_tb.scatter_(1, d_t1, 1.0)
    return others_t1


def _central_moments(w_tb: Tensor, u_tb: Tensor, mass_t: Tensor, order: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The weighted mean of u and Σ w c², Σ w c³, … about it."""
    if order < 2:
        return torch.zeros_like(mass_t), ()
    mean_t = (w_tb * u_tb).sum(1) / mass_t
    c_tb = u_tb - mean_t.unsqueeze(1)
    term_tb = w_tb * c_tb
    central = []
    for _ in range(order - 1):
        term_tb *= c_tb
        central.append(term_tb.sum(1))
    return mean_t, tuple(central)


def _stack_scales(of_scales: list[Moments]) -> Moments:
    """One `Moments` with fields [t, K] from one per scale with fields [t]."""
    return Moments(
        torch.stack([m.z0_d for m in of_scales], 1),
        torch.stack([m.v_d for m in of_scales], 1),
        torch.stack([m.others for m in of_scales], 1),
        torch.stack([m.mean for m in of_scales], 1),
        tuple(torch.stack(c, 1) for c in zip(*(m.central for m in of_scales), strict=True)),
        torch.stack([m.slope for m in of_scales], 1),
    )


def gain_from_sums(moments: Moments, sums: GainSums, v_y_t1: Tensor, scales_K: Tensor) -> Tensor:
    """φ(α) [t, K] from whole-vocabulary sums."""
    direct = (
        scales_K * (v_y_t1 - moments.v_d)
        - (moments.z0_d - sums.z0_e.unsqueeze(1))
        - (torch.log1p(moments.others) - torch.log1p(sums.others).unsqueeze(1))
    )
    small = sums.small / (1.0 + sums.others).unsqueeze(1)
    near = torch.exp(-direct.clamp(-1.0, 1.0)) * (sums.big / moments.mass) + small
    return torch.where(direct.abs() <= 1.0, -torch.log1p(near.clamp(min=-0.9)), direct)


def derivatives_from_moments(moments: Moments) -> list[Tensor]:
    """φ', φ'', φ''', φ'''' [t, K] from whole-vocabulary moments, as far as they were taken."""
    mass = moments.mass
    out = [moments.slope / mass]
    central = [m / mass for m in moments.central]
    if central:
        out.append(-central[0])
    if len(central) >= 2:
        out.append(-central[1])
    if len(central) >= 3:
        out.append(-(central[2] - 3.0 * central[0] ** 2))
    return out


@dataclass(frozen=True)
class Swept:
    """What one sweep over the vocabulary tells about some tokens.

    Attributes:
        derivatives: φ and its derivatives, [order+1, t, K].
        initial: log p_y(0), [t].
        spread: the range of the displacement, max v − min v, [t].
    """

    derivatives: Tensor
    initial: Tensor
    spread: Tensor


def sweep(
    source: LogitSource, rows: slice, targets_t: Tensor, scales: list[float], order: int, block_vocabulary: int
) -> Swept:
    """φ and its derivatives of some tokens at all scales in one sweep over the vocabulary."""
    target: TargetLogits = source.target_logits(rows, targets_t)
    scales_K = torch.tensor(scales, dtype=torch.float64, device=source.device)
    moments: Moments | None = None
    sums: GainSums | None = None
    low_t = high_t = target.v[:, 0]
    for columns in blocks(source.vocabulary, block_vocabulary):
        z0_tb, v_tb = source.block(rows, columns, targets_t, target)
        low_t, high_t = torch.minimum(low_t, v_tb.amin(1)), torch.maximum(high_t, v_tb.amax(1))
        block, gain = block_sums(z0_tb, v_tb, target.v, scales, order)
        if moments is None or sums is None:
            moments, sums = block, gain
        else:
            moments, factor_a, factor_b = merge_moments(moments, block, scales_K)
            sums = merge_gain_sums(sums, gain, factor_a, factor_b)
    assert moments is not None
    assert sums is not None
    derivatives = derivatives_from_moments(moments)[:order]
    return Swept(
        torch.stack([gain_from_sums(moments, sums, target.v, scales_K), *derivatives]),
        (target.z0[:, 0] - sums.z0_e) - torch.log1p(sums.others),
        high_t - low_t,
    )
