"""The comparison at equal cost: fitted on the train questions, frozen, tested on the others.

For each model and task: every fixed depth; the best one, chosen on the train questions; every exit rule, fitted to the
cost of that depth (the operating point) or to a target; next to each the random permutation of its exits, and the line
between fixed depths at its cost; a fixed scale of one update; scaled readouts with their controls, where the logits
beyond loops are known; and the ceilings with their nulls. Differences are paired by question.

Ceilings are what whoever knows the reference could choose, and how much of that is the luck of choosing a maximum.

    best depth      the loop with the best utility, of all
    endpoint        the better end of one update
    five scales     the best of α = 0, 1/4, 1/2, 3/4, 1 of one update
    quadratic       α̂ = clip(−A/2Q) of it

Each chooses for a token alone or once for a question. The best of several noisy numbers is above the best mean even if
nothing about a token can be predicted. So every ceiling has a null: with u_ij the utility of row i under choice j, the
residuals u_ij − ū_i − ū_j + ū (times √(J/(J−1)), the size they had before rows were centred) are shuffled among the
rows for every j by itself, and the same oracle chooses again. What a ceiling has above its null is structure; a ceiling
below its null shows none.

Shapes: R reference positions, Q questions, T loops, N rows of either kind, J choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from loopscope.control.offline import FREE, Costs, Result, fit, follow, random_permutation, score
from loopscope.control.policies import RULES, FixedDepth, FixedScale, MarginScaled, Policy, ScaledReadout, ThresholdRule
from loopscope.control.trace import SCALES, Floats, Ints, Trace, interpolation_weights
from loopscope.path import predicted_scale
from loopscope.stats import Best, Mean

SHUFFLES = 20


@dataclass(frozen=True)
class Curve:
    """The utility of questions along one update.

    Attributes:
        kind: "path" of the states, or of the logits "chord", "orthogonal" or "temperature" (`Policy.direction`).
        reference: k; None of a temperature.
        depth: R.
        scale_J: 1 + ω, an even grid that has 1.
        train_QJ: utilities of the train questions.
        test_QJ: those of the test questions.
    """

    kind: str
    reference: int | None
    depth: int
    scale_J: Floats
    train_QJ: Floats
    test_QJ: Floats

    @property
    def fitted(self) -> int:
        """The place of the best scale on the train questions."""
        return int(np.argmax(self.train_QJ.mean(axis=0)))

    @property
    def test_utility(self) -> Floats:
        """Utilities of the test questions there."""
        return self.test_QJ[:, self.fitted]

    @property
    def name(self) -> str:
        """The kind and the ends."""
        ends = f"at {self.depth}" if self.reference is None else f"{self.reference}>{self.depth}"
        return f"{self.kind} {ends}"


def between_depths(train_QT: Floats, test_QT: Floats, loops: float) -> Floats:
    """The test utility of fixed depths that take so many loops on average, [Q].

    Tokens take one of two neighbouring depths at random; beyond the best depth of the train questions, that one.

    >>> between_depths(np.array([[0.0, 2.0, 1.0]]), np.array([[0.0, 4.0, 5.0]]), 1.5)
    array([2.])
    """
    means = train_QT.mean(axis=0)
    best = [int(np.argmax(means[: depth + 1])) for depth in range(len(means))]
    place = float(np.clip(loops - 1, 0, len(means) - 1))
    low, high = best[int(place)], best[min(int(place) + 1, len(means) - 1)]
    share = place - int(place)
    found: Floats = (1 - share) * test_QT[:, low] + share * test_QT[:, high]
    return found


def fitted_scales(
    curves: Sequence[Curve], train_QT: Floats, test_QT: Floats, costs: Costs
) -> dict[str, dict[str, Any]]:
    """What the fitted scale of every curve gains, by the curve's name, as statistics to be resampled.

    Args:
        curves: of one model and task.
        train_QT: utilities of the train questions after 1 … T loops.
        test_QT: those of the test questions.
        costs: of a readout: the second one, for z_k, is charged wherever k is read.
    """
    temperatures = {curve.depth: curve.test_utility for curve in curves if curve.kind == "temperature"}
    found: dict[str, dict[str, Any]] = {}
    for curve in curves:
        full_Q, loops = curve.test_QJ[:, int(np.argmin(abs(curve.scale_J - 1)))], curve.depth
        cost = loops + (curve.reference is not None) * costs.check
        next_Q = test_QT[:, loops] if loops < test_QT.shape[1] else None
        other_Q = temperatures.get(loops) if curve.kind != "temperature" else None
        found[curve.name] = {
            "kind": curve.kind,
            "reference": curve.reference,
            "depth": loops,
            "fitted": Best(curve.scale_J, curve.train_QJ),
            "gain": Mean(curve.test_utility - full_Q),
            "over_line": Mean(curve.test_utility - between_depths(train_QT, test_QT, cost)),
            "over_temperature": None if other_Q is None else Mean(curve.test_utility - other_Q),
            "next_loop": None if next_Q is None else Mean(next_Q - test_QT[:, loops - 1]),
            "cost": cost + costs.outside,
        }
    return found


@dataclass(frozen=True)
class Tested:
    """One policy, frozen, or an oracle, on the test questions.

    Attributes:
        name: what tables call it.
        kind: "depth" (a fixed one), "rule", "scale", "readout" or "ceiling".
        policy: as it was tested; None for an oracle.
        result: its worth.
        others: utilities that it is compared with, by question: "random", the permutation of its exits; "line", fixed
            depths at its cost; "trace", its own over the trace, where it acts on the model; "single", the best choice
            for all, of what an oracle chooses from.
        null: what the same oracle gains over "single" on shuffled residuals, the mean; None for the quadratic one,
            which does not choose by the utility.
    """

    name: str
    kind: str
    policy: Policy | None
    result: Result
    others: dict[str, Floats] = field(default_factory=dict)
    null: float | None = None


def depth_ceilings(trace: Trace, costs: Costs = FREE) -> Iterator[Tested]:
    """The best depth, by token (of solutions) and by question."""
    depths = np.arange(1, trace.loops + 1)
    by_token_RJ = np.stack([trace.log_prob(int(depth)) for depth in depths], axis=1)
    yield from _ceilings("best depth", trace, by_token_RJ, depths, costs)


def step_ceilings(trace: Trace, depth: int, costs: Costs = FREE) -> Iterator[Tested]:
    """Endpoint, five scales and quadratic of the step to one loop, by token (of solutions) and by question."""
    five_RJ, loops_J = trace.scaled(depth), np.full(len(SCALES), depth)
    yield from _ceilings("endpoint", trace, five_RJ[:, [0, -1]], loops_J[:2], costs)
    yield from _ceilings("five scales", trace, five_RJ, loops_J, costs)
    if trace.is_options or "v_reference" not in trace.columns:
        return  # A and Q of the joint utility are not sums over tokens
    A_R, Q_R = coefficients(trace, depth)
    by_question_R = np.asarray(predicted_scale(trace.mean(A_R), trace.mean(Q_R)))[trace.question_R]
    base_Q, loops_Q = trace.utility(five_RJ[:, _best(trace, five_RJ)]), np.full(trace.questions, float(depth))
    for per, scale_R in (("token", np.asarray(predicted_scale(A_R, Q_R))), ("question", by_question_R)):
        utility_Q = trace.utility((np.stack(interpolation_weights(scale_R), axis=1) * five_RJ).sum(axis=1))
        yield _ceiling(f"quadratic by {per}", utility_Q, base_Q, loops_Q, costs, None)


def coefficients(trace: Trace, depth: int) -> tuple[Floats, Floats]:
    """A and Q of the step to a loop, for every token of an affine readout."""
    names = ("v_reference", "mean_v", "var_v")
    reference_R, mean_R, variance_R = (trace.columns[name][:, depth - 1].astype(np.float64) for name in names)
    return reference_R - mean_R, -0.5 * variance_R


def shuffled_gain(utility_NJ: Floats, weight_N: Floats, seed: int = 0) -> float:
    """What the best choice of every row has over the best choice for all of them, on shuffled residuals; the mean."""
    rows_N1 = utility_NJ.mean(axis=1, keepdims=True)
    choices_1J = utility_NJ.mean(axis=0, keepdims=True)
    residual_NJ = utility_NJ - rows_N1 - choices_1J + utility_NJ.mean()
    residual_NJ *= (utility_NJ.shape[1] / (utility_NJ.shape[1] - 1)) ** 0.5  # what centring the rows took
    generator = np.random.default_rng(seed)
    share_N = weight_N / weight_N.sum()
    gains = []
    for _ in range(SHUFFLES):
        mixed_NJ = generator.permuted(residual_NJ, axis=0) + choices_1J
        gains.append(float(share_N @ mixed_NJ.max(axis=1) - (share_N @ mixed_NJ).max()))
    return float(np.mean(gains))


def _ceilings(name: str, trace: Trace, by_token_RJ: Floats, loops_J: Ints, costs: Costs) -> Iterator[Tested]:
    by_question_QJ = np.stack([trace.utility(column) for column in by_token_RJ.T], axis=1)
    base_Q = by_question_QJ[:, _best(trace, by_token_RJ)]
    if not trace.is_options:
        loops_Q = trace.mean(loops_J[by_token_RJ.argmax(axis=1)])
        null = shuffled_gain(by_token_RJ, 1 / np.bincount(trace.question_R)[trace.question_R])
        yield _ceiling(f"{name} by token", trace.utility(by_token_RJ.max(axis=1)), base_Q, loops_Q, costs, null)
    loops_Q = loops_J[by_question_QJ.argmax(axis=1)].astype(np.float64)
    null = shuffled_gain(by_question_QJ, np.ones(trace.questions))
    yield _ceiling(f"{name} by question", by_question_QJ.max(axis=1), base_Q, loops_Q, costs, null)


def _ceiling(name: str, utility_Q: Floats, base_Q: Floats, loops_Q: Floats, costs: Costs, null: float | None) -> Tested:
    result = Result(utility_Q, np.full(len(utility_Q), np.nan), loops_Q, costs(loops_Q))
    return Tested(f"oracle: {name}", "ceiling", None, result, {"single": base_Q}, null)


def _best(trace: Trace, by_token_RJ: Floats) -> int:
    return int(np.argmax([trace.utility(column).mean() for column in by_token_RJ.T]))


@dataclass(frozen=True)
class Comparison:
    """All policies on one model and task.

    Attributes:
        tested: fixed depths, rules, scales, readouts, ceilings.
        best: the best fixed depth of the train questions.
        target: the cost to which rules were fitted.
        costs: of loops and checks.
        depths: utilities after every loop, of the train and of the test questions, [Q, T].
    """

    tested: tuple[Tested, ...]
    best: Tested
    target: float
    costs: Costs
    depths: tuple[Floats, Floats]

    def line(self, result: Result) -> Floats:
        """The utility of fixed depths at the cost of a result, by question."""
        return between_depths(*self.depths, float(result.cost_Q.mean()) - self.costs.outside)


def compare(
    train: Trace,
    test: Trace,
    policies: Sequence[Policy] = (),
    *,
    costs: Costs = FREE,
    target: float | None = None,
    trained_depth: int | None = None,
) -> Comparison:
    """Every policy, fitted on one trace and tested on another.

    Args:
        train: the questions that thresholds, the best depth and scales are chosen on.
        test: the questions that everything is tested on.
        policies: exit rules and scales besides the published rules; those with a threshold are fitted.
        costs: of loops and checks.
        target: the cost to which rules are fitted; that of the best fixed depth by default.
        trained_depth: an exit gate stops there whatever is left, and the scales are about the step beyond it, where
            both traces have gains inside it (`update_of`).
    """
    train, test = (trace.up_to(min(train.loops, test.loops)) for trace in (train, test))
    fixed = [FixedDepth(depth) for depth in range(1, test.loops + 1)]
    tested = [Tested(each.name, "depth", each, score(follow(each, test), test, costs)) for each in fixed]
    train_QT, test_QT = (
        np.stack([trace.utility(trace.log_prob(each.depth)) for each in fixed], axis=1) for trace in (train, test)
    )
    best = int(np.argmax(train_QT.mean(axis=0)))
    aim = costs(best + 1.0) if target is None else target
    found = Comparison((), tested[best], aim, costs, (train_QT, test_QT))

    def test_on(policy: Policy, kind: str) -> None:
        exits = follow(policy, test)
        result = score(exits, test, costs)
        others = {"line": found.line(result)}
        if kind != "readout":
            others["random"] = random_permutation(exits, test, costs).utility_Q
        tested.append(Tested(policy.name, kind, policy, result, others))

    for rule in (*published(train, trained_depth), *policies):
        fitted = fit(rule, train, aim, costs) if isinstance(rule, ThresholdRule) else rule
        test_on(fitted, "rule")
    ceilings = list(depth_ceilings(test, costs))
    step = update_of(train, test, trained_depth)
    if step is not None:
        test_on(FixedScale(SCALES[_best(train, train.scaled(step))], step, stop=True), "scale")
        ceilings += step_ceilings(test, step, costs)
    for readout in fitted_readouts(train):
        test_on(readout, "readout")
    return replace(found, tested=(*tested, *ceilings))


def fitted_readouts(train: Trace) -> Iterator[ScaledReadout]:
    """Along every known line the scaled readout of the best utility on the train questions, and by the margin."""
    for line, values in train.lines.items():
        for kind in (ScaledReadout, MarginScaled) if line.direction == "chord" else (ScaledReadout,):
            share_R = 1 - train.signal("margin", line.depth) if kind is MarginScaled else 1.0
            worth = [train.utility(values.at(omega * share_R)).mean() for omega in values.omega_J]
            omega = float(values.omega_J[int(np.argmax(worth))])
            yield kind(line.depth, line.reference, omega, line.direction)


def curves(train: Trace, test: Trace) -> list[Curve]:
    """Utilities along every line that both traces know."""
    return [
        Curve(*line, 1 + values.omega_J, *(
            np.stack([trace.utility(column) for column in trace.lines[line].log_prob_RJ.T], axis=1)
            for trace in (train, test)
        ))
        for line, values in train.lines.items()
    ]  # fmt: skip


def update_of(train: Trace, test: Trace, trained_depth: int | None) -> int | None:
    """The loop whose step scales are about: beyond the trained depth, or the first that both have gains inside."""
    known = [depth for depth in range(2, train.loops + 1) if train.has_scales(depth) and test.has_scales(depth)]
    wanted = (trained_depth or 0) + 1
    return wanted if wanted in known else next(iter(known), None)


def published(trace: Trace, gate_budget: int | None = None) -> Iterator[ThresholdRule]:
    """Every exit rule that a trace has the signals for."""
    has_gate = "gate" in trace.columns and not np.isnan(trace.columns["gate"]).all()
    for rule in RULES.values():
        if "gate" not in rule.signals:
            yield rule
        elif has_gate:
            yield replace(rule, budget=gate_budget)
