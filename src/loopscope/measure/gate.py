"""What the model's own exit gate would have done at each position (Appendix "Token-Level Audit")."""

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

    Published arithmetic is that of the states; the FP64 reconstruction runs the same policy on FP64 logits.
    """

    model: Gated
    threshold: float
    published: list[Tensor] = field(default_factory=list)
    rebuilt: list[Tensor] = field(default_factory=list)

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Take note of a state; depths beyond the budget are none of the gate's business."""
        if 1 <= depth <= self.model.trained_depth:
            self.published.append(self.model.gate_logits(state_RSD))
            self.rebuilt.append(self.model.gate_logits(state_RSD, torch.float64))

    def decide(self) -> GateDecision | None:
        """The policy's decisions, once the whole budget was seen."""
        if len(self.published) < self.model.trained_depth:
            return None
        published, rebuilt = exit_distribution(self.published), exit_distribution(self.rebuilt)
        return GateDecision(
            published.cdf.double(), published.exit_depth(self.threshold), rebuilt.exit_depth(self.threshold)
        )


@dataclass(frozen=True)
class GateDecision:
    """Where every position exits, [R, S], and the published CDF, [R, S, T]."""

    cdf_RST: Tensor
    exit_depth_RS: Tensor
    exit_depth_fp64_RS: Tensor

    def continues(self, transition: int) -> Tensor:
        """Whether the policy takes the update t → t+1, [R, S]."""
        return self.exit_depth_RS > transition

    def cdf_through(self, transition: int) -> Tensor:
        """Exit CDF through depth t, [R, S]; 0 before the first loop, 1 beyond the budget."""
        budget = self.cdf_RST.shape[-1]
        if transition == 0:
            return torch.zeros_like(self.cdf_RST[..., 0])
        return self.cdf_RST[..., min(transition, budget) - 1]


def gate_trace(model: object, threshold: float | None) -> GateTrace | None:
    """A trace for a model that has a gate; None for others."""
    if not isinstance(model, Gated):
        return None
    return GateTrace(model, model.exit_threshold if threshold is None else threshold)
