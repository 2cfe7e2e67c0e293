"""Intermediate scales beyond endpoint selection: Table "tab:oracle-comparison", Appendix E.10."""

from dataclasses import dataclass

import numpy as np

from loopscope.path import EFFECT_MARGIN, uniform_grid
from loopscope.path import oracles as path_oracles
from loopscope.stats import Bootstrap, Estimate, Mean, Ratio
from loopscope.store import Level
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import (
    COUNT,
    MODEL,
    QUESTIONS,
    TASK,
    UPDATE,
    Panel,
    Row,
    TableResult,
    column,
    fixed,
    percent,
)
from loopscope.studies.selection import select


@dataclass(frozen=True)
class OracleRow(Row):
    """All questions of one condition, five-point action set."""

    n: int
    interior: int
    """Questions with an interior scale strictly better than both ends."""
    gain_over_halt: Estimate
    """Mean U_step − U_halt."""
    gain_over_full: Estimate
    """Mean U_step − U(H⁺)."""
    share: Estimate
    """Their ratio, recomputed in every resample."""
    beyond_margin: int
    """Questions whose interior advantage exceeds 1e-4."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    QUESTIONS,
    column("interior", "Interior", COUNT),
    column("gain_over_halt", "Gain over halt [95% CI]", fixed(3, 1e4, interval=True)),
    column("share", "Share (%)", percent(2)),
)


def oracles(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[OracleRow]:
    """One row per condition."""
    chosen = select(records, "grid_gain", level=Level.GRID)
    return TableResult(
        study="oracles",
        label="tab:oracle-comparison",
        title="Intermediate scales beyond endpoint selection",
        caption=(
            "Gain is the step oracle's utility minus the halting oracle's on the five-point action set, in units of "
            "0.0001 with 95% intervals. Interior counts require strict improvement over both endpoints. Share is mean "
            "gain over endpoint selection divided by mean gain over the full step."
        ),
        rows=tuple(_row(updates, bootstrap or Bootstrap()) for updates in chosen.kept),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
    )


def _row(updates: Updates, bootstrap: Bootstrap) -> OracleRow:
    chosen = path_oracles(uniform_grid(5), updates.action_gain)
    advantage = np.asarray(chosen.advantage)
    estimates = bootstrap.estimate(
        {
            "gain_over_halt": Mean(advantage),
            "gain_over_full": Mean(chosen.gain_over_full),
            "share": Ratio(advantage, chosen.gain_over_full),
        }
    )
    return OracleRow(
        updates.condition,
        "",
        n=len(updates),
        interior=int(np.asarray(chosen.interior).sum()),
        beyond_margin=int((advantage > EFFECT_MARGIN).sum()),
        **estimates,
    )
