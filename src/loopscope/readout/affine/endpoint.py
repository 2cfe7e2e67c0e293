"""How the two ends of an update differ: ΔU = A − C, output divergences and entropies (Prop. linear-endpoint).

With p = softmax z(0), q = softmax z(1), C = KL(p‖q) does not use the slope A, which makes ΔU − (A − C) a check. With
δ_a = log q_a − log p_a and E = e^δ − 1, each δ taken from its own log-sum-exp,

    KL(p‖q) = Σ p_a (E_a − δ_a),        KL(q‖p) = Σ p_a (δ_a E_a − (E_a − δ_a)),

because Σ p_a = Σ q_a = 1. Every term is non-negative, so both divergences keep their relative accuracy where
they are tiny, and an error in the log-sum-exps only enters squared. Entropies are
log1p(Σ_{a≠d} w_a) + Σ p_a (z_d − z_a), again without cancellation, and

    H(q) − H(p) = −Σ p_a E_a (z_a(0) − z_e(0)) − KL(q‖p),

with e the likeliest entry of p; where both entropies are smaller than what this adds up, their plain difference is
the more accurate and is taken instead. Where |δ| > 1, p E is q − p.

**Blocks** of the vocabulary are put together by the chain rule (`EndpointSweep`): with P_b and Q_b the blocks' masses,
KL(p‖q) = KL(P‖Q) + Σ P_b KL(p_b‖q_b), where KL(P‖Q) is the same computation on the blocks' own log masses.

Shapes: t tokens, c of them at a time, b vocabulary entries, B blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.sources import blocks

_SMALL = 0.1
_TERMS = 10  # of the series of (e^δ − 1 − δ)/δ² for |δ| ≤ 0.1: the first neglected is below 1e-17 of the first
_ELEMENTS = {"cpu": 1 << 15}  # a quarter of a megabyte of float64: a few such arrays stay in a core's cache
_MOST_ELEMENTS = 1 << 22  # elsewhere


@dataclass(frozen=True)
class EndpointDistributions:
    """How the output distributions of the two endpoints differ, [t] each (or averaged over tokens, [N])."""

    divergence: Tensor  # KL(p(0)‖p(1))
    reverse_divergence: Tensor  # KL(p(1)‖p(0))
    initial_entropy: Tensor
    final_entropy: Tensor
    entropy_change: Tensor

    def fields(self) -> tuple[Tensor, ...]:
        """The five quantities in order."""
        return self.divergence, self.reverse_divergence, self.initial_entropy, self.final_entropy, self.entropy_change

    def stacked(self) -> Tensor:
        """The five quantities as one tensor, [5, t]."""
        return torch.stack(self.fields())


@dataclass(frozen=True)
class EndpointDecomposition:
    """ΔU = A − C, its terms computed independently, averaged over reference tokens.

    Attributes:
        gain: ΔU = φ(1).
        slope: A = φ'(0).
        divergence: C, the mean of KL(p(0)‖p(1)).
        residual: ΔU − (A − C), zero but for rounding.
    """

    gain: Tensor
    slope: Tensor
    divergence: Tensor
    residual: Tensor


class Compared(NamedTuple):
    """Two distributions compared, [t] each, and the distributions themselves, [t, b].

    log Σ exp z(0) = z0_e + log_mass and log Σ exp z(1) − log Σ exp z(0) = v_e + growth; `below` is E_p[z(0)] − z0_e.
    `moved` is the entropy change by the formula above, `moved_scale` the absolute terms that it adds up.
    """

    divergence: Tensor
    reverse: Tensor
    initial_entropy: Tensor
    final_entropy: Tensor
    moved: Tensor
    moved_scale: Tensor
    z0_e: Tensor
    v_e: Tensor
    log_mass: Tensor
    growth: Tensor
    below: Tensor
    p_tb: Tensor
    q_tb: Tensor

    def change(self) -> Tensor:
        """The better conditioned of H(q) − H(p) and `moved`, and the absolute terms behind it, [2, t]."""
        return better(self.initial_entropy, self.final_entropy, self.moved, self.moved_scale)


def better(initial: Tensor, final: Tensor, moved: Tensor, moved_scale: Tensor) -> Tensor:
    """Of two formulas of the entropy change the one with smaller terms, and the size of these, [2, t]."""
    total = initial + final
    return torch.stack([torch.where(total < moved_scale, final - initial, moved), torch.minimum(total, moved_scale)])


def compare(
    z0_tb: Tensor, v_tb: Tensor, rests: tuple[Tensor, Tensor] | None = None, below_tb: Tensor | None = None
) -> Compared:
    """Compare softmax(z0) with softmax(z0 + v).

    Logits and displacements of blocks are unevaluated sums: a likeliest entry's, and small `rests` that would lose
    their last digits if they were added up; differences are taken term by term. `below_tb` is the mean of z0 − z0_e
    inside each block: mass that moves between blocks moves at its block's mean logit.
    """

    def less(entry_t1: Tensor) -> tuple[Tensor, Tensor]:
        z0, v = z0_tb - z0_tb.gather(1, entry_t1), v_tb - v_tb.gather(1, entry_t1)
        if rests is not None:
            z0 += rests[0] - rests[0].gather(1, entry_t1)
            v += rests[1] - rests[1].gather(1, entry_t1)
        return z0, v

    start, end = z0_tb, z0_tb + v_tb
    if rests is not None:
        start, end = start + rests[0], end + (rests[0] + rests[1])
    e_t1, d_t1 = torch.argmax(start, dim=1, keepdim=True), torch.argmax(end, dim=1, keepdim=True)
    below_p, u = less(e_t1)
    below_q, u_d = less(d_t1)
    below_q += u_d
    p, others_p = _softmax(below_p, e_t1)
    q, others_q = _softmax(below_q, d_t1)
    log_p, log_q = torch.log1p(others_p), torch.log1p(others_q)
    direct = below_p.gather(1, d_t1) + u.gather(1, d_t1) + (log_q - log_p)
    growth = _log_mean_exp(u, p, q, direct)
    # log q − log p two ways: u − growth is relatively accurate where it is small; where it is not, the two log
    # probabilities themselves do not depend on how large the displacement is.
    delta = u - growth
    near = delta.abs() <= 1.0
    held = delta.clamp(-1.0, 1.0)
    rest = excess(held)
    grown = rest + held
    far = (below_q - log_q) - (below_p - log_p)
    moved = torch.where(near, p * grown, q - p)
    divergence = torch.where(near, p * rest, q - p * (1.0 + far)).sum(1)
    reverse = torch.where(near, p * (held * grown - rest), p - q * (1.0 - far)).sum(1)
    below = (p * below_p).sum(1)
    if below_tb is None:
        gone = moved * below_p
    else:
        gone = moved * ((z0_tb - z0_tb.gather(1, e_t1)) + (below_tb - below_tb.gather(1, e_t1)))
    return Compared(
        divergence,
        reverse,
        log_p[:, 0] - below,
        log_q[:, 0] - (q * below_q).sum(1),
        -gone.sum(1) - reverse,
        gone.abs().sum(1) + reverse,
        z0_tb.gather(1, e_t1)[:, 0],
        v_tb.gather(1, e_t1)[:, 0],
        log_p[:, 0],
        growth[:, 0],
        below,
        p,
        q,
    )


def _softmax(below_tb: Tensor, top_t1: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and the mass of all entries but the likeliest in its units, [t, 1]."""
    w_tb = torch.exp(below_tb)
    w_tb.scatter_(1, top_t1, 0.0)
    others_t1 = w_tb.sum(1, keepdim=True)
    w_tb.scatter_(1, top_t1, 1.0)
    return w_tb.div_(1.0 + others_t1), others_t1


