"""The renormalised path as a control: does the outcome of an update change if states keep their norm on the way?

`measure --renormalise` stores it; `loopscope.measuring.renormalised` defines it. Both paths have the same ends, so ΔU
and what is harmful are the same. What can change is the initial slope, with it the outcome, and the gain of shorter
steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from loopscope.errors import setting
from loopscope.path import Outcome, grid_optimum
from loopscope.stats import Bootstrap, Estimate, Mean, Spearman
from loopscope.store import Level
from loopscope.studies.records import GRID_SCALES, QUARTER, Records, Updates, matrix
from loopscope.studies.result import COUNT, IDENTITY, Column, Row, TableResult, column, fixed, percent
from loopscope.studies.usable_conditions import select_beside


@dataclass(frozen=True)
class RenormalisedRow(Row):
    """Both paths of the updates of one condition."""

    updates: int
    norm_loss: Estimate
    """Mean of 1 − ‖u(½)‖ / r(½): how far the straight path leaves the states' norm half-way."""
    outcome_agreement: Estimate
    """Share of updates with the same outcome."""
    sign_agreement: Estimate
    """Share of updates with the same sign of the initial slope."""
    harmful: int
    failures: int
    """Finite-step failures on the straight path."""
    renormalised_failures: int
    """Finite-step failures on the renormalised path."""
    recovered: int
    """Failures of the straight path that a quarter step along it recovers."""
    renormalised_recovered: int
    """Failures of the renormalised path that a quarter of the way along that one recovers."""
    recovery: Estimate
    renormalised_recovery: Estimate
    scale_rank: Estimate
    """Spearman correlation of the best of 21 scales on both."""
    best_difference: Estimate
    """Mean best gain on the renormalised path minus that on the straight one."""
    quadratic_difference: Estimate
    """The same of the gains at each path's own α̂."""


COLUMNS = (
    *IDENTITY,
    column("updates", "N", COUNT, latex="$N$"),
    column("norm_loss", "Norm lost\nhalf-way (%)", percent(2)),
    column("outcome_agreement", "Same outcome (%)\n[95% CI]", percent(1, interval=True)),
    column("sign_agreement", "Same sign\nof A (%)", percent(1)),
    Column(
        ("failures", "renormalised_failures", "harmful"),
        "Finite-step failures\nstraight → renormalised",
        (COUNT, COUNT, COUNT),
        latex=r"\makecell{Finite-step failures\\straight $\to$ renormalised}",
        template="{} → {} ({})",
    ),
    column("recovery", "Quarter recovers\nstraight (%)", percent(1, interval=True)),
    column("renormalised_recovery", "Quarter recovers\nrenormalised (%)", percent(1, interval=True)),
    column("scale_rank", "Best scales\nSpearman", fixed(3)),
    column("best_difference", "Best gain,\ndifference (1e-3)", fixed(3, 1e3, sign=True, interval=True)),
    column("quadratic_difference", "Gain at α̂,\ndifference (1e-3)", fixed(3, 1e3, sign=True, interval=True)),
)


def renormalised_path(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[RenormalisedRow]:
    """One row per condition that was measured along both paths."""
    asking = setting("renormalise", True)
    found = select_beside(records, "renormalised", asking, "grid_gain", "quadratic_gain", level=Level.GRID)
    return found.selection.table(
        "renormalised-path",
        lambda updates, settings: _row(updates, found.frames[updates.condition], settings),
        bootstrap,
        label="tab:renormalised-path",
        title="States put back on their norm",
        caption=(
            "Straight path H + αD against the same path with every position's state scaled to the interpolated norm of "
            "its ends. Counts of finite-step failures on each path, of the harmful updates, the same on both; recovery "
            "is of each path's own failures. Differences are renormalised minus straight, in units of 0.001. Intervals "
            "resample questions, those of recovery failures."
        ),
        columns=COLUMNS,
    )


def _row(updates: Updates, frame: pl.DataFrame, bootstrap: Bootstrap) -> RenormalisedRow:
    gains, straight = matrix(frame["gains"]), updates.grid_gain
    # A `Run` names outcomes in the order of their codes.
    outcome = frame["outcome"].to_physical().cast(pl.Int8).to_numpy()
    best, straight_best = (grid_optimum(GRID_SCALES, values) for values in (gains, straight))
    failed = outcome == Outcome.FINITE_STEP_FAILURE
    estimates = bootstrap.estimate(
        {
            "norm_loss": Mean(frame["norm_loss"].to_numpy()),
            "outcome_agreement": Mean(outcome == updates.outcome),
            "sign_agreement": Mean(np.sign(frame["slope"].to_numpy()) == np.sign(updates.slope)),
            "scale_rank": Spearman(best.alpha, straight_best.alpha),
            "best_difference": Mean(np.asarray(best.value) - straight_best.value),
            "quadratic_difference": Mean(frame["quadratic_gain"].to_numpy() - updates.floats("quadratic_gain")),
        }
    )
    recovered, straight_recovered = gains[failed, QUARTER] > 0, updates.quarter_gain[updates.finite_step] > 0
    return RenormalisedRow(
        updates.condition,
        "",
        updates=len(updates),
        harmful=int(updates.harmful.sum()),
        failures=straight_recovered.size,
        renormalised_failures=recovered.size,
        recovered=int(straight_recovered.sum()),
        renormalised_recovered=int(recovered.sum()),
        # Two populations: each is resampled by itself.
        recovery=bootstrap.estimate({"": Mean(straight_recovered)})[""],
        renormalised_recovery=bootstrap.estimate({"": Mean(recovered)})[""],
        **estimates,
    )
