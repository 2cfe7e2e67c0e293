"""What the logits of one depth, and those of the depth before, say at some reference positions.

    p = softmax(z),  v = z_t − z_{t−1},  c = lse(z_t) − lse(z_{t−1})
    KL(p_{t−1} ‖ p_t) = c − E_{p_{t−1}} v        KL(p_t ‖ p_{t−1}) = E_{p_t} v − c

Entry by entry the arithmetic is that of the logits given (float64 on a CPU, float32 on a GPU); every sum is float64.
Nothing waits for the device.

Shapes: n tokens of a chunk, V vocabulary, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.choice import takes_kernel
from loopscope.store.schema import MIN_P

_WIDTH = 64
"""Neighbouring entries of the vocabulary of which only the largest is compared at first."""


class Candidates(NamedTuple):
    """The K likeliest tokens, likeliest first, and their logits, [n, K] each; of equal ones the lower id first."""

    logits_nK: Tensor
    ids_nK: Tensor


def likeliest(z_nV: Tensor, count: int) -> Candidates:
    """The largest entries of every row.

    They are among the `count` blocks with the largest maxima, so that one look at every entry is enough.

    >>> likeliest(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 2).ids_nK.tolist()
    [[1, 3]]
    """
    rows, vocabulary = z_nV.shape
    blocks = vocabulary // _WIDTH
    if blocks <= 2 * count:
        logits_nK, ids_nK = z_nV.topk(count)
    else:
        z_nbw = z_nV[:, : blocks * _WIDTH].reshape(rows, blocks, _WIDTH)
        chosen_nK = z_nbw.amax(2).topk(count).indices
        inside = torch.arange(_WIDTH, device=z_nV.device)
        ids_nC = (chosen_nK.unsqueeze(2) * _WIDTH + inside).flatten(1)
        tail = torch.arange(blocks * _WIDTH, vocabulary, device=z_nV.device).expand(rows, -1)
        ids_nC = torch.cat([ids_nC, tail], 1)
        logits_nK, place_nK = z_nV.gather(1, ids_nC).topk(count)
        ids_nK = ids_nC.gather(1, place_nK)
    ids_nK, order_nK = ids_nK.sort(1)
    logits_nK, order_nK = logits_nK.gather(1, order_nK).sort(dim=1, descending=True, stable=True)
    return Candidates(logits_nK, ids_nK.gather(1, order_nK))


def _row_sum(values_nV: Tensor, weights_nV: Tensor | None = None) -> Tensor:
    """Σ over the vocabulary, weighted where weights are given, float64 [n]."""
    terms = values_nV if weights_nV is None else values_nV * weights_nV
    return terms.sum(1, dtype=torch.float64)


class Sums(NamedTuple):
    """Sums over the vocabulary, float64 [n] each, with x = z − max, e = exp x (so that p = e/Σe), and w = e with
    probabilities below `MIN_P`·max set to 1/V.

    Attributes:
        total: Σ e.
        energy: Σ e·x.
        above: how many logits are larger than the reference's.
        floored: Σ w.
        moved_before: Σ e₀·v; this and what follows is of the change since the depth before (₀), 0 without one.
        moved_now: Σ e·v.
        spread: Σ e₀·(v − mean)².
        apart: Σ w₀·(log w₀ − log w).
    """

    total: Tensor
    energy: Tensor
    above: Tensor
    floored: Tensor
    moved_before: Tensor
    moved_now: Tensor
    spread: Tensor
    apart: Tensor


class Said(NamedTuple):
    """What was found of some tokens: everything that their columns follow from.

    Attributes:
        candidates: the likeliest tokens; two of them at least.
        own_n: logits of the reference tokens.
        sums: what follows from every entry.
    """

    candidates: Candidates
    own_n: Tensor
    sums: Sums

    @classmethod
    def joined(cls, parts: Sequence[Said]) -> Said:
        """Of the tokens of several chunks, one after the other."""
        candidates = Candidates(*map(torch.cat, zip(*(part.candidates for part in parts), strict=True)))
        sums = Sums(*map(torch.cat, zip(*(part.sums for part in parts), strict=True)))
        return cls(candidates, torch.cat([part.own_n for part in parts]), sums)

    @property
    def top_n(self) -> Tensor:
        """The largest logits."""
        return self.candidates.logits_nK[:, 0]

    @property
    def log_sum_n(self) -> Tensor:
        """Log Σ exp z, float64."""
        return self.top_n.double() + self.sums.total.log()

    def columns(self, lens: int = 0, before: Said | None = None) -> dict[str, Tensor]:
        """What is said of the depth and of the change since the depth before, [n] or [n, K] each."""
        sums, total_n1 = self.sums, self.sums.total.unsqueeze(1)
        x_nK = (self.candidates.logits_nK - self.top_n.unsqueeze(1)).double()
        probs_nK = x_nK.exp() / total_n1
        second_n = x_nK[:, 1] if x_nK.shape[1] > 1 else torch.full_like(sums.total, -torch.inf)
        columns = {
            "log_prob": self.own_n - self.log_sum_n,
            "top_id": self.candidates.ids_nK[:, 0],
            "top_prob": probs_nK[:, 0],
            "margin": -torch.expm1(second_n) / sums.total,
            "entropy": sums.total.log() - sums.energy / sums.total,
        }
        if lens:
            columns["lens_ids"] = self.candidates.ids_nK[:, :lens]
            columns["lens_probs"] = probs_nK[:, :lens]
            columns["rank"] = sums.above + 1
        return columns if before is None else columns | self._change(before)

    def _change(self, before: Said) -> dict[str, Tensor]:
        sums, total0_n, floored0_n = self.sums, before.sums.total, before.sums.floored
        shift_n = self.log_sum_n - before.log_sum_n
        mean_n = sums.moved_before / total0_n
        found = {
            "kl_from_previous": shift_n - mean_n,
            "kl_to_previous": sums.moved_now / sums.total - shift_n,
            "kl_min_p": sums.apart / floored0_n - floored0_n.log() + sums.floored.log(),
        }
        return {name: values_n.clamp(min=0.0) for name, values_n in found.items()} | {
            "mean_v": mean_n,
            "var_v": sums.spread / total0_n,
            "v_reference": self.own_n - before.own_n,
        }


class Prediction:
    """The softmax of some tokens' logits, beside that of the depth before where there is one.

    Attributes:
        z_nV: the logits.
        before: the depth before; set it to None once `said` is known, and its logits are let go.
        top_n: the largest logits.
        said: what was found of them.
    """

    def __init__(self, z_nV: Tensor, targets_n: Tensor, lens: int = 0, before: Prediction | None = None) -> None:
        self.z_nV, self.before = z_nV, before
        candidates = likeliest(z_nV, min(max(lens, 2), z_nV.shape[1]))
        self.top_n = candidates.logits_nK[:, 0]
        own_n = z_nV.gather(1, targets_n.unsqueeze(1))[:, 0]
        if takes_kernel(z_nV, None, (torch.float32,)):
            from loopscope.measuring.prediction_kernels import prediction_sums

            known = None if before is None else (before.z_nV, before.top_n, before.said.sums.total)
            sums = Sums(*prediction_sums(z_nV, self.top_n, own_n, known))
        else:
            sums = self._plain_sums(own_n)
        self.said: Said = Said(candidates, own_n, sums)

    def _plain_sums(self, own_n: Tensor) -> Sums:
        x_nV, e_nV = self._entries
        w_nV, log_w_nV = self._floored
        above_n = (self.z_nV > own_n.unsqueeze(1)).sum(1).double()
        alone = (self._total_n, _row_sum(x_nV, e_nV), above_n, _row_sum(w_nV))
        if self.before is None:
            return Sums(*alone, *[torch.zeros_like(above_n)] * 4)
        e0_nV, (w0_nV, log_w0_nV) = self.before._entries[1], self.before._floored
        v_nV = self.z_nV - self.before.z_nV
        moved_n, now_n = _row_sum(v_nV, e0_nV), _row_sum(v_nV, e_nV)
        mean_n1 = (moved_n / self.before.said.sums.total).to(v_nV.dtype).unsqueeze(1)
        spread_n = _row_sum((v_nV - mean_n1).square_(), e0_nV)
        return Sums(*alone, moved_n, now_n, spread_n, _row_sum(log_w0_nV - log_w_nV, w0_nV))

    @cached_property
    def _entries(self) -> tuple[Tensor, Tensor]:
        """The entries x and e."""
        x_nV = self.z_nV - self.top_n.unsqueeze(1)
        return x_nV, x_nV.exp()

    @cached_property
    def _total_n(self) -> Tensor:
        return _row_sum(self._entries[1])

    @cached_property
    def _floored(self) -> tuple[Tensor, Tensor]:
        """The entries w and log w."""
        x_nV, e_nV = self._entries
        floor_n1 = (self._total_n / e_nV.shape[1]).unsqueeze(1)
        low_nV = e_nV < MIN_P
        log_w_nV = torch.where(low_nV, floor_n1.log().to(x_nV.dtype), x_nV)
        return torch.where(low_nV, floor_n1.to(x_nV.dtype), e_nV), log_w_nV
