"""Policies over a recorded trace: where each position stops, and what that is worth; no model, NumPy alone.

Nothing that a policy decides changes a recorded state: an exit selects the loop whose logits are read, a scale the
point on the step to that loop, an omega the point beyond it. Policies that move states need the model.

A policy costs (F₀ + loops · F_r + checks · F_check) / F_r per token. F is the number of weights that one token passes
through: F_r those of one loop, F_check those of a readout (what stands between the state and the logits), F₀ everything
outside the loop, the readout of the answer included. A check is a readout of the logits that a policy read, at each
depth once; those of the state that is read in the end are the answer's and no check; those of z_k under a scaled
readout are one. A scaled step has both its ends computed, so it costs its whole loop.

A threshold is fitted to a target cost on a train trace: of those that separate positions of that trace, the one whose
mean cost is the nearest to the target from below; where even the cheapest is dearer, the cheapest. Costs are monotone
in the threshold, so a bisection finds it. Test traces play no part.

Shapes: R reference positions, Q questions.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from dataclasses import dataclass
from operator import lt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscope.control.policies import (
    CHANGE_SIGNALS,
    LOGIT_SIGNALS,
    Policy,
    Seen,
    ThresholdRule,
    decision_of,
)
from loopscope.control.trace import Floats, Ints, Line, Positions, Trace, interpolation_weights
from loopscope.errors import LoopscopeError, setting


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


FREE = Costs()
KNOWN = {"ouro-1.4b": Costs(0.082, 0.082), "ouro-2.6b": Costs(0.041, 0.041), "huginn-0125": Costs(1.18, 0.69)}
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
    """What a policy did with every position.

    Attributes:
        depth_R: the loop whose state is read, 1 … T.
        checks_R: readouts that were made to decide.
        log_prob_R: of the reference, as it was read.
        correct_R: whether the likeliest token was the reference; NaN where a trace does not say.
        scale_R: the scale of the step to the loop that is read; 0 reads the loop before.
        omega_R: how far beyond it the logits are read.
    """

    depth_R: Ints
    checks_R: Ints
    log_prob_R: Floats
    correct_R: Floats
    scale_R: Floats
    omega_R: Floats


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


def recorded(trace: Trace, depth: int, read: set[int]) -> Seen:
    """What a policy is shown of a trace after a loop; depths whose logits it reads join `read`."""

    def signal(name: str) -> NDArray[Any]:
        if name in CHANGE_SIGNALS:
            read.update({depth - 1, depth} - {0})
        elif name in LOGIT_SIGNALS:
            read.add(depth)
        return trace.signal(name, depth)

    return Seen(depth, (), signal)


def follow(policy: Policy, trace: Trace) -> Exits:
    """The exits of a policy, which must read signals alone and move no state; all stop at the last loop recorded.

    Raises:
        LoopscopeError: the policy cannot be followed over a trace.
    """
    if "states" in policy.signals:
        raise LoopscopeError(f"{policy.name!r} reads states, which a trace does not hold: run it with the model")
    rows, last = len(trace), trace.loops
    depth_R, checks_R = np.full(rows, last, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    scale_R, omega_R, going_R = np.ones(rows), np.zeros(rows), np.ones(rows, dtype=bool)
    memory, read = dict[str, Any](), set[int]()
    for depth in range(1, last + 1):
        known = len(read)
        decision = decision_of(policy, recorded(trace, depth, read), memory, rows)
        checks_R[going_R] += len(read) - known
        stop_R = going_R & np.asarray(decision.stop, dtype=bool) & (depth >= policy.earliest)
        if depth == last:
            stop_R = going_R
        scale_R = np.where(stop_R, np.asarray(decision.scale, dtype=np.float64), scale_R)
        omega_R = np.where(stop_R, np.asarray(decision.omega, dtype=np.float64), omega_R)
        if not (stop_R | (np.asarray(decision.scale) == 1) | ~going_R).all():
            raise LoopscopeError(f"{policy.name!r} moves states, which a trace does not follow: run it with the model")
        if depth in read:
            checks_R[stop_R & (scale_R == 1)] -= 1  # these logits are the answer's
        if policy.reference is not None and policy.reference not in read:
            checks_R[stop_R] += 1
        depth_R[stop_R] = depth
        going_R &= ~stop_R
        if not going_R.any():
            break
    log_prob_R, correct_R = np.zeros(rows), np.zeros(rows)
    for depth in np.unique(depth_R).tolist():
        here_R = depth_R == depth
        known_RJ, right_RJ, weights_NJ = _points(trace, depth, scale_R[here_R])
        log_prob_R[here_R] = (weights_NJ * known_RJ[here_R]).sum(axis=1)
        correct_R[here_R] = (weights_NJ * right_RJ[here_R]).sum(axis=1)
        beyond_R = here_R & (omega_R != 0)
        if beyond_R.any():
            line = Line(policy.direction, policy.reference, depth)
            if line not in trace.lines:
                raise LoopscopeError(
                    f"this trace does not hold logits beyond loop {depth} ({line.direction} from {line.reference}): "
                    f"use {setting('tier', 'readouts')}"
                )
            log_prob_R[beyond_R] = trace.lines[line].at(omega_R)[beyond_R]
            correct_R[beyond_R] = np.nan
    return Exits(depth_R, checks_R, log_prob_R, correct_R, scale_R, omega_R)


def _points(trace: Trace, depth: int, scale_N: Floats) -> tuple[Floats, Floats, Floats]:
    """Log probability and correctness at points of the step to a loop, [R, J], and their weights at scales, [N, J].

    The ends suffice for scales of 0 and 1; nothing is known of the likeliest token between them.
    """
    if np.isin(scale_N, (0.0, 1.0)).all():
        ends = [max(depth - 1, 1), depth]
        known_RJ = np.stack([trace.log_prob(end) for end in ends], axis=1)
        right_RJ = np.stack([trace.signal("top_id", end) == trace.target_R for end in ends], axis=1).astype(np.float64)
        return known_RJ, right_RJ, np.stack([1 - scale_N, scale_N], axis=1)
    known_RJ = trace.scaled(depth)
    return known_RJ, np.full_like(known_RJ, np.nan), np.stack(interpolation_weights(scale_N), axis=1)


def score(exits: Exits, positions: Positions, costs: Costs = FREE) -> Result:
    """What exits are worth."""
    return Result(
        positions.utility(exits.log_prob_R),
        positions.accuracy(exits.log_prob_R, exits.correct_R),
        positions.mean(exits.depth_R),
        positions.mean(costs(exits.depth_R, exits.checks_R)),
    )


def random_permutation(exits: Exits, trace: Trace, costs: Costs = FREE) -> Result:
    """What is expected of exits at the same depths and scales, assigned to positions at random.

    The expectation is exact for solutions; with options it is that of the scores, which the utility is then taken of.
    """
    log_prob_R, correct_R = np.zeros(len(trace)), np.zeros(len(trace))
    for depth in np.unique(exits.depth_R).tolist():
        known_RJ, right_RJ, weights_NJ = _points(trace, depth, exits.scale_R[exits.depth_R == depth])
        share_J = weights_NJ.sum(axis=0) / len(trace)
        log_prob_R += known_RJ @ share_J
        correct_R += right_RJ @ share_J
    found = score(dataclasses.replace(exits, log_prob_R=log_prob_R, correct_R=correct_R), trace, costs)
    ones, mean_cost = np.ones(trace.questions), costs(exits.depth_R, exits.checks_R).mean()
    return dataclasses.replace(found, loops_Q=ones * exits.depth_R.mean(), cost_Q=ones * mean_cost)


CANDIDATES = 1024
"""Thresholds to choose from: quantiles of what the rule compares."""


def fit(rule: ThresholdRule, trace: Trace, target: float, costs: Costs = FREE) -> ThresholdRule:
    """The rule with the threshold that meets a target cost on a train trace."""
    candidates = _thresholds(rule, trace)
    # In the order of rising cost: a rule that stops below its threshold stops later the smaller it is.
    candidates = candidates if rule.test is not lt else candidates[::-1]

    def cost(candidate: float) -> float:
        exits = follow(dataclasses.replace(rule, threshold=float(candidate)), trace)
        return float(trace.mean(costs(exits.depth_R, exits.checks_R)).mean())

    dearer = bisect_right(candidates, target + 1e-9, key=cost)
    return dataclasses.replace(rule, threshold=float(candidates[max(dearer - 1, 0)]))


def _thresholds(rule: ThresholdRule, trace: Trace) -> Floats:
    """Candidates in rising order: quantiles of what the rule compares over positions and loops, and beyond."""
    memory: dict[str, Any] = {}
    values: list[NDArray[np.float64]] = []
    for depth in range(1, trace.loops + 1):
        value_R = rule.value(recorded(trace, depth, set()), memory)
        values.append(np.asarray(value_R, dtype=np.float64) + np.zeros(len(trace)))
    found = np.concatenate(values)
    found = found[np.isfinite(found)]
    if not found.size:
        return np.array([rule.threshold])
    inner = np.unique(np.quantile(found, np.linspace(0, 1, CANDIDATES)))
    return np.concatenate([[np.nextafter(inner[0], -np.inf)], inner, [np.nextafter(inner[-1], np.inf)]])
