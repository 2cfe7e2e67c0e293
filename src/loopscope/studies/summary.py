"""A run in a few sentences: where the best depth is, what harmful updates were, what a shorter step gives back.

All transitions of the run are put together; intervals resample questions, each with all of its updates.
"""

from dataclasses import dataclass

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean, Ratio
from loopscope.store import StoredRun
from loopscope.studies.records import Floats, Records, Updates


@dataclass(frozen=True)
class Summary:
    """One model on one task, over all of a run's transitions."""

    model: str
    task: str
    questions: int
    trained_depth: int | None
    first_depth: int
    best_depth: int
    depth_gain: Estimate
    """Mean utility at the trained depth less that at the first stored depth; no value where one is not stored."""
    transitions: tuple[int, ...]
    harmful: int
    failures: int
    """Finite-step failures."""
    failure_share: Estimate
    """Finite-step failures among harmful updates."""
    quarter_recovered: int
    quarter_recovery: Estimate
    quadratic_recovered: int
    quadratic_recovery: Estimate
    full_gain: Estimate
    quarter_gain: Estimate
    quadratic_gain: Estimate
    sign_slope: Estimate
    sign_quadratic: Estimate
    layout_margin: float
    layout_sensitive: int
    """Updates whose outcome another batch layout could have made another."""

    def lines(self) -> list[str]:
        """The summary in sentences."""
        first, last = self.transitions[0], self.transitions[-1]
        span = f"loops {first}→{first + 1} to {last}→{last + 1}"
        written = [
            f"best depth: {self.best_depth} loops"
            + (f" (trained for {self.trained_depth})" if self.trained_depth else "")
            + (
                f"; the trained depth is worth {_signed(self.depth_gain)} nats over depth {self.first_depth}"
                if self.depth_gain.value is not None
                else ""
            ),
            f"{self.harmful} of {self.questions * len(self.transitions)} updates ({span}) lowered the reference's"
            " support",
        ]
        if self.harmful:
            written.append(
                f"right direction, step too long: {self.failures} of those {self.harmful},"
                f" {_percent(self.failure_share)}"
            )
        if self.failures:
            written.append(
                f"a quarter of the step wins back {self.quarter_recovered} of {self.failures}"
                f" ({_percent(self.quarter_recovery)}), the quadratic step {self.quadratic_recovered}"
                f" ({_percent(self.quadratic_recovery)})"
            )
        written.append(
            f"mean gain of an update: full step {_signed(self.full_gain)}, quarter {_signed(self.quarter_gain)},"
            f" quadratic {_signed(self.quadratic_gain)}"
        )
        written.append(
            f"sign of the gain foretold by A: {_percent(self.sign_slope)}, by A+Q: {_percent(self.sign_quadratic)}"
        )
        if self.layout_sensitive:
            written.append(
                f"layout-sensitive outcomes: {self.layout_sensitive}; their gain (or slope, if harmful) is nearer to"
                f" zero than the {self.layout_margin:g} nats that another batch layout may move it"
            )
        return written


def summarise(run: StoredRun, bootstrap: Bootstrap | None = None) -> Summary:
    """The summary of a run of one task at level grid or above."""
    records = Records([run])
    updates = records.updates
    resample = bootstrap or Bootstrap()
    full, quarter, quadratic = (_stack(updates, name) for name in ("gain", "quarter_gain", "quadratic_gain"))
    slope, curvature = _stack(updates, "slope"), _stack(updates, "quadratic")
    harmful, failures = full < 0, (full < 0) & (slope > 0)
    estimates = resample.estimate(
        {
            "failure_share": Ratio(failures.sum(1), harmful.sum(1)),
            "quarter_recovery": Ratio((failures & (quarter > 0)).sum(1), failures.sum(1)),
            "quadratic_recovery": Ratio((failures & (quadratic > 0)).sum(1), failures.sum(1)),
            "full_gain": Mean(full.mean(1)),
            "quarter_gain": Mean(quarter.mean(1)),
            "quadratic_gain": Mean(quadratic.mean(1)),
            "sign_slope": Mean((np.sign(slope) == np.sign(full)).mean(1)),
            "sign_quadratic": Mean((np.sign(slope + curvature) == np.sign(full)).mean(1)),
        }
    )
    sweep = records.sweeps[0]
    trained = run.manifest.model.trained_depth
    depth_gain = Estimate(None, len(sweep.ids))
    if trained in sweep.depths:
        change = sweep.utility[:, sweep.depths.index(trained)] - sweep.utility[:, 0]
        depth_gain = resample.estimate({"gain": Mean(change)})["gain"]
    return Summary(
        model=run.manifest.model.name,
        task=updates[0].condition.task,
        questions=len(updates[0]),
        trained_depth=trained,
        first_depth=sweep.depths[0],
        best_depth=sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))],
        depth_gain=depth_gain,
        transitions=tuple(run.manifest.transitions),
        harmful=int(harmful.sum()),
        failures=int(failures.sum()),
        quarter_recovered=int((failures & (quarter > 0)).sum()),
        quadratic_recovered=int((failures & (quadratic > 0)).sum()),
        layout_margin=updates[0].condition.layout_margin,
        layout_sensitive=sum(int(one.layout_sensitive.sum()) for one in updates),
        **estimates,
    )


def _stack(updates: tuple[Updates, ...], name: str) -> Floats:
    """One column of all transitions, [questions, transitions]."""
    columns = [getattr(u, name) if name != "quadratic_gain" else u.floats("quadratic_gain") for u in updates]
    return np.stack(columns, axis=1)


def _percent(estimate: Estimate) -> str:
    if estimate.value is None:
        return "—"
    if estimate.interval is None:
        return f"{100 * estimate.value:.1f}%"
    return f"{100 * estimate.value:.1f}% [{100 * estimate.interval.low:.1f}, {100 * estimate.interval.high:.1f}]"


def _signed(estimate: Estimate) -> str:
    if estimate.value is None:
        return "—"
    return f"{estimate.value:+.5f}"
