"""The steps of a training next to each other: outcomes, what makes the gain, and the best depth.

Runs of a training name their step in their manifest (`loopscope.training_steps`); runs that lie in one folder and
share architecture and evaluation set are one training. Their intervals resample questions. The log of a monitor
(`loopscope.monitor_log`) holds means with standard errors, from which its intervals are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import polars as pl

from loopscope.monitor_log import MonitorLog
from loopscope.path import Outcome
from loopscope.stats import Best, Bootstrap, Estimate, Interval, Mean, Ratio
from loopscope.studies import figures
from loopscope.studies.conditions import Condition, Weights, printable
from loopscope.studies.declare import TASK, UPDATE, Column, Panel, Row, TableResult, Values, table, words
from loopscope.studies.populations import Population, Selection, notes_on
from loopscope.studies.records import Records, Updates
from loopscope.training_steps import training_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REMEDY = "measure with a checkpoint whose folder is named step-1000; `ls.Monitor(log=…)` watches a model in memory"
"""How a study of a training gets its steps."""
OUTCOMES = {
    **{"finite_step": Outcome.FINITE_STEP_FAILURE, "directional": Outcome.DIRECTIONAL_FAILURE},
    **{"neutral": Outcome.NEUTRAL, "progressing": Outcome.PROGRESSING},
}
"""Names of the shares of outcomes, worst first."""
SHARES = (*OUTCOMES, "harmful", "share", "sign_slope", "sign_quadratic", "quarter_recovery", "quadratic_recovery")
MEASURES = (
    *("utility", "gain", "slope", "quadratic", "accumulated_curvature", "quadratic_scale"),
    *(*SHARES, "quarter_gain", "quadratic_gain"),
)
"""What is listed of an update; names are those of a monitor's log, but for its `utility_after`."""


@dataclass(frozen=True)
class Step:
    """One update at one step of a training."""

    series: str
    """The folder of the runs, or the monitor's log."""
    step: int
    trained_depth: int | None
    condition: Condition
    updates: Updates | None = None
    """Of a run."""
    logged: Mapping[str, Any] | None = None
    """Of a log: means, and their standard errors with the ending `_se`."""


def _steps(records: Records) -> Selection:
    """The steps of every training by update; of two runs of one step the first counts."""
    found: dict[tuple[object, ...], dict[tuple[int, int], Step]] = {}
    unknown: dict[str, None] = {}
    for updates in records.updates:
        condition, run = updates.condition, records.run_of(updates.condition)
        step, folder, model = training_step(run.manifest), run.path.resolve().parent, run.manifest.model
        if step is None:
            unknown[condition.run] = None
            continue
        one = Step(printable(folder.name), step, model.trained_depth, condition, updates)
        key = (folder, model.family, model.config_sha256, condition.evaluation_set)
        found.setdefault(key, {}).setdefault((condition.transition or 0, step), one)
    for path, log in records.logs:
        for one in _logged(path, log):
            steps = found.setdefault((one.series, one.condition.task), {})
            steps.setdefault((one.condition.transition or 0, one.step), one)
    kept = tuple(steps[place] for steps in found.values() for place in sorted(steps))
    notes = list(notes_on(one.condition for one in kept))
    if unknown:
        notes.append(f"without a training step: {', '.join(unknown)} ({REMEDY})")
    if records.logs:
        notes.append("a monitor's log holds means and standard errors: its intervals are normal, its best depths bare")
    if records.logs and not kept:
        notes.append("these logs hold no update: give `ls.Monitor` transitions")
    elif not kept:
        notes.append(records.nothing(f"no run has a training step: {REMEDY}"))
    return Selection(kept, tuple(notes))


def _logged(path: Path, log: MonitorLog) -> Iterator[Step]:
    """What a monitor's log holds of every task and update."""
    series, header = printable(f"{path.resolve().parent.name}/{path.name}"), log.header
    for task in header.get("tasks", ()) if log.updates.height else ():
        updates, best = (frame.filter(pl.col("task") == task["name"]) for frame in (log.updates, _best_depths(log)))
        for row in updates.join(best, on="step", how="left").iter_rows(named=True):
            condition = Condition(
                run=series,
                place=str(path.resolve()),
                model=str(header.get("model", "")),
                family=str(header.get("family", "")),
                weights=Weights.OTHER,
                task=task["name"],
                split=task.get("split") or "",
                n=row["questions"],
                expected=row["questions"],
                transition=row["transition"],
            )
            yield Step(series, row["step"], header.get("trained_depth"), condition, logged=row)


