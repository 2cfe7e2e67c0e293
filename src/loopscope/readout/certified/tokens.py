r"""Enclosures of one token's log probability, slope, curvature, higher cumulants and gains, from its power sums.

The computed weights ŵ define a softmax p̂ of their own; the sums enclose its moments up to summation error. Three steps
lead from there to the true p and t. Write E for expectations under p, Ê under p̂ and P for p(a ≠ y).

**Weights.** w = ŵ(1 + θ), |θ| ≤ ρ. For every f,  E f − Ê f = Σ ŵθ(f − Êf) / Σ ŵ(1 + θ),  so with ρ' = ρ/(1 − ρ)

    |E f − Ê f| ≤ ρ' Ê|f − Ê f| ≤ ρ' min{2 Ê|f|, √(Var^ f)}.

For the variance take f = (t̂ − Ê t̂)² ≥ 0: E f lies in [1 − 2ρ', 1 + 2ρ'] Ê f because (1 + ρ)/(1 − ρ) = 1 + 2ρ' and
(1 − ρ)/(1 + ρ) ≥ 1 − 2ρ', and Var t̂ = E f − (E t̂ − Ê t̂)² with the square at most ρ'² Ê f. So
Var t̂ ∈ [1 − 2ρ' − ρ'², 1 + 2ρ'] Var^ t̂.

**Displacements.** |t − t̂| ≤ E_t, and t_y = t̂_y = 0, so |E t − E t̂| ≤ E_t P. A standard deviation is a seminorm:
|√Var t − √Var t̂| ≤ √(E (t − t̂)²) ≤ E_t √P. For j = 2, 3, 4: |E t^j − E t̂^j| ≤ j E_t (T + E_t)^{j−1} P.

**Underflow** changes weights by at most τ each, so the mean of f by at most 2Vτ max|f| (the likeliest weight is 1).

**Log probability.** y's own weight is e^{−M} exactly. M = 0 means that y is likeliest: log p_y = −log1p Σ_{a≠y} w_a.
Otherwise log p_y = −(M + log(e^{−M} + Σ_{a≠y} w_a)), a sum of terms of one sign.

**Gain.** φ(α) = −log1p E_0[e^{αt} − 1]: exact, and small where the gain is. With f = expm1 of the computed α t̂, an
argument off by at most δ = α(E_t + 2uT) and a result off by `ULPS` units, f is off by at most
(1 + |f|)(e^δ − 1) + 2⁻⁵¹ `ULPS` |f|, and (e^δ − 1) ≤ 2δ for δ ≤ 1. The weights are those of α = 0. Besides
φ(α) = log p_y(α) − log p_y(0), which is better for large gains. Both hold, so their meet does.

Slope φ' = −E t, curvature φ'' = −Var t, as everywhere in loopscope. Shapes: t tokens, K scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.certified.intervals import ULPS, UNIT, Interval, down, up
from loopscope.readout.certified.sums import (
    ENLARGED,
    PowerSums,
    RelativeLogits,
    summation_bound,
    underflow,
    weight_error,
    weights,
)

_LARGEST_EXPONENT = 600.0
"""Of e^{αt} under a mean: e^600 times the lost weight of the whole vocabulary is still nothing."""


@dataclass(frozen=True)
class Moments:
    """What the softmax of each token is at K scales, [t, K] each.

    Attributes:
        log_p: log probability of the reference label.
        mean: E t = −φ'.
        variance: Var t = −φ''.
        third: the third cumulant, −φ'''.
        fourth: the fourth central moment.
    """

    log_p: Interval
    mean: Interval
    variance: Interval
    third: Interval
    fourth: Interval


def moments(logits: RelativeLogits, sums: PowerSums) -> Moments:
    """From sums to moments."""
    own = _own_weight(sums.peak)
    ratio = _reweighting(sums.weight_error)
    lost = torch.full_like(ratio, underflow(logits))
    size, error = (x.unsqueeze(1) for x in (logits.t_size_t, logits.t_error_t))
    true_others = _true_weights(logits, sums.others, sums.weight_error)
    log_p = _log_p(sums.peak, own, true_others)
    away = true_others / (own + true_others)

    mass = own + sums.others
    m_hat = sums.first / mass
    absolute = sums.absolute / mass
    variance_hat = (sums.second / mass - m_hat.square()).clamped(0.0)
    bend = torch.minimum(2.0 * absolute.high, variance_hat.sqrt().high)
    slack = (ratio * bend + error * away.high + 4.0 * lost * size) * ENLARGED
    mean = m_hat + Interval(-slack, slack)
    variance = _variance(variance_hat, ratio, error, away, 16.0 * lost * size * size)
    third, fourth = _higher(sums, mass, mean, ratio, size, error, away.high, lost)
    return Moments(log_p, mean, variance, third, fourth)


def _log_p(peak: Tensor, own: Interval, others: Interval) -> Interval:
    likeliest = -others.log1p()
    below = -(Interval.point(peak) + (own + others).log())
    return likeliest.where(peak == 0, below)


def _variance(hat: Interval, ratio: Tensor, error: Tensor, away: Interval, lost: Tensor) -> Interval:
    low = down(1.0 - (2.0 * ratio + ratio * ratio) * ENLARGED)
    factor = Interval(low.clamp(min=0.0), up(1.0 + 2.0 * ratio * ENLARGED))
    reweighted = (hat * factor + Interval(-lost, lost)).clamped(0.0)
    moved = error * away.sqrt().high * ENLARGED
    return (reweighted.sqrt() + Interval(-moved, moved)).clamped(0.0).square()


def _higher(
    sums: PowerSums,
    mass: Interval,
    mean: Interval,
    ratio: Tensor,
    size: Tensor,
    error: Tensor,
    away: Tensor,
    lost: Tensor,
) -> tuple[Interval, Interval]:
    """The third cumulant and the fourth central moment from raw moments about t = 0."""
    second, third, fourth = (found / mass for found in (sums.second, sums.third, sums.fourth))
    absolute = (second.clamped(0.0).sqrt() * fourth.clamped(0.0).sqrt()).high
    raw = []
    for j, found, magnitude in ((2, second, second.high), (3, third, absolute), (4, fourth, fourth.high)):
        moved = j * error * (size + error) ** (j - 1) * away
        slack = (2.0 * ratio * magnitude + moved + 4.0 * lost * size**j) * ENLARGED
        raw.append(found + Interval(-slack, slack))
    r2, r3, r4 = raw
    m2 = mean.square()
    kappa = r3 - (mean * r2).times(3.0) + (mean * m2).times(2.0)
    mu4 = r4 - (mean * r3).times(4.0) + (m2 * r2).times(6.0) - m2.square().times(3.0)
    return kappa, mu4.clamped(0.0)


def log_p_at(logits: RelativeLogits, alpha_tK: Tensor) -> Interval:
    """Log p_y at scales of each token's own, [t, K]."""
    w_tBKb, peak_tK = weights(logits, alpha_tK)
    others = (w_tBKb @ logits.other_tBb.unsqueeze(-1)).sum(1)[..., 0]
    bound, _ = summation_bound(logits)
    around = Interval.around(others, others * (bound * ENLARGED)).clamped(0.0)
    true_others = _true_weights(logits, around, weight_error(logits, alpha_tK))
    return _log_p(peak_tK, _own_weight(peak_tK), true_others)


def gains(logits: RelativeLogits, alpha_tK: Tensor, start_log_p: Interval, end_log_p: Interval) -> Interval:
    """φ at scales of each token's own, [t, K]; log p_y at scale 0 [t] and at these scales [t, K] are known."""
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
    mass = _own_weight(peak_t1) + Interval.around(others, others * bound).clamped(0.0)
    mean = Interval.around(first, error) / mass
    magnitude = (Interval.point(absolute + error) / mass).high * ENLARGED
    # A weight that underflowed at scale 0 is at most τ, and f at most e^{αT}.
    largest = torch.exp((alpha_tK * (size + error_t1)).clamp(max=709.0)) * ENLARGED
    lost = 4.0 * underflow(logits) * largest * (size > 0)
    slack = (2.0 * _reweighting(weight_error(logits, zero_t1)) * magnitude + lost) * ENLARGED
    fits = (alpha_tK * size < _LARGEST_EXPONENT) & mean.low.isfinite() & mean.high.isfinite()
    unknown = torch.full_like(slack, torch.inf)
    small = (-(mean + Interval(-slack, slack)).log1p()).where(fits, Interval(-unknown, unknown))
    return small.meet((end_log_p - start_log_p.unsqueeze(1)).where(size > 0, small))


def _own_weight(peak: Tensor) -> Interval:
    """Y's weight e^{−M}."""
    found, one = Interval.point(-peak).exp(), torch.ones_like(peak)
    return Interval.point(one).where(peak == 0, found)


def _reweighting(rho: Tensor) -> Tensor:
    """ρ' = ρ/(1 − ρ), infinite where ρ is too large to say anything."""
    return torch.where(rho < 0.25, rho / (1.0 - rho) * ENLARGED, torch.inf)


def _true_weights(logits: RelativeLogits, others: Interval, rho: Tensor) -> Interval:
    lost = torch.full_like(rho, underflow(logits))
    return (others + others * Interval(-rho, rho) + Interval(-lost, lost)).clamped(0.0)
