"""The learning rate over a run: a short warm-up by steps, a plateau, a straight way down to zero by progress."""

from __future__ import annotations


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
