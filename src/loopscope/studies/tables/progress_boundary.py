"""Predicting the observed end of progress: Table "tab:progress-boundary", Appendix E.4."""

from dataclasses import dataclass

import numpy as np

from loopscope.path import quadratic_root, sampled_crossing
from loopscope.stats import Bootstrap, Estimate, Ratio
from loopscope.stats import bootstrap as estimate
from loopscope.store import Level
from loopscope.studies.records import GRID_SCALES, Records, Updates
from loopscope.studies.result import COUNT, MODEL, TASK, UPDATE, Panel, Row, TableResult, column, percent
from loopscope.studies.selection import select


@dataclass(frozen=True)
class BoundaryRow(Row):
    """The primary subset of one condition."""

    primary: int
    crossings: int
    """Paths with a negative gain on the grid."""
    hits: int
    """Those whose quadratic root −A/Q lies in the crossing interval, lower end included, upper end excluded."""
    hit_rate: Estimate
    unobserved: int
    """Paths without a negative gain through scale one; no error is assigned to their roots."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    column("primary", "Primary n", COUNT, latex="Primary $n$"),
    column("crossings", "Crossings", COUNT),
    column("hits", "Hits", COUNT),
    column("hit_rate", "Hit rate (%)", percent(1, interval=True)),
    column("unobserved", "No negative\ngain observed", COUNT),
)


def progress_boundary(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[BoundaryRow]:
    """One row per condition."""
    chosen = select(records, "grid_gain", level=Level.GRID)
    return TableResult(
        study="progress-boundary",
        label="tab:progress-boundary",
        title="Predicting the observed end of progress",
        caption=(
            "Within A>0, Q<0, the quadratic root against the first observed nonnegative-to-negative crossing interval "
            "on the 21-point grid. Hits require the root to lie in that width-0.05 interval. The last column counts "
            "primary questions with no observed negative gain through scale one."
        ),
        rows=tuple(_row(updates, bootstrap) for updates in chosen.kept),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
    )


def _row(updates: Updates, bootstrap: Bootstrap | None) -> BoundaryRow:
    inside = updates.primary
    crossing = sampled_crossing(GRID_SCALES, updates.grid_gain[inside])
    observed = np.asarray(crossing.observed)
    hits = np.asarray(crossing.contains(quadratic_root(updates.slope[inside], updates.quadratic[inside])))
    return BoundaryRow(
        updates.condition,
        "",
        primary=int(inside.sum()),
        crossings=int(observed.sum()),
        hits=int(hits.sum()),
        hit_rate=estimate(Ratio(hits, observed), bootstrap),
        unobserved=int((~observed).sum()),
    )
