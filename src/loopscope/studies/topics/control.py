"""Exit rules, scales and ceilings at equal cost, and the fitted scale of every update: train questions to others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from loopscope.control.comparison import Comparison, Curve, compare, curves, fitted_scales
from loopscope.control.offline import Costs, known_costs
from loopscope.control.policies import Policy
from loopscope.control.trace import Trace, halves
from loopscope.errors import setting
from loopscope.path import scales_up_to
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import StoredRun
from loopscope.store.schema import ends_of
from loopscope.studies import figures
from loopscope.studies.conditions import Condition
from loopscope.studies.declare import KEY, MODEL, TASK, Column, Row, TableResult, rows_of, table, words
from loopscope.studies.figures import BLACK, BLUE, GREY, SKY, SMALLEST_TYPE, VERMILLION, Picture, literal
from loopscope.studies.populations import Population, Selection
from loopscope.studies.records import Records, has_table, matrix, of_set

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        costs: of the model; None where they are not known.
        policies: a caller's, besides the published rules.
    """

    condition: Condition
    train: Trace
    test: Trace
    trained_depth: int | None
    sources: tuple[Source, Source]
    note: str | None = None
    costs: Costs | None = None
    policies: tuple[Policy, ...] = ()


def trace_pairs(records: Records) -> Iterator[TracePair]:
    """The train split with each other split; halves of the questions where there is but one."""
    held = [(run, condition) for run, condition in records.conditions() if has_table(run, "trace")]
    for (run, condition), train in _with_train(held):
        frame = _frame(run, condition)
        if not frame.height:
            continue
        depth = run.manifest.model.trained_depth
        if train is not None:
            pair, note = (_trace(*train, _frame(*train)), _trace(run, condition, frame)), None
        elif frame["row"].n_unique() > 1:
            train, pair = (run, condition), tuple(_trace(run, condition, half) for half in halves(frame))  # type: ignore[assignment]
            note = f"{condition}: no other split, so every second question was fitted on and the others tested"
        else:
            continue
        tested = replace(condition, n=pair[1].questions)
        yield TracePair(tested, *pair, depth, (train, (run, condition)), note)


def _with_train(held: list[Source]) -> Iterator[tuple[Source, Source | None]]:
    """Every condition that is tested, with the train split of the same model and task, if there is another."""
    for run, condition in held:
        same = [
            (other, found)
            for other, found in held
            if (found.model, found.task) == (condition.model, condition.task)
            and other.manifest.model.weights == run.manifest.model.weights
        ]
        train = next((source for source in same if source[1].split == "train"), None)
        if condition.split != "train":
            yield (run, condition), train
        elif {found.split for _, found in same} == {"train"}:
            yield (run, condition), None


def _frame(run: StoredRun, condition: Condition) -> pl.DataFrame:
    return run.scan("trace").filter(of_set(condition)).collect()


def _trace(run: StoredRun, condition: Condition, frame: pl.DataFrame) -> Trace:
    if condition.kind != "options":
        return Trace.of(frame)
    right = run.examples.filter(of_set(condition)).select("row", "correct_option")
    return Trace.of(frame, dict(right.iter_rows()))


@dataclass(frozen=True)
class Compared:
    """Policies compared on one model and task, and what should be said of it."""

    pair: TracePair
    found: Comparison
    notes: tuple[str, ...]


Prepare = Callable[[TracePair], TracePair]
Acting = Callable[[TracePair, Comparison], Comparison]


def compared(records: Records, prepare: Prepare = lambda pair: pair, target: float | None = None) -> Iterator[Compared]:
    """The comparison of every model and task.

    Args:
        records: runs measured with a trace, of a train split and of others.
        prepare: adds policies and costs to a model and task.
        target: mean cost to which rules are fitted; that of the best fixed depth by default.
    """
    for pair in map(prepare, trace_pairs(records)):
        notes = [] if pair.note is None else [pair.note]
        known = pair.costs or known_costs(pair.condition.model)
        if known is None:
            notes.append(f"{pair.condition.model_title}: readouts are counted as free; `loopscope control` counts them")
        found = compare(
            pair.train,
            pair.test,
            pair.policies,
            costs=known or Costs(),
            target=target,
            trained_depth=pair.trained_depth,
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
        *(MODEL, TASK, words("Policy", KEY), Column("Threshold", "{threshold:.3g}")),
        *(Column("Utility", "{utility:.4f}"), Column("Accuracy", "{accuracy:.1%}")),
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
        result, single = entry.result, entry.others.get("single")
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
            "null": entry.null,
            "room": None if single is None else float((result.utility_Q - single).mean()),
        }
        yield Row(one.pair.condition, entry.name, values)


