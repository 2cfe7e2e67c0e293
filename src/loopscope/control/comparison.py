"""The comparison at equal cost: thresholds from the train questions, frozen, tested on the others.

For each model and task: every fixed depth; the best one, chosen on the train questions; every exit rule, fitted to the
cost of that depth (the operating point) or to a target; beside each what exits at the same depths dealt out at random
get; a fixed scale of one update, chosen on the train questions; and the ceilings with their nulls. Differences are
paired by question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loopscope.control.cost import Costs
from loopscope.control.fit import fit
from loopscope.control.offline import Exits, Result, follow, same_histogram, score
from loopscope.control.oracles import Ceiling, depth_ceilings, step_ceilings
from loopscope.control.policy import Policy, ThresholdRule
from loopscope.control.rules import RULES, ArgmaxStability, FixedDepth, OuroGate
from loopscope.control.scales import FixedScale
from loopscope.control.trace import SCALES, Trace


@dataclass(frozen=True)
class Tested:
    """One policy, frozen, on the test questions.

    Attributes:
        policy: as it was tested.
        kind: "depth" (a fixed one), "rule", "scale" or "ceiling".
        result: its worth.
        random: what the same histogram of exits gets at random; None for fixed depths and ceilings.
        train_cost: mean cost on the train questions; None for ceilings.
        null: of a ceiling: what the oracle gains over the best single choice on shuffled residuals.
        base: of a ceiling: the utility of that single choice, by question of the test set.
    """

    name: str
    kind: str
    policy: Policy | None
    result: Result
    random: Result | None = None
    train_cost: float | None = None
    ceiling: Ceiling | None = None


@dataclass(frozen=True)
class Comparison:
    """All policies on one model and task.

    Attributes:
        tested: fixed depths, rules, scales, ceilings.
        best: the best fixed depth of the train questions.
        target: the cost to which rules were fitted.
        update: the loop whose step the scales are about; None where the trace has no gains inside a step.
    """

    tested: tuple[Tested, ...]
    best: Tested
    target: float
    update: int | None

    def at(self, name: str) -> Tested:
        """One policy by name."""
        return next(entry for entry in self.tested if entry.name == name)


def compare(
    train: Trace,
    test: Trace,
    policies: Sequence[Policy] | None = None,
    *,
    costs: Costs = Costs(),  # noqa: B008
    target: float | None = None,
    floor: int = 1,
    update: int | None = None,
    gate_budget: int | None = None,
) -> Comparison:
    """Every policy, fitted on one trace and tested on another.

    Args:
        train: the questions that thresholds, the best depth and the best scale are chosen on.
        test: the questions that everything is tested on.
        policies: exit rules and scales; those with a threshold are fitted. Every published rule by default.
        costs: what loops and checks cost.
        target: the cost to which rules are fitted; that of the best fixed depth by default.
        floor: no rule stops before this loop.
        update: the loop whose step the scales are about; the first one that the traces have gains inside by default.
        gate_budget: the loop at which an exit gate stops whatever is left.
    """
    last = min(train.loops, test.loops)
    depths = [_tested(FixedDepth(depth), "depth", train, test, costs, floor=1) for depth in range(1, last + 1)]
    on_train = [score(follow(FixedDepth(depth), train), train, costs).utility_Q.mean() for depth in range(1, last + 1)]
    best = depths[int(np.argmax(on_train))]
    assert best.train_cost is not None
    aim = best.train_cost if target is None else target
    rules = published(train, gate_budget) if policies is None else policies
    tested = [*depths]
    for rule in rules:
        fitted = fit(rule, train, aim, costs, floor, last) if isinstance(rule, ThresholdRule) else rule
        kind = "scale" if isinstance(rule, FixedScale) else "rule"
        tested.append(_tested(fitted, kind, train, test, costs, floor, last))
    ceilings = list(depth_ceilings(test, floor, last))
    step = update or next((depth for depth in range(2, last + 1) if _scales(train, test, depth)), None)
    if step is not None:
        tested.append(_best_scale(step, train, test, costs))
        ceilings += step_ceilings(test, step)
    return Comparison((*tested, *(_ceiling(entry, test, costs) for entry in ceilings)), best, aim, step)


def published(trace: Trace, gate_budget: int | None = None) -> Iterator[ThresholdRule]:
    """Every exit rule that a trace has the signals for."""
    for rule in RULES:
        if issubclass(rule, OuroGate):
            if trace.has_gate():
                yield rule(budget=gate_budget)
        elif issubclass(rule, ArgmaxStability):
            yield rule(threshold=2)
        else:
            yield rule()  # type: ignore[call-arg]


def _tested(
    policy: Policy, kind: str, train: Trace, test: Trace, costs: Costs, floor: int, last: int | None = None
) -> Tested:
    seen, exits = follow(policy, train, floor, last), follow(policy, test, floor, last)
    chance = None if kind == "depth" else same_histogram(exits, test, costs)
    return Tested(
        policy.name, kind, policy, score(exits, test, costs), chance, float(score(seen, train, costs).cost_Q.mean())
    )


def _best_scale(depth: int, train: Trace, test: Trace, costs: Costs) -> Tested:
    worth = [train.utility(column).mean() for column in train.scaled(depth).T]
    scale = SCALES[int(np.argmax(worth))]
    return _tested(FixedScale(scale, depth, stop=True), "scale", train, test, costs, floor=1)


def _scales(train: Trace, test: Trace, depth: int) -> bool:
    return train.has_scales(depth) and test.has_scales(depth)


def _ceiling(found: Ceiling, trace: Trace, costs: Costs) -> Tested:
    nothing = np.full(trace.questions, np.nan)
    name = f"oracle: {found.name} by {found.per}"
    return Tested(
        name,
        "ceiling",
        None,
        Result(found.utility_Q, nothing, found.loops_Q, costs(found.loops_Q)),
        ceiling=found,
    )


def split_by_question(trace: Trace) -> tuple[Trace, Trace]:
    """Every second question to train on, the others to test on: for a trace of a single split."""
    return trace.some(range(0, trace.questions, 2)), trace.some(range(1, trace.questions, 2))


__all__ = ["Comparison", "Exits", "Tested", "compare", "published", "split_by_question"]
