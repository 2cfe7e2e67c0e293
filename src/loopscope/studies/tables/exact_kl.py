"""Numerical check of the exact endpoint correction ΔU = A − C: Table "tab:exact-kl", Appendix E.2."""

from dataclasses import dataclass

import numpy as np

from loopscope.stats import Bootstrap
from loopscope.store import Level
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import COUNT, MODEL, TASK, UPDATE, Column, Panel, Row, TableResult, column, scientific
from loopscope.studies.selection import CONCAVE_PATHS, select


@dataclass(frozen=True)
class ExactKLRow(Row):
    """One condition with an affine reference-token readout."""

    max_residual: float | None
    """max |ΔU − (A − C)|, C computed from endpoint logits and independently of A."""
    satisfied: int
    """Finite-step failures with 0 < A < C numerically."""
    failures: int


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    column("max_residual", "Maximum residual", scientific(3)),
    Column(("satisfied", "failures"), "Inequality satisfied", (COUNT, COUNT), template="{}/{}"),
)


def exact_kl(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[ExactKLRow]:
    """One row per condition whose path is concave; maxima and counts have no intervals."""
    chosen = select(records, "kl_correction", "kl_residual", level=Level.GRID, about=CONCAVE_PATHS)
    return TableResult(
        study="exact-kl",
        label="tab:exact-kl",
        title="Numerical check of the exact endpoint correction",
        caption=(
            "The residual compares the full-step gain with the slope minus the KL correction, which is computed "
            "independently from endpoint logits. The last column counts finite-step failures whose slope is positive "
            "and below that correction numerically."
        ),
        rows=tuple(_row(updates) for updates in chosen.kept),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
    )


def _row(updates: Updates) -> ExactKLRow:
    correction = updates.floats("kl_correction")
    ordered = (updates.slope > 0) & (updates.slope < correction)
    return ExactKLRow(
        updates.condition,
        "",
        max_residual=float(np.abs(updates.floats("kl_residual")).max()),
        satisfied=int((updates.finite_step & ordered).sum()),
        failures=int(updates.finite_step.sum()),
    )
