"""Distribution of the integrated bounds: Table "tab:integrated-bound-distribution", Appendix E.9."""

from dataclasses import dataclass

from loopscope.stats import Bootstrap, Estimate, Maximum, Mean, Quantile, Statistic
from loopscope.store import Level
from loopscope.studies.fp64 import BOUNDS, NEEDED, Fp64Paths
from loopscope.studies.records import Floats, Records, Updates
from loopscope.studies.result import MODEL, TASK, UPDATE, Panel, Row, TableResult, column, fixed, label, scientific
from loopscope.studies.selection import CONCAVE_PATHS, select

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


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    label("key", "Estimate"),
    column("scale_bound", "C/κ", fixed(4), latex=r"$\overline C/\kappa$"),
    column("regret_bound", "C²/(2κ)", scientific(3), latex=r"$\overline C^{2}/(2\kappa)$"),
    column("regret_upper", "Numerical regret upper", scientific(3)),
)


def integrated_bounds(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[IntegratedRow]:
    """Five rows per condition with derivative bounds."""
    chosen = select(records, *NEEDED, *BOUNDS, level=Level.FULL, about=CONCAVE_PATHS)
    return TableResult(
        study="integrated-bounds",
        label="tab:integrated-bound-distribution",
        title="Distribution of the integrated bounds",
        caption=(
            "Primary records (A>0, Q<0). Scale bound, regret bound, and upper endpoint of the numerical regret, before "
            "the minimum with one. The regret columns compare distributions, not individual records."
        ),
        rows=tuple(row for updates in chosen.kept for row in _rows(updates, bootstrap or Bootstrap())),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
        key_names=ESTIMATES,
    )


def _summary(key: str, values: Floats) -> Statistic:
    if key == "mean":
        return Mean(values)
    if key == "maximum":
        return Maximum(values)
    return Quantile(values, {"p25": 0.25, "median": 0.5, "p75": 0.75}[key])


def _rows(updates: Updates, bootstrap: Bootstrap) -> list[IntegratedRow]:
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
