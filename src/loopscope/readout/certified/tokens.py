r"""Enclosures of one token's log probability, slope, curvature, higher cumulants and gains, from its float64 logits.

**Setting.** H, H⁺, the head W and its bias are stored numbers (BF16, FP16, FP32 or FP64), taken as exact. By definition
D = H⁺ − H as real numbers, z = W H + b and v = W D, so that the logits on the path are exactly z + αv. Only differences
to the reference label y matter: s = z − z_y and t = v − v_y. u = 2⁻⁵³ is the unit roundoff, γ_n = nu/(1 − nu).

**Logits.** Float64 holds every stored number, and products of BF16, FP16 or FP32 numbers exactly (at most 48 bits). A
sum of n products in any order, with or without fused multiply-add, rounds every term at most n times, so it is off by
at most γ_n Σ|H_i W_i| (Higham, Accuracy and Stability of Numerical Algorithms, Section 3.1). `product` adds the
products of c columns each, so that a term passes through at most c + ⌈D/c⌉ roundings instead of D; the difference D
and the bias add one each. By Cauchy–Schwarz Σ|H_i W_ai| ≤ ‖H‖ ‖W_a‖ ≤ ‖H‖ max_a ‖W_a‖. So all logits of a token are
off by at most

    E_z = γ_n (‖H‖ ω + β) + δ,    E_v = γ_n ‖D‖ ω + δ,    n = c + ⌈D/c⌉ + 4,    ω = max ‖W_a‖,    β = max |b_a|,

where δ = D 2⁻¹⁰⁷³ covers products of FP64 numbers that underflow, and is absent where H (or D) is zero. The norms are
computed of rows divided by their largest entry, since squares of FP64 numbers underflow, and enlarged by more than
their own rounding. Then |ŝ − s| ≤ E_s = 2E_z + u max|ŝ| and
|t̂ − t| ≤ E_t = 2E_v + u max|t̂|, and ŝ_y = t̂_y = 0 exactly.

**Weights.** At a float64 scale α the exponent is ŷ_a = ŝ_a + αt̂_a with two roundings, less its largest value M (any
number would do: it cancels) with one more. With S = max|ŝ|, T = max|t̂| the exponent is off by at most

    η = E_s + αE_t + 8u (S + αT),

and ŵ_a = exp of it by 2^-52 `ULPS` of itself. So w_a = ŵ_a (1 + θ_a) with |θ_a| ≤ ρ = η + η² + 4 `ULPS` u for η ≤ 1/2;
beyond that nothing is certified. Where exp underflows w_a and ŵ_a differ by at most τ = 2⁻¹⁰²¹.

**Sums.** Σ ŵ t̂^j over a ≠ y (t̂_y = 0) is the product of the weights with a matrix of powers, b entries of the
vocabulary at a time, and the B blocks are added: a term passes through at most n = b + B + 8 roundings (4 of them in
its power), so each sum is off by at most γ_n Σ ŵ|t̂|^j, and V 2⁻¹⁰⁷⁰ where terms underflow. Σ ŵ|t̂| is summed as well,
which keeps slopes accurate relative to their own terms; Σ ŵ|t̂|³ ≤ √(Σ ŵt̂² Σ ŵt̂⁴) by Cauchy–Schwarz.

**Moments.** The computed weights ŵ define a softmax p̂; the sums enclose its moments up to summation error.
Three steps lead from there to the true p and t. Write E for expectations under p, Ê under p̂ and P for p(a ≠ y).

*Weights.* w = ŵ(1 + θ), |θ| ≤ ρ. For every f,  E f − Ê f = Σ ŵθ(f − Êf) / Σ ŵ(1 + θ),  so with ρ' = ρ/(1 − ρ)

    |E f − Ê f| ≤ ρ' Ê|f − Ê f| ≤ ρ' min{2 Ê|f|, √(Var^ f)}.

For the variance take f = (t̂ − Ê t̂)² ≥ 0: E f lies in [1 − 2ρ', 1 + 2ρ'] Ê f because (1 + ρ)/(1 − ρ) = 1 + 2ρ' and
(1 − ρ)/(1 + ρ) ≥ 1 − 2ρ', and Var t̂ = E f − (E t̂ − Ê t̂)² with the square at most ρ'² Ê f. So
Var t̂ ∈ [1 − 2ρ' − ρ'², 1 + 2ρ'] Var^ t̂.

*Displacements.* |t − t̂| ≤ E_t, and t_y = t̂_y = 0, so |E t − E t̂| ≤ E_t P. A standard deviation is a seminorm:
|√Var t − √Var t̂| ≤ √(E (t − t̂)²) ≤ E_t √P. For j = 2, 3, 4: |E t^j − E t̂^j| ≤ j E_t (T + E_t)^{j−1} P.

*Underflow* changes weights by at most τ each, so the mean of f by at most 2Vτ max|f| (the likeliest weight is 1).

**Log probability.** y's own weight is e^{−M} exactly. M = 0 means that y is likeliest: log p_y = −log1p Σ_{a≠y} w_a.
Otherwise log p_y = −(M + log(e^{−M} + Σ_{a≠y} w_a)), a sum of terms of one sign.

**Gain.** φ(α) = −log1p E_0[e^{αt} − 1]: exact, and small where the gain is. With f = expm1 of the computed α t̂, an
argument off by at most δ = α(E_t + 2uT) and a result off by `ULPS` units, f is off by at most
(1 + |f|)(e^δ − 1) + 2⁻⁵¹ `ULPS` |f|, and (e^δ − 1) ≤ 2δ for δ ≤ 1. The weights are those of α = 0. Besides
φ(α) = log p_y(α) − log p_y(0), which is better for large gains. Both hold, so their meet does.

Slope φ' = −E t, curvature φ'' = −Var t, as everywhere in loopscope. Shapes: t tokens, D hidden width, V vocabulary
entries in B blocks of b (the last one padded), K scales.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.envelope import Moments
from loopscope.readout.certified.intervals import SMALLEST, ULPS, UNIT, Interval, down, gamma, up

_COLUMNS = 256
"""Columns of the states that are multiplied at a time."""
BLOCK = 512
"""Vocabulary entries whose terms are added at a time."""
ENLARGED = 1.0 + 2.0**-30
"""Above the rounding of a norm over fewer than 2²⁰ numbers, and of the few products that bounds are made of."""
_UNDERFLOW = 2.0**-1021
_LARGEST_EXPONENT = 600.0
"""Of e^{αt} under a mean: e^600 times the lost weight of the whole vocabulary is still nothing."""


class RelativeLogits(NamedTuple):
    """s = z − z_y and t = v − v_y of some tokens, computed, with bounds of their errors that hold for every entry.

    Attributes:
        s_tBb: ŝ; −∞ where the vocabulary is padded.
        t_tBb: t̂; 0 there.
        other_tBb: 1 for every entry but y and the padding.
        s_error_t: E_s.
        t_error_t: E_t.
        s_size_t: S = max|ŝ|.
        t_size_t: T = max|t̂|.
        spread_t: at least max t − min t.
    """

    s_tBb: Tensor
    t_tBb: Tensor
    other_tBb: Tensor
    s_error_t: Tensor
    t_error_t: Tensor
    s_size_t: Tensor
    t_size_t: Tensor
    spread_t: Tensor

    def some(self, rows: slice) -> RelativeLogits:
        """Some of the tokens."""
        return RelativeLogits(*(values[rows] for values in self))


def relative_logits(
    h_tD: Tensor, h_plus_tD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_t: Tensor
) -> RelativeLogits:
    """Both products with the head, and their differences to the reference label's."""
    h_tD, h_plus_tD, weight_VD = (each.detach().double() for each in (h_tD, h_plus_tD, weight_VD))
    d_tD = h_plus_tD - h_tD
    (vocabulary, width), row_norm = weight_VD.shape, float(norms(weight_VD).max())
    bound = gamma(min(width, _COLUMNS) + -(-width // _COLUMNS) + 4)
    z_tV, v_tV, bias_size = product(h_tD, weight_VD), product(d_tD, weight_VD), 0.0
    if bias_V is not None:
        z_tV += bias_V.detach().double()
        bias_size = float(bias_V.detach().double().abs().max())
    z_error_t, v_error_t = (
        (bound * (row_norm * norm_t + extra) + 2 * width * SMALLEST * (norm_t > 0)) * ENLARGED
        for norm_t, extra in ((norms(h_tD), bias_size), (norms(d_tD), 0.0))
    )
    y_t1 = targets_t.unsqueeze(1)
    for logits in (z_tV, v_tV):
        logits -= logits.gather(1, y_t1)
    sizes = [logits.abs().amax(1) for logits in (z_tV, v_tV)]
    errors = [(2.0 * error + UNIT * size) * ENLARGED for error, size in zip((z_error_t, v_error_t), sizes, strict=True)]
    spread_t = (v_tV.amax(1) - v_tV.amin(1) + 2.0 * errors[1]) * ENLARGED
    other_tV = torch.ones_like(v_tV).scatter_(1, y_t1, 0.0)
    block = min(BLOCK, 1 << (vocabulary - 1).bit_length())
    padding = -vocabulary % block
    padded = [
        torch.nn.functional.pad(entries, (0, padding), value=filler).view(len(targets_t), -1, block)
        for entries, filler in ((z_tV, -torch.inf), (v_tV, 0.0), (other_tV, 0.0))
    ]
    s_tBb, t_tBb, other_tBb = padded
    return RelativeLogits(s_tBb, t_tBb, other_tBb, errors[0], errors[1], sizes[0], sizes[1], spread_t)


def norms(rows_nD: Tensor) -> Tensor:
    """At least the norm of each row, and zero for a row of zeros."""
    largest_n1 = rows_nD.abs().amax(1, keepdim=True)
    scaled_nD = rows_nD / torch.where(largest_n1 > 0, largest_n1, 1.0)
    found_n = largest_n1[:, 0] * torch.linalg.vector_norm(scaled_nD, dim=1) * ENLARGED
    return torch.where(largest_n1[:, 0] > 0, up(found_n), 0.0)


def product(a_tD: Tensor, weight_VD: Tensor) -> Tensor:
    """A Wᵀ, a few columns at a time, so that no term passes through many roundings."""
    parts = zip(torch.split(a_tD, _COLUMNS, 1), torch.split(weight_VD, _COLUMNS, 1), strict=True)
    found = a_tD.new_zeros(len(a_tD), len(weight_VD))
    for a_tc, weight_Vc in parts:
        found += a_tc @ weight_Vc.T
    return found


def weight_error(logits: RelativeLogits, alpha_tK: Tensor) -> Tensor:
    """ρ at each scale, [t, K]; infinite where nothing can be said."""
    sizes = 8.0 * UNIT * (logits.s_size_t.unsqueeze(1) + alpha_tK * logits.t_size_t.unsqueeze(1))
    eta = (logits.s_error_t.unsqueeze(1) + alpha_tK * logits.t_error_t.unsqueeze(1) + sizes) * ENLARGED
    rho = (eta + eta * eta + 4.0 * ULPS * UNIT) * ENLARGED
    return torch.where(eta <= 0.5, rho, torch.inf)


def weights(logits: RelativeLogits, alpha_tK: Tensor) -> tuple[Tensor, Tensor]:
    """ŵ at each scale [t, B, K, b] and M [t, K]."""
    alpha = alpha_tK[:, None, :, None]
    w_tBKb = torch.addcmul(logits.s_tBb.unsqueeze(2), logits.t_tBb.unsqueeze(2), alpha)
    peak_tK = w_tBKb.amax((1, 3))
    return w_tBKb.sub_(peak_tK[:, None, :, None]).exp_(), peak_tK


def summation_bound(logits: RelativeLogits) -> tuple[float, Tensor]:
    """The relative error of a sum over the vocabulary, and what its terms may have lost by underflow, [t, 1]."""
    _, blocks, block = logits.t_tBb.shape
    lost = blocks * block * 2.0**-1070 * (logits.t_size_t > 0)
    return gamma(block + blocks + 8), lost.unsqueeze(1).to(logits.t_tBb)


def underflow(logits: RelativeLogits) -> float:
    """What the true weights may add to the computed ones where exp underflowed, over the whole vocabulary: Vτ."""
    _, blocks, block = logits.t_tBb.shape
    return blocks * block * _UNDERFLOW


def moments(logits: RelativeLogits, alpha_tK: Tensor) -> Moments:
    """The moments of t at per-token scales, [t, K] each, from Σ ŵ t̂^j over a ≠ y."""
    t, (bound, lost_sum) = logits.t_tBb, summation_bound(logits)
    square = t * t
    powers_tBbJ = torch.stack([logits.other_tBb, t, t.abs(), square, square * t, square * square], -1)
    w_tBKb, peak = weights(logits, alpha_tK)
    sums = (w_tBKb @ powers_tBbJ).sum(1).unbind(-1)
    others, _, absolute, second, _, fourth = sums
    # The third by Cauchy–Schwarz, each root by itself: their product may underflow.
    sizes = (others, absolute, absolute, second, second.sqrt() * fourth.sqrt() * ENLARGED, fourth)
    enclosed = [
        Interval.around(found, (bound * size + lost_sum) * ENLARGED) for found, size in zip(sums, sizes, strict=True)
    ]
    all_others, own, rho = enclosed[0].clamp(0.0), _own_weight(peak), weight_error(logits, alpha_tK)
    mass, true_others = own + all_others, _true_weights(logits, all_others, rho)
    first, absolute_mean, second_mean, third, fourth_mean = (each / mass for each in enclosed[1:])
    away = true_others / (own + true_others)

    ratio, lost = _reweighting(rho), underflow(logits)
    size, error = logits.t_size_t.unsqueeze(1), logits.t_error_t.unsqueeze(1)
    variance_hat = (second_mean - first.square()).clamp(0.0)
    bend = torch.minimum(2.0 * absolute_mean.high, variance_hat.sqrt().high)
    mean = Interval.around(first, (ratio * bend + error * away.high + 4.0 * lost * size) * ENLARGED)
    variance = _variance(variance_hat, ratio, error, away, 16.0 * lost * size * size)

    # The third cumulant and the fourth central moment from raw moments about t = 0.
    odd = (second_mean.clamp(0.0).sqrt() * fourth_mean.clamp(0.0).sqrt()).high
    raw = []
    for j, found, largest in ((2, second_mean, second_mean.high), (3, third, odd), (4, fourth_mean, fourth_mean.high)):
        moved = j * error * (size + error) ** (j - 1) * away.high
        raw.append(Interval.around(found, (2.0 * ratio * largest + moved + 4.0 * lost * size**j) * ENLARGED))
    r2, r3, r4 = raw
    m2 = mean.square()
    kappa = r3 - mean * r2 * 3.0 + mean * m2 * 2.0
    mu4 = r4 - mean * r3 * 4.0 + m2 * r2 * 6.0 - m2.square() * 3.0
    return Moments(_log_p(peak, own, true_others), mean, variance, kappa, mu4.clamp(0.0))


def _log_p(peak: Tensor, own: Interval, others: Interval) -> Interval:
    return (-others.log1p()).where(peak == 0, -((own + others).log() + peak))


def _variance(hat: Interval, ratio: Tensor, error: Tensor, away: Interval, lost: Tensor) -> Interval:
    low = down(1.0 - (2.0 * ratio + ratio * ratio) * ENLARGED)
    factor = Interval(low.clamp(min=0.0), up(1.0 + 2.0 * ratio * ENLARGED))
    reweighted = Interval.around(hat * factor, lost).clamp(0.0)
    return Interval.around(reweighted.sqrt(), error * away.sqrt().high * ENLARGED).clamp(0.0).square()


def gains(logits: RelativeLogits, alpha_tK: Tensor, start_log_p: Interval, end_log_p: Interval) -> Interval:
    """φ at per-token scales, [t, K]; log p_y at scale 0 [t] and at these scales [t, K] are known."""
    zero_t1 = torch.zeros_like(alpha_tK[:, :1])
    w_tB1b, peak_t1 = weights(logits, zero_t1)
    columns = [logits.other_tBb]
    for alpha_t in alpha_tK.unbind(1):
        f_tBb = torch.expm1(logits.t_tBb * alpha_t[:, None, None])
        columns += [f_tBb, f_tBb.abs()]
    found = (w_tB1b @ torch.stack(columns, -1)).sum(1)[:, 0]
    del columns
    others, first, absolute = found[:, :1], found[:, 1::2], found[:, 2::2]
    bound, lost_t1 = summation_bound(logits)
    bound *= ENLARGED
    size, error_t1 = (x.unsqueeze(1) for x in (logits.t_size_t, logits.t_error_t))
    moved = alpha_tK * (error_t1 + 2.0 * UNIT * size) * ENLARGED
    moved = torch.where(moved <= 1.0, 2.0 * moved, torch.inf)
    error = (absolute * (bound + 4.0 * ULPS * UNIT + moved) + others * moved + lost_t1) * ENLARGED
    mass = _own_weight(peak_t1) + Interval.around(others, others * bound).clamp(0.0)
    mean = Interval.around(first, error) / mass
    magnitude = (Interval.point(absolute + error) / mass).high * ENLARGED
    # A weight that underflowed at scale 0 is at most τ, and f at most e^{αT}.
    largest = torch.exp((alpha_tK * (size + error_t1)).clamp(max=709.0)) * ENLARGED
    lost = 4.0 * underflow(logits) * largest * (size > 0)
    slack = (2.0 * _reweighting(weight_error(logits, zero_t1)) * magnitude + lost) * ENLARGED
    fits = (alpha_tK * size < _LARGEST_EXPONENT) & mean.low.isfinite() & mean.high.isfinite()
    unknown = torch.full_like(slack, torch.inf)
    small = (-Interval.around(mean, slack).log1p()).where(fits, Interval(-unknown, unknown))
    return small.meet((end_log_p - start_log_p.unsqueeze(1)).where(size > 0, small))


def _own_weight(peak: Tensor) -> Interval:
    """Y's weight e^{−M}."""
    return Interval.point(torch.ones_like(peak)).where(peak == 0, Interval.point(-peak).exp())


def _reweighting(rho: Tensor) -> Tensor:
    """ρ' = ρ/(1 − ρ), infinite where ρ is too large to say anything."""
    return torch.where(rho < 0.25, rho / (1.0 - rho) * ENLARGED, torch.inf)


def _true_weights(logits: RelativeLogits, others: Interval, rho: Tensor) -> Interval:
    lost = torch.full_like(rho, underflow(logits))
    return (others + Interval.around(others * Interval(-rho, rho), lost)).clamp(0.0)
