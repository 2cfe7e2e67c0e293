"""Vocabulary blocks of evenly spaced scales put together: torch's side of what `even_kernel` does on a GPU.

Shapes: t tokens, b vocabulary entries, K scales, M of them with moments.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.even_powers import power_sums, suits
from loopscope.readout.even_sums import EvenNodes, EvenSums, LogMass, even_sums
from loopscope.readout.moments import derivatives_from_moments, merge_moments


class EvenResult(NamedTuple):
    """Of the whole vocabulary: its mass at all scales, φ', φ'', … at those wanted [order, t, M] and at 0 [n, t]."""

    mass: LogMass
    derivatives: Tensor
    start: Tensor


class BlockSums:
    """Sums of some tokens at evenly spaced scales, a vocabulary block at a time."""

    def __init__(self, v_y_t1: Tensor, nodes: EvenNodes) -> None:
        self._v_y_t1, self._nodes = v_y_t1, nodes
        self._scales_K = nodes.scales(v_y_t1.device)
        self._sums: EvenSums | None = None

    def add(self, z0_tb: Tensor, v_tb: Tensor, spread_t: Tensor) -> None:
        """Takes in the next block; `spread_t` is the range of v over its entries."""
        spread = float(spread_t.max())
        sums = power_sums if suits(self._nodes, spread) else even_sums
        block = sums(z0_tb, v_tb, self._v_y_t1, spread, self._nodes)
        self._sums = block if self._sums is None else self._merged(self._sums, block)

    def result(self) -> EvenResult:
        """The blocks so far."""
        assert self._sums is not None
        wanted = derivatives_from_moments(self._sums.wanted)[: self._nodes.order]
        start = torch.stack(derivatives_from_moments(self._sums.start))[..., 0]
        shape = (0, *self._sums.wanted.others.shape)
        return EvenResult(self._sums.mass, torch.stack(wanted) if wanted else start.new_empty(shape), start)

    def _merged(self, a: EvenSums, b: EvenSums) -> EvenSums:
        return EvenSums(
            merge_log_mass(a.mass, b.mass, self._scales_K),
            merge_moments(a.wanted, b.wanted, self._scales_K[list(self._nodes.places)])[0],
            merge_moments(a.start, b.start, self._scales_K[:1])[0],
        )


def merge_log_mass(a: LogMass, b: LogMass, scales_K: Tensor) -> LogMass:
    """The mass of the union of two parts of the vocabulary."""
    gap_tK = (b.z0_d - a.z0_d) + scales_K * (b.v_d - a.v_d)
    b_leads = gap_tK > 0.0
    factor = torch.exp(-gap_tK.abs())
    others = torch.where(b_leads, b.others + factor * (1.0 + a.others), a.others + factor * (1.0 + b.others))
    return LogMass(torch.where(b_leads, b.z0_d, a.z0_d), torch.where(b_leads, b.v_d, a.v_d), others)
