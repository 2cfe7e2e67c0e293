"""Policies with a fixed exit and a scale: of the step, which moves the states, or of the readout, which does not.

    FixedDepth(R)             stop at loop R
    FixedScale(α, t)          H_t ← H_{t−1} + α · D_t at loop t, at every later one too, or stop there
    Taps                      α = ‖mean of D‖² / mean of ‖D‖², moving means over loops: progress over fluctuation
    ScaledReadout(R, k, ω)    stop at R and read z_R + ω (z_R − z_k): the update k → R of the paper at α = 1 + ω
    MarginScaled(R, k, cap)   the same with ω = cap · (1 − margin), the margin being p(1) − p(2) at R (LoopCD)

A scaled readout costs its loops and one readout for z_k, in every comparison here; where the head is affine the states
can be combined before a single readout, and a fixed ω then costs nothing. The directions "orthogonal" and "temperature"
are its controls: what the change adds beyond a rescaling of the logits, and what the rescaling alone gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loopscope.control.policy import Array, Decision, Direction, Policy, Seen


@dataclass(frozen=True)
class FixedDepth(Policy):
    """Stop at a loop."""

    depth: int

    @property
    def name(self) -> str:  # type: ignore[override]
        """The depth."""
        return f"fixed {self.depth}"

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """Stop there."""
        return Decision(seen.depth >= self.depth)


@dataclass(frozen=True)
class FixedScale(Policy):
    """The step to loop `first`, and every later one unless `only`, is taken at scale α; `stop` reads there."""

    scale: float
    first: int = 1
    only: bool = False
    stop: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """The scale and where it begins."""
        where = "at" if self.only or self.stop else "from"
        return f"scale {self.scale:g} {where} {self.first - 1}→{self.first}"

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """The scale at its loops."""
        scaled = seen.depth == self.first or (seen.depth > self.first and not self.only)
        return Decision(self.stop and seen.depth >= self.first, self.scale if scaled else 1.0)


@dataclass(frozen=True)
class Taps(Policy):
    """Every step at the share of progress in the recent updates: 1 while they agree, smaller where they turn."""

    decay: float = 0.8
    name: str = "TAPS"
    signals: tuple[str, ...] = ("states",)

    def decide(self, seen: Seen, memory: dict[str, Any]) -> Decision:
        """The scale of this step, from the moments up to it."""
        step = seen.states[0] - seen.states[1]
        memory["mean"] = self.decay * memory.get("mean", 0.0) + (1 - self.decay) * step
        memory["square"] = self.decay * memory.get("square", 0.0) + (1 - self.decay) * (step * step).sum(-1)
        weight = 1 - self.decay**seen.depth
        progress = (memory["mean"] * memory["mean"]).sum(-1) / weight
        return Decision(scale=(progress / (memory["square"] + 1e-12)).clip(0, 1))


@dataclass(frozen=True)
class ScaledReadout(Policy):
    """Stop at a loop and read beyond it, or before it where omega is negative."""

    depth: int
    reference: int | None = None
    omega: float = 0.0
    direction: Direction = "chord"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The direction, its ends and the rule of the scale."""
        if self.direction == "temperature":
            return f"temperature at {self.depth}"
        label = "margin-scaled" if isinstance(self, MarginScaled) else "scaled"
        part = ", orthogonal" if self.direction == "orthogonal" else ""
        return f"{label} {self.reference}>{self.depth}{part}"

    def decide(self, seen: Seen, memory: Any) -> Decision:
        """Stop there, with the scale."""
        if seen.depth < self.depth:
            return Decision()
        return Decision(True, omega=self.scale(seen))

    def scale(self, seen: Seen) -> Array | float:
        """Omega, the same for every position."""
        return self.omega


@dataclass(frozen=True)
class MarginScaled(ScaledReadout):
    """The less certain the readout, the further it goes: `omega` is the cap."""

    def scale(self, seen: Seen) -> Array:
        """Omega by position."""
        return self.omega * (1 - seen.signal("margin"))
