"""Softmaxes of logits and how two of them differ: log probabilities, entropy, likeliest tokens, rank and divergences.

Every softmax is seen from its likeliest entry d: with w = exp(z − z_d), log Σ exp z = z_d + log1p(Σ_{a≠d} w_a), which
keeps the digits of a peaked one. From p = softmax(z) to q = softmax(z⁺), with v = z⁺ − z and δ = log q − log p,

    KL(p‖q) = Σ p (e^δ − 1 − δ)            KL(q‖p) = Σ p (δ (e^δ − 1) − (e^δ − 1 − δ))
    H(q) − H(p) = −Σ (q − p) log p − KL(q‖p)

All terms of both divergences are non-negative because Σ p = Σ q = 1, so they keep their digits where p and q are close.
δ is v less the growth of log Σ exp z, corrected by log Σ p e^δ, which is 0; the entry of a token is its gain φ. Where
|δ| > 1, δ is the difference of both log probabilities, which do not depend on how large v is.

Entries over the vocabulary are in the arithmetic of the logits, sums over them in float64. Quantities are computed when
they are first read, and nothing waits for the device.

Shapes: n rows, V vocabulary entries, K candidates.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

MIN_P = 0.1
"""Probabilities below this share of the largest are set to 1/V in `SoftmaxChange.min_p_divergence`."""
_SMALL = 0.1
_TERMS = {torch.float64: 10}
"""Of the series of (e^δ − 1 − δ)/δ² for |δ| ≤ `_SMALL`: the first neglected one is below the rounding of the first."""
_BLOCK = 64
"""Neighbouring vocabulary entries that `likeliest` first compares by their largest."""


class Candidates(NamedTuple):
    """The K likeliest tokens, likeliest first, and their logits, [n, K] each; of equal ones the lower id first."""

    logits_nK: Tensor
    ids_nK: Tensor


def likeliest(z_nV: Tensor, count: int) -> Candidates:
    """The largest entries of every row.

    They are in the `count` blocks with the largest maxima, so that one pass over all entries is enough.

    >>> likeliest(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 2).ids_nK.tolist()
    [[1, 3]]
    """
    rows, vocabulary = z_nV.shape
    blocks = vocabulary // _BLOCK
    if blocks <= 2 * count:
        logits_nK, ids_nK = z_nV.topk(count)
    else:
        z_nbw = z_nV[:, : blocks * _BLOCK].reshape(rows, blocks, _BLOCK)
        chosen_nK = z_nbw.amax(2).topk(count).indices
        inside = torch.arange(_BLOCK, device=z_nV.device)
        ids_nC = (chosen_nK.unsqueeze(2) * _BLOCK + inside).flatten(1)
        tail = torch.arange(blocks * _BLOCK, vocabulary, device=z_nV.device).expand(rows, -1)
        ids_nC = torch.cat([ids_nC, tail], 1)
        logits_nK, place_nK = z_nV.gather(1, ids_nC).topk(count)
        ids_nK = ids_nC.gather(1, place_nK)
    ids_nK, order_nK = ids_nK.sort(1)
    logits_nK, order_nK = logits_nK.gather(1, order_nK).sort(dim=1, descending=True, stable=True)
    return Candidates(logits_nK, ids_nK.gather(1, order_nK))


def log_probability(z_nV: Tensor, ids_n: Tensor) -> Tensor:
    """Log softmax of one entry of every row, float64 [n].

    >>> log_probability(torch.zeros(1, 2), torch.tensor([1])).exp()
    tensor([0.5000], dtype=torch.float64)
    """
    return Softmax(z_nV).log_probability(ids_n)


class Softmax:
    """The softmax of some rows of logits; results are float64 [n].

    >>> p = Softmax(torch.tensor([[0.0, 0.0, 0.0, 0.0]]))
    >>> round(float(p.entropy_n), 6), p.rank(torch.tensor([2])).tolist()
    (1.386294, [1])
    """

    def __init__(self, z_nV: Tensor) -> None:
        # −∞ marks an entry without probability: finite, it has none either and gives no NaN.
        self.z_nV = z_nV.clamp(min=torch.finfo(z_nV.dtype).min / 4)

    @classmethod
    def on_path(cls, z0_nV: Tensor, v_nV: Tensor, alpha: float | Tensor) -> Softmax:
        """Softmax(z + αv), with both differences to the likeliest entry taken before they are added."""
        start = cls(z0_nV).z_nV
        found = cls(start + alpha * v_nV)
        d_n1 = found.top_id_n.unsqueeze(1)
        found.below = (start - start.gather(1, d_n1)) + alpha * (v_nV - v_nV.gather(1, d_n1))
        return found

    @cached_property
    def _largest(self) -> tuple[Tensor, Tensor]:
        return self.z_nV.max(1)

    @property
    def top_n(self) -> Tensor:
        """The largest logits, in the arithmetic of the logits."""
        return self._largest[0]

    @property
    def top_id_n(self) -> Tensor:
        """Where they are, int64; the first of equals on a CPU."""
        return self._largest[1]

    @property
    def top_probability_n(self) -> Tensor:
        """The largest probability."""
        return 1.0 / self.total_n

    @cached_property
    def below(self) -> Tensor:
        """Logits less the largest of their row, [n, V]."""
        return self.z_nV - self.top_n.unsqueeze(1)

    @cached_property
    def weights(self) -> Tensor:
        """Their exponentials, [n, V]: p is this over `total_n`."""
        return self.below.exp()

    @cached_property
    def _others_n(self) -> Tensor:
        d_n1 = self.top_id_n.unsqueeze(1)
        sums_n = _sum(self.weights.scatter_(1, d_n1, 0.0))
        self.weights.scatter_(1, d_n1, 1.0)
        return sums_n

    @property
    def total_n(self) -> Tensor:
        """The sum of the weights."""
        return 1.0 + self._others_n

    @property
    def log_total_n(self) -> Tensor:
        """Its logarithm."""
        return self._others_n.log1p()

    @cached_property
    def p(self) -> Tensor:
        """Probabilities, [n, V]."""
        return self.weights / self.total_n.unsqueeze(1).to(self.weights.dtype)

    def probability(self, logits_nK: Tensor) -> Tensor:
        """The probability of entries with these logits, [n, K]."""
        return (logits_nK - self.top_n.unsqueeze(1)).double().exp() / self.total_n.unsqueeze(1)

    def log_probability(self, ids_n: Tensor) -> Tensor:
        """Log p of one entry of every row."""
        return (self.logit(ids_n).double() - self.top_n.double()) - self.log_total_n

    def logit(self, ids_n: Tensor) -> Tensor:
        """The logit of one entry of every row."""
        return self.z_nV.gather(1, ids_n.unsqueeze(1))[:, 0]

    def rank(self, ids_n: Tensor) -> Tensor:
        """How many entries are likelier than one of every row, plus one; int64."""
        return (self.z_nV > self.logit(ids_n).unsqueeze(1)).sum(1) + 1

    @cached_property
    def entropy_n(self) -> Tensor:
        """−Σ p log p."""
        return self.log_total_n - _sum(self.weights * self.below) / self.total_n

    @cached_property
    def top_two(self) -> Candidates:
        """The two likeliest tokens, or the only one."""
        return likeliest(self.z_nV, min(2, self.z_nV.shape[1]))

    @cached_property
    def margin_n(self) -> Tensor:
        """The largest probability less the second."""
        if self.z_nV.shape[1] == 1:
            return torch.ones_like(self.total_n)
        first_n, second_n = self.top_two.logits_nK.double().unbind(1)
        return -torch.expm1(second_n - first_n) / self.total_n

    @cached_property
    def floored(self) -> tuple[Tensor, Tensor]:
        """The weights with probabilities below `MIN_P` of the largest set to 1/V, and their logarithms, [n, V]."""
        floor_n1 = (self.total_n / self.z_nV.shape[1]).unsqueeze(1)
        low_nV = self.weights < MIN_P
        floored_nV = torch.where(low_nV, floor_n1.to(self.z_nV.dtype), self.weights)
        return floored_nV, torch.where(low_nV, floor_n1.log().to(self.z_nV.dtype), self.below)


class SoftmaxChange:
    """From p = softmax(z) to q = softmax(z⁺); results are float64 [n].

    >>> z = torch.tensor([[0.0, 0.0]])
    >>> change = SoftmaxChange(Softmax(z), Softmax(z + torch.tensor([[1.0, -1.0]])))
    >>> round(float(change.divergence_n), 6), round(float(change.mean_n), 6), round(float(change.variance_n), 6)
    (0.433781, 0.0, 1.0)
    """

    def __init__(self, before: Softmax, after: Softmax, v_nV: Tensor | None = None) -> None:
        self.before, self.after = before, after
        self._v = after.z_nV - before.z_nV if v_nV is None else v_nV

    @cached_property
    def _delta(self) -> Tensor:
        p, q, dtype = self.before, self.after, self._v.dtype
        u_nV = self._v - self._v.gather(1, p.top_id_n.unsqueeze(1))
        moved_n = (p.below + u_nV).gather(1, q.top_id_n.unsqueeze(1))[:, 0].double()
        near_nV = u_nV - (moved_n + q.log_total_n - p.log_total_n).unsqueeze(1).to(dtype)
        near_nV -= _sum(self._added(near_nV)).log1p().unsqueeze(1).to(dtype)
        log_p_nV, log_q_nV = (x.below - x.log_total_n.unsqueeze(1).to(dtype) for x in (p, q))
        return torch.where(near_nV.abs() <= 1.0, near_nV, log_q_nV - log_p_nV)

    def _added(self, delta_nV: Tensor) -> Tensor:
        """The difference q − p, [n, V], from δ where that is small."""
        p, q = self.before.p, self.after.p
        return torch.where(delta_nV.abs() <= 1.0, p * torch.expm1(delta_nV.clamp(max=1.0)), q - p)

    @cached_property
    def _difference(self) -> Tensor:
        return self._added(self._delta)

    @cached_property
    def _rest(self) -> Tensor:
        """The terms of KL(p‖q), p (e^δ − 1 − δ)."""
        p, delta = self.before.p, self._delta
        return torch.where(delta.abs() <= 1.0, p * _excess(delta.clamp(-1.0, 1.0)), self._difference - p * delta)

    def gain(self, ids_n: Tensor) -> Tensor:
        """By how much the log probability of one entry of every row grows: its δ."""
        return self._delta.gather(1, ids_n.unsqueeze(1))[:, 0].double()

    @cached_property
    def divergence_n(self) -> Tensor:
        """KL(p‖q)."""
        return _sum(self._rest).clamp(min=0.0)

    @cached_property
    def reverse_divergence_n(self) -> Tensor:
        """KL(q‖p)."""
        delta, added = self._delta, self._difference
        terms_nV = torch.where(delta.abs() <= 1.0, added * delta - self._rest, self.after.p * delta - added)
        return _sum(terms_nV).clamp(min=0.0)

    @cached_property
    def entropy_n(self) -> Tensor:
        """H(q) − H(p): their plain difference where both are smaller than what the formula adds up."""
        initial_n, final_n = self.before.entropy_n, self.after.entropy_n
        moved_nV = self._difference * self.before.below
        smaller_n = initial_n + final_n < _sum(moved_nV.abs()) + self.reverse_divergence_n
        return torch.where(smaller_n, final_n - initial_n, -_sum(moved_nV) - self.reverse_divergence_n)

    @cached_property
    def min_p_divergence_n(self) -> Tensor:
        """KL(p‖q) after probabilities below `MIN_P` of the largest are set to 1/V, normalised again."""
        (w_nV, log_w_nV), (u_nV, log_u_nV) = self.before.floored, self.after.floored
        total_n = _sum(w_nV)
        apart_n = _sum((log_w_nV - log_u_nV) * w_nV) / total_n
        return (apart_n - total_n.log() + _sum(u_nV).log()).clamp(min=0.0)

    @cached_property
    def mean_n(self) -> Tensor:
        """E_p[v]; v of the reference token less this is its A under an affine readout."""
        return _sum(self._v * self.before.weights) / self.before.total_n

    @cached_property
    def variance_n(self) -> Tensor:
        """Var_p(v); minus half of it is Q of a token under an affine readout."""
        centred_nV = self._v - self.mean_n.unsqueeze(1).to(self._v.dtype)
        return _sum(centred_nV.square_().mul_(self.before.weights)) / self.before.total_n


def _sum(values_nV: Tensor) -> Tensor:
    """Σ over the vocabulary, float64 [n]."""
    return values_nV.sum(1, dtype=torch.float64)


def _excess(delta: Tensor) -> Tensor:
    """The function e^δ − 1 − δ for |δ| ≤ 1: δ² (1/2! + δ/3! + …) where a difference would lose digits."""
    terms = _TERMS.get(delta.dtype, 5)
    series = torch.full_like(delta, 1.0 / math.factorial(terms + 1))
    for k in range(terms, 1, -1):
        series.mul_(delta).add_(1.0 / math.factorial(k))
    series.mul_(delta).mul_(delta)
    return torch.where(delta.abs() <= _SMALL, series, torch.expm1(delta).sub_(delta))
