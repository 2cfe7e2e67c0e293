"""Softmax moments of a logit displacement, swept over vocabulary blocks and merged in a fixed order.

For affine logits z(α) = z(0) + αv (Appendix C) every derivative of a token's utility is a cumulant of v under
p(α) = softmax z(α):

    φ'(α) = v_y − E[v],   φ''(α) = −Var[v],   φ'''(α) = −κ₃[v],   φ''''(α) = −κ₄[v] = −(E[c⁴] − 3 Var²),  c = v − E[v],

and the gain itself is φ(α) = −log E_{p(0)}[exp(α(v − v_y))].

Where the digits go, and how they are kept. A peaked softmax puts all but 1e-15 of its mass on one entry d, and
every derivative is then a sum over the others. So each block measures logits and displacements from its own
likeliest entry d, whose terms vanish exactly; central moments are taken about the block's mean in a second look at
the block, which is still in cache, and blocks are merged by the formulas of `pairwise`, in which variances add up
from non-negative terms. The slope is summed as Σ p_a (v_y − v_a), which does not cancel when the reference
itself is nearly certain. The gain is −log1p(Σ p_a(0) expm1(α(v_a − v_y))) while it is small, and a difference of
two log-sum-exps when it is not. Entries of the sum with α(v_a − v_y) > 1 are read off p(α) instead, so that
nothing overflows.

Shapes: t tokens, b vocabulary entries, K scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.affine.pairwise import GainSums, Moments, merge_gain_sums, merge_moments
from loopscope.readout.affine.sources import LogitSource, TargetLogits, blocks


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
