"""The path φ between its ends (Appendices E.4 and E.10): predicted scales, where progress ends, curvature, oracles.

Correlation and scale error compare the continuous α̂ with the 21-point grid optimum; regret is taken at the grid action
nearest to the chosen scale. Ties go to the smaller scale throughout.
"""

from __future__ import annotations

import numpy as np

from loopscope.path import (
    CURVATURE_SCALES,
    EFFECT_MARGIN,
    grid_regret,
    nearest_action,
    quadratic_root,
    sampled_crossing,
    uniform_grid,
)
from loopscope.path import oracles as path_oracles
from loopscope.stats import Estimate, Mean, Quantile, Ratio, Spearman
from loopscope.store import Level
from loopscope.studies.declare import IDENTITY, KEY, Column, Panel, Values, table, words
from loopscope.studies.populations import updates_with
from loopscope.studies.records import GRID_SCALES, Floats, Mask, Updates, matrix

FIXED_SCALES: tuple[float, ...] = tuple(uniform_grid(5).tolist())
FIXED = {scale: f"fixed_{round(100 * scale)}" for scale in FIXED_SCALES}
"""The columns with the regret of each fixed scale."""
RELATIVE_EPSILON = 1e-6
"""ε as a fraction of the median |2Q| over the complete evaluation set."""
HALF = CURVATURE_SCALES.index(0.5)


def populations(updates: Updates) -> dict[str, Mask]:
    """The paper's primary subset, all questions, and primary questions with interior grid optimum."""
    optimum = np.asarray(updates.optimum.alpha)
    inside = updates.primary & (optimum > 0) & (optimum < 1)
    return {"primary": updates.primary, "all": np.ones(len(updates), dtype=bool), "interior": inside}


LEADS = (*IDENTITY, words("Population", KEY))


@table(
    "scale-prediction",
    "Local quadratic scale prediction",
    paper="tab:step-prediction",
    summary="predicted scale against the grid optimum, regrets",
    over=updates_with("grid_gain", "quadratic_scale", level=Level.GRID),
    columns=(
        Panel(
            (
                *(*LEADS, Column("n", "{n}"), Column("Spearman", "{spearman:.4f}")),
                Column("Scale MAE", "{scale_mae:.4f}"),
                Column("First-order\nregret", "{first_order_regret:.3e}"),
                Column("Quadratic\nregret", "{quadratic_regret:.3e}"),
            ),
            "(a) Predicted scale against the grid optimum",
        ),
        Panel(
            (
                *LEADS,
                *(Column(f"{s:g}", f"{{{name}:.3e}}", group="Regret of a fixed scale") for s, name in FIXED.items()),
                Column("Best\nfixed", "{best_fixed:.2f}"),
                Column("Quadratic\nregret", "{quadratic_regret:.3e}"),
            ),
            "(b) Fixed scales",
        ),
    ),
    keys={"primary": "A>0, Q<0", "all": "All questions", "interior": "Interior grid optimum"},
)
def scale_prediction(updates: Updates) -> Values:
    """Correlation and scale MAE compare the continuous prediction with the 21-point grid optimum, and utility regret
    uses the nearest grid action. The best fixed scale is chosen in hindsight on the same questions.
    """
    return {key: scale_statistics(updates.where(inside)) for key, inside in populations(updates).items()}


def scale_statistics(updates: Updates) -> Values:
    """The columns of `scale-prediction` for one population."""
    predicted, optimum = updates.quadratic_scale, np.asarray(updates.optimum.alpha)

    def regret(scale: Floats) -> Floats:
        return np.asarray(grid_regret(GRID_SCALES, updates.grid_gain, scale)) if len(updates) else np.empty(0)

    # The first-order rule maximises Aα: the full step where A > 0, none elsewhere.
    first_order, quadratic = regret((updates.slope > 0).astype(np.float64)), regret(predicted)
    fixed = {name: regret(np.full(len(updates), scale)) for scale, name in FIXED.items()}
    best = min(FIXED_SCALES, key=lambda scale: float(fixed[FIXED[scale]].mean())) if len(updates) else None
    at_full = np.asarray(nearest_action(GRID_SCALES, predicted).alpha) == 1
    return {
        "n": len(updates),
        "spearman": Spearman(predicted, optimum),
        "scale_mae": Mean(np.abs(predicted - optimum)),
        "first_order_regret": Mean(first_order),
        "quadratic_regret": Mean(quadratic),
        "advantage": Mean(first_order - quadratic),  # paired
        **{name: Mean(values) for name, values in fixed.items()},
        "best_fixed": best,
        "best_fixed_regret": Estimate(None, 0) if best is None else Mean(fixed[FIXED[best]]),
        "at_zero": (optimum == 0).sum(),
        "at_one": (optimum == 1).sum(),
        "both_at_one": ((optimum == 1) & at_full).sum(),
    }


