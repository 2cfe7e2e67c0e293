"""Policies over a recorded trace: where each position stops, and what that is worth; no model, NumPy alone.

Nothing that a policy decides changes a recorded state: an exit selects the loop whose logits are read, a scale the
point on the step to that loop. Rules whose effect lies in the states they leave behind need the model at hand.

A policy costs (F₀ + loops · F_r + checks · F_check) / F_r per token. F is the number of weights that one token passes
through: F_r those of one loop, F_check those of a readout (what stands between the state and the logits), F₀ everything
outside the loop, the readout of the answer included. A check is a readout of the logits that a policy asked for, at
each depth once; those of the state that is read in the end are the answer's and no check. A scaled step has both its
ends computed, so it costs its whole loop; a step that calls the block several times costs as many loops.
`rerun.costs_of` counts a model at hand; those that the paper measures are known here.

A threshold is fitted to a target cost on a train trace: the one that is taken is, of those that tell positions of that
trace apart, the one whose mean cost is the nearest to the target from below; where even the cheapest is dearer, the
cheapest. Costs are monotone in the threshold, so a bisection finds it. Test traces play no part.

Shapes: R reference positions, Q questions.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from operator import lt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loopscope.control.policy import CHANGE_SIGNALS, LOGIT_SIGNALS, Policy, Seen, Stepper
from loopscope.control.rules import ThresholdRule
from loopscope.control.trace import Floats, Ints, Trace, interpolation_weights
from loopscope.errors import LoopscopeError


@dataclass(frozen=True)
class Costs:
    """Weights outside the loop and of one readout, over those of one loop.

    >>> Costs(outside=0.08, check=0.08)(loops=3, checks=2)
    3.24
    """

    outside: float = 0.0
    check: float = 0.0

    def __call__(self, loops: Any, checks: Any = 0) -> Any:
        """The cost of a token, in loops."""
        return self.outside + loops + checks * self.check


KNOWN = {
    "ouro-1.4b": Costs(0.082, 0.082),
    "ouro-2.6b": Costs(0.041, 0.041),
    "huginn-0125": Costs(1.18, 0.69),
}
"""By name without organisation and revision, in lower case; Huginn's readout is its coda and head."""


def known_costs(model: str) -> Costs | None:
    """The costs of a published model, by whatever name it was measured under.

    >>> known_costs("ByteDance/Ouro-1.4B-Thinking")
    Costs(outside=0.082, check=0.082)
    """
    bare = model.rsplit("/", 1)[-1].partition("@")[0].lower().removesuffix("-thinking")
    return KNOWN.get(bare)


@dataclass(frozen=True)
class Exits:
    """What a policy did with every position of a trace.

    Attributes:
        depth_R: the loop whose state is read, 1 … T.
        scale_R: the scale of the step to it; 0 reads the loop before.
        checks_R: readouts that were made to decide.
    """

    depth_R: Ints
    scale_R: Floats
    checks_R: Ints


@dataclass(frozen=True)
class Result:
    """What the exits of a policy are worth, by question.

    Attributes:
        utility_Q: nats per token.
        accuracy_Q: right tokens, or the right option; NaN where the trace does not say what is likeliest.
        loops_Q: mean loops.
        cost_Q: mean cost, in loops.
    """

    utility_Q: Floats
    accuracy_Q: Floats
    loops_Q: Floats
    cost_Q: Floats


class Recorded:
    """The signals of a trace after one loop; it counts which logits were asked for."""

    def __init__(self, trace: Trace, depth: int, read: set[int]) -> None:
        self._trace, self._depth, self._read = trace, depth, read
        self.new = 0

    def __call__(self, name: str) -> NDArray[Any]:
        """A signal by name, [R]."""
        needed = {self._depth} if name in LOGIT_SIGNALS else set()
        if name in CHANGE_SIGNALS:
            needed = {self._depth - 1, self._depth} - {0}
        self.new += len(needed - self._read)
        self._read |= needed
        return self._trace.signal(name, self._depth)


