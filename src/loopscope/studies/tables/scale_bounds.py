"""What bounds on the curvature say about scales, on concave FP64 paths.

- `scale_bounds` (Table "tab:cloud-bound-comparison", Appendix E.9): the global M/(2κ), the integrated C̄/κ and the
  signed-residual S̄/κ, before the minimum with one, against the upper end of the numerical scale error.
- `integrated_bounds` (Table "tab:integrated-bound-distribution", Appendix E.9): the distribution of C̄/κ and C̄²/(2κ).
- `bound_selected` (Table "tab:curvature-selected-scale", Appendix E.5): the gain at α_safe = min{1, 0.9·2A/L_D} and at
  the quarter step, read with the same FP64 readout. Populations are those of the stored slope; where the FP64 slope is
  not positive there is no safe step, and the rule keeps the current state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loopscope.path import EFFECT_MARGIN, beneficial_lower_bound
from loopscope.stats import Bootstrap, Estimate, Maximum, Mean, Quantile, Statistic
from loopscope.store import Level
from loopscope.studies.conditions import Condition
from loopscope.studies.fp64_paths import FP64_BOUNDS, FP64_COLUMNS, Fp64Paths
from loopscope.studies.records import Floats, Mask, Records, Updates
from loopscope.studies.result import (
    COUNT,
    IDENTITY,
    Column,
    Row,
    TableResult,
    column,
    fixed,
    label,
    percent,
    scientific,
)
from loopscope.studies.usable_conditions import CONCAVE_PATHS, select


@dataclass(frozen=True)
class ScaleBoundRow(Row):
    """The primary subset of one condition."""

    n: int
    global_p25: Estimate
    global_median: Estimate
    global_p75: Estimate
    integrated_p25: Estimate
    integrated_median: Estimate
    integrated_p75: Estimate
    signed_p25: Estimate
    signed_median: Estimate
    signed_p75: Estimate
    global_covers: int
    integrated_covers: int
    signed_covers: int
    """Bounds that cover the upper end of the numerical scale error."""
    integrated_below_one: Estimate
    """Share of integrated bounds below the full search range."""


def _quartiles(name: str, latex: str) -> Column:
    return Column(
        (f"{name}_median", f"{name}_p75"),
        {"global": "M/(2κ)", "integrated": "C/κ", "signed": "S/κ"}[name],
        (fixed(4), fixed(4)),
        latex=latex,
        template="{} [{}]",
    )


SCALE_BOUND_COLUMNS = (
    *IDENTITY,
    column("n", "n", COUNT, latex="$n$"),
    _quartiles("global", r"$M/(2\kappa)$"),
    _quartiles("integrated", r"$\overline C/\kappa$"),
    _quartiles("signed", r"$\overline S/\kappa$"),
    Column(("integrated_covers", "n"), "C covers", (COUNT, COUNT), latex=r"$\overline C$ covers", template="{}/{}"),
    Column(("signed_covers", "n"), "S covers", (COUNT, COUNT), latex=r"$\overline S$ covers", template="{}/{}"),
    column("integrated_below_one", "C/κ < 1 (%)", percent(1), latex=r"$\overline C/\kappa<1$ (\%)"),
)


def scale_bounds(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[ScaleBoundRow]:
    """One row per condition with derivative bounds."""
    return select(records, *FP64_COLUMNS, *FP64_BOUNDS, level=Level.FULL, about=CONCAVE_PATHS).table(
        "scale-bounds",
        _scale_bound_row,
        bootstrap,
        label="tab:cloud-bound-comparison",
        title="Scale bounds",
        caption=(
            "Median and, in brackets, 75th percentile of each bound on A>0, Q<0, before the minimum with one. Coverage "
            "counts bounds covering the upper endpoints of the numerical scale errors."
        ),
        columns=SCALE_BOUND_COLUMNS,
    )


def _scale_bound_row(updates: Updates, bootstrap: Bootstrap) -> ScaleBoundRow:
    paths = Fp64Paths(updates)
    inside = paths.primary
    bounds = paths.bounds(inside)
    error = paths.error.upper[inside]
    estimates = bootstrap.estimate(
        {
            f"{name}_{suffix}": Quantile(values, probability)
            for name, values in bounds.items()
            for suffix, probability in (("p25", 0.25), ("median", 0.5), ("p75", 0.75))
        }
        | {"integrated_below_one": Mean(bounds["integrated"] < 1)}
    )
    covers = {name: int((values >= error).sum()) for name, values in bounds.items()}
    return ScaleBoundRow(
        updates.condition,
        "",
        n=int(inside.sum()),
        global_covers=covers["global"],
        integrated_covers=covers["integrated"],
        signed_covers=covers["signed"],
        **estimates,
    )


ESTIMATES = {
    "mean": "Mean",
    "p25": "25th percentile",
    "median": "Median",
    "p75": "75th percentile",
    "maximum": "Maximum",
}


@dataclass(frozen=True)
class IntegratedRow(Row):
    """One summary (the key) over the primary subset of one condition."""

    scale_bound: Estimate
    """C̄/κ."""
    regret_bound: Estimate
    """C̄²/(2κ)."""
    regret_upper: Estimate
    """Upper end of the numerical regret φ(α*) − φ(α̂)."""
    gain: Estimate
    """ΔU, for scale."""


INTEGRATED_COLUMNS = (
    *IDENTITY,
    label("key", "Estimate"),
    column("scale_bound", "C/κ", fixed(4), latex=r"$\overline C/\kappa$"),
    column("regret_bound", "C²/(2κ)", scientific(3), latex=r"$\overline C^{2}/(2\kappa)$"),
    column("regret_upper", "Numerical regret upper", scientific(3)),
)


def integrated_bounds(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[IntegratedRow]:
    """Five rows per condition with derivative bounds."""
    return select(records, *FP64_COLUMNS, *FP64_BOUNDS, level=Level.FULL, about=CONCAVE_PATHS).table(
        "integrated-bounds",
        _integrated_rows,
        bootstrap,
        label="tab:integrated-bound-distribution",
        title="Distribution of the integrated bounds",
        caption=(
            "Primary records (A>0, Q<0). Scale bound, regret bound, and upper endpoint of the numerical regret, before "
            "the minimum with one. The regret columns compare distributions, not individual records."
        ),
        columns=INTEGRATED_COLUMNS,
        key_names=ESTIMATES,
    )


def _summary(key: str, values: Floats) -> Statistic:
    if key == "mean":
        return Mean(values)
    if key == "maximum":
        return Maximum(values)
    return Quantile(values, {"p25": 0.25, "median": 0.5, "p75": 0.75}[key])


def _integrated_rows(updates: Updates, bootstrap: Bootstrap) -> list[IntegratedRow]:
    paths = Fp64Paths(updates)
    inside = paths.primary
    quantities = {
        "scale_bound": paths.bounds(inside)["integrated"],
        "regret_bound": paths.integrated_regret_bound(inside),
        "regret_upper": paths.regret.upper[inside],
        "gain": paths.floats("gain")[inside],
    }
    estimates = bootstrap.estimate(
        {(key, name): _summary(key, values) for key in ESTIMATES for name, values in quantities.items()}
    )
    return [
        IntegratedRow(updates.condition, key, **{name: estimates[key, name] for name in quantities})
        for key in ESTIMATES
    ]


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


BOUND_SELECTED_COLUMNS = (
    *IDENTITY,
    label("key", "Population"),
    column("n", "n", COUNT, latex="$n$"),
    column("quarter_positive", "Quarter-step\npositive gains", COUNT),
    column("selected_positive", "Bound-selected\npositive gains", COUNT),
    column("mean_gain", "Mean gain\n[95% CI]", fixed(4, 1e3, interval=True)),
    column("advantage", "Gain over quarter\n[95% CI]", fixed(4, 1e3, interval=True)),
)


def bound_selected(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[BoundSelectedRow]:
    """Two rows per condition whose readout gives a curvature bound."""
    result = select(records, "fp64_L_D", "fp64_quarter_gain", level=Level.FULL, about=CONCAVE_PATHS).table(
        "bound-selected",
        bound_selected_rows,
        bootstrap,
        label="tab:curvature-selected-scale",
        title="Selecting a scale from the negative-curvature bound",
        caption=(
            "The selected scale is the smaller of one and nine tenths of twice the slope over the curvature bound, and "
            "zero where the FP64 slope is not positive. "
            "Both actions are evaluated in FP64 on the same records, and counts require positive utility gain. Gain "
            "columns are in units of 0.001 with paired 95% question-bootstrap intervals."
        ),
        columns=BOUND_SELECTED_COLUMNS,
        key_names=POPULATIONS,
    )
    kept = tuple(
        kept_note(row.condition, row.key, row.without_scale, row.n) for row in result.rows if row.without_scale
    )
    return replace(result, notes=result.notes + kept)


def kept_note(condition: Condition, key: str, without_scale: int, n: int) -> str:
    """What a reader must know of the questions that have no safe scale."""
    where = f"{without_scale} of {n} ({POPULATIONS[key].lower()}, {condition})"
    return f"{where} have no positive FP64 slope: the bound keeps their current state, gain 0"


def bound_selected_rows(updates: Updates, bootstrap: Bootstrap) -> list[BoundSelectedRow]:
    """Both populations of one condition."""
    masks = {"primary": updates.primary, "failures": updates.finite_step}
    return [_bound_selected_row(updates, Fp64Paths(updates), key, masks[key], bootstrap) for key in POPULATIONS]


def _bound_selected_row(
    updates: Updates, paths: Fp64Paths, key: str, inside: Mask, bootstrap: Bootstrap
) -> BoundSelectedRow:
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
