"""Exit rules, scales and ceilings at equal cost, fitted on train questions and tested on others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from loopscope.control.comparison import Comparison, compare, published, split_by_question
from loopscope.control.offline import Costs, known_costs
from loopscope.control.policy import Policy
from loopscope.control.trace import Trace
from loopscope.errors import setting
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import StoredRun
from loopscope.studies.conditions import Condition
from loopscope.studies.declare import KEY, MODEL, TASK, Column, Row, TableResult, rows_of, table, words
from loopscope.studies.populations import Population, Selection
from loopscope.studies.records import Records, has_table, of_set

Source: TypeAlias = "tuple[StoredRun, Condition]"


@dataclass(frozen=True)
class TracePair:
    """One model and task: the questions that a policy is fitted on, and those that it is tested on.

    Attributes:
        condition: the test questions.
        train: what is fitted on.
        test: what is tested on.
        trained_depth: of the model, where it is known.
        sources: the runs and conditions of both.
        note: how the questions were divided, where there was one split alone.
    """

    condition: Condition
    train: Trace
    test: Trace
    trained_depth: int | None
    sources: tuple[Source, Source]
    note: str | None = None


def trace_pairs(records: Records) -> Iterator[TracePair]:
    """The train split with each other split; halves of the questions where there is but one."""
    held = [(run, condition) for run, condition in records.conditions() if has_table(run, "trace")]
    for run, condition in held:
        same = [
            (other, found)
            for other, found in held
            if (found.model, found.task) == (condition.model, condition.task)
            and other.manifest.model.weights == run.manifest.model.weights
        ]
        if condition.split == "train" and {found.split for _, found in same} != {"train"}:
            continue
        trace = _trace(run, condition)
        if trace is None:
            continue
        depth = run.manifest.model.trained_depth
        source = next(((other, found) for other, found in same if found.split == "train"), None)
        train = None if source is None or condition.split == "train" else _trace(*source)
        if train is not None and source is not None:
            yield TracePair(replace(condition, n=trace.questions), train, trace, depth, (source, (run, condition)))
        elif trace.questions > 1:
            first, second = split_by_question(trace)
            note = f"{condition}: no other split, so every second question was fitted on and the others tested"
            yield TracePair(replace(condition, n=second.questions), first, second, depth, ((run, condition),) * 2, note)


def _trace(run: StoredRun, condition: Condition) -> Trace | None:
    frame = run.scan("trace").filter(of_set(condition)).collect()
    if not frame.height:
        return None
    if condition.kind != "options":
        return Trace.of(frame)
    right = run.examples.filter(of_set(condition)).select("row", "correct_option")
    return Trace.of(frame, dict(right.iter_rows()))


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


@dataclass(frozen=True)
class Compared:
    """Policies compared on one model and task, and what should be said of it."""

    pair: TracePair
    found: Comparison
    notes: tuple[str, ...]

    @property
    def condition(self) -> Condition:
        """The test questions."""
        return self.pair.condition


Prepare = Callable[[TracePair], Given]
Acting = Callable[[TracePair, Comparison], Comparison]


def compared(
    records: Records, prepare: Prepare = Given, target: float | None = None, floor: int = 1
) -> Iterator[Compared]:
    """The comparison of every model and task.

    Args:
        records: runs measured with a trace, of a train split and of others.
        prepare: what is added to the published rules on a model and task, and what its loops and checks cost.
        target: mean cost to which rules are fitted; that of the best fixed depth by default.
        floor: no rule stops before this loop.
    """
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
        yield Compared(pair, found, tuple(notes))


def _selection(records: Records, found: Iterator[Compared] | None = None) -> Selection:
    kept = tuple(compared(records) if found is None else found)
    notes = list(dict.fromkeys(note for each in kept for note in each.notes))
    if not kept:
        notes.append(records.nothing(f"no run holds a trace of two questions: measure with {setting('trace', True)}"))
    return Selection(kept, tuple(notes))


def _over(head: str, name: str) -> Column:
    return Column(f"{head}, 1e-3\n[95% CI]", f"{{{name}:+.2f}}", per=1e-3, ci=True)


@table(
    "control",
    "Exit rules, scales and ceilings at equal cost",
    paper="app:geometry-adaptive",
    summary="exit rules, scales and ceilings at equal cost",
    over=Population(_selection, "--trace"),
    columns=(
        *(MODEL, TASK, words("Policy", KEY), Column("Utility", "{utility:.4f}"), Column("Accuracy", "{accuracy:.1%}")),
        *(Column("Loops", "{loops:.2f}"), Column("Cost", "{cost:.2f}")),
        *(_over("Over best depth", "over_best"), _over("Over equal cost", "over_line")),
        *(_over("Over random", "over_random"), _over("Over trace", "over_trace")),
        *(Column("Room\n1e-3", "{room:.1f}", per=1e-3), Column("Null\n1e-3", "{null:.1f}", per=1e-3)),
    ),
)
def control(one: Compared) -> Iterator[Row]:
    """Thresholds, the best depth and the best scale are chosen on train questions and tested on others. Rules are
    fitted to the cost of the best fixed depth. Differences are paired by question, in 0.001 nats (of generated
    answers in 0.001 of the accuracy). Equal cost: the line between fixed depths. Random: exits at the same depths,
    assigned at random. Oracles know the reference; Room is what one gains over the best single choice, Null the same
    with residuals shuffled among questions or tokens.
    """
    nothing, best = Estimate(None, one.pair.test.questions), one.found.best.result
    for entry in one.found.tested:
        result, ceiling = entry.result, entry.ceiling
        generated = np.isnan(result.utility_Q).any()
        over = result.accuracy_Q - best.accuracy_Q if generated else result.utility_Q - best.utility_Q
        others = {} if generated else {name: Mean(result.utility_Q - other_Q) for name, other_Q in entry.others.items()}
        values: dict[str, Any] = {
            "kind": entry.kind,  # depth, rule, scale, readout or ceiling
            "utility": nothing if generated else Mean(result.utility_Q),
            "accuracy": nothing if np.isnan(result.accuracy_Q).any() else Mean(result.accuracy_Q),
            "loops": float(result.loops_Q.mean()),
            "cost": float(result.cost_Q.mean()),
            "threshold": getattr(entry.policy, "threshold", None),
            "over_best": Mean(over),
            **{f"over_{name}": others.get(name, nothing) for name in ("line", "random", "trace")},
            "null": None if ceiling is None else ceiling.null,
            "room": None if ceiling is None else float((ceiling.utility_Q - ceiling.base_Q).mean()),
        }
        yield Row(one.condition, entry.name, values)


def control_table(
    records: Records,
    bootstrap: Bootstrap | None = None,
    *,
    prepare: Prepare = Given,
    target: float | None = None,
    floor: int = 1,
    acting: Acting | None = None,
) -> TableResult:
    """The table `control` with a caller's policies; `acting` carries the policies of a comparison out on the model."""
    chosen = _selection(records, compared(records, prepare, target, floor))
    groups = [each if acting is None else replace(each, found=acting(each.pair, each.found)) for each in chosen.kept]
    settings = bootstrap or Bootstrap()
    return control.finish(
        [row for each in groups for row in rows_of(each, control.rows(each, settings), settings)], chosen.notes
    )
