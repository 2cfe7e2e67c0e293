"""Selecting a scale from the negative-curvature bound: Table "tab:curvature-selected-scale", Appendix E.5.

α_safe = min{1, 0.9·2A/L_D}. Its gain and the quarter step's are read with the same FP64 readout. Populations are those
of the stored slope; where the FP64 slope is not positive there is no safe step, and the rule keeps the current state.
"""

from dataclasses import dataclass

import numpy as np

from loopscope.path import EFFECT_MARGIN, beneficial_lower_bound
from loopscope.stats import Bootstrap, Estimate, Maximum, Mean, Quantile
from loopscope.store import Level
from loopscope.studies.conditions import Condition
from loopscope.studies.fp64 import Fp64Paths
from loopscope.studies.records import Mask, Records, Updates
from loopscope.studies.result import COUNT, MODEL, TASK, UPDATE, Panel, Row, TableResult, column, fixed, label
from loopscope.studies.selection import CONCAVE_PATHS, select

POPULATIONS = {"primary": "Primary", "failures": "Finite-step failures"}


@dataclass(frozen=True)
class BoundSelectedRow(Row):
    """One population (the key) of one condition."""

    n: int
    quarter_positive: int
    selected_positive: int
    mean_gain: Estimate
    """At the selected scale."""
    advantage: Estimate
    """Paired gain over the quarter step."""
    scale_median: Estimate
    scale_p25: Estimate
    scale_p75: Estimate
    scale_minimum: float | None
    scale_maximum: float | None
    without_scale: int
    """Questions whose FP64 slope is not positive: the rule keeps their current state, scale and gain zero."""
    beyond_margin: int
    """Selected gains above 1e-4."""
    guarantee_margin: float | None
    """Smallest excess of a gain over its guarantee α_safe·A − L_D·α_safe²/2."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    label("key", "Population"),
    column("n", "n", COUNT, latex="$n$"),
    column("quarter_positive", "Quarter-step\npositive gains", COUNT),
    column("selected_positive", "Bound-selected\npositive gains", COUNT),
    column("mean_gain", "Mean gain\n[95% CI]", fixed(4, 1e3, interval=True)),
    column("advantage", "Gain over quarter\n[95% CI]", fixed(4, 1e3, interval=True)),
)


def bound_selected(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[BoundSelectedRow]:
    """Two rows per condition whose readout gives a curvature bound."""
    chosen = select(records, "fp64_L_D", "fp64_quarter_gain", level=Level.FULL, about=CONCAVE_PATHS)
    rows = tuple(row for updates in chosen.kept for row in rows_of(updates, bootstrap or Bootstrap()))
    return TableResult(
        study="bound-selected",
        label="tab:curvature-selected-scale",
        title="Selecting a scale from the negative-curvature bound",
        caption=(
            "The selected scale is the smaller of one and nine tenths of twice the slope over the curvature bound, and "
            "zero where the FP64 slope is not positive. "
            "Both actions are evaluated in FP64 on the same records, and counts require positive utility gain. Gain "
            "columns are in units of 0.001 with paired 95% question-bootstrap intervals."
        ),
        rows=rows,
        panels=(Panel(COLUMNS),),
        notes=chosen.notes
        + tuple(kept_note(row.condition, row.key, row.without_scale, row.n) for row in rows if row.without_scale),
        key_names=POPULATIONS,
    )


def kept_note(condition: Condition, key: str, without_scale: int, n: int) -> str:
    """What a reader must know of the questions that have no safe scale."""
    where = f"{without_scale} of {n} ({POPULATIONS[key].lower()}, {condition})"
    return f"{where} have no positive FP64 slope: the bound keeps their current state, gain 0"


def rows_of(updates: Updates, bootstrap: Bootstrap) -> list[BoundSelectedRow]:
    """Both populations of one condition."""
    masks = {"primary": updates.primary, "failures": updates.finite_step}
    return [_row(updates, Fp64Paths(updates), key, masks[key], bootstrap) for key in POPULATIONS]


def _row(updates: Updates, paths: Fp64Paths, key: str, inside: Mask, bootstrap: Bootstrap) -> BoundSelectedRow:
    safe = paths.floats("safe_scale")[inside]
    moved = ~np.isnan(safe)
    scale = np.where(moved, safe, 0.0)
    gain = np.where(moved, paths.floats("safe_gain")[inside], 0.0)
    quarter = paths.floats("quarter_gain")[inside]
    guarantee = beneficial_lower_bound(scale, paths.slope[inside], paths.floats("L_D")[inside])
    # At scale zero gain and guarantee are both zero: that says nothing of the guarantee.
    excess = (gain - guarantee)[moved]
    estimates = bootstrap.estimate(
        {
            "mean_gain": Mean(gain),
            "advantage": Mean(gain - quarter),
            "scale_median": Quantile(scale, 0.5),
            "scale_p25": Quantile(scale, 0.25),
            "scale_p75": Quantile(scale, 0.75),
        }
    )
    least, smallest = Maximum(-scale).value(), Maximum(-excess).value()
    return BoundSelectedRow(
        updates.condition,
        key,
        n=int(inside.sum()),
        without_scale=int((~moved).sum()),
        quarter_positive=int((quarter > 0).sum()),
        selected_positive=int((gain > 0).sum()),
        scale_minimum=None if least is None else -least,
        scale_maximum=Maximum(scale).value(),
        beyond_margin=int((gain > EFFECT_MARGIN).sum()),
        guarantee_margin=None if smallest is None else -smallest,
        **estimates,
    )
