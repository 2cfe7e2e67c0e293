"""Exit rules, scales and ceilings at equal cost, and the fitted scale of every update: train questions to others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
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
from loopscope.studies.declare import KEY, MODEL, TASK, Column, Row, TableResult, table, words
from loopscope.studies.figures import BLACK, BLUE, GREY, SKY, SMALLEST_TYPE, VERMILLION, Picture, literal
from loopscope.studies.populations import Population, Selection
from loopscope.studies.records import Records, has_table, matrix, of_set

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Source: TypeAlias = "tuple[StoredRun, Condition]"
HALVES = "no other split, so every second question was fitted on and the others tested"


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
    for source, train in _with_train([each for each in records.conditions() if has_table(each[0], "trace")]):
        (run, condition), frame, note = source, _frame(*source), None
        if not frame.height or (train is None and frame["row"].n_unique() < 2):
            continue
        if train is None:
            train, parts, note = source, halves(frame), f"{condition}: {HALVES}"
            pair = _trace(run, condition, parts[0]), _trace(run, condition, parts[1])
        else:
            pair = _trace(*train, _frame(*train)), _trace(run, condition, frame)
        tested = replace(condition, n=pair[1].questions)
        yield TracePair(tested, *pair, run.manifest.model.trained_depth, (train, source), note)


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


def _costs(condition: Condition, given: Costs | None = None) -> tuple[Costs, list[str]]:
    """The costs of a model, and the note where they are not known."""
    known = given or known_costs(condition.model)
    free = f"{condition.model_title}: readouts are counted as free; `loopscope control` counts them"
    return known or Costs(), [] if known else [free]


def compared(records: Records, prepare: Prepare = lambda pair: pair, target: float | None = None) -> Iterator[Compared]:
    """The comparison of every model and task.

    Args:
        records: runs measured with a trace, of a train split and of others.
        prepare: adds policies and costs to a model and task.
        target: mean cost to which rules are fitted; that of the best fixed depth by default.
    """
    for pair in map(prepare, trace_pairs(records)):
        costs, notes = _costs(pair.condition, pair.costs)
        how: Any = {"costs": costs, "target": target, "trained_depth": pair.trained_depth}
        found = compare(pair.train, pair.test, pair.policies, **how)
        fitted = (
            f"{pair.condition}: fitted on {pair.train.questions} questions to a cost of {found.target:.2f}; the best "
            f"depth there is {found.best.name.removeprefix('fixed ')}"
        )
        yield Compared(pair, found, (*filter(None, [pair.note]), *notes, fitted))


def _selection(kept: Iterable[Any], records: Records, missing: str) -> Selection:
    kept = tuple(kept)
    notes = tuple(dict.fromkeys(note for each in kept for note in each.notes))
    return Selection(kept, notes if kept else (records.nothing(missing),))


def _traces(records: Records, found: Iterable[Compared] | None = None) -> Selection:
    missing = f"no run holds a trace of two questions: measure with {setting('trace', True)}"
    return _selection(compared(records) if found is None else found, records, missing)


def _over(head: str, name: str) -> Column:
    return Column(f"{head}, 1e-3\n[95% CI]", f"{{{name}:+.2f}}", per=1e-3, ci=True)


@table(
    "control",
    "Exit rules, scales and ceilings at equal cost",
    Population(_traces, "--trace"),
    MODEL,
    TASK,
    words("Policy", KEY),
    Column("Threshold", "{threshold:.3g}"),
    *(Column("Utility", "{utility:.4f}"), Column("Accuracy", "{accuracy:.1%}")),
    *(Column("Loops", "{loops:.2f}"), Column("Cost", "{cost:.2f}")),
    *(_over("Over best depth", "over_best"), _over("Over equal cost", "over_line")),
    *(_over("Over random", "over_random"), _over("Over trace", "over_trace")),
    *(Column("Room\n1e-3", "{room:.1f}", per=1e-3), Column("Null\n1e-3", "{null:.1f}", per=1e-3)),
    paper="app:geometry-adaptive",
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
        depths = {*parts[0].depths} & {*parts[1].depths}
        loops = next(depth for depth in count(1) if depth not in depths) - 1
        if not loops or len(parts[1].utility) < 2:
            continue
        places = [[each.depths.index(depth) for depth in range(1, loops + 1)] for each in parts]
        train_QT, test_QT = (each.utility[half][:, at] for each, half, at in zip(parts, rows, places, strict=True))
        fitted, tested = (_longer(records, each.condition) for each in parts)
        paths = tuple(
            Curve("path", *ends_of(t), scales_up_to((gains.shape[1] - 1) / 20), fitted[t][rows[0]], gains[rows[1]])
            for t, gains in tested.items()
            if t in fitted and ends_of(t)[1] <= loops
        )
        costs, notes = _costs(condition)
        notes += [] if source else [f"{condition}: {HALVES}"]
        about, trained = replace(condition, n=len(test_QT)), run.manifest.model.trained_depth
        if paths:
            yield Scales(about, paths, (train_QT, test_QT), costs, trained, tuple(notes))


def _longer(records: Records, condition: Condition) -> dict[int, Any]:
    """Utilities along the updates of a condition with longer steps, [Q, J], by the transition's number."""
    return {
        updates.condition.transition or 0: updates.floats("utility_before")[:, None]
        + matrix(updates.other_table("longer_steps")["gains"])
        for updates in records.updates
        if updates.condition.same_set(condition) and records.other_table("longer_steps", updates.condition) is not None
    }