def _log_mean_exp(u: Tensor, p: Tensor, q: Tensor, direct: Tensor) -> Tensor:
    """The logarithm of E_p[e^u], [t, 1], relatively accurate where it is small.

    `direct` is the same as a difference of log-sum-exps, accurate where it is not.
    """
    grown = torch.exp(direct.clamp(-1.0, 1.0)) * q - p
    mean = torch.where(u > 1.0, grown, p * torch.expm1(u.clamp(max=1.0))).sum(1, keepdim=True)
    return torch.where(direct.abs() <= 1.0, torch.log1p(mean.clamp(min=-0.9)), direct)


def excess(delta: Tensor) -> Tensor:
    """e^δ − 1 − δ for |δ| ≤ 1, relatively accurate: δ² (1/2! + δ/3! + …) where a difference would not be."""
    series = torch.full_like(delta, 1.0 / math.factorial(_TERMS + 1))
    for k in range(_TERMS, 1, -1):
        series.mul_(delta).add_(1.0 / math.factorial(k))
    series.mul_(delta).mul_(delta)
    return torch.where(delta.abs() <= _SMALL, series, torch.expm1(delta).sub_(delta))


class EndpointSweep:
    """The comparison of some tokens' endpoint distributions, a vocabulary block at a time."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []

    def add(self, z0_tb: Tensor, v_tb: Tensor) -> None:
        """Takes in one block."""
        found = []
        elements = _ELEMENTS.get(z0_tb.device.type, _MOST_ELEMENTS)
        for rows in blocks(z0_tb.shape[0], max(1, elements // z0_tb.shape[1])):
            block = compare(z0_tb[rows], v_tb[rows])
            found.append(torch.cat([torch.stack(block[:4]), block.change(), torch.stack(block[6:11])]))
        self._blocks.append(torch.cat(found, 1))

    def result(self) -> EndpointDistributions:
        """The blocks so far, put together by the chain rule."""
        if len(self._blocks) == 1:
            return EndpointDistributions(*self._blocks[0][:5])
        kl, reverse, h0, h1, change, scale, z0_e, v_e, log_mass, growth, below = torch.stack(self._blocks, -1)
        between = compare(z0_e, v_e, (log_mass, growth), below)
        p_tB, q_tB = between.p_tb, between.q_tb
        initial, final = between.initial_entropy + (p_tB * h0).sum(1), between.final_entropy + (q_tB * h1).sum(1)
        moved, moved_scale = between.moved + (q_tB * change).sum(1), between.moved_scale + (q_tB * scale).sum(1)
        return EndpointDistributions(
            between.divergence + (p_tB * kl).sum(1),
            between.reverse + (q_tB * reverse).sum(1),
            initial,
            final,
            better(initial, final, moved, moved_scale)[0],
        )