def follow(policy: Policy, trace: Trace, floor: int = 1, last: int | None = None) -> Exits:
    """The exits of a policy.

    Args:
        policy: it must read signals alone; one that reads states or takes its own steps needs the model.
        trace: what was recorded.
        floor: no policy stops before this loop.
        last: the loop at which everything stops; the last one recorded by default.

    Raises:
        LoopscopeError: the policy cannot be followed over a trace.
    """
    if isinstance(policy, Stepper) or "states" in policy.signals:
        raise LoopscopeError(f"{policy.name!r} acts on states, which a trace does not hold: run it with the model")
    rows, last = len(trace), trace.loops if last is None else min(last, trace.loops)
    depth_R = np.full(rows, last, dtype=np.int64)
    scale_R = np.ones(rows)
    checks_R = np.zeros(rows, dtype=np.int64)
    going_R = np.ones(rows, dtype=bool)
    memory, read = policy.start(rows), set[int]()
    for depth in range(1, last + 1):
        signal = Recorded(trace, depth, read)
        decision = policy.decide(Seen(depth, (), signal), memory)
        checks_R[going_R] += signal.new
        stop_R = going_R & np.asarray(decision.stop, dtype=bool) & (depth >= max(policy.earliest, floor))
        if depth == last:
            stop_R = going_R
        if np.ndim(decision.scale) or decision.scale != 1.0:
            scale_R = np.where(stop_R, np.asarray(decision.scale, dtype=np.float64), scale_R)
        if depth in read:
            checks_R[stop_R & (scale_R == 1)] -= 1  # these logits are the answer's
        depth_R[stop_R] = depth
        going_R &= ~stop_R
        if not going_R.any():
            break
    return Exits(depth_R, scale_R, checks_R)


def score(exits: Exits, trace: Trace, costs: Costs = Costs()) -> Result:  # noqa: B008
    """What exits are worth."""
    log_prob_R = chosen_log_prob(exits, trace)
    inside = ~np.isin(exits.scale_R, (0.0, 1.0))
    read_R = exits.depth_R - (exits.scale_R == 0)
    correct_R = trace.correct[np.arange(len(trace)), read_R - 1].astype(np.float64)
    if not trace.is_options:
        correct_R[inside] = np.nan
    return Result(
        trace.utility(log_prob_R),
        trace.accuracy(log_prob_R, correct_R),
        trace.mean(exits.depth_R),
        trace.mean(costs(exits.depth_R, exits.checks_R)),
    )


def chosen_log_prob(exits: Exits, trace: Trace) -> Floats:
    """The log probability of the reference where every position stopped, [R]."""
    rows = np.arange(len(trace))
    found = trace.columns["log_prob"][rows, exits.depth_R - 1].astype(np.float64)
    for depth in np.unique(exits.depth_R[exits.scale_R != 1.0]).tolist():
        here = (exits.depth_R == depth) & (exits.scale_R != 1.0)
        if (exits.scale_R[here] == 0).all() and depth > 1:
            found[here] = trace.log_prob(depth - 1)[here]
        else:
            weights_RJ = np.stack(interpolation_weights(exits.scale_R[here]), axis=1)
            found[here] = (weights_RJ * trace.scaled(depth)[here]).sum(axis=1)
    return found


def same_histogram(exits: Exits, trace: Trace, costs: Costs = Costs()) -> Result:  # noqa: B008
    """What is expected of exits at the same depths and scales, dealt to positions at random.

    The expectation is exact for solutions; with options it is that of the scores, which the utility is then taken of.
    """
    log_prob_R, correct_R = np.zeros(len(trace)), np.zeros(len(trace))
    full_R = exits.scale_R == 1.0
    for depth, count in zip(*np.unique(exits.depth_R[full_R], return_counts=True), strict=True):
        log_prob_R += count / len(trace) * trace.log_prob(int(depth))
        correct_R += count / len(trace) * trace.correct[:, depth - 1]
    for depth in np.unique(exits.depth_R[~full_R]).tolist():
        # A polynomial in the scale: its mean over the scales that occur is that of the weights.
        scales = exits.scale_R[~full_R & (exits.depth_R == depth)]
        if not scales.any():
            log_prob_R += len(scales) / len(trace) * trace.log_prob(depth - 1)
            correct_R += len(scales) / len(trace) * trace.correct[:, depth - 2]
            continue
        weights_J = np.stack(interpolation_weights(scales)).sum(axis=1) / len(trace)
        log_prob_R += trace.scaled(depth) @ weights_J
        correct_R += np.nan
    ones = np.ones(trace.questions)
    return Result(
        trace.utility(log_prob_R),
        trace.accuracy(log_prob_R, correct_R),
        ones * exits.depth_R.mean(),
        ones * costs(exits.depth_R, exits.checks_R).mean(),
    )


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
    candidates = candidates if rule.test is not lt else candidates[::-1]
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
        seen = Seen(depth, (), Recorded(trace, depth, set()))
        values.append(np.asarray(rule.value(seen, memory), dtype=np.float64) + np.zeros(len(trace)))
    found = np.concatenate(values)
    found = found[np.isfinite(found)]
    if not found.size:
        return np.array([rule.threshold])
    inner = np.unique(np.quantile(found, np.linspace(0, 1, CANDIDATES)))
    return np.concatenate([[np.nextafter(inner[0], -np.inf)], inner, [np.nextafter(inner[-1], np.inf)]])
