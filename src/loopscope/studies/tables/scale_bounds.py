"""Scale bounds from curvature variation: Table "tab:cloud-bound-comparison", Appendix E.9.

The global M/(2κ), the integrated C̄/κ and the signed-residual S̄/κ, before the minimum with one, against the upper end
of the numerical scale error.
"""

from dataclasses import dataclass

from loopscope.stats import Bootstrap, Estimate, Mean, Quantile
from loopscope.store import Level
from loopscope.studies.fp64 import BOUNDS, NEEDED, Fp64Paths
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import COUNT, MODEL, TASK, UPDATE, Column, Panel, Row, TableResult, column, fixed, percent
from loopscope.studies.selection import CONCAVE_PATHS, select


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


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
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
    chosen = select(records, *NEEDED, *BOUNDS, level=Level.FULL, about=CONCAVE_PATHS)
    return TableResult(
        study="scale-bounds",
        label="tab:cloud-bound-comparison",
        title="Scale bounds",
        caption=(
            "Median and, in brackets, 75th percentile of each bound on A>0, Q<0, before the minimum with one. Coverage "
            "counts bounds covering the upper endpoints of the numerical scale errors."
        ),
        rows=tuple(_row(updates, bootstrap or Bootstrap()) for updates in chosen.kept),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
    )


def _row(updates: Updates, bootstrap: Bootstrap) -> ScaleBoundRow:
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
