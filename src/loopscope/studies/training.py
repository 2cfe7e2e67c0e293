"""A training step by step: what a series of checkpoints, or the log of a monitor, says of every update and depth.

Runs tell their step by their manifest (`loopscope.training_steps`); runs that lie in one folder and share
architecture and evaluation set are one training. Their intervals resample questions. The log of a monitor
(`loopscope.monitor_log`) holds means with standard errors, from which its intervals are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import polars as pl

from loopscope.errors import setting
from loopscope.monitor_log import MonitorLog
from loopscope.path import Outcome
from loopscope.stats import Best, Bootstrap, Estimate, Interval, Mean, OfSums, Ratio
from loopscope.studies.conditions import Condition, Weights, at, place_of, printable
from loopscope.studies.records import DepthSweep, Records, Updates
from loopscope.training_steps import training_step

OUTCOMES = {
    **{"finite_step": Outcome.FINITE_STEP_FAILURE, "directional": Outcome.DIRECTIONAL_FAILURE},
    **{"neutral": Outcome.NEUTRAL, "progressing": Outcome.PROGRESSING},
}
"""Names of the shares of outcomes, worst first."""
MEASURES = (
    *("utility", "gain", "slope", "quadratic", "accumulated_curvature", "quadratic_scale"),
    *("finite_step", "directional", "neutral", "progressing", "harmful", "share", "sign_slope", "sign_quadratic"),
    *("quarter_gain", "quadratic_gain", "quarter_recovery", "quadratic_recovery"),
)
"""What is listed of an update; names are those of a monitor's log."""
SHARES = frozenset(MEASURES[6:14]) | {"quarter_recovery", "quadratic_recovery"}


class Moment(NamedTuple):
    """One update at one step of the training."""

    step: int
    condition: Condition
    found: Mapping[str, Estimate]
    """By names of `MEASURES`; what is not stored is missing."""


class DepthMoment(NamedTuple):
    """All depths at one step of the training."""

    step: int
    condition: Condition
    utility: Mapping[int, Estimate]
    best: Estimate
    """The depth with the highest mean utility, the smallest of equals."""


@dataclass
class Training:
    """One training on one evaluation set.

    Attributes:
        title: the folder of the runs, or the monitor's log.
        condition: the evaluation set, of the first step.
        trained_depth: loops that the model is trained for, where that is known.
        updates: by transition, in the order of steps.
        depths: in the order of steps.
    """

    title: str
    condition: Condition
    trained_depth: int | None
    updates: dict[int, list[Moment]] = field(default_factory=dict)
    depths: list[DepthMoment] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        """All steps."""
        found = {moment.step for moments in self.updates.values() for moment in moments}
        return sorted(found | {moment.step for moment in self.depths})

    @property
    def leading(self) -> int | None:
        """The update to look at first: the one out of the trained depth, else the last one below it, else the first."""
        known = sorted(self.updates)
        below = [transition for transition in known if self.trained_depth is None or transition <= self.trained_depth]
        return next(iter(below[::-1] or known), None)

    def depths_at(self, step: int) -> DepthMoment | None:
        """The depths at a step."""
        return next((moment for moment in self.depths if moment.step == step), None)


def trainings(records: Records, bootstrap: Bootstrap | None = None) -> list[Training]:
    """Every training that the runs and logs hold, in their order; of two runs of one step the first counts."""
    settings = bootstrap or Bootstrap()
    found: dict[tuple[object, ...], Training] = {}

    def training(condition: Condition) -> Training:
        run = records.run_of(condition)
        folder, model = run.path.resolve().parent, run.manifest.model
        key = (folder, model.family, model.config_sha256, condition.evaluation_set)
        one = Training(printable(folder.name), at(condition, None, condition.n), model.trained_depth)
        return found.setdefault(key, one)

    steps = {place_of(run): training_step(run.manifest) for run in records.runs}
    for updates in records.updates:
        step, transition = steps[updates.condition.place], updates.condition.transition
        if step is not None and transition is not None:
            moment = Moment(step, updates.condition, settings.estimate(_statistics(updates)))
            training(updates.condition).updates.setdefault(transition, []).append(moment)
    for sweep in records.sweeps:
        step = steps[sweep.condition.place]
        if step is not None:
            training(sweep.condition).depths.append(_depths(step, sweep, settings))
    every = list(found.values())
    for path, log in records.logs:
        every += (_of_log(path, log, task, settings.level) for task in log.header.get("tasks", ()))
    for one in every:
        one.updates = {transition: _once(one.updates[transition]) for transition in sorted(one.updates)}
        one.depths = _once(one.depths)
    return [one for one in every if one.steps]


