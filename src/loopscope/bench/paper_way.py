"""A, Q and the grid as the paper computes them: gradient, Hessian–vector product, and every scale read out again.

All of it in FP32 with TF32 off, a chunk of tokens at a time, the head converted beforehand. Each token's state is a
row of its own, so one product serves all tokens of a chunk.

Shapes: T reference tokens, D hidden width, V vocabulary entries, K scales.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.bench.updates import Update
from loopscope.readout.affine.sources import blocks, full_precision_products


class SlopeAndCurvature(NamedTuple):
    """A = ⟨∇U(H), D⟩ and φ''(0) = ⟨D, ∇²U(H)[D]⟩ of each token."""

    slope: Tensor
    curvature: Tensor


class PaperWay:
    """The update in FP32, asked one question at a time."""

    def __init__(self, update: Update, chunk: int) -> None:
        self._h_TD = update.h_TD.float()
        self._d_TD = update.h_plus_TD.float() - self._h_TD
        self._weight_DV = update.weight_VD.float().T
        self._targets_T = update.targets_T
        self._chunk = chunk

    def _utility(self, state: Tensor, targets_t: Tensor) -> Tensor:
        with full_precision_products():
            logits = state @ self._weight_DV
        return torch.log_softmax(logits, -1).gather(1, targets_t.unsqueeze(1))[:, 0]

    def differentiated(self) -> SlopeAndCurvature:
        """A and φ''(0) by a gradient and a Hessian–vector product."""
        slopes, curvatures = [], []
        for rows in blocks(self._h_TD.shape[0], self._chunk):
            d_tD = self._d_TD[rows]
            with torch.enable_grad(), full_precision_products():
                h_tD = self._h_TD[rows].detach().requires_grad_(True)
                utility = self._utility(h_tD, self._targets_T[rows]).sum()
                (gradient_tD,) = torch.autograd.grad(utility, h_tD, create_graph=True)
                (product_tD,) = torch.autograd.grad((gradient_tD * d_tD).sum(), h_tD)
            slopes.append((gradient_tD.detach() * d_tD).sum(1))
            curvatures.append((product_tD * d_tD).sum(1))
        return SlopeAndCurvature(torch.cat(slopes), torch.cat(curvatures))

    def utilities(self, scales: list[float]) -> Tensor:
        """U(H + αD) at some scales, each a readout of its own, [T, K]."""
        columns = []
        with torch.no_grad():
            for alpha in scales:
                parts = [
                    self._utility(self._h_TD[rows] + alpha * self._d_TD[rows], self._targets_T[rows])
                    for rows in blocks(self._h_TD.shape[0], self._chunk)
                ]
                columns.append(torch.cat(parts))
        return torch.stack(columns, 1)
