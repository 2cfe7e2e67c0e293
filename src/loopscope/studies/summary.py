"""A run in a few sentences: the earliest update at which the loop clearly did harm, then every update of the run.

The update that leads is chosen by the data: the earliest whose mean gain is below zero with its whole interval.
Intervals resample questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from loopscope.stats import Bootstrap, Estimate, Mean, Ratio
from loopscope.store import StoredRun
from loopscope.store.schema import update_name
from loopscope.studies.records import Floats, Records, Updates


@dataclass(frozen=True)
class UpdateSummary:
    """One model on one task, one update t → t+1."""

    transition: int
    questions: int
    harmful: int
    failures: int
    """Finite-step failures: the slope is positive and the gain is not."""
    quarter_recovered: int
    quadratic_recovered: int
    failure_share: Estimate
    """Finite-step failures among harmful updates."""
    quarter_recovery: Estimate
    quadratic_recovery: Estimate
    full_gain: Estimate
    quarter_gain: Estimate
    quadratic_gain: Estimate
    sign_slope: Estimate
    sign_quadratic: Estimate

    @property
    def declines(self) -> bool:
        """Whether the mean gain is below zero with its whole interval."""
        interval = self.full_gain.interval
        return interval is not None and interval.high < 0

    @property
    def name(self) -> str:
        """`4→5`."""
        return update_name(self.transition)

    def finding(self) -> str:
        """What happened at this update, in one sentence."""
        said = (
            f"loop {self.name} lowered the support of {self.harmful} of {self.questions} references (mean change over"
            f" all: {_signed(self.full_gain)} nats a token)"
        )
        if not self.harmful:
            return f"loop {self.name} lowered the support of no reference"
        said += (
            f"; {self.failures} of these {self.harmful} updates ({_percent(self.failure_share)}) pointed the right way"
            " and went too far"
        )
        if self.failures:
            said += (
                f", and the step that slope and curvature predict recovers {self.quadratic_recovered} of them,"
                f" a quarter of the step {self.quarter_recovered}"
            )
        return said

    def details(self) -> list[str]:
        """What the sentence rests on."""
        lines = [
            f"mean gain: full step {_signed(self.full_gain)}, quarter {_signed(self.quarter_gain)},"
            f" quadratic {_signed(self.quadratic_gain)}",
            f"sign of the gain predicted by A: {_percent(self.sign_slope)}, by A+Q: {_percent(self.sign_quadratic)}",
        ]
        if self.failures:
            lines.append(
                f"failures recovered: quarter {_percent(self.quarter_recovery)}, quadratic"
                f" {_percent(self.quadratic_recovery)}"
            )
        return lines

    def line(self) -> str:
        """The update among others."""
        share = f" ({_percent(self.failure_share)})" if self.harmful else ""
        return (
            f"{self.name}: mean gain {_signed(self.full_gain)}, {self.harmful} of {self.questions} harmful,"
            f" {self.failures} of them too long a step{share}; sign by A {_percent(self.sign_slope)},"
            f" by A+Q {_percent(self.sign_quadratic)}"
        )


@dataclass(frozen=True)
class Summary:
    """One model on one task."""

    model: str
    task: str
    questions: int
    trained_depth: int | None
    first_depth: int
    best_depth: int
    depth_gain: Estimate
    """Mean utility at the trained depth less that at the first stored depth; no value where one is not stored."""
    updates: tuple[UpdateSummary, ...]

    @cached_property
    def earliest_decline(self) -> UpdateSummary | None:
        """The earliest measured update whose mean gain is clearly below zero."""
        return next((update for update in self.updates if update.declines), None)

    def lines(self) -> list[str]:
        """The summary in sentences, the finding first."""
        leading = self.earliest_decline
        first, last = self.updates[0].name, self.updates[-1].name
        if leading is None:
            written = [f"no clear decline at the measured loops {first} to {last}"]
        else:
            written = [leading.finding(), *leading.details()]
        written.append(
            f"best depth: {self.best_depth} loops"
            + (f" (trained for {self.trained_depth})" if self.trained_depth else "")
            + (
                f"; the trained depth is worth {_signed(self.depth_gain)} nats over depth {self.first_depth}"
                if self.depth_gain.value is not None
                else ""
            )
        )
        written += [update.line() for update in self.updates if update is not leading]
        return written


def summarise(run: StoredRun, bootstrap: Bootstrap | None = None) -> Summary:
    """The summary of a run of one task at level grid or above."""
    records = Records([run])
    resample = bootstrap or Bootstrap()
    sweep = records.sweeps[0]
    trained = run.manifest.model.trained_depth
    depth_gain = Estimate(None, len(sweep.ids))
    if trained in sweep.depths:
        change = sweep.utility[:, sweep.depths.index(trained)] - sweep.utility[:, 0]
        depth_gain = resample.estimate({"gain": Mean(change)})["gain"]
    return Summary(
        model=run.manifest.model.name,
        task=records.updates[0].condition.task,
        questions=len(records.updates[0]),
        trained_depth=trained,
        first_depth=sweep.depths[0],
        best_depth=sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))],
        depth_gain=depth_gain,
        updates=tuple(_of_update(updates, resample) for updates in records.updates),
    )


def _of_update(updates: Updates, resample: Bootstrap) -> UpdateSummary:
    full, quarter, quadratic = updates.gain, shorter_gain(updates, "quarter"), shorter_gain(updates, "quadratic")
    assert quarter is not None
    assert quadratic is not None
    slope, predicted = updates.slope, updates.slope + updates.quadratic
    harmful = full < 0
    failures = harmful & (slope > 0)
    estimates = resample.estimate(
        {
            "failure_share": Ratio(failures, harmful),
            "quarter_recovery": Ratio(failures & (quarter > 0), failures),
            "quadratic_recovery": Ratio(failures & (quadratic > 0), failures),
            "full_gain": Mean(full),
            "quarter_gain": Mean(quarter),
            "quadratic_gain": Mean(quadratic),
            "sign_slope": Mean(np.sign(slope) == np.sign(full)),
            "sign_quadratic": Mean(np.sign(predicted) == np.sign(full)),
        }
    )
    transition = updates.condition.transition
    assert transition is not None
    return UpdateSummary(
        transition=transition,
        questions=len(updates),
        harmful=int(harmful.sum()),
        failures=int(failures.sum()),
        quarter_recovered=int((failures & (quarter > 0)).sum()),
        quadratic_recovered=int((failures & (quadratic > 0)).sum()),
        **estimates,
    )


def _percent(estimate: Estimate) -> str:
    if estimate.value is None:
        return "—"
    if estimate.interval is None:
        return f"{100 * estimate.value:.1f}%"
    return f"{100 * estimate.value:.1f}% [{100 * estimate.interval.low:.1f}, {100 * estimate.interval.high:.1f}]"


def _signed(estimate: Estimate) -> str:
    return "—" if estimate.value is None else f"{estimate.value:+.5f}"


def run_lines(run: StoredRun, bootstrap: Bootstrap | None = None) -> list[str]:
    """A line for every update of a run, or for every depth of a run without updates."""
    manifest = run.manifest
    about = f"{manifest.model.name}, level {manifest.level}, states {manifest.dtypes.states}: {run.path}"
    if not manifest.transitions:
        means = run.depths.group_by("task", "depth", maintain_order=True).agg(n=pl.len(), mean=pl.mean("utility"))
        rows = [(task, depth, n, f"{mean:+.5f}") for task, depth, n, mean in means.rows()]
        return [about, *_aligned([("task", "depth", "questions", "mean utility"), *rows])]
    resample = bootstrap or Bootstrap()
    updates = [_cells(each, resample) for each in Records([run]).updates]
    heads = ("task", "update", "questions", "mean gain", "harmful", "finite-step failures", "predicted step recovers")
    return [about, *_aligned([heads, *updates])]


def shorter_gain(updates: Updates, step: str) -> Floats | None:
    """The gains of a "quarter" or the "quadratic" step as the paper's tables have them: of the state rounded to BF16.

    Without rounding where a run has no such column; None where it has neither.
    """
    columns = [f"bf16_{step}_gain", f"{step}_gain"]
    column = next((name for name in columns if updates.has(name)), None)
    if column is not None:
        return updates.floats(column)
    return updates.quarter_gain if step == "quarter" and updates.has("grid_gain") else None


def _cells(updates: Updates, resample: Bootstrap) -> tuple[object, ...]:
    failures, count = updates.finite_step, int(updates.finite_step.sum())
    gains = shorter_gain(updates, "quadratic")
    recovered = "—" if gains is None else f"{int((gains[failures] > 0).sum())} of {count}"
    gain = resample.estimate({"gain": Mean(updates.gain)})["gain"]
    interval = "" if gain.interval is None else f" [{gain.interval.low:+.5f}, {gain.interval.high:+.5f}]"
    condition, harmful = updates.condition, int(updates.harmful.sum())
    return condition.task, condition.update, len(updates), _signed(gain) + interval, harmful, count, recovered


def _aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
