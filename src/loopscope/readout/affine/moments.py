"""Softmax moments of a logit displacement, swept over vocabulary blocks and merged in a fixed order.

For affine logits z(α) = z(0) + αv (Appendix C) every derivative of a token's utility is a cumulant of v under
p(α) = softmax z(α):

    φ'(α) = v_y − E[v],   φ''(α) = −Var[v],   φ'''(α) = −κ₃[v],   φ''''(α) = −κ₄[v] = −(E[c⁴] − 3 Var²),  c = v − E[v],

and the gain itself is φ(α) = −log E_{p(0)}[exp(α(v − v_y))].

Where the digits go, and how they are kept. A peaked softmax puts all but 1e-15 of its mass on one entry d, and
every derivative is then a sum over the others. So each block measures logits and displacements from its own
likeliest entry d, whose terms vanish exactly; central moments are taken about the block's mean in a second look at
the block, which is still in cache, and blocks are merged by the pairwise update formulas, in which variances add
up from non-negative parts. The slope is summed as Σ p_a (v_y − v_a), which does not cancel when the reference
itself is nearly certain. The gain is −log1p(Σ p_a(0) expm1(α(v_a − v_y))) while it is small, and a difference of
two log-sum-exps when it is not. Entries of the sum with α(v_a − v_y) > 1 are read off p(α) instead, so that
nothing overflows.

Shapes: t tokens, b vocabulary entries, K scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.affine.sources import LogitSource, TargetLogits, blocks


@dataclass(frozen=True)
class Moments:
    """Sums over part of the vocabulary, weighted by w_a = exp(z_a(α) − z_d(α)) with d the part's likeliest entry.

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
        """Σ w_a over the part."""
        return 1.0 + self.others


@dataclass(frozen=True)
class GainSums:
    """What the gain needs from part of the vocabulary.

    With e the part's likeliest entry at α = 0 and x_a = α(v_a − v_y): `z0_e` [t] is its logit, `others` [t] is
    Σ_{a≠e} exp(z0_a − z0_e), `small` [t, K] is Σ exp(z0_a − z0_e) · (expm1(x_a) where x_a ≤ 1, else −1), and `big`
    [t, K] is the α-weighted mass (in the units of `Moments`) of the entries with x_a > 1.
    """

    z0_e: Tensor
    others: Tensor
    small: Tensor
    big: Tensor


def block_sums(
    z0_tb: Tensor, v_tb: Tensor, v_y_t1: Tensor, scales: list[float], order: int
) -> tuple[Moments, GainSums]:
    """Moments and gain sums of one block at all scales; only one scale's weights exist at a time."""
    e_t1 = torch.argmax(z0_tb, dim=1, keepdim=True)
    z0_e_t1 = z0_tb.gather(1, e_t1)
    w0_tb = torch.exp(z0_tb - z0_e_t1)
    others0_t = _mass_without(w0_tb, e_t1)
    t_tb = v_tb - v_y_t1
    moments: list[Moments] = []
    small, big = [], []
    for alpha in scales:
        d_t1 = torch.argmax(z0_tb + alpha * v_tb, dim=1, keepdim=True)
        z0_d_t1, v_d_t1 = z0_tb.gather(1, d_t1), v_tb.gather(1, d_t1)
        u_tb = v_tb - v_d_t1
        w_tb = torch.exp((z0_tb - z0_d_t1) + alpha * u_tb)
        others_t = _mass_without(w_tb, d_t1)
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


def _mass_without(w_tb: Tensor, d_t1: Tensor) -> Tensor:
    """Σ_{a≠d} w_a, added up without the 1 of w_d, whose last digits it would lose."""
    w_tb.scatter_(1, d_t1, 0.0)
    others_t = w_tb.sum(1)
    w_tb.scatter_(1, d_t1, 1.0)
    return others_t


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


def merge_moments(a: Moments, b: Moments, scales_K: Tensor) -> tuple[Moments, Tensor, Tensor]:
    """Moments of the union of two parts, and the factors that bring each part's weights to the union's units.

    With W = W_a + W_b and δ the difference of the two means (Pébay's pairwise updates):
    M₂ = M₂ₐ + M₂ᵦ + δ² WₐWᵦ/W, and likewise for the third and fourth.
    """
    gap_tK = (b.z0_d - a.z0_d) + scales_K * (b.v_d - a.v_d)
    b_leads = gap_tK > 0.0
    factor_a = torch.where(b_leads, torch.exp(-gap_tK.clamp(min=0.0)), 1.0)
    factor_b = torch.where(b_leads, 1.0, torch.exp(gap_tK.clamp(max=0.0)))
    others = torch.where(
        b_leads,
        b.others + factor_a * a.mass,
        a.others + factor_b * b.mass,
    )
    mass_a, mass_b, mass = factor_a * a.mass, factor_b * b.mass, 1.0 + others
    delta = (b.v_d - a.v_d) + (b.mean - a.mean)
    mean = torch.where(b_leads, b.mean - delta * (mass_a / mass), a.mean + delta * (mass_b / mass))
    central_a = [factor_a * m for m in a.central]
    central_b = [factor_b * m for m in b.central]
    pair = mass_a * (mass_b / mass)
    share_a, share_b = mass_a / mass, mass_b / mass
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
        torch.where(b_leads, b.z0_d, a.z0_d),
        torch.where(b_leads, b.v_d, a.v_d),
        others,
        mean,
        tuple(central),
        factor_a * a.slope + factor_b * b.slope,
    )
    return merged, factor_a, factor_b


def merge_gain_sums(a: GainSums, b: GainSums, factor_a: Tensor, factor_b: Tensor) -> GainSums:
    """Gain sums of the union; the factors are those of `merge_moments`."""
    gap_t = b.z0_e - a.z0_e
    b_leads = gap_t > 0.0
    zero_a = torch.where(b_leads, torch.exp(-gap_t.clamp(min=0.0)), 1.0)
    zero_b = torch.where(b_leads, 1.0, torch.exp(gap_t.clamp(max=0.0)))
    others = torch.where(b_leads, b.others + zero_a * (1.0 + a.others), a.others + zero_b * (1.0 + b.others))
    return GainSums(
        torch.where(b_leads, b.z0_e, a.z0_e),
        others,
        zero_a.unsqueeze(1) * a.small + zero_b.unsqueeze(1) * b.small,
        factor_a * a.big + factor_b * b.big,
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


def _stack_scales(parts: list[Moments]) -> Moments:
    """One `Moments` with fields [t, K] from one per scale with fields [t]."""
    return Moments(
        torch.stack([p.z0_d for p in parts], 1),
        torch.stack([p.v_d for p in parts], 1),
        torch.stack([p.others for p in parts], 1),
        torch.stack([p.mean for p in parts], 1),
        tuple(torch.stack(m, 1) for m in zip(*(p.central for p in parts), strict=True)),
        torch.stack([p.slope for p in parts], 1),
    )