def without_step(records: Records) -> list[str]:
    """The runs whose training step is not known, by their labels."""
    unknown = {place_of(run) for run in records.runs if training_step(run.manifest) is None}
    return list(dict.fromkeys(condition.run for _, condition in records.conditions() if condition.place in unknown))


def no_steps(records: Records) -> str:
    """Why there is nothing to show."""
    how = f"measure checkpoints whose folders are named as step-1000, or give {setting('training_step', 1000)}"
    return records.nothing(f"no run has a training step: {how}")


def _once(moments: Iterable[Any]) -> list[Any]:
    """In the order of steps, the first of each."""
    first = {moment.step: moment for moment in reversed(list(moments))}
    return [first[step] for step in sorted(first)]


def _statistics(updates: Updates) -> dict[str, OfSums]:
    gain, slope, failures = updates.gain, updates.slope, updates.finite_step
    found: dict[str, OfSums] = {
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
    return found


def _depths(step: int, sweep: DepthSweep, bootstrap: Bootstrap) -> DepthMoment:
    means = {depth: Mean(sweep.utility[:, place]) for place, depth in enumerate(sweep.depths)}
    best = bootstrap.estimate({"": Best(sweep.depths, sweep.utility)})[""]
    return DepthMoment(step, sweep.condition, bootstrap.estimate(means), best)


def _of_log(path: Path, log: MonitorLog, task: Mapping[str, Any], level: float) -> Training:
    """What a monitor's log says of one task."""
    title = printable(f"{path.resolve().parent.name}/{path.name}")
    depths, updates = (_of_task(frame, task["name"]) for frame in (log.depths, log.updates))
    condition = _condition(path, title, log.header, task, depths)
    training = Training(title, condition, log.header.get("trained_depth"))
    for row in updates:
        held = {name: _estimate(row, name, level) for name in MEASURES if name in row}
        held["utility"] = _estimate(row, "utility_after", level)
        moment = Moment(row["step"], at(condition, row["transition"], row["questions"]), held)
        training.updates.setdefault(row["transition"], []).append(moment)
    for step in sorted({row["step"] for row in depths}):
        rows = [row for row in depths if row["step"] == step]
        utility = {row["depth"]: _estimate(row, "utility", level) for row in rows}
        best = max(rows, key=lambda row: (row["utility"], -row["depth"]))
        one = at(condition, None, best["questions"])
        training.depths.append(DepthMoment(step, one, utility, Estimate(float(best["depth"]), one.n)))
    return training


def _of_task(frame: pl.DataFrame, task: str) -> list[dict[str, Any]]:
    return frame.filter(pl.col("task") == task).to_dicts() if frame.height else []


def _estimate(row: Mapping[str, Any], name: str, level: float) -> Estimate:
    """A mean of a log with the interval that its standard error gives; shares stay within 0 and 1."""
    value, error = row.get(name), row.get(f"{name}_se")
    if value is None or error is None:
        return Estimate(value, row["questions"])
    reach = NormalDist().inv_cdf(0.5 + level / 2) * error
    low, high = value - reach, value + reach
    if name in SHARES:
        low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(value, row["questions"], Interval(low, high))


def _condition(
    path: Path, title: str, header: Mapping[str, Any], task: Mapping[str, Any], depths: Sequence[Mapping[str, Any]]
) -> Condition:
    """What a log is about, as a study names it."""
    questions = task.get("questions") or max((row["questions"] for row in depths), default=0)
    options = any(row.get("accuracy") is not None for row in depths)
    return Condition(
        run=title,
        place=str(path.resolve()),
        model=str(header.get("model", "")),
        family=str(header.get("family", "")),
        weights=Weights.OTHER,
        task=str(task["name"]),
        split=str(task.get("split") or ""),
        subset=None,
        kind="options" if options else "solution",
        affine=bool(header.get("affine_readout")),
        n=questions,
        expected=questions,
        transition=None,
        states=str(header.get("dtype", "")),
        readout=str(header.get("readout_dtype", "")),
        level="grid",
    )
