"""Finite-step failures and endpoint prediction: Table "tab:mechanism-matrix", Section 4.2."""

from dataclasses import dataclass

import numpy as np

from loopscope.path import endpoint_prediction
from loopscope.stats import Bootstrap, Estimate, Mean, Ratio, Spearman
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import COUNT, MODEL, TASK, UPDATE, Column, Panel, Row, TableResult, column, fixed, percent
from loopscope.studies.selection import layout_notes, select


@dataclass(frozen=True)
class MechanismRow(Row):
    """One condition."""

    mean_gain: Estimate
    """Mean of ΔU over all questions."""
    finite_step: int
    harmful: int
    share: Estimate
    """Finite-step failures among harmful updates; both counts vary with the resample."""
    sign_slope: Estimate
    """How often sign(A) = sign(ΔU)."""
    sign_quadratic: Estimate
    """How often sign(A + Q) = sign(ΔU)."""
    rank_correlation: Estimate
    """Spearman between A + Q and ΔU."""
    mae_slope: Estimate
    """Mean |A − ΔU|."""
    mae_quadratic: Estimate
    """Mean |A + Q − ΔU|."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    column("mean_gain", "Mean gain\n(1e-3)", fixed(2, 1e3, sign=True)),
    Column(("finite_step", "harmful"), "Count", (COUNT, COUNT), group="Finite-step failures", template="{}/{}"),
    column("share", "Share (%)", percent(2), group="Finite-step failures"),
    column("sign_slope", "A", percent(2), latex="$A$", group="Sign accuracy (%)"),
    column("sign_quadratic", "A+Q", percent(2), latex="$A+Q$", group="Sign accuracy (%)"),
    column("rank_correlation", "Rank\ncorr.", fixed(4)),
    column("mae_slope", "A", fixed(2, 1e4), latex="$A$", group="MAE (1e-4)"),
    column("mae_quadratic", "A+Q", fixed(2, 1e4), latex="$A+Q$", group="MAE (1e-4)"),
)


def mechanism(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[MechanismRow]:
    """One row per condition; every estimate of a condition shares its question resamples."""
    chosen = select(records, "slope", "quadratic", "gain")
    return TableResult(
        study="mechanism",
        label="tab:mechanism-matrix",
        title="Finite-step failures and endpoint prediction",
        caption=(
            "Counts are finite-step/harmful updates, and mean gain averages the full-step gain over all questions. "
            "Rank correlation is Spearman between A+Q and the full-step gain."
        ),
        rows=tuple(_row(updates, bootstrap or Bootstrap()) for updates in chosen.kept),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes + layout_notes(chosen.kept),
    )


def _row(updates: Updates, bootstrap: Bootstrap) -> MechanismRow:
    gain, slope = updates.gain, updates.slope
    predicted = endpoint_prediction(slope, updates.quadratic)
    estimates = bootstrap.estimate(
        {
            "mean_gain": Mean(gain),
            "share": Ratio(updates.finite_step, updates.harmful),
            "sign_slope": Mean(np.sign(slope) == np.sign(gain)),
            "sign_quadratic": Mean(np.sign(predicted) == np.sign(gain)),
            "rank_correlation": Spearman(predicted, gain),
            "mae_slope": Mean(np.abs(slope - gain)),
            "mae_quadratic": Mean(np.abs(predicted - gain)),
        }
    )
    return MechanismRow(
        updates.condition,
        "",
        finite_step=int(updates.finite_step.sum()),
        harmful=int(updates.harmful.sum()),
        **estimates,
    )
