"""Exit gates: how likely a model finds it that a loop is the last, and the rule that makes a decision of it.

    λ_t = sigmoid(gate(H_t)) at every position, for t = 1 … T, the depths of a budget

    "cdf"         p_t = λ_t · Π_{j<t} (1 − λ_j)  (the last p takes the remainder),   c_t = p_1 + … + p_t,
                  exit depth = the first t with c_t ≥ threshold, else T
    "threshold"   exit depth = the first t with λ_t > threshold, else T

The arithmetic of the gate is that of the logits given. A published policy runs in the model's dtype; in BF16 the
cumulative sum can round up to 1 before the last loop, so that "threshold 1" is not "the last loop". The same
decisions in float64 come from float64 logits (`gate.logits(state, torch.float64)`).

Whoever records decisions asks the model for its `exit_gate` (`exit_gate_of`) and needs to know nothing else of it.

Shapes: T loops, B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Rule = Literal["cdf", "threshold"]


@dataclass(frozen=True)
class ExitGate:
    """A model's exit gate and the policy of its checkpoint.

    Attributes:
        logits: the gate before its sigmoid: from a state [B, S, D] and the arithmetic (None for its own) to [B, S].
        threshold: the policy's own.
        budget: T; what is deeper does not count.
        rule: "cdf" or "threshold".
    """

    logits: Callable[[Tensor, torch.dtype | None], Tensor]
    threshold: float
    budget: int
    rule: Rule = "cdf"

    def compared(self, gate_logits: Sequence[Tensor]) -> Tensor:
        """What the rule compares with its threshold, [..., T], from the logits at depths 1..T, each [...]."""
        if self.rule == "cdf":
            return torch.cumsum(exit_probabilities(gate_logits), dim=-1)
        return torch.sigmoid(torch.stack(list(gate_logits), dim=-1))

    def exit_depth(self, compared: Tensor, threshold: float | None = None) -> Tensor:
        """Where the policy stops (1..T), int64 [...]."""
        limit = self.threshold if threshold is None else threshold
        reached = compared >= limit if self.rule == "cdf" else compared > limit
        first = reached.to(torch.int64).argmax(dim=-1)
        return torch.where(reached.any(dim=-1), first + 1, reached.shape[-1])


def exit_gate_of(model: object) -> ExitGate | None:
    """The gate of a model that has one."""
    gate = getattr(model, "exit_gate", None)
    return gate if isinstance(gate, ExitGate) else None


def exit_probabilities(gate_logits: Sequence[Tensor]) -> Tensor:
    """p_t over the depths 1..T of one budget, [..., T], from the gate's logits at each, [...], in their own dtype.

    >>> exit_probabilities([torch.zeros(1)] * 3).tolist()
    [[0.5, 0.25, 0.25]]
    """
    stop = [torch.sigmoid(logits) for logits in gate_logits]
    remaining = torch.ones_like(stop[0])
    found = []
    for chance in stop[:-1]:
        found.append(chance * remaining)
        remaining = remaining * (1.0 - chance)
    return torch.stack([*found, remaining], dim=-1)


def state_at_exit(states: Sequence[Tensor], depth: Tensor) -> Tensor:
    """The states [B, S, D] at each position's own exit depth (1..T), from the states at depths 1..T."""
    stacked = torch.stack(list(states), dim=-2)
    index = (depth - 1)[..., None, None].expand(*depth.shape, 1, stacked.shape[-1])
    return stacked.gather(-2, index)[..., 0, :]
