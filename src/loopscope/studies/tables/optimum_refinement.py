"""Refinement of numerical optimum intervals that a signed bound fails to cover: Table "tab:bound-reference-refinement".

Appendix E.9: where S̄/κ lies below the upper end of the numerical scale error, the bracket of the optimum is narrowed
with its endpoint slopes and local curvature bounds; prediction and bound stay as they are.
"""

from dataclasses import dataclass

import numpy as np

from loopscope.stats import Bootstrap
from loopscope.store import Level
from loopscope.studies.fp64 import BOUNDS, NEEDED, Fp64Paths
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import MODEL, TASK, UPDATE, Panel, Row, TableResult, column, fixed, label
from loopscope.studies.selection import CONCAVE_PATHS, select

BRACKET = ("optimum_slope_low", "optimum_slope_high", "optimum_mu", "optimum_nu")


@dataclass(frozen=True)
class RefinementRow(Row):
    """One question; the key is its source row, five digits as the paper writes it."""

    error_upper: float
    signed_bound: float
    """S̄/κ."""
    refined_upper: float | None
    """None where the stored bracket cannot be narrowed (an endpoint, or no curvature bounds)."""
    margin: float | None
    """Bound minus refined error."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    label("key", "Source row"),
    column("error_upper", "Original\nerror upper", fixed(8)),
    column("signed_bound", "Unchanged\nS/κ", fixed(8), latex=r"\makecell{Unchanged\\$\overline S/\kappa$}"),
    column("refined_upper", "Refined\nerror upper", fixed(8)),
    column("margin", "Margin\n(1e-5)", fixed(3, 1e5)),
)


def optimum_refinement(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[RefinementRow]:
    """One row per primary question whose signed bound does not cover the error; none is the good case."""
    chosen = select(records, *NEEDED, *BOUNDS, level=Level.FULL, about=CONCAVE_PATHS)
    rows = tuple(row for updates in chosen.kept for row in _rows(updates))
    notes = chosen.notes
    if chosen.kept and not rows:
        notes += ("every signed bound covers its numerical scale error: nothing to refine",)
    return TableResult(
        study="optimum-refinement",
        label="tab:bound-reference-refinement",
        title="Refinement of numerical optimum intervals",
        caption=(
            "Primary questions whose signed scale bound lies below the original error. The prediction and the bound "
            "are unchanged; endpoint derivatives and local curvature bounds refine the numerical optimum interval. "
            "Margin is bound minus refined error upper, in units of 0.00001."
        ),
        rows=rows,
        panels=(Panel(COLUMNS),),
        notes=notes,
    )


def _rows(updates: Updates) -> list[RefinementRow]:
    paths = Fp64Paths(updates)
    bound = np.full(len(updates), np.inf)
    bound[paths.primary] = paths.bounds(paths.primary)["signed"]
    uncovered = bound < paths.error.upper
    refinable = uncovered & paths.of_kind("interior") & (paths.floats("optimum_low") < paths.floats("optimum_high"))
    for name in BRACKET:
        refinable &= ~np.isnan(paths.floats(name))
    refinable &= paths.floats("optimum_mu") > 0
    refined = np.full(len(updates), np.nan)
    refined[refinable] = paths.refined_error(refinable).upper
    rows = []
    for index in np.flatnonzero(uncovered):
        known = bool(refinable[index])
        rows.append(
            RefinementRow(
                updates.condition,
                f"{updates.frame['source_row'][int(index)]:05d}",
                error_upper=float(paths.error.upper[index]),
                signed_bound=float(bound[index]),
                refined_upper=float(refined[index]) if known else None,
                margin=float(bound[index] - refined[index]) if known else None,
            )
        )
    return rows
