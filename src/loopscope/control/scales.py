"""Step-length rules: a fixed scale, substeps, anchored steps.

    fixed scale     H ← H + α·(F(H) − H), at one update or at every update from some loop on
    substeps        K times H ← H + (F(H) − H)/K
    anchored        H ← β·F(H₀) + (1 − β)·(where K substeps from H₀ end)

A fixed scale needs both ends of the update, so it costs the whole loop. Substeps and anchored steps call the block once
for every substep, the anchored step shares its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from loopscope.control.policy import Decision, Seen

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FixedScale:
    """The step to loop `start`, or every step from there on, is taken at scale α.

    Attributes:
        scale: α.
        first: the first loop whose step is scaled.
        only: whether later steps are full again.
        stop: whether it stops at that loop, as a readout of one scaled update does.
    """

    scale: float
    first: int = 1
    only: bool = False
    stop: bool = False
    signals: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """What tables call it."""
        where = f"at {self.first - 1}→{self.first}" if self.only or self.stop else f"from {self.first - 1}→{self.first}"
        return f"scale {self.scale:g} {where}"

    @property
    def earliest(self) -> int:
        """The first loop that is scaled."""
        return self.first

    def start(self, rows: int) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen, memory: None) -> Decision:
        """The scale of the step that was just taken."""
        scaled = seen.depth == self.first or (seen.depth > self.first and not self.only)
        return Decision(self.stop and seen.depth >= self.first, self.scale if scaled else 1.0)


@dataclass(frozen=True)
class Substeps:
    """K substeps of size 1/K in every loop (damped Euler)."""

    count: int = 2
    earliest: int = 1
    signals: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.count} substeps"

    def start(self, rows: int) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen, memory: None) -> Decision:
        """Goes on at full scale: the step itself is what differs."""
        return Decision()

    def step(self, block: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
        """The end of K substeps."""
        for _ in range(self.count):
            state = state + (block(state) - state) / self.count
        return state


@dataclass(frozen=True)
class AnchoredSteps:
    """β·F(H₀) + (1 − β)·(where K substeps end) in every loop."""

    count: int = 2
    beta: float = 0.5
    earliest: int = 1
    signals: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.count} substeps, anchored {self.beta:g}"

    def start(self, rows: int) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen, memory: None) -> Decision:
        """Goes on at full scale: the step itself is what differs."""
        return Decision()

    def step(self, block: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
        """The anchor and the end of the substeps, mixed."""
        anchor = block(state)
        state = state + (anchor - state) / self.count
        for _ in range(self.count - 1):
            state = state + (block(state) - state) / self.count
        return self.beta * anchor + (1 - self.beta) * state
