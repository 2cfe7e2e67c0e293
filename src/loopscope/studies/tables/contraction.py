"""Quarter-step recovery of finite-step failures: the numbers of Figure "fig:contraction", Section 4.4."""

from dataclasses import dataclass

from loopscope.path import EFFECT_MARGIN
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import Level
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import COUNT, MODEL, TASK, UPDATE, Column, Panel, Row, TableResult, column, fixed, percent
from loopscope.studies.selection import select


@dataclass(frozen=True)
class ContractionRow(Row):
    """The finite-step failures of one condition at a quarter of their displacement."""

    recovered: int
    failures: int
    recovery: Estimate
    mean_gain: Estimate
    """Over all failures, recovered or not."""
    recovered_beyond_margin: int
    """Gains above 1e-4."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    Column(("recovered", "failures"), "Recovered", (COUNT, COUNT), template="{}/{}"),
    column("recovery", "Recovery (%)\n[95% CI]", percent(1, interval=True)),
    column("mean_gain", "Mean gain (1e-3)\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    column("recovered_beyond_margin", "Beyond\nthe margin", COUNT),
)


def contraction(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[ContractionRow]:
    """One row per condition; intervals resample its failures."""
    chosen = select(records, "grid_gain", level=Level.GRID)
    return TableResult(
        study="contraction",
        label="tab:contraction",
        title="Quarter-step recovery",
        caption=(
            "Finite-step failures with positive gain at one quarter of the proposed displacement, and mean gain over "
            "the same failures, unrecovered ones included. Intervals resample the selected failures."
        ),
        rows=tuple(_row(updates, bootstrap or Bootstrap()) for updates in chosen.kept),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
    )


def _row(updates: Updates, bootstrap: Bootstrap) -> ContractionRow:
    gain = updates.quarter_gain[updates.finite_step]
    estimates = bootstrap.estimate({"recovery": Mean(gain > 0), "mean_gain": Mean(gain)})
    return ContractionRow(
        updates.condition,
        "",
        recovered=int((gain > 0).sum()),
        failures=gain.size,
        recovered_beyond_margin=int((gain > EFFECT_MARGIN).sum()),
        **estimates,
    )
