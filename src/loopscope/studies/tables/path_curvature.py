"""Directional curvature along the path: Appendix E.4, "Directional curvature along the path"."""

from dataclasses import dataclass

import numpy as np

from loopscope.path import CURVATURE_SCALES
from loopscope.stats import Bootstrap, Estimate, Quantile
from loopscope.store import Level
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import COUNT, MODEL, TASK, UPDATE, Column, Panel, Row, TableResult, column, fixed
from loopscope.studies.selection import select

RELATIVE_EPSILON = 1e-6
"""ε as a fraction of the median |2Q| over the complete evaluation set."""
HALF = CURVATURE_SCALES.index(0.5)


@dataclass(frozen=True)
class CurvatureRow(Row):
    """The primary subset of one condition."""

    n: int
    ratio_n: int
    """Questions with |φ''(0)| > ε, whose ratio is formed."""
    ratio_p25: Estimate
    ratio_median: Estimate
    ratio_p75: Estimate
    """Quartiles of φ''(0.5)/φ''(0)."""
    adjacent_median: Estimate
    """Median over questions of the largest adjacent curvature difference / (|φ''(0)| + ε)."""
    negative_prefix: int
    """Questions with φ'' < 0 at every sampled scale up to the grid optimum."""
    only_current: int
    """Those in which the current state is the only scale checked."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    column("n", "n", COUNT, latex="$n$"),
    Column(
        ("ratio_p25", "ratio_p75"),
        "Ratio\nP25-P75",
        (fixed(3), fixed(3)),
        latex=r"\makecell{$\phi''(0.5)/\phi''(0)$\\{}[P25, P75]}",
        template="[{}, {}]",
    ),
    column("adjacent_median", "Adjacent\ndifference", fixed(4)),
    column("negative_prefix", "Negative\nto optimum", COUNT),
    column("only_current", "Only the\ncurrent state", COUNT),
)


def path_curvature(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[CurvatureRow]:
    """One row per condition."""
    chosen = select(records, "grid_gain", "curvature_path", level=Level.GRID)
    return TableResult(
        study="path-curvature",
        label="tab:path-curvature",
        title="Directional curvature along the path",
        caption=(
            "Primary subset A>0, Q<0, curvature at five scales of the unnormalised displacement. Quartiles of the "
            "ratio of curvature at the half step to curvature at the origin; median of the largest adjacent difference "
            "relative to the origin; questions with negative curvature at every sampled scale up to the grid optimum."
        ),
        rows=tuple(_row(updates, bootstrap or Bootstrap()) for updates in chosen.kept),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
    )


def _row(updates: Updates, bootstrap: Bootstrap) -> CurvatureRow:
    # ε is fixed on the complete evaluation set, before restricting to the primary subset.
    epsilon = RELATIVE_EPSILON * float(np.median(np.abs(2 * updates.quadratic)))
    inside = updates.primary
    curvature = updates.matrix("curvature_path")[inside]
    optimum = np.asarray(updates.optimum.alpha)[inside]
    origin = np.abs(curvature[:, 0])
    defined = origin > epsilon
    ratio = curvature[defined, HALF] / curvature[defined, 0]
    ratios = bootstrap.estimate(
        {name: Quantile(ratio, p) for name, p in (("p25", 0.25), ("median", 0.5), ("p75", 0.75))}
    )
    largest = np.abs(np.diff(curvature, axis=1)).max(axis=1)
    # A path without any curvature has no scale to compare with; ε is zero only if most paths are such.
    comparable = origin + epsilon > 0
    adjacent = bootstrap.estimate({"": Quantile(largest[comparable] / (origin + epsilon)[comparable], 0.5)})[""]
    checked = np.array(CURVATURE_SCALES) <= optimum[:, None]
    negative = ((curvature < 0) | ~checked).all(axis=1)
    return CurvatureRow(
        updates.condition,
        "",
        n=int(inside.sum()),
        ratio_n=int(defined.sum()),
        ratio_p25=ratios["p25"],
        ratio_median=ratios["median"],
        ratio_p75=ratios["p75"],
        adjacent_median=adjacent,
        negative_prefix=int(negative.sum()),
        only_current=int((negative & (checked.sum(axis=1) == 1)).sum()),
    )
