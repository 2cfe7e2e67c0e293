"""Exit rules, scales and ceilings at equal cost, fitted on train questions and tested on others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from loopscope.control.comparison import Comparison, compare, published
from loopscope.control.offline import Costs, known_costs
from loopscope.control.policy import Policy
from loopscope.errors import setting
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.records import Records
from loopscope.studies.result import MODEL, TASK, Panel, Row, TableResult, column, fixed, label, percent
from loopscope.studies.traces import TracePair, trace_pairs


@dataclass(frozen=True)
class ControlRow(Row):
    """One policy on one model and task; the key is its name."""

    kind: str
    """`depth`, `rule`, `scale`, `readout` or `ceiling`."""
    utility: Estimate
    accuracy: Estimate
    loops: float
    cost: float
    threshold: float | None
    over_best: Estimate
    """Utility, of generated answers accuracy, minus that of the best fixed depth of the train questions."""
    over_line: Estimate
    """Utility minus that of the line between fixed depths at this cost."""
    over_random: Estimate
    """Utility minus that of the random permutation of its exits."""
    over_trace: Estimate
    """Of a policy that acts on the model: utility minus what it is worth over the trace."""
    null: float | None
    """Of a ceiling: what the same oracle gains over the best single choice on shuffled residuals."""
    room: float | None
    """Of a ceiling: what it gains over that choice itself."""


PANELS = (
    Panel(
        (
            MODEL,
            TASK,
            label("key", "Policy"),
            column("utility", "Utility", fixed(4)),
            column("accuracy", "Accuracy", percent(1)),
            column("loops", "Loops", fixed(2)),
            column("cost", "Cost", fixed(2)),
            column("over_best", "Over best depth, 1e-3\n[95% CI]", fixed(2, 1e3, sign=True, interval=True)),
            column("over_line", "Over equal cost, 1e-3\n[95% CI]", fixed(2, 1e3, sign=True, interval=True)),
            column("over_random", "Over random, 1e-3\n[95% CI]", fixed(2, 1e3, sign=True, interval=True)),
            column("over_trace", "Over trace, 1e-3\n[95% CI]", fixed(2, 1e3, sign=True, interval=True)),
            column("room", "Room\n1e-3", fixed(1, 1e3)),
            column("null", "Null\n1e-3", fixed(1, 1e3)),
        )
    ),
)


@dataclass(frozen=True)
class Given:
    """What a caller adds to one model and task.

    Attributes:
        pair: with columns of learned heads, where there are some.
        costs: of the model; None where they are not known.
        policies: besides the published rules.
    """

    pair: TracePair
    costs: Costs | None = None
    policies: tuple[Policy, ...] = ()


Prepare = Callable[[TracePair], Given]
Acting = Callable[[TracePair, Comparison], Comparison]


def control(
    records: Records,
    bootstrap: Bootstrap | None = None,
    *,
    prepare: Prepare = Given,
    target: float | None = None,
    floor: int = 1,
    acting: Acting | None = None,
) -> TableResult[ControlRow]:
    """Every policy on every model and task with a trace.

    Args:
        records: runs measured with a trace, of a train split and of others.
        bootstrap: resamples, seed and level.
        prepare: what is added to the published rules on a model and task, and what its loops and checks cost.
        target: mean cost to which rules are fitted; that of the best fixed depth by default.
        floor: no rule stops before this loop.
        acting: carries the policies of a comparison out on the model.
    """
    rows: list[ControlRow] = []
    notes: list[str] = []
    for pair, found, note in compared(records, prepare, target, floor):
        rows += _rows(pair, found if acting is None else acting(pair, found), bootstrap or Bootstrap())
        notes += note
    if not rows:
        notes.append(records.nothing(f"no run holds a trace of two questions: measure with {setting('trace', True)}"))
    return TableResult(
        study="control",
        label="tab:control",
        title="Exit rules, scales and ceilings at equal cost",
        caption=(
            "Thresholds, the best depth and the best scale are chosen on train questions and tested on others. Rules "
            "are fitted to the cost of the best fixed depth. Differences are paired by question, in 0.001 nats "
            "(of generated answers in 0.001 of the accuracy). Equal cost: the line between fixed depths. "
            "Random: exits at the same depths, assigned at random. Oracles know the reference; Room is what one gains "
            "over the best single choice, Null the same with residuals shuffled among questions or tokens."
        ),
        rows=tuple(rows),
        panels=PANELS,
        notes=tuple(dict.fromkeys(notes)),
    )


def compared(
    records: Records, prepare: Prepare = Given, target: float | None = None, floor: int = 1
) -> Iterator[tuple[TracePair, Comparison, list[str]]]:
    """The comparison of every model and task, with what should be said of it."""
    for found_pair in trace_pairs(records):
        given = prepare(found_pair)
        pair = given.pair
        notes = [] if pair.note is None else [pair.note]
        known = given.costs or known_costs(pair.condition.model)
        if known is None:
            notes.append(f"{pair.condition.model_title}: readouts are counted as free; `loopscope control` counts them")
        found = compare(
            pair.train,
            pair.test,
            [*published(pair.train, pair.trained_depth), *given.policies],
            costs=known or Costs(),
            target=target,
            floor=floor,
            update=(pair.trained_depth or 0) + 1,
            gate_budget=pair.trained_depth,
        )
        notes.append(
            f"{pair.condition}: fitted on {pair.train.questions} questions to a cost of {found.target:.2f}; the best "
            f"depth there is {found.best.name.removeprefix('fixed ')}"
        )
        yield pair, found, notes


def _rows(pair: TracePair, found: Comparison, bootstrap: Bootstrap) -> Iterator[ControlRow]:
    statistics: dict[tuple[str, str], Mean] = {}
    for entry in found.tested:
        result, best = entry.result, found.best.result
        generated = np.isnan(result.utility_Q).any()
        over = result.accuracy_Q - best.accuracy_Q if generated else result.utility_Q - best.utility_Q
        statistics[entry.name, "best"] = Mean(over)
        if not generated:
            statistics[entry.name, "utility"] = Mean(result.utility_Q)
            for name, other_Q in entry.others.items():
                statistics[entry.name, name] = Mean(result.utility_Q - other_Q)
        if not np.isnan(result.accuracy_Q).any():
            statistics[entry.name, "accuracy"] = Mean(result.accuracy_Q)
    estimates = bootstrap.estimate(statistics)
    nothing = Estimate(None, pair.test.questions)
    for entry in found.tested:
        ceiling = entry.ceiling
        yield ControlRow(
            pair.condition,
            entry.name,
            kind=entry.kind,
            utility=estimates.get((entry.name, "utility"), nothing),
            accuracy=estimates.get((entry.name, "accuracy"), nothing),
            loops=float(entry.result.loops_Q.mean()),
            cost=float(entry.result.cost_Q.mean()),
            threshold=getattr(entry.policy, "threshold", None),
            over_best=estimates[entry.name, "best"],
            over_line=estimates.get((entry.name, "line"), nothing),
            over_random=estimates.get((entry.name, "random"), nothing),
            over_trace=estimates.get((entry.name, "trace"), nothing),
            null=None if ceiling is None else ceiling.null,
            room=None if ceiling is None else float((ceiling.utility_Q - ceiling.base_Q).mean()),
        )