def _scales(records: Records) -> Selection:
    how = f"{setting('scales_to', 2)}, {setting('transitions', '1-5,1>3')} and {setting('depths', '1-6')}"
    missing = f"no run holds longer steps and every depth: measure with {how}"
    return _selection(recorded_scales(records), records, missing)


@table(
    "fitted-scale",
    "Fitted scale of every update",
    Population(_scales, "--scales-to"),
    MODEL,
    TASK,
    words("Update", KEY),
    Column("Fitted\nscale [95% CI]", "{fitted:.2f}", ci=True),
    *(Column("Cost", "{cost:.2f}"), _over("Gain", "gain"), _over("Over temperature", "over_temperature")),
    *(_over("Over equal cost", "over_line"), _over("One more loop", "next_loop")),
    paper="app:geometry-adaptive",
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
    chosen = _traces(records, compared(records, prepare, target))
    groups = [each if acting is None else replace(each, found=acting(each.pair, each.found)) for each in chosen.kept]
    settings = bootstrap or Bootstrap()
    rows = [row for each in groups for row in control.rows(each, settings)]
    scaled = []
    for pair, found in ((each.pair, each.found) for each in groups):
        lines = tuple(curves(pair.train, pair.test))
        scales = Scales(pair.condition, lines, found.depths, found.costs, pair.trained_depth)
        scaled += fitted_scale.rows(scales, settings)
    return control.finish(rows, chosen.notes), fitted_scale.finish(scaled, chosen.notes)


@figures.figure("control", "Utility over cost", paper="app:geometry-adaptive", over=control)
def control_figure(table: TableResult, bootstrap: Bootstrap) -> Picture:
    """Mean reference utility over mean cost in loops, checks of the logits included; one panel per model and task. The
    line joins fixed depths; points are rules fitted to one cost on train questions; dashed levels are oracles that know
    the reference.
    """
    panels: dict[str, list[Row]] = defaultdict(list)
    for row in table.rows:
        panels[str(row.condition)].append(row)
    names = list(dict.fromkeys(row.key for row in table.rows if row["kind"] in ("rule", "scale", "ceiling")))

    def draw(figure: Figure) -> None:
        places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (title, rows) in zip(places, panels.items(), strict=True):
            _panel(axes, rows, names)
            axes.set_title(literal(title))
        named = {name: line for axes in places for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named, loc="outside lower center", ncols=4, fontsize=SMALLEST_TYPE)

    height = 2.3 * len(panels) + 0.16 * (len(names) // 4 + 2)
    return Picture(height, draw, {"rows": table.to_polars().to_dicts()})


def _panel(axes: Axes, rows: list[Row], names: list[str]) -> None:
    """One model and task; a policy has the same look in every panel."""
    means = {row.key: np.nan if row["utility"].value is None else row["utility"].value for row in rows}
    depths = [row for row in rows if row["kind"] == "depth"]
    axes.plot(
        [row["cost"] for row in depths], [means[row.key] for row in depths], ".-", color=BLACK, label="fixed depths"
    )
    drawn = []
    for row in (row for row in rows if row.key in names):
        place, label = names.index(row.key), literal(row.key)
        if row["kind"] == "ceiling":
            dashes: Any = (0, (1 + place % 9, 2))
            axes.axhline(means[row.key], color=GREY, linewidth=0.8, linestyle=dashes, label=label)
        else:
            drawn.append(means[row.key])
            axes.plot(row["cost"], means[row.key], linestyle="none", markersize=4, label=label, **figures.series(place))
    # Fixed depths far below the rules are left out, so that rules can be seen.
    axes.set_ylim(1.2 * min(drawn or means.values()) - 0.2 * max(means.values()) - 1e-6)
    axes.set_xlabel("Cost (loops)")
    axes.set_ylabel("Mean utility")


@figures.figure("fitted-scale", "Fitted scale of every update", paper="app:geometry-adaptive", over=fitted_scale)
def fitted_scale_figure(table: TableResult, bootstrap: Bootstrap) -> Picture:
    """Above: the scale of the update k > R that has the best mean utility on train questions. A scale above 1 says that
    the update is too short. Below: what it gains on test questions over the fixed depth R, next to a temperature alone.
    Bars are intervals by question; the dotted line is the trained depth.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in table.rows:
        groups[f"{row.condition.model_title}\n{row.condition.set_title}"].append(row)

    def draw(figure: Figure) -> None:
        scale_panels(figure, {title: (rows, rows[0]["trained_depth"]) for title, rows in groups.items()})

    return Picture(3.4, draw, {"rows": table.to_polars().to_dicts()})


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
            loops, look = [row["depth"] for row in chosen], _KINDS[name]
            figures.bars(above, loops, [row["fitted"] for row in chosen], look)
            figures.bars(below, loops, [row["gain"] for row in chosen], look, 1e-3)
        further = [row for row in drawn["one loop"] if row["next_loop"] is not None]
        one_more = [row["next_loop"] for row in further]
        figures.bars(below, [row["depth"] for row in further], one_more, _KINDS["next"], 1e-3)
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