@table(
    "progress-boundary",
    "Predicting the observed end of progress",
    summary="quadratic root against the observed crossing",
    over=updates_with("grid_gain", level=Level.GRID),
    columns=(
        *IDENTITY,
        Column("Primary n", "{primary}"),
        Column("Crossings", "{crossings}"),
        Column("Hits", "{hits}"),
        Column("Hit rate (%)", "{hit_rate:.1%}", ci=True),
        Column("No negative\ngain observed", "{unobserved}"),
    ),
)
def progress_boundary(updates: Updates) -> Values:
    """Within A>0, Q<0, the quadratic root against the first observed nonnegative-to-negative crossing interval on the
    21-point grid. Hits require the root to lie in that width-0.05 interval. The last column counts primary questions
    with no observed negative gain through scale one.
    """
    inside = updates.where(updates.primary)
    crossing = sampled_crossing(GRID_SCALES, inside.grid_gain)
    observed = np.asarray(crossing.observed)
    hits = np.asarray(crossing.contains(quadratic_root(inside.slope, inside.quadratic)))
    return {
        "primary": len(inside),
        "crossings": observed.sum(),
        "hits": hits.sum(),
        "hit_rate": Ratio(hits, observed),
        "unobserved": (~observed).sum(),
    }


@table(
    "path-curvature",
    "Directional curvature along the path",
    paper="app:exp-boundary",
    summary="curvature along the path",
    over=updates_with("grid_gain", "curvature_path", level=Level.GRID),
    columns=(
        *(*IDENTITY, Column("n", "{n}")),
        Column("φ''(0.5)/φ''(0)\n[P25, P75]", "[{ratio_p25:.3f}, {ratio_p75:.3f}]"),
        Column("Adjacent\ndifference", "{adjacent_median:.4f}"),
        Column("Negative\nto optimum", "{negative_prefix}"),
        Column("Only the\ncurrent state", "{only_current}"),
    ),
)
def path_curvature(updates: Updates) -> Values:
    """Primary subset A>0, Q<0, curvature at five scales of the unnormalised displacement. Quartiles of the ratio of
    curvature at the half step to curvature at the origin; median of the largest adjacent difference relative to the
    origin; questions with negative curvature at every sampled scale up to the grid optimum.
    """
    # ε is fixed on the complete evaluation set, before restricting to the primary subset.
    epsilon = RELATIVE_EPSILON * float(np.median(np.abs(2 * updates.quadratic)))
    inside = updates.where(updates.primary)
    curvature = matrix(inside.frame["curvature_path"], len(CURVATURE_SCALES))
    origin = np.abs(curvature[:, 0])
    defined = origin > epsilon
    ratio = curvature[defined, HALF] / curvature[defined, 0]
    largest = np.abs(np.diff(curvature, axis=1)).max(axis=1)
    # A path without any curvature has no scale to compare with; ε is zero only if most paths are such.
    comparable = origin + epsilon > 0
    checked = np.array(CURVATURE_SCALES) <= np.asarray(inside.optimum.alpha)[:, None]
    negative = ((curvature < 0) | ~checked).all(axis=1)
    return {
        "n": len(inside),
        "ratio_n": defined.sum(),
        **{f"ratio_{name}": Quantile(ratio, p) for name, p in (("p25", 0.25), ("median", 0.5), ("p75", 0.75))},
        "adjacent_median": Quantile(largest[comparable] / (origin + epsilon)[comparable], 0.5),
        "negative_prefix": negative.sum(),
        "only_current": (negative & (checked.sum(axis=1) == 1)).sum(),
    }


@table(
    "oracles",
    "Intermediate scales beyond endpoint selection",
    paper="tab:oracle-comparison",
    summary="what intermediate scales add to choosing an end",
    over=updates_with("grid_gain", level=Level.GRID),
    columns=(
        *(*IDENTITY, Column("N", "{condition.n}"), Column("Interior", "{interior}")),
        Column("Gain over halt [95% CI]", "{gain_over_halt:.3f}", per=1e-4, ci=True),
        Column("Share (%)", "{share:.2%}"),
    ),
)
def oracles(updates: Updates) -> Values:
    """Gain is the step oracle's utility minus the halting oracle's on the five-point action set, in units of 0.0001
    with 95% intervals. Interior counts require strict improvement over both endpoints. Share is mean gain over endpoint
    selection divided by mean gain over the full step.
    """
    chosen = path_oracles(uniform_grid(5), updates.action_gain)
    advantage = np.asarray(chosen.advantage)
    return {
        "n": len(updates),
        "interior": np.asarray(chosen.interior).sum(),
        "gain_over_halt": Mean(advantage),
        "gain_over_full": Mean(chosen.gain_over_full),
        "share": Ratio(advantage, chosen.gain_over_full),
        "beyond_margin": (advantage > EFFECT_MARGIN).sum(),
    }
