"""The back end that works as the paper does: a gradient and a Hessian–vector product at every scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.affine.endpoint import endpoint_distributions
from loopscope.readout.affine.query import Backend, Query, Survey, joined
from loopscope.readout.affine.sources import blocks
from loopscope.readout.hessian_vector import autograd_coefficients


@dataclass(frozen=True)
class AutogradBackend(Backend):
    """Each token's state is a row of its own, read out by the whole head."""

    block_tokens: int
    name = "autograd"
    max_order = 2

    def not_supported_reasons(self, query: Query) -> list[str]:
        """Third and fourth derivatives are not there."""
        return [] if query.order <= self.max_order else [f"it has derivatives up to the second, not {query.order}"]

    def evaluate(self, query: Query) -> Survey:
        """Some tokens at a time."""
        return joined([self._some(query, rows) for rows in blocks(query.source.tokens, self.block_tokens)])

    def _some(self, query: Query, rows: slice) -> Survey:
        source, targets_t = query.source, query.targets_T[rows]
        view, y_t1 = source.states(rows), targets_t.unsqueeze(1)
        tokens = int(targets_t.shape[0])
        owner = torch.arange(tokens, device=targets_t.device)

        def utility(state: Tensor) -> Tensor:
            return torch.log_softmax(view.readout(state).double(), -1).gather(1, y_t1)[:, 0]

        with torch.no_grad():
            initial = utility(view.state)
        scales = [query.scales_K[rows]] if query.common is None else query.common
        columns = []
        for alpha in scales:
            base = view.state + (alpha * view.displacement).to(view.state.dtype)
            found = autograd_coefficients(utility, base, view.displacement, owner, tokens)
            columns.append(torch.stack([found.utility - initial, found.slope, found.curvature][: query.order + 1]))
        stack = torch.stack(columns, -1)
        z0_tV, v_tV = source.block(rows, targets_t)
        return Survey.of(
            query,
            stack[0],
            stack[1:, :, list(query.places)],
            initial,
            v_tV.amax(1) - v_tV.amin(1),
            endpoint_distributions(z0_tV, v_tV) if query.distributions else None,
        )
