"""The same derivatives as `moments`, slowly: written plainly, and as the paper computes them.

`reference` takes whole rows, one scale at a time, float64 throughout. Every faster implementation is held against it.
It centres at the likeliest entry too: that is what makes the numbers right, not what makes them fast. `autograd` takes
a gradient and a Hessian–vector product at every scale.

Shapes: t tokens, V vocabulary entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.query import Backend, Query, Survey, endpoint_distributions, joined
from loopscope.readout.affine.sources import blocks
from loopscope.readout.autograd import autograd_coefficients


class Softmax(NamedTuple):
    """A softmax seen from its likeliest entry d: p [t, V], d [t, 1], Σ_{a≠d} exp(z_a − z_d) [t, 1]."""

    p: Tensor
    d: Tensor
    others: Tensor


def softmax_on_path(z0_tV: Tensor, v_tV: Tensor, alpha: float | Tensor) -> Softmax:
    """p(α) = softmax(z(0) + αv), with both differences to the likeliest entry taken before they are added."""
    d_t1 = torch.argmax(z0_tV + alpha * v_tV, dim=1, keepdim=True)
    x_tV = (z0_tV - z0_tV.gather(1, d_t1)) + alpha * (v_tV - v_tV.gather(1, d_t1))
    w_tV = torch.exp(x_tV)
    others_t1 = w_tV.scatter(1, d_t1, 0.0).sum(1, keepdim=True)
    return Softmax(w_tV / (1.0 + others_t1), d_t1, others_t1)


def derivatives_at(z0_tV: Tensor, v_tV: Tensor, targets_t: Tensor, alpha: float | Tensor, order: int) -> Tensor:
    """φ(α), φ'(α), … of each token: [order+1, t]."""
    y_t1 = targets_t.unsqueeze(1)
    soft = softmax_on_path(z0_tV, v_tV, alpha)
    t_tV = v_tV - v_tV.gather(1, y_t1)
    u_tV = v_tV - v_tV.gather(1, soft.d)
    c_tV = u_tV - (soft.p * u_tV).sum(1, keepdim=True)
    variance_t = (soft.p * c_tV**2).sum(1)
    derivatives = [
        gain_at(z0_tV, v_tV, targets_t, alpha),
        -(soft.p * t_tV).sum(1),
        -variance_t,
        -(soft.p * c_tV**3).sum(1),
        -((soft.p * c_tV**4).sum(1) - 3.0 * variance_t**2),
    ]
    return torch.stack(derivatives[: order + 1])


def gain_at(z0_tV: Tensor, v_tV: Tensor, targets_t: Tensor, alpha: float | Tensor) -> Tensor:
    """φ(α) = −log E_{p(0)}[exp(α(v − v_y))] of each token, [t].

    A gain beyond ±1 is the difference of two log-sum-exps. A smaller one is −log1p of a mean of expm1, whose
    terms are small where the gain is, so that it keeps its relative accuracy.
    """
    y_t1 = targets_t.unsqueeze(1)
    start, end = softmax_on_path(z0_tV, v_tV, 0.0), softmax_on_path(z0_tV, v_tV, alpha)
    direct_t1 = (
        alpha * (v_tV.gather(1, y_t1) - v_tV.gather(1, end.d))
        - (z0_tV.gather(1, end.d) - z0_tV.gather(1, start.d))
        - (torch.log1p(end.others) - torch.log1p(start.others))
    )
    x_tV = alpha * (v_tV - v_tV.gather(1, y_t1))
    # p(0) exp(x) = p(α) exp(−φ): the form that cannot overflow, for the entries that gain a lot on the target.
    grown_tV = torch.exp(-direct_t1.clamp(-1.0, 1.0)) * end.p - start.p
    mean_t1 = torch.where(x_tV > 1.0, grown_tV, start.p * torch.expm1(x_tV.clamp(max=1.0))).sum(1, keepdim=True)
    return torch.where(direct_t1.abs() <= 1.0, -torch.log1p(mean_t1.clamp(min=-0.9)), direct_t1)[:, 0]


def log_probability_at_start(z0_tV: Tensor, targets_t: Tensor) -> Tensor:
    """The log probability of each target at α = 0, [t], a sum of two non-positive terms."""
    d_t1 = torch.argmax(z0_tV, dim=1, keepdim=True)
    gap_tV = z0_tV - z0_tV.gather(1, d_t1)
    others_t = torch.exp(gap_tV).scatter(1, d_t1, 0.0).sum(1)
    return gap_tV.gather(1, targets_t.unsqueeze(1))[:, 0] - torch.log1p(others_t)


@dataclass(frozen=True)
class ReferenceBackend(Backend):
    """Whole rows of logits, some tokens at a time."""

    block_tokens: int
    name = "reference"

    def not_supported_reasons(self, query: Query) -> list[str]:
        """None: it answers everything."""
        return []

    @torch.no_grad()
    def evaluate(self, query: Query) -> Survey:
        """One scale after the other."""
        return joined([self._some(query, rows) for rows in blocks(query.source.tokens, self.block_tokens)])

    def _some(self, query: Query, rows: slice) -> Survey:
        source, targets_t = query.source, query.targets_T[rows]
        z0_tV, v_tV = source.block(rows, targets_t)
        scales = [query.scales_K[rows]] if query.common is None else query.common
        found = torch.stack([derivatives_at(z0_tV, v_tV, targets_t, alpha, query.order) for alpha in scales], -1)
        return Survey.of(
            query,
            found[0],
            found[1:, :, list(query.places)],
            log_probability_at_start(z0_tV, targets_t),
            v_tV.amax(1) - v_tV.amin(1),
            endpoint_distributions(z0_tV, v_tV) if query.distributions else None,
        )


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
