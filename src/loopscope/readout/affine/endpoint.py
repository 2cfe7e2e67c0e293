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

Shapes: t tokens, c of them at a time, V vocabulary entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.affine.sources import blocks

_SMALL = 0.1
_TERMS = 10  # of the series of (e^δ − 1 − δ)/δ² for |δ| ≤ 0.1: the first neglected is below 1e-17 of the first
_ELEMENTS = {"cpu": 1 << 15}  # at a time: a quarter of a megabyte of float64
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


def endpoint_distributions(z0_tV: Tensor, v_tV: Tensor) -> EndpointDistributions:
    """Compare softmax(z0) with softmax(z0 + v), some tokens at a time."""
    rows = max(1, _ELEMENTS.get(z0_tV.device.type, _MOST_ELEMENTS) // z0_tV.shape[1])
    parts = [_compare(z0_tV[some], v_tV[some]) for some in blocks(z0_tV.shape[0], rows)]
    return EndpointDistributions(*torch.cat(parts, 1))


def _compare(z0: Tensor, v: Tensor) -> Tensor:
    """The five quantities, [5, c]."""
    end = z0 + v
    e_c1, d_c1 = torch.argmax(z0, dim=1, keepdim=True), torch.argmax(end, dim=1, keepdim=True)
    below_p, u = z0 - z0.gather(1, e_c1), v - v.gather(1, e_c1)
    below_q = (z0 - z0.gather(1, d_c1)) + (v - v.gather(1, d_c1))
    p, others_p = _softmax(below_p, e_c1)
    q, others_q = _softmax(below_q, d_c1)
    log_p, log_q = torch.log1p(others_p), torch.log1p(others_q)
    direct = below_p.gather(1, d_c1) + u.gather(1, d_c1) + (log_q - log_p)
    # log q − log p two ways: u − growth is relatively accurate where it is small; where it is not, the two log
    # probabilities themselves do not depend on how large the displacement is.
    delta = u - _log_mean_exp(u, p, q, direct)
    near = delta.abs() <= 1.0
    held = delta.clamp(-1.0, 1.0)
    rest = excess(held)
    grown = rest + held
    far = (below_q - log_q) - (below_p - log_p)
    divergence = torch.where(near, p * rest, q - p * (1.0 + far)).sum(1)
    reverse = torch.where(near, p * (held * grown - rest), p - q * (1.0 - far)).sum(1)
    initial, final = log_p[:, 0] - (p * below_p).sum(1), log_q[:, 0] - (q * below_q).sum(1)
    moved = torch.where(near, p * grown, q - p) * below_p
    smaller = initial + final < moved.abs().sum(1) + reverse
    change = torch.where(smaller, final - initial, -moved.sum(1) - reverse)
    return torch.stack([divergence, reverse, initial, final, change])


def _softmax(below_cV: Tensor, top_c1: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and the mass of all entries but the likeliest in its units, [c, 1]."""
    w_cV = torch.exp(below_cV)
    w_cV.scatter_(1, top_c1, 0.0)
    others_c1 = w_cV.sum(1, keepdim=True)
    w_cV.scatter_(1, top_c1, 1.0)
    return w_cV.div_(1.0 + others_c1), others_c1


def _log_mean_exp(u: Tensor, p: Tensor, q: Tensor, direct: Tensor) -> Tensor:
    """The logarithm of E_p[e^u], [c, 1], relatively accurate where it is small.

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
