"""A run in a few sentences: the earliest update at which the loop clearly did harm, then every update of the run.

The update that leads is chosen by the data: the earliest whose mean gain is below zero with its whole interval.
Intervals resample questions.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from loopscope.stats import Bootstrap, Estimate, Mean, Ratio
from loopscope.store import StoredRun
from loopscope.studies.declare import Column, Panel, Row, TableResult, Value, words
from loopscope.studies.records import Floats, Records, Updates


@dataclass(frozen=True)
class UpdateSummary:
    """One model on one task, one update t → t+1."""

    name: str
    """`4→5`."""
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

    def finding(self) -> list[str]:
        """What happened at this update, in one sentence, and what it rests on."""
        said = (
            f"loop {self.name} lowered the support of {self.harmful} of {self.questions} references (mean change over"
            f" all: {_signed(self.full_gain)} nats a token); {self.failures} of these {self.harmful} updates"
            f" ({_percent(self.failure_share)}) pointed the right way and went too far"
        )
        lines = [
            f"mean gain: full step {_signed(self.full_gain)}, quarter {_signed(self.quarter_gain)},"
            f" quadratic {_signed(self.quadratic_gain)}",
            f"sign of the gain predicted by A: {_percent(self.sign_slope)}, by A+Q: {_percent(self.sign_quadratic)}",
        ]
        if self.failures:
            said += (
                f", and the step that slope and curvature predict recovers {self.quadratic_recovered} of them,"
                f" a quarter of the step {self.quarter_recovered}"
            )
            lines.append(
                f"failures recovered: quarter {_percent(self.quarter_recovery)}, quadratic"
                f" {_percent(self.quadratic_recovery)}"
            )
        return [said, *lines]

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
    depths: str
    """What the sweep of depths says."""
    updates: tuple[UpdateSummary, ...]

    @property
    def earliest_decline(self) -> UpdateSummary | None:
        """The earliest measured update whose mean gain is clearly below zero."""
        return next((update for update in self.updates if update.declines), None)

    def lines(self) -> list[str]:
        """The summary in sentences, the finding first."""
        leading = self.earliest_decline
        measured = f"{self.updates[0].name} to {self.updates[-1].name}"
        first = leading.finding() if leading else [f"no clear decline at the measured loops {measured}"]
        return [*first, self.depths, *(update.line() for update in self.updates if update is not leading)]


def summarise(run: StoredRun, bootstrap: Bootstrap | None = None) -> Summary:
    """The summary of a run of one task at level grid or above."""
    records, resample = Records([run]), bootstrap or Bootstrap()
    sweep, trained = records.sweeps[0], run.manifest.model.trained_depth
    depths = f"best depth: {sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))]} loops"
    depths += f" (trained for {trained})" if trained else ""
    if trained in sweep.depths:
        change = sweep.utility[:, sweep.depths.index(trained)] - sweep.utility[:, 0]
        depths += f"; the trained depth is worth {_signed(Mean(change))} nats over depth {sweep.depths[0]}"
    updates = tuple(_of_update(updates, resample) for updates in records.updates)
    about = (run.manifest.model.name, records.updates[0].condition.task, len(records.updates[0]))
    return Summary(*about, depths, updates)


def _of_update(updates: Updates, resample: Bootstrap) -> UpdateSummary:
    quarter, quadratic = shorter_gain(updates, "quarter"), shorter_gain(updates, "quadratic")
    assert quarter is not None
    assert quadratic is not None
    failures = updates.finite_step
    estimates = resample.estimate(
        {
            "failure_share": Ratio(failures, updates.harmful),
            "quarter_recovery": Ratio(failures & (quarter > 0), failures),
            "quadratic_recovery": Ratio(failures & (quadratic > 0), failures),
            "full_gain": Mean(updates.gain),
            "quarter_gain": Mean(quarter),
            "quadratic_gain": Mean(quadratic),
            **{name: Mean(right) for name, right in updates.right_signs.items()},
        }
    )
    return UpdateSummary(
        name=updates.condition.update,
        questions=len(updates),
        harmful=int(updates.harmful.sum()),
        failures=int(failures.sum()),
        quarter_recovered=int((failures & (quarter > 0)).sum()),
        quadratic_recovered=int((failures & (quadratic > 0)).sum()),
        **estimates,
    )


def _percent(estimate: Estimate) -> str:
    if estimate.value is None:
        return "—"
    ends = estimate.interval
    return f"{100 * estimate.value:.1f}%" + (f" [{100 * ends.low:.1f}, {100 * ends.high:.1f}]" if ends else "")


def _signed(estimate: Estimate | Mean) -> str:
    value = estimate.value() if isinstance(estimate, Mean) else estimate.value
    return "—" if value is None else f"{value:+.5f}"


TASK = words("Task", "{condition.task}")
DEPTHS = (TASK, Column("Depth", "{depth}"), Column("Questions", "{n}"), Column("Mean utility", "{mean:+.5f}"))
UPDATES: tuple[Column, ...] = (
    *(TASK, words("Update", "{condition.update}"), Column("Questions", "{condition.n}")),
    *(Column("Mean gain", "{gain:+.5f}", ci=True), Column("Harmful", "{harmful}")),
    *(Column("Finite-step failures", "{failures}"), Column("Predicted step recovers", "{recovered}")),
)


def run_summary(run: StoredRun, bootstrap: Bootstrap | None = None) -> TableResult:
    """A line for every update of a run, or for every depth of a run without updates."""
    manifest, records, resample = run.manifest, Records([run]), bootstrap or Bootstrap()
    rows = [Row(updates.condition, "", _update_values(updates, resample)) for updates in records.updates]
    columns = UPDATES
    if not manifest.transitions:
        means = run.depths.group_by("task", "depth", maintain_order=True).agg(n=pl.len(), mean=pl.mean("utility"))
        conditions = {condition.task: condition for _, condition in records.conditions()}
        rows, columns = [Row(conditions[row["task"]], "", row) for row in means.to_dicts()], DEPTHS
    about = f"{manifest.model.name}, level {manifest.level}, states {manifest.dtypes.states}: {run.path}"
    return TableResult("summary", "tab:summary", about, "", tuple(rows), (Panel(columns),))


def _update_values(updates: Updates, resample: Bootstrap) -> dict[str, Value]:
    failures, gains = updates.finite_step, shorter_gain(updates, "quadratic")
    return {
        "gain": resample.estimate({"": Mean(updates.gain)})[""],
        "harmful": int(updates.harmful.sum()),
        "failures": int(failures.sum()),
        "recovered": None if gains is None else f"{int((gains[failures] > 0).sum())} of {int(failures.sum())}",
    }


def shorter_gain(updates: Updates, step: str) -> Floats | None:
    """The gains of a "quarter" or the "quadratic" step as the paper's tables have them: of the state rounded to BF16.

    Without rounding where a run has no such column; None where it has neither.
    """
    column = next((name for name in (f"bf16_{step}_gain", f"{step}_gain") if updates.has(name)), None)
    if column is not None:
        return updates.floats(column)
    return updates.quarter_gain if step == "quarter" and updates.has("grid_gain") else None
