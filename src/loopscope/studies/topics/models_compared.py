"""Models next to each other: one row for each run, or for each step of a training; and how far updates move.

Runs of a training name their step in their manifest (`Manifest.training_step`); runs that lie in one folder and
share architecture and evaluation set are one training. Intervals resample questions, each with all of its updates. The
log of a monitor (`loopscope.monitor_log`) holds means with standard errors, from which its intervals are made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from loopscope.monitor_log import MonitorLog
from loopscope.path import Outcome
from loopscope.stats import Best, Bootstrap, Estimate, Interval, Mean, Ratio
from loopscope.store import Level
from loopscope.studies import figures
from loopscope.studies.conditions import Condition, Weights, at, printable, title
from loopscope.studies.declare import IDENTITY, MODEL, TASK, Column, Row, TableResult, Values, panel, table, words
from loopscope.studies.populations import Population, Selection, notes_on, select, updates_with
from loopscope.studies.records import GRID_SCALES, Floats, Records, Updates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Names of the shares of outcomes, worst first.
OUTCOMES = {
    "finite_step": Outcome.FINITE_STEP_FAILURE,
    "directional": Outcome.DIRECTIONAL_FAILURE,
    "neutral": Outcome.NEUTRAL,
    "progressing": Outcome.PROGRESSING,
}
DESIGN = ("topology", "injection", "depth_prior")


def _shares(updates: Updates) -> dict[str, Mean]:
    return {name: Mean(updates.outcome == code) for name, code in reversed(OUTCOMES.items())}


@dataclass(frozen=True)
class RunUpdates:
    """All updates of one run and evaluation set; every update has the same questions in the same order."""

    condition: Condition
    updates: tuple[Updates, ...]

    def mean(self, values: list[Any]) -> Floats:
        """The mean over the updates of each question: [N] or [N, ...] from one such array per update."""
        return np.asarray(np.mean(np.stack(values), axis=0, dtype=np.float64))


def _by_run(records: Records) -> Selection:
    chosen, found = select(records, "slope", "quadratic", "gain"), defaultdict(list)
    for updates in chosen.kept:
        found[at(updates.condition, None, len(updates))].append(updates)
    return Selection(tuple(RunUpdates(condition, tuple(each)) for condition, each in found.items()), chosen.notes)


@table(
    "families",
    "Models compared",
    Population(_by_run, "quick"),
    MODEL,
    TASK,
    words("Updates", "{updates}"),
    words("Topology", "{topology}"),
    *(words("Injection", "{injection}"), words("Depth prior", "{depth_prior}")),
    Column("Finite-step share\n(%) [95% CI]", "{share:.1%}", ci=True),
    Column("A", "{sign_slope:.1%}", ci=True, group="Sign accuracy (%) [95% CI]"),
    Column("A+Q", "{sign_quadratic:.1%}", ci=True, group="Sign accuracy (%) [95% CI]"),
    Column("Best depth\n[95% CI]", "{best_depth:.0f}", ci=True),
    Column("Fitted scale\n[95% CI]", "{fitted_scale:.2f}", ci=True),
    Column("Its gain (1e-3)\n[95% CI]", "{fitted_gain:+.3f}", per=1e-3, ci=True),
)
def families(run: RunUpdates) -> Values:
    """One row per run and task, over all measured updates. The share is that of finite-step failures among harmful
    updates; sign accuracy is that of the full-step gain's sign. The best depth has the highest mean utility of those
    stored. The fitted scale is the constant scale on the 21-point grid with the highest mean gain, chosen in hindsight
    on the same questions. Intervals resample questions, each with all of its updates.
    """
    updates, unknown = run.updates, Estimate(None, run.condition.n)
    design = run.condition.manifest.model.design if run.condition.manifest else {}
    signs = [each.right_signs for each in updates]
    sweep = updates[0].sweep
    values = {
        "updates": ", ".join(each.condition.update for each in updates),
        **{name: title(design[name]) if name in design else None for name in DESIGN},
        "share": Ratio(sum(each.finite_step for each in updates), sum(each.harmful for each in updates)),
        **{name: Mean(run.mean([each[name] for each in signs])) for name in ("sign_slope", "sign_quadratic")},
        "best_depth": Best(sweep.depths, sweep.utility) if sweep else unknown,
    }
    if not all(each.has("grid_gain") for each in updates):
        return values | {"fitted_scale": unknown, "fitted_gain": unknown}
    gain_NG = run.mean([each.grid_gain for each in updates])
    best = int(np.argmax(gain_NG.mean(axis=0)))
    return values | {"fitted_scale": Best(GRID_SCALES, gain_NG), "fitted_gain": Mean(gain_NG[:, best])}


@table(
    "convergence",
    "Relative step and outcome by update",
    updates_with("relative_change", level=Level.GRID),
    *(*IDENTITY, Column("Residual\n[95% CI]", "{residual:.3g}", ci=True), Column("Largest", "{largest:.3g}")),
    Column("ΔU (1e-3)\n[95% CI]", "{gain:+.3f}", per=1e-3, ci=True),
    Column("A (1e-3)\n[95% CI]", "{slope:+.3f}", per=1e-3, ci=True),
    *(
        Column(name.replace("_", "-").capitalize(), f"{{{name}:.1%}}", group="Updates (%)")
        for name in reversed(OUTCOMES)
    ),
)
def convergence(updates: Updates) -> Values:
    """The residual ‖H_{t+1} − H_t‖ / ‖H_t‖ is the mean over questions; a model at a fixed point has none. Next to it
    mean gain and slope, and shares of outcomes: progressing and neutral updates, directional and finite-step failures.
    """
    residual = updates.floats("relative_change")
    means = {"residual": Mean(residual), "gain": Mean(updates.gain), "slope": Mean(updates.slope)}
    return {**means, "largest": residual.max(), **_shares(updates)}


@figures.figure("families", "Models compared", paper="fig:families", over=families)
def families_figure(table: TableResult, bootstrap: Bootstrap) -> figures.Picture | str:
    """Share of finite-step failures among harmful updates, and how often the slope has the sign of the full-step gain,
    with intervals over questions; a point is a run and task, a colour a topology, or a family that records none. What
    has no harmful update is not drawn.
    """
    if len(table.rows) == 1:
        return "one run and one task: name several runs to compare them"
    if all(row["share"].value is None for row in table.rows):
        return "no update of these runs is harmful"
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in table.rows:
        groups[str(row["topology"] or row.condition.family)].append(row)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (name, rows) in enumerate(groups.items()):
            known = [(100 * row["share"].value, row["sign_slope"]) for row in rows if row["share"].value is not None]
            look = figures.series(place) | {"linestyle": "none", "label": figures.literal(name)}
            figures.bars(axes, [share for share, _ in known], [sign for _, sign in known], look, per=0.01)
        axes.set(xlim=(-4, 104), ylim=(-4, 104))
        axes.set_xlabel("Finite-step failures among harmful updates (%)")
        axes.set_ylabel("Sign accuracy of the slope (%)")
        figure.legend(loc="outside lower center", ncols=2)

    return figures.Picture(2.6 + 0.08 * len(groups), draw, {"rows": table.to_polars().to_dicts()})


REMEDY = "measure with a checkpoint whose folder is named step-1000; `ls.Monitor(log=…)` watches a model in memory"
# What is listed of an update; names are those of a monitor's log, but for its `utility_after`.
MEASURES = ("utility", "gain", "slope", "accumulated_curvature", "share", *OUTCOMES, "best_depth", "best_utility")


@dataclass(frozen=True)
class Step:
    """One update at one step of a training.

    Attributes:
        series: the folder of the runs, or the monitor's log.
        step: of the training.
        trained_depth: of the model, where it is known.
        condition: of the update.
        updates: of a run.
        logged: of a log: means, and their standard errors with the ending `_se`.
    """

    series: str
    step: int
    trained_depth: int | None
    condition: Condition
    updates: Updates | None = None
    logged: Mapping[str, Any] | None = None


def _steps(records: Records) -> Selection:
    """The steps of every training by update; of two runs of one step the first counts."""
    found: dict[tuple[object, ...], dict[tuple[int, int], Step]] = defaultdict(dict)
    unknown: dict[str, None] = {}
    for updates in records.updates:
        condition, run = updates.condition, records.run_of(updates.condition)
        step, folder, model = run.manifest.training_step, run.path.resolve().parent, run.manifest.model
        if step is None:
            unknown[condition.run] = None
            continue
        key = (folder, model.family, model.config_sha256, condition.evaluation_set)
        one = Step(printable(folder.name), step, model.trained_depth, condition, updates)
        found[key].setdefault((condition.transition or 0, step), one)
    for one in (one for path, log in records.logs for one in _logged(path, log)):
        found[one.series, one.condition.task].setdefault((one.condition.transition or 0, one.step), one)
    kept = tuple(steps[place] for steps in found.values() for place in sorted(steps))
    notes = list(notes_on(one.condition for one in kept))
    if unknown:
        notes.append(f"without a training step: {', '.join(unknown)} ({REMEDY})")
    if records.logs:
        notes.append("a monitor's log holds means and standard errors: its intervals are normal, its best depths bare")
    if not kept:
        missing = records.nothing(f"no run has a training step: {REMEDY}")
        notes.append("these logs hold no update: give `ls.Monitor` transitions" if records.logs else missing)
    return Selection(kept, tuple(notes))


def _logged(path: Path, log: MonitorLog) -> Iterator[Step]:
    """What a monitor's log holds of every task and update, with the best depth of the step."""
    series, header = printable(f"{path.resolve().parent.name}/{path.name}"), log.header
    if not (log.updates.height and log.depths.height):
        return
    ordered = log.depths.sort("utility", "depth", descending=[True, False]).unique(["step", "task"], keep="first")
    names = {"best_depth": "depth", "best_utility": "utility", "best_utility_se": "utility_se"}
    rows = log.updates.join(ordered.select("step", "task", **names), on=["step", "task"], how="left")
    splits = {task["name"]: task.get("split") or "" for task in header.get("tasks", ())}
    model, family = (str(header.get(name, "")) for name in ("model", "family"))
    for row in rows.filter(pl.col("task").is_in(list(splits))).iter_rows(named=True):
        task, n = row["task"], row["questions"]
        condition = Condition(series, str(path.resolve()), model, family, Weights.OTHER, task, splits[task], n, n)
        yield Step(series, row["step"], header.get("trained_depth"), at(condition, row["transition"], n), logged=row)


