"""What the logits of one depth, and those of the depth before, say at some reference positions.

    p = softmax(z),  v = z_t − z_{t−1},  c = lse(z_t) − lse(z_{t−1})
    KL(p_{t−1} ‖ p_t) = c − E_{p_{t−1}} v        KL(p_t ‖ p_{t−1}) = E_{p_t} v − c

Entry by entry the arithmetic is that of the logits given (float64 on a CPU, float32 on a GPU); every sum is float64.
Nothing waits for the device.

Shapes: n tokens of a chunk, V vocabulary, K candidates.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.store.trace_columns import MIN_P

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


def row_sum(values_nV: Tensor, weights_nV: Tensor | None = None) -> Tensor:
    """Σ over the vocabulary, weighted where weights are given, float64 [n, 1]."""
    terms = values_nV if weights_nV is None else values_nV * weights_nV
    return terms.sum(1, dtype=torch.float64, keepdim=True)


class Prediction:
    """The softmax of some tokens' logits.

    Attributes:
        z_nV: the logits.
        candidates: the likeliest tokens; two of them at least.
        x_nV: z minus the largest.
        weight_nV: exp x, of which p is weight/total.
        total_n1: Σ weight, float64.
    """

    def __init__(self, z_nV: Tensor, count: int) -> None:
        self.z_nV, self.candidates = z_nV, likeliest(z_nV, min(max(count, 2), z_nV.shape[1]))
        self.top_n1 = self.candidates.logits_nK[:, :1]
        self.x_nV = z_nV - self.top_n1
        self.weight_nV = self.x_nV.exp()
        self.total_n1 = row_sum(self.weight_nV)

    @property
    def log_sum_n1(self) -> Tensor:
        """Log Σ exp z, float64."""
        return self.top_n1.double() + self.total_n1.log()

    @cached_property
    def floored(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and their logarithms with probabilities below `MIN_P`·max set to 1/V, and the sum of the weights."""
        floor_n1 = self.total_n1 / self.z_nV.shape[1]
        low_nV = self.weight_nV < MIN_P
        weight_nV = torch.where(low_nV, floor_n1.to(self.z_nV.dtype), self.weight_nV)
        log_nV = torch.where(low_nV, floor_n1.log().to(self.z_nV.dtype), self.x_nV)
        return weight_nV, log_nV, row_sum(weight_nV)

    def columns(self, targets_n1: Tensor, lens: int) -> dict[str, Tensor]:
        """What one depth says by itself, [n] or [n, K] each."""
        logits_nK = (self.candidates.logits_nK - self.top_n1).double()
        probs_nK = logits_nK.exp() / self.total_n1
        own_n1 = self.z_nV.gather(1, targets_n1)
        columns = {
            "log_prob": (own_n1 - self.log_sum_n1)[:, 0],
            "top_id": self.candidates.ids_nK[:, 0],
            "top_prob": probs_nK[:, 0],
            # A vocabulary of one token has no second.
            "margin": -torch.expm1(logits_nK[:, 1]) / self.total_n1[:, 0] if logits_nK.shape[1] > 1 else probs_nK[:, 0],
            "entropy": (self.total_n1.log() - row_sum(self.x_nV, self.weight_nV) / self.total_n1)[:, 0],
        }
        if lens:
            columns["lens_ids"] = self.candidates.ids_nK[:, :lens]
            columns["lens_probs"] = probs_nK[:, :lens]
            columns["rank"] = (self.z_nV > own_n1).sum(1) + 1
        return columns

    def change(self, before: Prediction, targets_n1: Tensor) -> dict[str, Tensor]:
        """What changed since the depth before, [n] each."""
        v_nV = self.z_nV - before.z_nV
        own_n1 = v_nV.gather(1, targets_n1)
        mean_n1 = row_sum(v_nV, before.weight_nV) / before.total_n1
        mean_now_n1 = row_sum(v_nV, self.weight_nV) / self.total_n1
        shift_n1 = self.log_sum_n1 - before.log_sum_n1
        around_nV = v_nV.sub_(mean_n1.to(v_nV.dtype)).square_()
        found = {
            "kl_from_previous": (shift_n1 - mean_n1).clamp(min=0.0),
            "kl_to_previous": (mean_now_n1 - shift_n1).clamp(min=0.0),
            "kl_min_p": self._floored_divergence(before),
            "mean_v": mean_n1,
            "var_v": row_sum(around_nV, before.weight_nV) / before.total_n1,
            "v_reference": own_n1,
        }
        return {name: values_n1[:, 0] for name, values_n1 in found.items()}

    def _floored_divergence(self, before: Prediction) -> Tensor:
        weight_nV, log_nV, total_n1 = before.floored
        _, log_now_nV, total_now_n1 = self.floored
        mean_n1 = row_sum(log_nV - log_now_nV, weight_nV) / total_n1
        return (mean_n1 - total_n1.log() + total_now_n1.log()).clamp(min=0.0)
