"""Several runs next to each other: models compared, the steps of a training, how far updates are from a fixed point.

Runs of a training name their step in their manifest (`loopscope.training_steps`); runs that lie in one folder and
share architecture and evaluation set are one training. Their intervals resample questions. The log of a monitor
(`loopscope.monitor_log`) holds means with standard errors, from which its intervals are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl

from loopscope.errors import setting
from loopscope.monitor_log import MonitorLog
from loopscope.path import Outcome
from loopscope.stats import Best, Bootstrap, Estimate, Interval, Mean, Ratio
from loopscope.store import Level
from loopscope.studies.conditions import Condition, Weights, at, printable, title
from loopscope.studies.declare import IDENTITY, MODEL, TASK, UPDATE, Column, Panel, Row, Values, table, words
from loopscope.studies.populations import Population, Selection, notes_on, select, updates_with
from loopscope.studies.records import GRID_SCALES, Floats, Records, Updates
from loopscope.training_steps import training_step

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
        how = f"name the model's folder step-1000, or measure with {setting('training_step', 1000)}"
        notes.append(f"without a training step: {', '.join(unknown)} ({how})")
    if records.logs:
        notes.append("a monitor's log holds means and standard errors: its intervals are normal, its best depths bare")
    if not kept:
        how = f"measure checkpoints whose folders are named as step-1000, or give {setting('training_step', 1000)}"
        notes.append(records.nothing(f"no run has a training step: {how}"))
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


DESIGN = ("topology", "injection", "depth_prior")


@dataclass(frozen=True)
class RunUpdates:
    """All updates of one run and evaluation set; every update has the same questions in the same order."""

    condition: Condition
    updates: tuple[Updates, ...]

    def mean(self, values: list[Any]) -> Floats:
        """The mean over the updates of each question: [N] or [N, ...] from one such array per update."""
        return np.asarray(np.mean(np.stack(values), axis=0, dtype=np.float64))

    @cached_property
    def design(self) -> dict[str, str]:
        """Topology, injection and depth prior as the run's manifest has them."""
        found = self.condition.manifest.model.design if self.condition.manifest else {}
        return {name: title(found[name]) for name in DESIGN if name in found}


def _by_run(records: Records) -> Selection:
    chosen = select(records, "slope", "quadratic", "gain")
    found: dict[Condition, list[Updates]] = {}
    for updates in chosen.kept:
        found.setdefault(at(updates.condition, None, len(updates)), []).append(updates)
    return Selection(tuple(RunUpdates(condition, tuple(each)) for condition, each in found.items()), chosen.notes)


@table(
    "families",
    "Models compared",
    summary="one row per run: topology, injection, depth prior, outcomes",
    over=Population(_by_run, "quick"),
    columns=(
        *(MODEL, TASK, words("Updates", "{updates}"), words("Topology", "{topology}")),
        *(words("Injection", "{injection}"), words("Depth prior", "{depth_prior}")),
        Column("Finite-step share\n(%) [95% CI]", "{share:.1%}", ci=True),
        Column("A", "{sign_slope:.1%}", ci=True, group="Sign accuracy (%) [95% CI]"),
        Column("A+Q", "{sign_quadratic:.1%}", ci=True, group="Sign accuracy (%) [95% CI]"),
        Column("Best depth\n[95% CI]", "{best_depth:.0f}", ci=True),
        Column("Fitted scale\n[95% CI]", "{fitted_scale:.2f}", ci=True),
        Column("Its gain (1e-3)\n[95% CI]", "{fitted_gain:+.3f}", per=1e-3, ci=True),
    ),
)
def families(run: RunUpdates) -> Values:
    """One row per run and task, over all measured updates. The share is that of finite-step failures among harmful
    updates; sign accuracy is that of the full-step gain's sign. The best depth has the highest mean utility of those
    stored. The fitted scale is the constant scale on the 21-point grid with the highest mean gain, chosen in hindsight
    on the same questions. Intervals resample questions, each with all of its updates.
    """
    updates, unknown = run.updates, Estimate(None, run.condition.n)
    signs = [each.right_signs for each in updates]
    sweep = updates[0].sweep
    values = {
        "updates": ", ".join(each.condition.update for each in updates),
        **{name: run.design.get(name) for name in DESIGN},
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
    summary="relative step of every update, with its gain and outcome",
    over=updates_with("relative_change", level=Level.GRID),
    columns=(
        *(*IDENTITY, Column("Residual\n[95% CI]", "{residual:.3g}", ci=True), Column("Largest", "{largest:.3g}")),
        Column("ΔU (1e-3)\n[95% CI]", "{gain:+.3f}", per=1e-3, ci=True),
        Column("A (1e-3)\n[95% CI]", "{slope:+.3f}", per=1e-3, ci=True),
        *(
            Column(name.replace("_", "-").capitalize(), f"{{{name}:.1%}}", group="Updates (%)")
            for name in reversed(OUTCOMES)
        ),
    ),
)
def convergence(updates: Updates) -> Values:
    """The residual ‖H_{t+1} − H_t‖ / ‖H_t‖ is the mean over questions; a model at a fixed point has none. Next to it
    mean gain and slope, and shares of outcomes: progressing and neutral updates, directional and finite-step failures.
    """
    residual = updates.floats("relative_change")
    return {
        "residual": Mean(residual),
        "largest": residual.max(),
        "gain": Mean(updates.gain),
        "slope": Mean(updates.slope),
        **{name: Mean(updates.outcome == code) for name, code in reversed(OUTCOMES.items())},
    }