def _measured(updates: Updates) -> Values:
    """The statistics of a run's update."""
    found: dict[str, Any] = {
        "gain": Mean(updates.gain),
        "utility": Mean(updates.floats("utility_after")),
        "slope": Mean(updates.slope),
        "accumulated_curvature": Mean(updates.gain - updates.slope),
        "share": Ratio(updates.finite_step, updates.harmful),
        **_shares(updates),
    }
    if sweep := updates.sweep:
        place = int(sweep.utility.mean(axis=0).argmax())
        found |= {"best_depth": Best(sweep.depths, sweep.utility), "best_utility": Mean(sweep.utility[:, place])}
    return found


def _estimate(row: Mapping[str, Any], name: str, level: float) -> Estimate:
    """A mean of a log with the interval that its standard error gives; shares stay within 0 and 1."""
    logged = "utility_after" if name == "utility" else name
    value, error = row.get(logged), row.get(f"{logged}_se")
    if value is None or error is None:
        return Estimate(value, row["questions"])
    reach = NormalDist().inv_cdf(0.5 + level / 2) * error
    low, high = value - reach, value + reach
    if name in (*OUTCOMES, "share"):
        low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(value, row["questions"], Interval(low, high))


WHICH = (words("Training", "{series}"), *IDENTITY[1:], Column("Step", "{step}"))


