"""What the exit gate does at reference positions, and whether FP64 decides the same: the paper's token-level audit."""

from dataclasses import dataclass

import polars as pl

from loopscope.errors import setting
from loopscope.stats import Bootstrap
from loopscope.studies.conditions import Condition
from loopscope.studies.records import Records
from loopscope.studies.result import COUNT, IDENTITY, Column, Panel, Row, TableResult, column, percent
from loopscope.studies.usable_conditions import no_updates, notes_on


@dataclass(frozen=True)
class GateRow(Row):
    """One update of one condition."""

    positions: int
    """Reference positions."""
    continuing: int
    """Those at which the gate's policy takes the update."""
    coverage: float | None
    agreeing: int
    """Positions at which the gate rebuilt in FP64 exits at the same depth."""
    earliest: int
    latest: int
    """Exit depths that occur."""


COLUMNS = (
    *IDENTITY,
    Column(("continuing", "positions"), "Continuing", (COUNT, COUNT), template="{}/{}"),
    column("coverage", "Coverage (%)", percent(2), latex=r"Coverage (\%)"),
    Column(("agreeing", "positions"), "FP64 exits\nalike", (COUNT, COUNT), template="{}/{}"),
    Column(("earliest", "latest"), "Exit depths", (COUNT, COUNT), template="{}-{}"),
)


def gate_agreement(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[GateRow]:
    """One row per update of a model with an exit gate, from runs with a row for every token."""
    rows = tuple(_row(group.condition, group.gate) for group in records.tokens() if group.gate is not None)
    notes = notes_on(row.condition for row in rows)
    if not rows:
        how = f"measure with {setting('tokens', True)} and a model that has an exit gate"
        reason = f"these runs hold no gate at single tokens: {how}"
        notes += (no_updates(records) if not records.updates else records.nothing(reason),)
    return TableResult(
        study="gate-agreement",
        label="app:native-continue",
        title="Exit gate: coverage and agreement with FP64",
        caption=(
            "Reference positions at which the stored policy takes the update, and positions at which the gate rebuilt "
            "in FP64 exits at the same depth."
        ),
        rows=rows,
        panels=(Panel(COLUMNS),),
        notes=notes,
    )


def _row(condition: Condition, gate: pl.DataFrame) -> GateRow:
    continuing = int(gate["continues"].sum())
    depths = gate["exit_depth"].to_numpy()
    return GateRow(
        condition,
        "",
        positions=gate.height,
        continuing=continuing,
        coverage=continuing / gate.height if gate.height else None,
        agreeing=int((gate["exit_depth"] == gate["exit_depth_fp64"]).sum()),
        earliest=int(depths.min()),
        latest=int(depths.max()),
    )
