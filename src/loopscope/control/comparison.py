"""The comparison at equal cost: fitted on the train questions, frozen, tested on the others.

For each model and task: every fixed depth; the best one, chosen on the train questions; every exit rule, fitted to the
cost of that depth (the operating point) or to a target; next to each the random permutation of its exits, and the line
between fixed depths at its cost; a fixed scale of one update; scaled readouts with their controls, where the logits
beyond loops are known; and the ceilings with their nulls. Differences are paired by question.

Ceilings are what whoever knows the reference could choose, and how much of that is the luck of choosing a maximum.

    best depth      the loop with the best utility, of all from a floor on
    endpoint        the better end of one update
    five scales     the best of α = 0, 1/4, 1/2, 3/4, 1 of one update
    quadratic       α̂ = clip(−A/2Q) of it

Each chooses for a token alone or once for a question. The best of several noisy numbers is above the best mean even if
nothing about a token can be predicted. So every ceiling has a null: with u_ij the utility of row i under choice j, the
residuals u_ij − ū_i − ū_j + ū (times √(J/(J−1)), the size they had before rows were centred) are shuffled among the
rows for every j by itself, and the same oracle chooses again. What a ceiling has above its null is structure; a ceiling
below its null shows none.

Shapes: R reference positions, Q questions, N rows of either kind, J choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from loopscope.control.offline import FREE, Costs, Result, fit, follow, random_permutation, score
from loopscope.control.policy import Policy
from loopscope.control.rules import RULES, ThresholdRule
from loopscope.control.scales import FixedDepth, FixedScale, MarginScaled, ScaledReadout
from loopscope.control.trace import SCALES, Floats, Ints, Line, LineValues, Trace, interpolation_weights
from loopscope.errors import LoopscopeError, setting
from loopscope.path import predicted_scale

Per = Literal["token", "question"]
SHUFFLES = 20
SEED = 0


@dataclass(frozen=True)
class Ceiling:
    """One oracle on one trace.

    Attributes:
        name: "best depth", "endpoint", "five scales" or "quadratic".
        per: what it chooses for.
        utility_Q: what it gets, by question.
        base_Q: what the best single choice for all of them gets on these very rows, by question.
        loops_Q: mean loops that it needs.
        null: what the same oracle gains over `base_Q` on shuffled residuals, the mean; None for the quadratic one,
            which does not choose by the utility.
    """

    name: str
    per: Per
    utility_Q: Floats
    base_Q: Floats
    loops_Q: Floats
    null: float | None


def depth_ceilings(trace: Trace, floor: int = 1, last: int | None = None) -> Iterator[Ceiling]:
    """The best depth, by token (of solutions) and by question."""
    last = trace.loops if last is None else min(last, trace.loops)
    depths = np.arange(floor, last + 1)
    by_token_RJ = np.stack([trace.log_prob(int(depth)) for depth in depths], axis=1)
    yield from _ceilings("best depth", trace, by_token_RJ, depths)


def step_ceilings(trace: Trace, depth: int) -> Iterator[Ceiling]:
    """Endpoint, five scales and quadratic of the step to one loop, by token (of solutions) and by question."""
    five_RJ = trace.scaled(depth)
    loops_J = np.full(len(SCALES), depth)
    yield from _ceilings("endpoint", trace, five_RJ[:, [0, -1]], loops_J[:2])
    yield from _ceilings("five scales", trace, five_RJ, loops_J)
    if trace.is_options or "v_reference" not in trace.columns:
        return  # A and Q of the joint utility are not sums over tokens
    A_R, Q_R = coefficients(trace, depth)
    for per in ("token", "question"):
        scale_R = np.asarray(predicted_scale(A_R, Q_R))
        if per == "question":
            scale_R = np.asarray(predicted_scale(trace.mean(A_R), trace.mean(Q_R)))[trace.question_R]
        utility_Q = trace.utility((np.stack(interpolation_weights(scale_R), axis=1) * five_RJ).sum(axis=1))
        base_Q = trace.utility(five_RJ[:, _best(trace, five_RJ)])
        yield Ceiling("quadratic", per, utility_Q, base_Q, np.full(trace.questions, float(depth)), None)


def coefficients(trace: Trace, depth: int) -> tuple[Floats, Floats]:
    """A and Q of the step to a loop, for every token of an affine readout."""
    columns = (trace.columns[name][:, depth - 1].astype(np.float64) for name in ("v_reference", "mean_v", "var_v"))
    reference_R, mean_R, variance_R = columns
    return reference_R - mean_R, -0.5 * variance_R


def shuffled_gain(utility_NJ: Floats, weight_N: Floats, shuffles: int = SHUFFLES, seed: int = SEED) -> float:
    """What the best choice of every row has over the best choice for all of them, on shuffled residuals; the mean."""
    rows_N1 = utility_NJ.mean(axis=1, keepdims=True)
    choices_1J = utility_NJ.mean(axis=0, keepdims=True)
    residual_NJ = utility_NJ - rows_N1 - choices_1J + utility_NJ.mean()
    residual_NJ *= (utility_NJ.shape[1] / (utility_NJ.shape[1] - 1)) ** 0.5  # what centring the rows took
    generator = np.random.default_rng(seed)
    share_N = weight_N / weight_N.sum()
    gains = []
    for _ in range(shuffles):
        mixed_NJ = generator.permuted(residual_NJ, axis=0)
        mixed_NJ += choices_1J
        gains.append(float(share_N @ mixed_NJ.max(axis=1) - (share_N @ mixed_NJ).max()))
    return float(np.mean(gains))


def _ceilings(name: str, trace: Trace, by_token_RJ: Floats, loops_J: Ints) -> Iterator[Ceiling]:
    by_question_QJ = np.stack([trace.utility(column) for column in by_token_RJ.T], axis=1)
    best = _best(trace, by_token_RJ)
    base_Q = by_question_QJ[:, best]
    if not trace.is_options:
        chosen_R = by_token_RJ.argmax(axis=1)
        weight_R = 1 / np.bincount(trace.question_R)[trace.question_R]
        yield Ceiling(
            name,
            "token",
            trace.utility(by_token_RJ.max(axis=1)),
            base_Q,
            trace.mean(loops_J[chosen_R]),
            shuffled_gain(by_token_RJ, weight_R),
        )
    yield Ceiling(
        name,
        "question",
        by_question_QJ.max(axis=1),
        base_Q,
        loops_J[by_question_QJ.argmax(axis=1)].astype(np.float64),
        shuffled_gain(by_question_QJ, np.ones(trace.questions)),
    )


def _best(trace: Trace, by_token_RJ: Floats) -> int:
    return int(np.argmax([trace.utility(column).mean() for column in by_token_RJ.T]))


@dataclass(frozen=True)
class Tested:
    """One policy, frozen, on the test questions.

    Attributes:
        policy: as it was tested; None for an oracle.
        kind: "depth" (a fixed one), "rule", "scale", "readout" or "ceiling".
        result: its worth.
        others: utilities that it is compared with, by question: "random", the permutation of its exits; "line", fixed
            depths at its cost; "trace", its own over the trace, where it acts on the model.
        ceiling: what an oracle found.
    """

    name: str
    kind: str
    policy: Policy | None
    result: Result
    others: dict[str, Floats] = field(default_factory=dict)
    ceiling: Ceiling | None = None


@dataclass(frozen=True)
class Comparison:
    """All policies on one model and task.

    Attributes:
        tested: fixed depths, rules, scales, readouts, ceilings.
        best: the best fixed depth of the train questions.
        target: the cost to which rules were fitted.
        costs: of loops and checks.
        line: the utility of fixed depths at the cost of a result, by question.
    """

    tested: tuple[Tested, ...]
    best: Tested
    target: float
    costs: Costs
    line: Callable[[Result], Floats]


def compare(
    train: Trace,
    test: Trace,
    policies: Sequence[Policy] | None = None,
    *,
    costs: Costs = FREE,
    target: float | None = None,
    floor: int = 1,
    update: int | None = None,
    gate_budget: int | None = None,
) -> Comparison:
    """Every policy, fitted on one trace and tested on another.

    Args:
        train: the questions that thresholds, the best depth and scales are chosen on.
        test: the questions that everything is tested on.
        policies: exit rules and scales; those with a threshold are fitted. Every published rule by default.
        costs: of loops and checks.
        target: the cost to which rules are fitted; that of the best fixed depth by default.
        floor: no rule stops before this loop.
        update: the loop whose step the scales are about, where both traces have gains inside it (`update_of`).
        gate_budget: the loop at which an exit gate stops whatever is left.
    """
    last = min(train.loops, test.loops)
    if floor > last:
        raise LoopscopeError(f"{setting('floor', floor)} is beyond loop {last}, the last of the trace")
    fixed = [FixedDepth(depth) for depth in range(1, last + 1)]
    depths = [Tested(each.name, "depth", each, score(follow(each, test), test, costs)) for each in fixed]
    on_train = [score(follow(each, train), train, costs) for each in fixed]
    best = int(np.argmax([result.utility_Q.mean() for result in on_train]))
    aim = float(on_train[best].cost_Q.mean()) if target is None else target
    line = fixed_line(on_train, [entry.result for entry in depths], costs)
    tested = [*depths]

    def test_on(policy: Policy, kind: str, *limits: int) -> None:
        exits = follow(policy, test, *limits)
        result = score(exits, test, costs)
        others = {"line": line(result)}
        if kind != "readout":
            others["random"] = random_permutation(exits, test, costs).utility_Q
        tested.append(Tested(policy.name, kind, policy, result, others))

    for rule in published(train, gate_budget) if policies is None else policies:
        fitted = fit(rule, train, aim, costs, floor, last) if isinstance(rule, ThresholdRule) else rule
        test_on(fitted, "rule", floor, last)
    ceilings = list(depth_ceilings(test, floor, last))
    step = update_of(train, test, update)
    if step is not None:
        worth = [train.utility(column).mean() for column in train.scaled(step).T]
        test_on(FixedScale(SCALES[int(np.argmax(worth))], step, stop=True), "scale")
        ceilings += step_ceilings(test, step)
    for readout in fitted_readouts(train):
        test_on(readout, "readout")
    nothing = np.full(test.questions, np.nan)
    for found in ceilings:
        result = Result(found.utility_Q, nothing, found.loops_Q, costs(found.loops_Q))
        tested.append(Tested(f"oracle: {found.name} by {found.per}", "ceiling", None, result, ceiling=found))
    return Comparison(tuple(tested), depths[best], aim, costs, line)


def fixed_line(train: Sequence[Result], test: Sequence[Result], costs: Costs) -> Callable[[Result], Floats]:
    """The utility of mixing fixed depths at the cost of a result, by question.

    Tokens take one of two neighbouring depths at random; beyond the best depth of the train questions, that one.
    """
    means = [result.utility_Q.mean() for result in train]
    best_T = [int(np.argmax(means[: depth + 1])) for depth in range(len(means))]

    def at(result: Result) -> Floats:
        place = float(np.clip(result.cost_Q.mean() - costs.outside - 1, 0, len(test) - 1))
        low, high = best_T[int(place)], best_T[min(int(place) + 1, len(test) - 1)]
        share = place - int(place)
        return (1 - share) * test[low].utility_Q + share * test[high].utility_Q

    return at


def fitted_readouts(train: Trace) -> Iterator[ScaledReadout]:
    """At every depth with known lines the scaled readouts of the best utility on the train questions, and controls."""
    by_kind: dict[tuple[int, str], dict[Line, LineValues]] = {}
    for line, values in train.lines.items():
        by_kind.setdefault((line.depth, line.direction), {})[line] = values
    for (depth, direction), lines in sorted(by_kind.items()):
        yield _best_readout(train, ScaledReadout(depth, direction=next(iter(lines)).direction), lines)
        if direction == "chord":
            yield _best_readout(train, MarginScaled(depth), lines)


def _best_readout(train: Trace, kind: ScaledReadout, lines: Mapping[Line, LineValues]) -> ScaledReadout:
    margin_R = train.signal("margin", kind.depth) if isinstance(kind, MarginScaled) else 0.0
    found = []
    for line, values in lines.items():
        for omega in values.omega_J:
            utility = train.utility(values.at(omega * (1 - margin_R))).mean()
            found.append((utility, -abs(omega), replace(kind, reference=line.reference, omega=float(omega))))
    return max(found, key=lambda entry: entry[:2])[2]


def update_of(train: Trace, test: Trace, wanted: int | None) -> int | None:
    """The loop whose step scales are about: the wanted one, or else the first that both traces have gains inside."""
    known = [depth for depth in range(2, train.loops + 1) if train.has_scales(depth) and test.has_scales(depth)]
    return wanted if wanted in known else next(iter(known), None)


def published(trace: Trace, gate_budget: int | None = None) -> Iterator[ThresholdRule]:
    """Every exit rule that a trace has the signals for."""
    for rule in RULES.values():
        if "gate" not in rule.signals:
            yield rule
        elif trace.has_gate():
            yield replace(rule, budget=gate_budget)


def split_by_question(trace: Trace) -> tuple[Trace, Trace]:
    """Every second question to train on, the others to test on: for a trace of a single split."""
    return trace.some(range(0, trace.questions, 2)), trace.some(range(1, trace.questions, 2))
