"""What the model's own exit gate would have done at each position (Appendix "Token-Level Audit").

Shapes: R sequences, S positions, N reference tokens, T loops of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from loopscope.models.exit_gate import exit_distribution


@runtime_checkable
class Gated(Protocol):
    """A model with an exit gate over the depths of its trained budget."""

    trained_depth: int

    @property
    def exit_threshold(self) -> float:
        """The checkpoint's own CDF threshold."""
        ...

    def gate_logits(self, state: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The gate's logits [R, S] at a state."""
        ...


@dataclass
class GateTrace:
    """The gate's logits at depths 1..T, collected on the way down.

    Published arithmetic is that of the states and covers every position. The FP64 reconstruction runs the same policy
    on FP64 logits, at the `positions` [N, 2] whose decisions are stored; None where none are.
    """

    model: Gated
    threshold: float
    positions: Tensor | None
    published: list[Tensor] = field(default_factory=list)
    rebuilt: list[Tensor] = field(default_factory=list)

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Take note of a state; depths beyond the budget are none of the gate's business."""
        if not 1 <= depth <= self.model.trained_depth:
            return
        self.published.append(self.model.gate_logits(state_RSD))
        if self.positions is not None:
            row, place = self.positions.unbind(1)
            self.rebuilt.append(self.model.gate_logits(state_RSD[row, place][None], torch.float64)[0])

    def decide(self) -> GateDecision | None:
        """The policy's decisions, once the whole budget was seen."""
        if len(self.published) < self.model.trained_depth:
            return None
        published = exit_distribution(self.published)
        exit_depth_RS = published.exit_depth(self.threshold)
        if self.positions is None:
            return GateDecision(exit_depth_RS, None)
        row, place = self.positions.unbind(1)
        rebuilt_N = exit_distribution(self.rebuilt).exit_depth(self.threshold)
        tokens = TokenDecisions(published.cdf[row, place].double(), exit_depth_RS[row, place], rebuilt_N)
        return GateDecision(exit_depth_RS, tokens)


@dataclass(frozen=True)
class TokenDecisions:
    """Where every reference token's prediction position exits, [N], and the published CDF there, [N, T]."""

    cdf_NT: Tensor
    exit_depth_N: Tensor
    exit_depth_fp64_N: Tensor

    def continues(self, transition: int) -> Tensor:
        """Whether the policy takes the update t → t+1, [N]."""
        return self.exit_depth_N > transition

    def cdf_through(self, transition: int) -> Tensor:
        """Exit CDF through depth t, [N]; 0 before the first loop, 1 beyond the budget."""
        budget = self.cdf_NT.shape[-1]
        if transition == 0:
            return torch.zeros_like(self.cdf_NT[..., 0])
        return self.cdf_NT[..., min(transition, budget) - 1]


@dataclass(frozen=True)
class GateDecision:
    """Where every position exits, [R, S], and more about the reference tokens' where they are stored."""

    exit_depth_RS: Tensor
    tokens: TokenDecisions | None

    def continues(self, transition: int) -> Tensor:
        """Whether the policy takes the update t → t+1, [R, S]."""
        return self.exit_depth_RS > transition


def gate_trace(model: object, threshold: float | None, positions: Tensor | None) -> GateTrace | None:
    """A trace for a model that has a gate; None for others."""
    if not isinstance(model, Gated):
        return None
    return GateTrace(model, model.exit_threshold if threshold is None else threshold, positions)
