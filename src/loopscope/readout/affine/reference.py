"""The same derivatives as `moments`, slowly: written plainly, and as the paper computes them.

`reference` takes whole rows, one scale at a time, float64 throughout. Every faster implementation is held against it.
`autograd` takes a gradient and a Hessian–vector product at every scale.

Shapes: t tokens, V vocabulary entries.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from loopscope.readout.affine.query import Backend, LogitBlock, Query
from loopscope.readout.autograd import autograd_coefficients
from loopscope.readout.blocks import blocks
from loopscope.readout.softmax import Softmax, SoftmaxChange

_BLOCK_TOKENS = 64


class _ScaleByScale(Backend):
    """Some tokens at a time, one scale after the other."""

    def evaluate(self, query: Query) -> Tensor:
        """The answer, of every token."""
        found = []
        for rows in blocks(query.source.tokens, self.block_tokens or _BLOCK_TOKENS):
            here = query.some(rows)
            logits = query.source.block(rows, here.targets_T)
            scales = here.scales_K.unsqueeze(0) if here.common is None else here.common
            stack = torch.stack([self.at(here, rows, logits, alpha) for alpha in scales], -1)
            found.append(here.answer(stack, Softmax(logits.z0).log_probability(here.targets_T), logits))
        return torch.cat(found, 1)

    @abstractmethod
    def at(self, query: Query, rows: slice, logits: LogitBlock, alpha: float | Tensor) -> Tensor:
        """φ, φ', … at a scale, or at that of each token [t, 1]: [max_order+1, t]."""


class ReferenceBackend(_ScaleByScale):
    """Whole rows of logits."""

    name = "reference"

    @torch.no_grad()
    def at(self, query: Query, rows: slice, logits: LogitBlock, alpha: float | Tensor) -> Tensor:
        """Gain, mean and central moments."""
        (z0_tV, v_tV), y_t1 = logits, query.targets_T.unsqueeze(1)
        here = Softmax.on_path(z0_tV, v_tV, alpha)
        u_tV = v_tV - v_tV.gather(1, here.top_id_n.unsqueeze(1))
        c_tV = u_tV - (here.p * u_tV).sum(1, keepdim=True)
        t_tV = v_tV - v_tV.gather(1, y_t1)
        second_t, third_t, fourth_t = ((here.p * c_tV**order).sum(1) for order in (2, 3, 4))
        gain_t = SoftmaxChange(Softmax(z0_tV), here, alpha * t_tV).gain(query.targets_T)
        return torch.stack([gain_t, -(here.p * t_tV).sum(1), -second_t, -third_t, 3.0 * second_t**2 - fourth_t])


class AutogradBackend(_ScaleByScale):
    """Each token's state is a row of its own, read out by the whole head."""

    name = "autograd"
    max_order = 2

    def at(self, query: Query, rows: slice, logits: LogitBlock, alpha: float | Tensor) -> Tensor:
        """Gain, gradient and Hessian–vector product."""
        state, displacement = query.source.states(rows)
        y_t1, owner_t = query.targets_T.unsqueeze(1), torch.arange(len(state), device=state.device)

        def utility(h: Tensor) -> Tensor:
            return torch.log_softmax(query.source.readout(h).double(), -1).gather(1, y_t1)[:, 0]

        base = state + (alpha * displacement).to(state.dtype)
        found = autograd_coefficients(utility, base, displacement, owner_t, len(state))
        with torch.no_grad():
            return torch.stack([found.utility - utility(state), found.slope, found.curvature])
