"""The shape of the path φ between its ends: its curvature, where progress ends, and what lies between the ends.

- `path_curvature` (Appendix E.4, "Directional curvature along the path"): φ'' at five scales.
- `progress_boundary` (Table "tab:progress-boundary", Appendix E.4): the quadratic root against the observed crossing.
- `oracles` (Table "tab:oracle-comparison", Appendix E.10): what intermediate scales add to choosing an end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loopscope.path import CURVATURE_SCALES, EFFECT_MARGIN, quadratic_root, sampled_crossing, uniform_grid
from loopscope.path import oracles as path_oracles
from loopscope.stats import Bootstrap, Estimate, Mean, Quantile, Ratio
from loopscope.stats import bootstrap as estimate
from loopscope.store import Level
from loopscope.studies.records import GRID_SCALES, Records, Updates
from loopscope.studies.result import (
    COUNT,
    IDENTITY,
    QUESTIONS,
    Column,
    Row,
    TableResult,
    column,
    fixed,
    percent,
)
from loopscope.studies.usable_conditions import select

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


CURVATURE_COLUMNS = (
    *IDENTITY,
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
    return select(records, "grid_gain", "curvature_path", level=Level.GRID).table(
        "path-curvature",
        _curvature_row,
        bootstrap,
        label="tab:path-curvature",
        title="Directional curvature along the path",
        caption=(
            "Primary subset A>0, Q<0, curvature at five scales of the unnormalised displacement. Quartiles of the "
            "ratio of curvature at the half step to curvature at the origin; median of the largest adjacent difference "
            "relative to the origin; questions with negative curvature at every sampled scale up to the grid optimum."
        ),
        columns=CURVATURE_COLUMNS,
    )


def _curvature_row(updates: Updates, bootstrap: Bootstrap) -> CurvatureRow:
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


@dataclass(frozen=True)
class BoundaryRow(Row):
    """The primary subset of one condition."""

    primary: int
    crossings: int
    """Paths with a negative gain on the grid."""
    hits: int
    """Those whose quadratic root −A/Q lies in the crossing interval, lower end included, upper end excluded."""
    hit_rate: Estimate
    unobserved: int
    """Paths without a negative gain through scale one; no error is assigned to their roots."""


BOUNDARY_COLUMNS = (
    *IDENTITY,
    column("primary", "Primary n", COUNT, latex="Primary $n$"),
    column("crossings", "Crossings", COUNT),
    column("hits", "Hits", COUNT),
    column("hit_rate", "Hit rate (%)", percent(1, interval=True)),
    column("unobserved", "No negative\ngain observed", COUNT),
)


def progress_boundary(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[BoundaryRow]:
    """One row per condition."""
    return select(records, "grid_gain", level=Level.GRID).table(
        "progress-boundary",
        _boundary_row,
        bootstrap,
        label="tab:progress-boundary",
        title="Predicting the observed end of progress",
        caption=(
            "Within A>0, Q<0, the quadratic root against the first observed nonnegative-to-negative crossing interval "
            "on the 21-point grid. Hits require the root to lie in that width-0.05 interval. The last column counts "
            "primary questions with no observed negative gain through scale one."
        ),
        columns=BOUNDARY_COLUMNS,
    )


def _boundary_row(updates: Updates, bootstrap: Bootstrap) -> BoundaryRow:
    inside = updates.primary
    crossing = sampled_crossing(GRID_SCALES, updates.grid_gain[inside])
    observed = np.asarray(crossing.observed)
    hits = np.asarray(crossing.contains(quadratic_root(updates.slope[inside], updates.quadratic[inside])))
    return BoundaryRow(
        updates.condition,
        "",
        primary=int(inside.sum()),
        crossings=int(observed.sum()),
        hits=int(hits.sum()),
        hit_rate=estimate(Ratio(hits, observed), bootstrap),
        unobserved=int((~observed).sum()),
    )


@dataclass(frozen=True)
class OracleRow(Row):
    """All questions of one condition, five-point action set."""

    n: int
    interior: int
    """Questions with an interior scale strictly better than both ends."""
    gain_over_halt: Estimate
    """Mean U_step − U_halt."""
    gain_over_full: Estimate
    """Mean U_step − U(H⁺)."""
    share: Estimate
    """Their ratio, recomputed in every resample."""
    beyond_margin: int
    """Questions whose interior advantage exceeds 1e-4."""


ORACLE_COLUMNS = (
    *IDENTITY,
    QUESTIONS,
    column("interior", "Interior", COUNT),
    column("gain_over_halt", "Gain over halt [95% CI]", fixed(3, 1e4, interval=True)),
    column("share", "Share (%)", percent(2)),
)


def oracles(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[OracleRow]:
    """One row per condition."""
    return select(records, "grid_gain", level=Level.GRID).table(
        "oracles",
        _oracle_row,
        bootstrap,
        label="tab:oracle-comparison",
        title="Intermediate scales beyond endpoint selection",
        caption=(
            "Gain is the step oracle's utility minus the halting oracle's on the five-point action set, in units of "
            "0.0001 with 95% intervals. Interior counts require strict improvement over both endpoints. Share is mean "
            "gain over endpoint selection divided by mean gain over the full step."
        ),
        columns=ORACLE_COLUMNS,
    )


def _oracle_row(updates: Updates, bootstrap: Bootstrap) -> OracleRow:
    chosen = path_oracles(uniform_grid(5), updates.action_gain)
    advantage = np.asarray(chosen.advantage)
    estimates = bootstrap.estimate(
        {
            "gain_over_halt": Mean(advantage),
            "gain_over_full": Mean(chosen.gain_over_full),
            "share": Ratio(advantage, chosen.gain_over_full),
        }
    )
    return OracleRow(
        updates.condition,
        "",
        n=len(updates),
        interior=int(np.asarray(chosen.interior).sum()),
        beyond_margin=int((advantage > EFFECT_MARGIN).sum()),
        **estimates,
    )