def _best_depths(log: MonitorLog) -> pl.DataFrame:
    """The depth with the highest mean utility, the smallest of equals, by step and task."""
    if not log.depths.height:
        return log.updates.select("step", "task").clear()
    ordered = log.depths.sort("utility", "depth", descending=[True, False])
    chosen = {"best_depth": "depth", "best_utility": "utility", "best_utility_se": "utility_se"}
    return ordered.unique(["step", "task"], keep="first").select("step", "task", **chosen)


def _measured(updates: Updates) -> Values:
    """The statistics of a run's update."""
    gain, slope, failures = updates.gain, updates.slope, updates.finite_step
    found: dict[str, Any] = {
        "gain": Mean(gain),
        "utility": Mean(updates.floats("utility_after")),
        "slope": Mean(slope),
        "quadratic": Mean(updates.quadratic),
        "accumulated_curvature": Mean(gain - slope),
        "harmful": Mean(updates.harmful),
        "share": Ratio(failures, updates.harmful),
        **{name: Mean(updates.outcome == code) for name, code in OUTCOMES.items()},
        **{name: Mean(right) for name, right in updates.right_signs.items()},
    }
    shorter = {"quarter": updates.quarter_gain} if updates.has("grid_gain") else {}
    if updates.has("quadratic_gain"):
        shorter["quadratic"] = updates.floats("quadratic_gain")
    for name, gains in shorter.items():
        found[f"{name}_gain"] = Mean(gains)
        found[f"{name}_recovery"] = Ratio(failures & (gains > 0), failures)
    if updates.has("quadratic_scale"):
        found["quadratic_scale"] = Mean(updates.quadratic_scale)
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
    if name in SHARES:
        low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(value, row["questions"], Interval(low, high))


def _thousandths(head: str, name: str, *, ci: bool = False) -> Column:
    return Column(f"{head} (1e-3)" + ("\n[95% CI]" if ci else ""), f"{{{name}:+.2f}}", per=1e-3, ci=ci)


WHICH = (words("Training", "{series}"), TASK, UPDATE, Column("Step", "{step}"))


@table(
    "training",
    "A training in steps",
    summary="outcomes, gains and best depth over a training",
    over=Population(_steps, "several steps"),
    columns=(
        Panel(
            (
                *(*WHICH, Column("N", "{condition.n}"), Column("Progressing (%)", "{progressing:.1%}")),
                Column("Directional\nfailures (%)", "{directional:.1%}"),
                Column("Finite-step failures (%)\n[95% CI]", "{finite_step:.1%}", ci=True),
                Column("Of harmful (%)\n[95% CI]", "{share:.1%}", ci=True),
            ),
            "(a) Outcomes",
        ),
        Panel(
            (
                *(*WHICH, _thousandths("ΔU", "gain", ci=True), _thousandths("A", "slope", ci=True)),
                *(_thousandths("Q", "quadratic"), _thousandths("ΔU−A", "accumulated_curvature")),
                Column("α̂", "{quadratic_scale:.2f}"),
                *(_thousandths("φ(1/4)", "quarter_gain"), _thousandths("φ(α̂)", "quadratic_gain")),
            ),
            "(b) Gains in nats",
        ),
        Panel(
            (
                *(*WHICH, Column("Utility after\n[95% CI]", "{utility:.4f}", ci=True)),
                Column("Best depth\n[95% CI]", "{best_depth}", ci=True),
                Column("Utility there\n[95% CI]", "{best_utility:.4f}", ci=True),
            ),
            "(c) Depth",
        ),
    ),
)
def training(one: Step, bootstrap: Bootstrap) -> Sequence[Row]:
    """Every update at every step of a training: shares of outcomes, finite-step failures among harmful updates, mean
    gain, slope, quadratic coefficient and accumulated curvature, mean predicted scale and what quarter and quadratic
    steps gain; mean utility after the update, and the depth with the highest one. 95% intervals resample questions.
    """
    names = (*MEASURES, "best_depth", "best_utility")
    if one.updates is None:
        found = {name: _estimate(one.logged or {}, name, bootstrap.level) for name in names}
    else:
        found = dict.fromkeys(names, Estimate(None, one.condition.n)) | dict(_measured(one.updates))
    about: dict[str, Any] = {"series": one.series, "step": one.step, "trained_depth": one.trained_depth}
    return [Row(one.condition, f"step {one.step}", about | found)]


TERMS: dict[str, dict[str, Any]] = {
    "slope": {"color": figures.SERIES_COLOURS[0], "marker": "^", "label": "$A$"},
    "accumulated_curvature": {"color": figures.SERIES_COLOURS[1], "marker": "v", "label": r"$\Delta U-A$"},
    "gain": {"color": figures.BLACK, "marker": "o", "label": r"$\Delta U$"},
}
WIDE_RANGE = 5.0
"""Steps whose middle one lies below this part of the last are drawn on a logarithmic axis."""
MOST_NAMED = 6
"""Updates that the legend of panel (c) names."""


