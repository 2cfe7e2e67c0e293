"""Two softmax distributions of one part of the vocabulary compared: divergences and entropies to the last digits.

With p = softmax z(0), q = softmax z(1) and δ_a = log q_a − log p_a, each taken from its own log-sum-exp,

    KL(p‖q) = Σ p_a (e^{δ_a} − 1 − δ_a),        KL(q‖p) = Σ q_a (e^{−δ_a} − 1 + δ_a),

because Σ p_a = Σ q_a = 1. Every term is non-negative, so both divergences keep their relative accuracy where
they are tiny, and an error in the log-sum-exps only enters squared. Entropies are
log1p(Σ_{a≠d} w_a) + Σ p_a (z_d − z_a), again without cancellation, and

    H(q) − H(p) = −Σ (q_a − p_a) (z_a(0) − z_e(0)) − KL(q‖p),

with e the likeliest entry of p; where both entropies are smaller than what this adds up, their plain difference is
the more accurate and is taken instead.

Shapes: t tokens, b vocabulary entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_TERMS = 20  # of the series of (e^δ − 1 − δ)/δ² for |δ| ≤ 1: the last is below 1e-20


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
class Part:
    """One part of the vocabulary: its distributions compared, and its log masses as unevaluated sums; [t] each.

    log Σ exp z(0) = z0_e + log_mass and log Σ exp z(1) − log Σ exp z(0) = v_e + growth; mean_below is E_p[z(0)] − z0_e.
    """

    within: EndpointDistributions
    change_scale: Tensor  # the absolute terms that `within.entropy_change` adds up
    z0_e: Tensor
    v_e: Tensor
    log_mass: Tensor
    growth: Tensor
    mean_below: Tensor
    moved: Tensor  # the entropy change by the formula above, to which parts inside add theirs
    moved_scale: Tensor

    def stacked(self) -> Tensor:
        """What the chain rule asks of a part, as one tensor [11, t]: the five quantities and their scale come first."""
        outside = (self.change_scale, self.z0_e, self.v_e, self.log_mass, self.growth, self.mean_below)
        return torch.cat([self.within.stacked(), torch.stack(outside)])


class Compared(NamedTuple):
    """A part and its two distributions, [t, b] each."""

    part: Part
    p_tb: Tensor
    q_tb: Tensor


def entropy_change(initial: Tensor, final: Tensor, moved: Tensor, moved_scale: Tensor) -> tuple[Tensor, Tensor]:
    """The better conditioned of final − initial and `moved`, and the sum of absolute terms behind it."""
    total = initial + final
    return torch.where(total < moved_scale, final - initial, moved), torch.minimum(total, moved_scale)


def compare(z0_tb: Tensor, v_tb: Tensor, z0_rest_tb: Tensor, v_rest_tb: Tensor, mean_below_tb: Tensor) -> Compared:
    """Compare softmax(z0) with softmax(z0 + v), both logits and displacements given as unevaluated sums of two parts.

    A block's log mass is its likeliest logit plus a small rest. Added up, the rest would lose its last digits; so
    differences between entries are taken part by part. `mean_below` is the mean of z0 − z0_e inside each entry, where
    it is a block: mass that moves between blocks moves at its block's mean logit.
    """

    def less(entry_t1: Tensor) -> tuple[Tensor, Tensor]:
        z0 = (z0_tb - z0_tb.gather(1, entry_t1)) + (z0_rest_tb - z0_rest_tb.gather(1, entry_t1))
        v = (v_tb - v_tb.gather(1, entry_t1)) + (v_rest_tb - v_rest_tb.gather(1, entry_t1))
        return z0, v

    start = z0_tb + z0_rest_tb
    e_t1 = torch.argmax(start, dim=1, keepdim=True)
    d_t1 = torch.argmax(start + (v_tb + v_rest_tb), dim=1, keepdim=True)
    below_p, u = less(e_t1)
    below_d, u_d = less(d_t1)
    below_q = below_d + u_d
    w_p, w_q = torch.exp(below_p), torch.exp(below_q)
    others_p = w_p.scatter(1, e_t1, 0.0).sum(1, keepdim=True)
    others_q = w_q.scatter(1, d_t1, 0.0).sum(1, keepdim=True)
    p, q = w_p / (1.0 + others_p), w_q / (1.0 + others_q)

    lead = below_p.gather(1, d_t1) + u.gather(1, d_t1)
    growth = log_mean_exp(u, p, q, lead + (torch.log1p(others_q) - torch.log1p(others_p)))
    # log q − log p two ways: u − growth is relatively accurate where it is small; where it is not, the two log
    # probabilities themselves do not depend on how large the displacement is.
    close = u - growth
    near = close.abs() <= 1.0
    held = close.clamp(-1.0, 1.0)
    delta = (below_q - torch.log1p(others_q)) - (below_p - torch.log1p(others_p))
    divergence = torch.where(near, p * excess(held), q - p * (1.0 + delta)).sum(1)
    reverse = torch.where(near, q * excess(-held), p - q * (1.0 - delta)).sum(1)
    difference = torch.where(near, p * torch.expm1(held), q - p)
    initial_entropy = torch.log1p(others_p)[:, 0] - (p * below_p).sum(1)
    final_entropy = torch.log1p(others_q)[:, 0] - (q * below_q).sum(1)
    mean_logit = (z0_tb - z0_tb.gather(1, e_t1)) + (mean_below_tb - mean_below_tb.gather(1, e_t1))
    gone = difference * mean_logit
    moved, moved_scale = -gone.sum(1) - reverse, gone.abs().sum(1) + reverse
    change, change_scale = entropy_change(initial_entropy, final_entropy, moved, moved_scale)
    part = Part(
        EndpointDistributions(divergence, reverse, initial_entropy, final_entropy, change),
        change_scale,
        z0_tb.gather(1, e_t1)[:, 0],
        v_tb.gather(1, e_t1)[:, 0],
        torch.log1p(others_p)[:, 0],
        growth[:, 0],
        (p * below_p).sum(1),
        moved,
        moved_scale,
    )
    return Compared(part, p, q)


def log_mean_exp(u: Tensor, p: Tensor, q: Tensor, direct: Tensor) -> Tensor:
    """The logarithm of E_p[e^u], [t, 1], relatively accurate where it is small.

    `direct` is the same as a difference of log-sum-exps, accurate where it is not.
    """
    grown = torch.exp(direct.clamp(-1.0, 1.0)) * q - p
    mean = torch.where(u > 1.0, grown, p * torch.expm1(u.clamp(max=1.0))).sum(1, keepdim=True)
    return torch.where(direct.abs() <= 1.0, torch.log1p(mean.clamp(min=-0.9)), direct)


def excess(delta: Tensor, terms: int = _TERMS) -> Tensor:
    """e^δ − 1 − δ for |δ| ≤ 1, relatively accurate: δ² (1/2! + δ/3! + …)."""
    series = torch.full_like(delta, 1.0 / math.factorial(terms + 1))
    for k in range(terms, 1, -1):
        series.mul_(delta).add_(1.0 / math.factorial(k))
    return series.mul_(delta).mul_(delta)
