"""Thresholds fitted to a target cost on a train trace.

The threshold that is taken is the one, of those that tell positions of the train trace apart, whose mean cost is the
nearest to the target from below; where even the cheapest is dearer, the cheapest. Costs are monotone in the threshold,
so a bisection finds it. Test traces play no part.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loopscope.control.cost import Costs
from loopscope.control.offline import Recorded, follow
from loopscope.control.policy import Seen, ThresholdRule
from loopscope.control.trace import Floats, Trace

CANDIDATES = 1024
"""Thresholds to choose from: quantiles of what the rule compares."""

R = TypeVar("R", bound=ThresholdRule)


def fit(rule: R, trace: Trace, target: float, costs: Costs = Costs(), floor: int = 1, last: int | None = None) -> R:  # noqa: B008
    """The rule with the threshold that meets a target cost on a trace.

    Args:
        rule: its own threshold is not looked at.
        trace: the train trace.
        target: mean cost, in loops.
        costs: what loops and checks cost.
        floor: no stop before this loop.
        last: the loop at which everything stops.
    """
    candidates = thresholds(rule, trace, last)
    # In the order of rising cost: a rule that stops below its threshold stops later the smaller it is.
    candidates = candidates if rule.above else candidates[::-1]
    low, high, best = 0, len(candidates) - 1, 0
    while low <= high:
        middle = (low + high) // 2
        tried = dataclasses.replace(rule, threshold=float(candidates[middle]))
        exits = follow(tried, trace, floor, last)
        if trace.mean(costs(exits.depth_R, exits.checks_R)).mean() <= target + 1e-9:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return dataclasses.replace(rule, threshold=float(candidates[best]))


def thresholds(rule: ThresholdRule, trace: Trace, last: int | None = None) -> Floats:
    """Candidates in rising order: quantiles of what the rule compares over positions and loops, and beyond."""
    memory = rule.start(len(trace))
    values: list[NDArray[np.float64]] = []
    for depth in range(1, (trace.loops if last is None else min(last, trace.loops)) + 1):
        signal = Recorded(trace, depth, set())
        seen = Seen(depth, (), signal, trace.signal("gate", depth) if trace.has_gate() else None)
        values.append(np.asarray(rule.value(seen, memory), dtype=np.float64) + np.zeros(len(trace)))
    found = np.concatenate(values)
    found = found[np.isfinite(found)]
    if not found.size:
        return np.array([rule.threshold])
    inner = np.unique(np.quantile(found, np.linspace(0, 1, CANDIDATES)))
    return np.concatenate([[np.nextafter(inner[0], -np.inf)], inner, [np.nextafter(inner[-1], np.inf)]])
