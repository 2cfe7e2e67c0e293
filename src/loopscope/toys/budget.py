"""How long a training goes on, and the learning rate at every step of it."""

from __future__ import annotations

from dataclasses import dataclass


def rate_factor(step: int, progress: float, warmup_steps: int, decay_from: float) -> float:
    """What the learning rate is multiplied by at `step` (from 0), `progress` of the budget being spent.

    Progress is a share of the time or of the steps. A run that is resumed with a larger budget has less of it
    behind it: the rate goes up again and comes down at the new end.

    >>> [round(rate_factor(1000, p, 100, 0.5), 2) for p in (0.0, 0.5, 0.75, 1.0, 1.2)]
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    warm = min(1.0, (step + 1) / max(1, warmup_steps))
    cool = min(1.0, max(0.0, (1.0 - progress) / (1.0 - decay_from)))
    return warm * cool


@dataclass(frozen=True)
class Budget:
    """When to stop: after some minutes of training in all, before and after a resumption, or some steps."""

    minutes: float | None = None
    steps: int | None = None

    def progress(self, seconds: float, step: int) -> float:
        """The share of the budget that is spent, by whichever limit is nearer."""
        shares = [0.0]
        if self.minutes is not None:
            shares.append(seconds / max(60 * self.minutes, 1e-9))
        if self.steps is not None:
            shares.append(step / max(self.steps, 1))
        return max(shares)