@table(
    "training",
    "A training in steps",
    Population(_steps, "several steps"),
    panel(
        "(a) Outcomes",
        *(*WHICH, Column("N", "{condition.n}"), Column("Progressing (%)", "{progressing:.1%}")),
        Column("Directional\nfailures (%)", "{directional:.1%}"),
        Column("Finite-step failures (%)\n[95% CI]", "{finite_step:.1%}", ci=True),
        Column("Of harmful (%)\n[95% CI]", "{share:.1%}", ci=True),
    ),
    panel(
        "(b) Gains in nats, and depth",
        *(*WHICH, Column("ΔU (1e-3)\n[95% CI]", "{gain:+.2f}", per=1e-3, ci=True)),
        Column("A (1e-3)", "{slope:+.2f}", per=1e-3),
        Column("ΔU−A (1e-3)", "{accumulated_curvature:+.2f}", per=1e-3),
        Column("Utility after\n[95% CI]", "{utility:.4f}", ci=True),
        Column("Best depth\n[95% CI]", "{best_depth}", ci=True),
        Column("Utility there\n[95% CI]", "{best_utility:.4f}", ci=True),
    ),
)
def training(one: Step, bootstrap: Bootstrap) -> Sequence[Row]:
    """Every update at every step of a training: shares of outcomes, finite-step failures among harmful updates, mean
    gain, slope and accumulated curvature; mean utility after the update, and the depth with the highest one. 95%
    intervals resample questions.
    """
    if one.updates is None:
        found = {name: _estimate(one.logged or {}, name, bootstrap.level) for name in MEASURES}
    else:
        found = dict.fromkeys(MEASURES, Estimate(None, one.condition.n)) | dict(_measured(one.updates))
    about: dict[str, Any] = {"series": one.series, "step": one.step, "trained_depth": one.trained_depth}
    return [Row(one.condition, f"step {one.step}", about | found)]


