"""The optima of FP64 paths: how far the quadratic prediction is from them, and how narrow their brackets are.

- `refined_optima` (Table "tab:fp64-path-prediction", Appendix E.5): scale error and regret of the prediction.
- `optimum_refinement` (Table "tab:bound-reference-refinement", Appendix E.9): where S̄/κ lies below the upper end of the
  numerical scale error, the bracket of the optimum is narrowed with its endpoint slopes and local curvature bounds;
  prediction and bound stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import Level
from loopscope.studies.fp64_paths import FP64_BOUNDS, FP64_COLUMNS, Fp64Paths
from loopscope.studies.records import Mask, Records, Updates
from loopscope.studies.result import (
    COUNT,
    IDENTITY,
    Column,
    Row,
    TableResult,
    column,
    fixed,
    label,
    scientific,
)
from loopscope.studies.usable_conditions import CONCAVE_PATHS, select

POPULATIONS = {
    "all": "All",
    "primary": "Primary",
    "interior": "Interior",
    "failures": "Finite-step failures",
}


@dataclass(frozen=True)
class RefinedRow(Row):
    """One population (the key) of one condition."""

    n: int
    error_low: Estimate
    error_high: Estimate
    """Mean scale error |α̂ − α*|: what the brackets allow (numerical, not a confidence interval)."""
    regret_low: Estimate
    regret_high: Estimate
    """Mean regret φ(α*) − φ(α̂), likewise."""
    left: int
    interior: int
    right: int
    """Where the optima lie: at 0, inside, at 1."""


REFINED_OPTIMA_COLUMNS = (
    *IDENTITY,
    label("key", "Population"),
    column("n", "n", COUNT, latex="$n$"),
    Column(("error_low", "error_high"), "Mean scale error", (fixed(6), fixed(6)), template="[{}, {}]"),
    Column(
        ("regret_low", "regret_high"),
        "Mean numerical regret",
        (scientific(6), scientific(6)),
        template="[{}, {}]",
    ),
    Column(
        ("left", "interior", "right"),
        "Optima at\n0 / inside / 1",
        (COUNT, COUNT, COUNT),
        template="{} / {} / {}",
    ),
)


def refined_optima(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[RefinedRow]:
    """Four rows per condition; primary membership is that of the stored slope and curvature, as in the paper."""
    return select(records, *FP64_COLUMNS, level=Level.FULL).table(
        "refined-optima",
        _refined_rows,
        bootstrap,
        label="tab:fp64-path-prediction",
        title="Quadratic prediction against refined FP64 optimum estimates",
        caption=(
            "For concave paths the entries are numerical intervals propagated from derivative-root brackets; for other "
            "paths both ends use the best evaluated candidate. These intervals are numerical, not confidence "
            "intervals. Interior and failure rows are descriptive subsets."
        ),
        columns=REFINED_OPTIMA_COLUMNS,
        key_names=POPULATIONS,
    )


def population(updates: Updates, paths: Fp64Paths, key: str) -> Mask:
    """Which questions belong to a population."""
    return {
        "all": np.ones(len(updates), dtype=bool),
        "primary": updates.primary,
        "interior": paths.of_kind("interior"),
        "failures": updates.finite_step,
    }[key]


def _refined_rows(updates: Updates, bootstrap: Bootstrap) -> list[RefinedRow]:
    paths = Fp64Paths(updates)
    kinds = {kind: paths.of_kind(kind) for kind in ("left", "interior", "right")}
    rows = []
    for key in POPULATIONS:
        inside = population(updates, paths, key)
        estimates = bootstrap.estimate(
            {
                "error_low": Mean(paths.error.lower[inside]),
                "error_high": Mean(paths.error.upper[inside]),
                "regret_low": Mean(paths.regret.lower[inside]),
                "regret_high": Mean(paths.regret.upper[inside]),
            }
        )
        rows.append(
            RefinedRow(
                updates.condition,
                key,
                n=int(inside.sum()),
                left=int((inside & kinds["left"]).sum()),
                interior=int((inside & kinds["interior"]).sum()),
                right=int((inside & kinds["right"]).sum()),
                **estimates,
            )
        )
    return rows


BRACKET = ("fp64_optimum_slope", "fp64_optimum_curvature")


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


REFINEMENT_COLUMNS = (
    *IDENTITY,
    label("key", "Source row"),
    column("error_upper", "Original\nerror upper", fixed(8)),
    column("signed_bound", "Unchanged\nS/κ", fixed(8), latex=r"\makecell{Unchanged\\$\overline S/\kappa$}"),
    column("refined_upper", "Refined\nerror upper", fixed(8)),
    column("margin", "Margin\n(1e-5)", fixed(3, 1e5)),
)


def optimum_refinement(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[RefinementRow]:
    """One row per primary question whose signed bound does not cover the error; none is the good case."""
    chosen = select(records, *FP64_COLUMNS, *FP64_BOUNDS, level=Level.FULL, about=CONCAVE_PATHS)
    result = chosen.table(
        "optimum-refinement",
        _refinement_rows,
        bootstrap,
        label="tab:bound-reference-refinement",
        title="Refinement of numerical optimum intervals",
        caption=(
            "Primary questions whose signed scale bound lies below the original error. The prediction and the bound "
            "are unchanged; endpoint derivatives and local curvature bounds refine the numerical optimum interval. "
            "Margin is bound minus refined error upper, in units of 0.00001."
        ),
        columns=REFINEMENT_COLUMNS,
    )
    if chosen.kept and not result.rows:
        covered = "every signed bound covers its numerical scale error: nothing to refine"
        return replace(result, notes=(*result.notes, covered))
    return result


def _refinement_rows(updates: Updates, _: Bootstrap) -> list[RefinementRow]:
    paths = Fp64Paths(updates)
    bound = np.full(len(updates), np.inf)
    bound[paths.primary] = paths.bounds(paths.primary)["signed"]
    uncovered = bound < paths.error.upper
    refinable = uncovered & paths.of_kind("interior") & (paths.floats("optimum_low") < paths.floats("optimum_high"))
    for name in BRACKET:
        refinable &= updates.frame[name].is_not_null().to_numpy()
    refinable &= paths.element("optimum_curvature", 0) > 0
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