@dataclass(frozen=True)
class Scales:
    """Curves of one model and task, and the utilities of fixed depths next to them.

    Attributes:
        condition: the test questions.
        curves: utilities along updates.
        depths: utilities after every loop, of the train and of the test questions, [Q, T].
        costs: of the model.
        trained_depth: of the model, where it is known.
        notes: what should be said.
    """

    condition: Condition
    curves: tuple[Curve, ...]
    depths: tuple[Any, Any]
    costs: Costs
    trained_depth: int | None
    notes: tuple[str, ...] = ()


def recorded_scales(records: Records) -> Iterator[Scales]:
    """The paths of runs that were measured with steps longer than the proposed one, of a train split and of others."""
    sweeps = {sweep.condition: sweep for sweep in records.sweeps}
    for (run, condition), source in _with_train([(records.run_of(found), found) for found in sweeps]):
        parts = [sweeps[condition if source is None else source[1]], sweeps[condition]]
        rows = (slice(None), slice(None)) if source else (slice(0, None, 2), slice(1, None, 2))
        loops = list(takewhile(lambda depth: all(depth in each.depths for each in parts), count(1)))  # noqa: B023
        if not loops or len(parts[1].utility) < 2:
            continue
        places = [[each.depths.index(depth) for depth in loops] for each in parts]
        train_QT, test_QT = (each.utility[half][:, at] for each, half, at in zip(parts, rows, places, strict=True))
        fitted, tested = (_longer(records, each.condition) for each in parts)
        paths = tuple(
            Curve(
                "path", *ends_of(t), scales_up_to((tested[t].shape[1] - 1) / 20), fitted[t][rows[0]], tested[t][rows[1]]
            )
            for t in tested
            if t in fitted and ends_of(t)[1] <= len(loops)
        )
        costs, notes = known_costs(condition.model), []
        if costs is None:
            notes.append(f"{condition.model_title}: readouts are counted as free; `loopscope control` counts them")
        if source is None:
            notes.append(f"{condition}: no other split, so every second question was fitted on and the others tested")
        about = replace(condition, n=len(test_QT))
        depth = run.manifest.model.trained_depth
        yield Scales(about, paths, (train_QT, test_QT), costs or Costs(), depth, tuple(notes))


def _longer(records: Records, condition: Condition) -> dict[int, Any]:
    """Utilities along the updates of a condition with longer steps, [Q, J], by the transition's number."""
    return {
        updates.condition.transition or 0: updates.floats("utility_before")[:, None]
        + matrix(updates.other_table("longer_steps")["gains"])
        for updates in records.updates
        if updates.condition.same_set(condition) and records.other_table("longer_steps", updates.condition) is not None
    }


def _scales(records: Records, found: Iterator[Scales] | None = None) -> Selection:
    kept = tuple(each for each in (recorded_scales(records) if found is None else found) if each.curves)
    notes = list(dict.fromkeys(note for each in kept for note in each.notes))
    if not kept:
        how = f"{setting('scales_to', 2)}, {setting('transitions', '1-5,1>3')} and {setting('depths', '1-6')}"
        notes.append(records.nothing(f"no run holds longer steps and every depth: measure with {how}"))
    return Selection(kept, tuple(notes))


@table(
    "fitted-scale",
    "Fitted scale of every update",
    paper="app:geometry-adaptive",
    summary="the scale with the best utility for every update and chord, frozen and tested",
    over=Population(_scales, "--scales-to"),
    columns=(
        *(MODEL, TASK, words("Update", KEY), Column("Fitted\nscale [95% CI]", "{fitted:.2f}", ci=True)),
        *(Column("Cost", "{cost:.2f}"), _over("Gain", "gain"), _over("Over temperature", "over_temperature")),
        *(_over("Over equal cost", "over_line"), _over("One more loop", "next_loop")),
    ),
)
def fitted_scale(one: Scales) -> Iterator[Row]:
    """The scale 1 + omega of an update k > R that has the best mean utility on train questions, frozen and tested on
    others, in 0.001 nats over the full step. A path moves the state; a chord the logits, which is the same under an
    affine readout; orthogonal keeps the part of the change that rescales no logit; a temperature is that rescaling
    alone. Equal cost: the line between fixed depths, the readout of k charged. Intervals: by question.
    """
    nothing = Estimate(None, len(one.depths[1]))
    for name, values in fitted_scales(one.curves, *one.depths, one.costs).items():
        missing = {key: nothing for key in ("over_temperature", "next_loop") if values[key] is None}
        yield Row(one.condition, name, {**values, **missing, "trained_depth": one.trained_depth})