TERMS: dict[str, dict[str, Any]] = {
    "slope": {"color": figures.SERIES_COLOURS[0], "marker": "^", "label": "$A$"},
    "accumulated_curvature": {"color": figures.SERIES_COLOURS[1], "marker": "v", "label": r"$\Delta U-A$"},
    "gain": {"color": figures.BLACK, "marker": "o", "label": r"$\Delta U$"},
}
WIDE_RANGE = 5.0  # steps whose middle one lies below this part of the last are drawn on a logarithmic axis


@figures.figure("training", "A training in steps", paper="fig:training", over=training)
def training_figure(table: TableResult, bootstrap: Bootstrap) -> figures.Picture | str:
    """Over the steps of one training: (a) outcomes of an update, as shares of all questions; (b) its mean gain ΔU, the
    slope A plus the accumulated curvature ΔU−A; (c) the depth with the highest mean utility. Bars and bands are
    intervals over questions.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in table.rows:
        groups[f"{row['series']} · {row.condition.set_title}"].append(row)
    (name, rows), *others = groups.items()
    more = tuple(f"not drawn: {other} (the table training has it)" for other, _ in others)
    # The update to look at first: the one out of the trained depth, else the last one below it, else the first.
    known = sorted({row.condition.transition or 0 for row in rows})
    trained = rows[0]["trained_depth"]
    chosen = max((each for each in known if trained is None or each <= trained), default=known[0])
    leading = [row for row in rows if row.condition.transition == chosen]
    update = leading[0].condition.update
    shown = {"rows": table.to_polars().to_dicts()}
    return figures.Picture(2.4, lambda figure: _draw(figure, name, leading), shown, f"{name}, {update}.", more)


def _draw(figure: Figure, name: str, rows: list[Row]) -> None:
    outcomes, terms, depth = figure.subplots(1, 3)
    steps = [row["step"] for row in rows]
    drawn = {code: [100 * (row[outcome].value or 0.0) for row in rows] for outcome, code in OUTCOMES.items()}
    drawn = {code: shares for code, shares in drawn.items() if any(shares)}
    colours = [figures.OUTCOMES[code]["color"] for code in drawn]
    labels = [code.label for code in drawn]
    outcomes.stackplot(steps, *drawn.values(), labels=labels, colors=colours, alpha=0.75, linewidth=0)
    look = {"color": figures.BLACK, "linestyle": "none", "markersize": 2}
    figures.bars(outcomes, steps, [row["finite_step"] for row in rows], look, per=0.01)
    outcomes.set_ylim(0, 100)
    outcomes.set_ylabel("Questions (%)")
    for term, each in TERMS.items():
        figures.band(terms, steps, [row[term] for row in rows], each)
    terms.axhline(0, color=figures.BLACK, linewidth=0.6)
    terms.set_ylabel("Nats")
    figures.bars(depth, steps, [row["best_depth"] for row in rows], {"color": figures.ORANGE, "marker": "o"})
    depth.set_ylabel("Depth (loops)")
    depth.set_ylim(bottom=0)
    depth.yaxis.get_major_locator().set_params(integer=True)
    update = rows[0].condition.update
    titles = (f"outcomes of {update}", f"gain of {update}", "best depth")
    for letter, head, axes in zip("abc", titles, (outcomes, terms, depth), strict=True):
        figures.panel_letter(axes, letter, head)
        axes.set_xlabel("Training step")
        if len(steps) > 2 and WIDE_RANGE * steps[len(steps) // 2] < steps[-1]:
            axes.set_xscale("symlog", linthresh=float(steps[0] or steps[1]))
            axes.set_xlim(0.9 * steps[0], 1.1 * steps[-1])
    figure.suptitle(figures.literal(name), fontsize=8)
    figure.legend(loc="outside lower center", ncols=7, handletextpad=0.4)