@figures.figure(
    "training",
    "A training in steps",
    paper="fig:training",
    summary="outcomes, gains and best depth over a training",
    over=training,
)
def training_figure(table: TableResult, bootstrap: Bootstrap) -> figures.Picture | str:
    """Four panels of the first training and evaluation set; the table has all of them."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        groups.setdefault(f"{row['series']} · {row.condition.set_title}", []).append(row)
    (name, rows), *others = groups.items()
    more = tuple(f"not drawn: {other} (the table training has it)" for other, _ in others)
    caption = (
        f"{name}. (a) Outcomes of the update {_leading(rows)[0].condition.update} over the steps of the training, as "
        "shares of all questions. (b) Its mean gain ΔU, which is the slope A plus the accumulated curvature ΔU−A. "
        "(c) Mean gain of every measured update. (d) The depth with the highest mean utility. Bars and bands are "
        f"{100 * bootstrap.level:g}% intervals over questions."
    )
    shown = {"rows": table.to_polars().to_dicts()}
    return figures.Picture(3.9, lambda figure: _draw(figure, name, rows), caption, shown, more)


def _leading(rows: Sequence[Row]) -> list[Row]:
    """The update to look at first: the one out of the trained depth, else the last one below it, else the first."""
    trained = rows[0]["trained_depth"]
    known = sorted({row.condition.transition or 0 for row in rows})
    below = [transition for transition in known if trained is None or transition <= trained]
    chosen = below[-1] if below else known[0]
    return [row for row in rows if row.condition.transition == chosen]


def _draw(figure: Figure, name: str, rows: list[Row]) -> None:
    grid, leading = figure.subplots(2, 2, sharex=True), _leading(rows)
    update, steps = leading[0].condition.update, sorted({row["step"] for row in rows})
    _outcomes(grid[0, 0], leading)
    for term, look in TERMS.items():
        _line(grid[0, 1], leading, term, look)
    by_update: dict[str, list[Row]] = {}
    for row in rows:
        by_update.setdefault(row.condition.update, []).append(row)
    for place, (label, some) in enumerate(by_update.items()):
        named = place % -(-len(by_update) // MOST_NAMED) == 0
        _line(grid[1, 0], some, "gain", figures.series(place) | {"label": label if named else ""})
    best = {"color": figures.ORANGE, "marker": "o", "markersize": 4}
    figures.bars(grid[1, 1], [row["step"] for row in leading], [row["best_depth"] for row in leading], best)
    titles = (f"outcomes of {update}", f"gain of {update}", "gain of every update", "best depth")
    for letter, head, axes in zip("abcd", titles, grid.flat, strict=True):
        figures.panel_letter(axes, letter, head)
    for axes in (grid[0, 1], grid[1, 0]):
        axes.axhline(0, color=figures.BLACK, linewidth=0.6)
        axes.set_ylabel("Nats")
    for axes in (grid[0, 0], grid[0, 1], grid[1, 0]):
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6.5, handletextpad=0.4)
    grid[1, 1].set_ylabel("Depth (loops)")
    grid[1, 1].set_ylim(bottom=0)
    grid[1, 1].yaxis.get_major_locator().set_params(integer=True)
    for axes in grid[1]:
        _step_axis(axes, steps)
        axes.set_xlabel("Training step")
    figure.suptitle(figures.literal(name), fontsize=8)


def _outcomes(axes: Axes, rows: list[Row]) -> None:
    steps = [row["step"] for row in rows]
    shares = [[100 * (row[name].value or 0.0) for row in rows] for name in OUTCOMES]
    drawn = [(outcome, share) for outcome, share in zip(OUTCOMES.values(), shares, strict=True) if any(share)]
    axes.stackplot(
        steps,
        *(share for _, share in drawn),
        labels=[outcome.label for outcome, _ in drawn],
        colors=[figures.OUTCOMES[outcome]["color"] for outcome, _ in drawn],
        alpha=0.75,
        linewidth=0,
    )
    look = {"color": figures.BLACK, "linestyle": "none", "markersize": 2}
    figures.bars(axes, steps, [row["finite_step"] for row in rows], look, per=0.01)
    axes.set_ylim(0, 100)
    axes.set_ylabel("Questions (%)")


def _line(axes: Axes, rows: list[Row], name: str, look: dict[str, Any]) -> None:
    figures.band(axes, [row["step"] for row in rows], [row[name] for row in rows], look)


def _step_axis(axes: Axes, steps: list[int]) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    if len(steps) > 2 and WIDE_RANGE * steps[len(steps) // 2] < steps[-1]:
        axes.set_xscale("symlog", linthresh=float(steps[0] or steps[1]))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