def control_tables(
    records: Records,
    bootstrap: Bootstrap | None = None,
    *,
    prepare: Prepare = lambda pair: pair,
    target: float | None = None,
    acting: Acting | None = None,
) -> tuple[TableResult, TableResult]:
    """The tables `control` and `fitted-scale` with a caller's policies and the lines of logits of its traces.

    `acting` carries the policies of a comparison out on the model.
    """
    chosen = _selection(records, compared(records, prepare, target))
    groups = [each if acting is None else replace(each, found=acting(each.pair, each.found)) for each in chosen.kept]
    settings = bootstrap or Bootstrap()
    scales = [
        Scales(
            each.pair.condition, tuple(curves(each.pair.train, each.pair.test)), each.found.depths, each.found.costs,
            each.pair.trained_depth,
        )
        for each in groups
    ]  # fmt: skip
    found = (
        (control, [row for each in groups for row in rows_of(each, control.rows(each, settings), settings)]),
        (fitted_scale, [row for each in scales for row in rows_of(each, fitted_scale.rows(each, settings), settings)]),
    )
    first, second = (declared.finish(rows, chosen.notes) for declared, rows in found)
    return first, second


_DASHES: Any = ("--", ":", "-.", (0, (6, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (6, 3)), (0, (1, 3)), (0, (8, 2)))
"""How the levels of the ceilings are distinguished."""


@figures.figure(
    "control",
    "Utility over cost",
    paper="app:geometry-adaptive",
    summary="utility over cost, with ceilings",
    over=control,
)
def control_figure(table: TableResult, bootstrap: Bootstrap) -> Picture:
    """One panel per model and task with a trace."""
    panels: dict[str, list[Row]] = {}
    for row in table.rows:
        panels.setdefault(str(row.condition), []).append(row)
    rules = list(dict.fromkeys(row.key for row in table.rows if row["kind"] in ("rule", "scale")))
    ceilings = list(dict.fromkeys(row.key for row in table.rows if row["kind"] == "ceiling"))

    def draw(figure: Figure) -> None:
        places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (title, rows) in zip(places, panels.items(), strict=True):
            _panel(axes, rows, rules, ceilings)
            axes.set_title(literal(title))
        named = {name: line for axes in places for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named, loc="outside lower center", ncols=4, fontsize=SMALLEST_TYPE)

    described = [
        {
            "condition": title,
            "policies": [
                {"name": row.key, "kind": row["kind"], "utility": row["utility"].value}
                | {name: row[name] if math.isfinite(row[name]) else None for name in ("cost", "loops")}
                for row in rows
            ],
        }
        for title, rows in panels.items()
    ]
    caption = (
        "Mean reference utility over mean cost in loops, checks of the logits included. The line joins fixed depths; "
        "points are rules fitted to one cost on train questions; dashed levels are oracles that know the reference."
    )
    height = 2.3 * len(panels) + 0.16 * ((len(rules) + len(ceilings)) // 4 + 2)
    return Picture(height, draw, caption, {"panels": described})


def _panel(axes: Axes, rows: list[Row], names: list[str], ceilings: list[str]) -> None:
    """One model and task; a rule has the same mark in every panel."""
    depths = [row for row in rows if row["kind"] == "depth"]
    costs = [row["cost"] for row in depths]
    axes.plot(costs, [_mean(row) for row in depths], color=BLACK, marker=".", label="fixed depths")
    drawn = [row for row in rows if row.key in names]
    for row in drawn:
        look = figures.series(names.index(row.key))
        axes.plot(row["cost"], _mean(row), linestyle="none", markersize=4, label=literal(row.key), **look)
    for row in rows:
        if row.key in ceilings:
            dashes = _DASHES[ceilings.index(row.key) % len(_DASHES)]
            axes.axhline(_mean(row), color=GREY, linewidth=0.8, linestyle=dashes, label=literal(row.key))
    # Fixed depths far below the rules are left out, so that rules can be seen.
    lowest, highest = min(map(_mean, drawn or depths)), max(map(_mean, rows))
    axes.set_ylim(lowest - 0.2 * (highest - lowest) - 1e-6, highest + 0.05 * (highest - lowest) + 1e-6)
    axes.set_xlabel("Cost (loops)")
    axes.set_ylabel("Mean utility")


def _mean(row: Row) -> float:
    value = row["utility"].value
    return float("nan") if value is None else float(value)


@figures.figure(
    "fitted-scale",
    "Fitted scale of every update",
    paper="app:geometry-adaptive",
    summary="the fitted scale over depth, with its gain and a temperature's",
    over=fitted_scale,
)
def fitted_scale_figure(table: TableResult, bootstrap: Bootstrap) -> Picture:
    """One column of two panels per model and task: scales above, gains below."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        groups.setdefault(f"{row.condition.model_title}\n{row.condition.set_title}", []).append(row)

    def draw(figure: Figure) -> None:
        scale_panels(figure, {title: (rows, rows[0]["trained_depth"]) for title, rows in groups.items()})

    caption = (
        "Above: the scale of the update k > R that has the best mean utility on train questions. A scale above 1 says "
        "that the update is too short. Below: what it gains on test questions over the fixed depth R, next to a "
        "temperature alone. Bars are 95% intervals by question; the dotted line is the trained depth."
    )
    return Picture(3.4, draw, caption, {"rows": table.to_polars().to_dicts()})


_KINDS: dict[str, dict[str, Any]] = {
    "one loop": {"color": VERMILLION, "marker": "o", "label": "update of one loop, R−1 > R"},
    "chord": {"color": SKY, "marker": "s", "label": "longer chords k > R", "linestyle": "none"},
    "temperature": {"color": GREY, "marker": "^", "label": "temperature alone", "linestyle": "--"},
    "next": {"color": BLUE, "marker": "x", "label": "one more loop", "linestyle": "none"},
}


def scale_panels(figure: Figure, groups: dict[str, tuple[Sequence[Any], int | None]]) -> None:
    """Scales above, gains below, one column for each group of rows, which are given with the trained depth.

    A row has `kind`, `reference`, `depth` and the estimates `fitted`, `gain` and `next_loop`.
    """
    grid = figure.subplots(2, len(groups), squeeze=False, sharex="col", sharey="row")
    for (title, (rows, trained)), above, below in zip(groups.items(), *grid, strict=True):
        lines = [row for row in rows if row["kind"] in ("path", "chord")]
        kind = "path" if any(row["kind"] == "path" for row in lines) else "chord"
        lines = [row for row in lines if row["kind"] == kind]
        drawn = {
            "chord": [row for row in lines if row["depth"] - row["reference"] > 1],
            "temperature": [row for row in rows if row["kind"] == "temperature" and row["depth"] > 1],
            "one loop": [row for row in lines if row["depth"] - row["reference"] == 1],
        }
        for name, chosen in drawn.items():
            _bars(above, chosen, "fitted", name)
            _bars(below, chosen, "gain", name, 1e-3)
        _bars(below, drawn["one loop"], "next_loop", "next", 1e-3)
        above.axhline(1, color=BLACK, linewidth=0.6)
        below.axhline(0, color=BLACK, linewidth=0.6)
        for axes in (above, below):
            if trained is not None:
                axes.axvline(trained, color=BLACK, linewidth=0.8, linestyle=":")
        above.set_title(literal(title))
        below.set_yscale("symlog", linthresh=1)
        below.set_xlabel("Loops R")
        below.xaxis.get_major_locator().set_params(integer=True)
    grid[0][0].set_ylabel("Fitted scale 1 + ω")
    grid[1][0].set_ylabel("Gain (1e-3 nats)")
    handles = grid[1][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4 if len(groups) > 3 else 2, fontsize=SMALLEST_TYPE)


def _bars(axes: Axes, rows: Sequence[Any], name: str, look: str, per: float = 1.0) -> None:
    """Estimates with their intervals over the depth."""
    known = [row for row in rows if row[name] is not None]
    figures.bars(axes, [row["depth"] for row in known], [row[name] for row in known], _KINDS[look], per)
