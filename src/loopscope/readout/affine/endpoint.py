"""How the two ends of an update differ: ΔU = A − C, output divergences and entropies (Prop. linear-endpoint).

With p = softmax z(0), q = softmax z(1), C = KL(p‖q) does not use the slope A, which makes ΔU − (A − C) a check. With
δ_a = log q_a − log p_a, each taken from its own log-sum-exp,

    KL(p‖q) = Σ p_a (e^{δ_a} − 1 − δ_a),        KL(q‖p) = Σ q_a (e^{−δ_a} − 1 + δ_a),

because Σ p_a = Σ q_a = 1. Every term is non-negative, so both divergences keep their relative accuracy where
they are tiny, and an error in the log-sum-exps only enters squared. Entropies are
log1p(Σ_{a≠d} w_a) + Σ p_a (z_d − z_a), again without cancellation, and

    H(q) − H(p) = −Σ (q_a − p_a) (z_a(0) − z_e(0)) − KL(q‖p),

with e the likeliest entry of p; where both entropies are smaller than what this adds up, their plain difference is
the more accurate and is taken instead (`compare`).

**Fewer passes** (`compare_block`). With E = e^δ − 1 everything follows from p, δ and E: q = p(1 + E), and

    p (e^δ − 1 − δ) = p (E − δ),        q (e^{−δ} − 1 + δ) = p (δE − (E − δ)),        q − p = pE.

|δ| is at most the range R of v, which decides how E − δ is taken. From `_SMALL` on, E is expm1 δ and E − δ a
difference: its error ε|δ| is 2ε/|δ| of the δ²/2 that it is, which is little where δ is of the size of R; and where p is
peaked and δ nearly zero for that reason, |δ| is no larger than what the other entries add. Below `_SMALL`, E − δ is its
series. Beyond `_LARGE`, p may underflow where q does not; such rows go through `compare`.

**Blocks** of the vocabulary are put together by the chain rule (`EndpointSweep`): with P_b and Q_b the blocks' masses,
KL(p‖q) = KL(P‖Q) + Σ P_b KL(p_b‖q_b), where KL(P‖Q) is the same computation on the blocks' own log masses.

Shapes: t tokens, c of them at a time, b vocabulary entries, B blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.moments import mass_without
from loopscope.readout.affine.sources import LogitSource, blocks

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
class Comparison:
    """One block of the vocabulary: its distributions compared, and its log masses as unevaluated sums; [t] each.

    log Σ exp z(0) = z0_e + log_mass and log Σ exp z(1) − log Σ exp z(0) = v_e + growth; mean_below is E_p[z(0)] − z0_e.
    """

    within: EndpointDistributions
    change_scale: Tensor  # the absolute terms that `within.entropy_change` adds up
    z0_e: Tensor
    v_e: Tensor
    log_mass: Tensor
    growth: Tensor
    mean_below: Tensor
    moved: Tensor  # the entropy change by the formula above, to which blocks inside add theirs
    moved_scale: Tensor

    def stacked(self) -> Tensor:
        """What the chain rule needs of a block, one tensor [11, t]: the five quantities and their scale come first."""
        outside = (self.change_scale, self.z0_e, self.v_e, self.log_mass, self.growth, self.mean_below)
        return torch.cat([self.within.stacked(), torch.stack(outside)])


class Compared(NamedTuple):
    """A block and its two distributions, [t, b] each."""

    block: Comparison
    p_tb: Tensor
    q_tb: Tensor


def entropy_change(initial: Tensor, final: Tensor, moved: Tensor, moved_scale: Tensor) -> tuple[Tensor, Tensor]:
    """The better conditioned of final − initial and `moved`, and the sum of absolute terms behind it."""
    total = initial + final
    return torch.where(total < moved_scale, final - initial, moved), torch.minimum(total, moved_scale)


def compare(z0_tb: Tensor, v_tb: Tensor, z0_rest_tb: Tensor, v_rest_tb: Tensor, mean_below_tb: Tensor) -> Compared:
    """Compare softmax(z0) with softmax(z0 + v), both logits and displacements given as unevaluated sums of two terms.

    A block's log mass is its likeliest logit plus a small rest. Added up, the rest would lose its last digits; so
    differences between entries are taken term by term. `mean_below` is the mean of z0 − z0_e inside each entry, where
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
    block = Comparison(
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
    return Compared(block, p, q)


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


_SMALL, _LARGE = 0.05, 30.0
_SMALL_TERMS = 8  # of the series for |δ| ≤ 0.05: the first neglected is below 1e-17 of the first
_ELEMENTS = 1 << 16  # half a megabyte of float64: a few such arrays stay in a core's cache


def compare_block(z0_tb: Tensor, v_tb: Tensor) -> Tensor:
    """Compare softmax(z0) with softmax(z0 + v) over one block: `Comparison.stacked`, [11, t]."""
    if z0_tb.is_cuda:  # to sort the rows by their range would wait for the device
        return _with_care(z0_tb, v_tb)
    chunk = max(1, _ELEMENTS // z0_tb.shape[1])
    found = []
    for rows in blocks(z0_tb.shape[0], chunk):
        v_cb = v_tb[rows]
        found.append(_by_range(z0_tb[rows], v_cb, v_cb.amax(1) - v_cb.amin(1)))
    return torch.cat(found, 1)


def _by_range(z0_cb: Tensor, v_cb: Tensor, spread_c: Tensor) -> Tensor:
    """Each row in the way that suits its range."""
    small_c, large_c = spread_c < _SMALL, ~(spread_c <= _LARGE)
    ways: tuple[tuple[Tensor, Callable[[Tensor, Tensor], Tensor]], ...] = (
        (~(small_c | large_c), _close),
        (small_c, _closer),
        (large_c, _with_care),
    )
    out = z0_cb.new_empty(11, z0_cb.shape[0])
    for rows_c, way in ways:
        if bool(rows_c.all()):
            return way(z0_cb, v_cb)
        if bool(rows_c.any()):
            out[:, rows_c] = way(z0_cb[rows_c], v_cb[rows_c])
    return out


def _with_care(z0_cb: Tensor, v_cb: Tensor) -> Tensor:
    nothing = torch.zeros_like(z0_cb)
    return compare(z0_cb, v_cb, nothing, nothing, nothing).block.stacked()


def _closer(z0_cb: Tensor, v_cb: Tensor) -> Tensor:
    return _close(z0_cb, v_cb, small=True)


def _close(z0_cb: Tensor, v_cb: Tensor, small: bool = False) -> Tensor:
    e_c1 = z0_cb.argmax(1, keepdim=True)
    z0_e_c1, v_e_c1 = z0_cb.gather(1, e_c1), v_cb.gather(1, e_c1)
    below_cb, u_cb = z0_cb - z0_e_c1, v_cb - v_e_c1
    q_cb = below_cb + u_cb
    d_c1 = q_cb.argmax(1, keepdim=True)
    lead_c1 = q_cb.gather(1, d_c1)
    torch.sub(z0_cb, z0_cb.gather(1, d_c1), out=q_cb)
    scratch_cb = v_cb - v_cb.gather(1, d_c1)
    below_q_cb = q_cb.add_(scratch_cb)

    weight_q_cb = torch.exp(below_q_cb, out=scratch_cb)
    others_q_c1 = mass_without(weight_q_cb, d_c1)
    log_q_c1 = torch.log1p(others_q_c1)
    final_entropy = log_q_c1 - below_q_cb.mul_(weight_q_cb).sum(1, keepdim=True) / (1.0 + others_q_c1)

    weight_cb = torch.exp(below_cb, out=scratch_cb)
    others_c1 = mass_without(weight_cb, e_c1)
    mass_c1, log_c1 = 1.0 + others_c1, torch.log1p(others_c1)
    growth_c1 = lead_c1 + (log_q_c1 - log_c1)
    if small:
        growth_c1 = torch.log1p(torch.expm1(u_cb).mul_(weight_cb).sum(1, keepdim=True) / mass_c1)
    delta_cb = u_cb.sub_(growth_c1)
    if small:
        rest_cb = excess(delta_cb, _SMALL_TERMS)
        grown_cb = rest_cb + delta_cb
    else:
        grown_cb = torch.expm1(delta_cb, out=q_cb)
        rest_cb = grown_cb - delta_cb
    delta_cb.mul_(grown_cb).sub_(rest_cb)
    divergence = rest_cb.mul_(weight_cb).sum(1, keepdim=True) / mass_c1
    reverse = delta_cb.mul_(weight_cb).sum(1, keepdim=True) / mass_c1
    below_cb.mul_(weight_cb)
    mean_below = below_cb.sum(1, keepdim=True) / mass_c1
    gone_cb = below_cb.mul_(grown_cb)
    moved = -gone_cb.sum(1, keepdim=True) / mass_c1 - reverse
    moved_scale = gone_cb.abs_().sum(1, keepdim=True) / mass_c1 + reverse
    entropy = log_c1 - mean_below
    change, scale = entropy_change(entropy, final_entropy, moved, moved_scale)
    fields = (
        divergence,
        reverse,
        entropy,
        final_entropy,
        change,
        scale,
        z0_e_c1,
        v_e_c1,
        log_c1,
        growth_c1,
        mean_below,
    )
    return torch.cat(fields, 1).T


__all__ = ["EndpointDecomposition", "EndpointDistributions", "EndpointSweep", "endpoint_distributions"]


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


def endpoint_distributions(
    source: LogitSource, rows: slice, targets_t: Tensor, block_vocabulary: int
) -> EndpointDistributions:
    """Divergences and entropies of some tokens, in one sweep over the vocabulary."""
    target = source.target_logits(rows, targets_t)
    ends = EndpointSweep()
    for columns in blocks(source.vocabulary, block_vocabulary):
        ends.add(*source.block(rows, columns, targets_t, target))
    return ends.result()


class EndpointSweep:
    """The comparison of some tokens' endpoint distributions, a vocabulary block at a time."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []

    def add(self, z0_tb: Tensor, v_tb: Tensor) -> None:
        """Takes in one block."""
        self._blocks.append(compare_block(z0_tb, v_tb))

    def result(self) -> EndpointDistributions:
        """The blocks so far, put together by the chain rule."""
        if len(self._blocks) == 1:
            return EndpointDistributions(*self._blocks[0][:5])
        kl, reverse, h0, h1, change, scale, *outside = torch.stack(self._blocks, -1)
        between, p_tB, q_tB = compare(*outside)
        initial_entropy = between.within.initial_entropy + (p_tB * h0).sum(1)
        final_entropy = between.within.final_entropy + (q_tB * h1).sum(1)
        moved = between.moved + (q_tB * change).sum(1)
        moved_scale = between.moved_scale + (q_tB * scale).sum(1)
        return EndpointDistributions(
            between.within.divergence + (p_tB * kl).sum(1),
            between.within.reverse_divergence + (q_tB * reverse).sum(1),
            initial_entropy,
            final_entropy,
            entropy_change(initial_entropy, final_entropy, moved, moved_scale)[0],
        )
