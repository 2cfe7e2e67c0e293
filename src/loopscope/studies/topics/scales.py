"""Other step lengths than the proposed one: which scale is predicted, where progress ends, what a scale recovers.

Correlation and scale error compare the continuous α̂ with the 21-point grid optimum; regret is taken at the grid action
nearest to the chosen scale (Appendices E.4 and E.10). Ties go to the smaller scale throughout. Interventions of
`quadratic-intervention` and `interventions` are the computed BF16 states: the interpolated state is rounded before it
is read out, and gains are relative to the common current state. The curvature-bound rule reads FP64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope.errors import setting
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
from loopscope.stats import Bootstrap, Estimate, Mean, Quantile, Ratio, Spearman, Statistic
from loopscope.store import Level
from loopscope.store.schema import ends_of
from loopscope.studies import figures
from loopscope.studies.declare import IDENTITY, KEY, Column, Row, Values, panel, table, words
from loopscope.studies.populations import OPTION_TASKS, groups_of, updates_with
from loopscope.studies.records import GRID_SCALES, DepthSweep, Floats, Mask, Updates, matrix
from loopscope.studies.topics.fp64 import bound_selected_values, kept_notes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FIXED_SCALES: tuple[float, ...] = tuple(uniform_grid(5).tolist())
FIXED = {scale: f"fixed_{round(100 * scale)}" for scale in FIXED_SCALES}  # columns with the regret of each
RELATIVE_EPSILON = 1e-6  # ε as a fraction of the median |2Q| over the complete evaluation set
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
    updates_with("grid_gain", "quadratic_scale", level=Level.GRID),
    panel(
        "(a) Predicted scale against the grid optimum",
        *(*LEADS, Column("n", "{n}"), Column("Spearman", "{spearman:.4f}")),
        Column("Scale MAE", "{scale_mae:.4f}"),
        Column("First-order\nregret", "{first_order_regret:.3e}"),
        Column("Quadratic\nregret", "{quadratic_regret:.3e}"),
    ),
    panel(
        "(b) Fixed scales",
        *LEADS,
        *(Column(f"{s:g}", f"{{{name}:.3e}}", group="Regret of a fixed scale") for s, name in FIXED.items()),
        Column("Best\nfixed", "{best_fixed:.2f}"),
        Column("Quadratic\nregret", "{quadratic_regret:.3e}"),
    ),
    paper="tab:step-prediction",
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
    updates_with("grid_gain", level=Level.GRID),
    *IDENTITY,
    Column("Primary n", "{primary}"),
    *(Column("Crossings", "{crossings}"), Column("Hits", "{hits}"), Column("Hit rate (%)", "{hit_rate:.1%}", ci=True)),
    Column("No negative\ngain observed", "{unobserved}"),
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
    counts = {"primary": len(inside), "crossings": observed.sum(), "hits": hits.sum(), "unobserved": (~observed).sum()}
    return {**counts, "hit_rate": Ratio(hits, observed)}


@table(
    "path-curvature",
    "Directional curvature along the path",
    updates_with("grid_gain", "curvature_path", level=Level.GRID),
    *(*IDENTITY, Column("n", "{n}")),
    Column("φ''(0.5)/φ''(0)\n[P25, P75]", "[{ratio_p25:.3f}, {ratio_p75:.3f}]"),
    Column("Adjacent\ndifference", "{adjacent_median:.4f}"),
    Column("Negative\nto optimum", "{negative_prefix}"),
    Column("Only the\ncurrent state", "{only_current}"),
    paper="app:exp-boundary",
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
    updates_with("grid_gain", level=Level.GRID),
    *(*IDENTITY, Column("N", "{condition.n}"), Column("Interior", "{interior}")),
    Column("Gain over halt [95% CI]", "{gain_over_halt:.3f}", per=1e-4, ci=True),
    Column("Share (%)", "{share:.2%}"),
    paper="tab:oracle-comparison",
)
def oracles(updates: Updates) -> Values:
    """Gain is the step oracle's utility minus the halting oracle's on the five-point action set, in units of 0.0001
    with 95% intervals. Interior counts require strict improvement over both endpoints. Share is mean gain over endpoint
    selection divided by mean gain over the full step.
    """
    chosen = path_oracles(uniform_grid(5), updates.grid_gain[:, ::5])
    advantage = np.asarray(chosen.advantage)
    return {
        "n": len(updates),
        "interior": np.asarray(chosen.interior).sum(),
        "gain_over_halt": Mean(advantage),
        "gain_over_full": Mean(chosen.gain_over_full),
        "share": Ratio(advantage, chosen.gain_over_full),
        "beyond_margin": (advantage > EFFECT_MARGIN).sum(),
    }


PURPLE_TASK = "commonsense_qa"
BF16_GAINS = {"quarter": "bf16_quarter_gain", "quadratic": "bf16_quadratic_gain"}


@table(
    "contraction",
    "Quarter-step recovery",
    updates_with("grid_gain", level=Level.GRID),
    *(*IDENTITY, Column("Recovered", "{recovered}/{failures}")),
    Column("Recovery (%)\n[95% CI]", "{recovery:.1%}", ci=True),
    Column("Mean gain (1e-3)\n[95% CI]", "{mean_gain:+.3f}", per=1e-3, ci=True),
    Column("Beyond\nthe margin", "{recovered_beyond_margin}"),
    paper="fig:contraction",
)
def contraction(updates: Updates) -> Values:
    """Finite-step failures with positive gain at one quarter of the proposed displacement, and mean gain over the same
    failures, unrecovered ones included. Intervals resample the selected failures.
    """
    gain = updates.quarter_gain[updates.finite_step]
    return {
        "recovered": (gain > 0).sum(),
        "failures": gain.size,
        "recovery": Mean(gain > 0),
        "mean_gain": Mean(gain),
        "recovered_beyond_margin": (gain > EFFECT_MARGIN).sum(),
    }


@table(
    "quadratic-intervention",
    "Immediate utility under quadratic scale selection",
    updates_with(*BF16_GAINS.values(), level=Level.GRID),
    *(*IDENTITY, words("Action", KEY)),
    Column("Mean gain\n[95% CI]", "{mean_gain:+.3f}", per=1e-3, ci=True),
    Column("Recovered", "{recovered} / {failures}"),
    Column("Recovery (%)", "{recovery:.2%}", ci=True),
    keys={"quarter": "Quarter step", "quadratic": "Quadratic rule", "difference": "Quadratic − quarter"},
)
def quadratic_intervention(updates: Updates) -> Values:
    """Mean gains relative to the current state use all questions and are in units of 0.001, with paired 95%
    question-bootstrap intervals. Recovery counts use the original finite-step failures. The last row of a condition
    reports the paired utility advantage and net recovery differences. Outcomes use the computed BF16 intervention
    states.
    """
    failures = updates.finite_step
    gains = {action: updates.floats(name) for action, name in BF16_GAINS.items()}
    recovered = {action: (values[failures] > 0).astype(float) for action, values in gains.items()}
    for columns in (gains, recovered):
        columns["difference"] = columns["quadratic"] - columns["quarter"]
    return {
        action: {
            "mean_gain": Mean(gains[action]),
            "recovered": int(recovered[action].sum()),
            "failures": failures.sum(),
            "recovery": Mean(recovered[action]),
        }
        for action in gains
    }


def _has_rounded(updates: Updates) -> bool:
    return updates.has(*BF16_GAINS.values())


def _has_bound(updates: Updates) -> bool:
    return updates.condition.concave and updates.has("fp64_L_D", "fp64_quarter_gain")


@table(
    "interventions",
    "Scale selection",
    groups_of(
        lambda records: [updates for updates in records.updates if _has_rounded(updates) or _has_bound(updates)],
        lambda records: records.nothing(f"no condition has interventions: measure with {setting('level', 'grid')}"),
        "grid",
    ),
    *(*IDENTITY, words("Rule", KEY)),
    Column("Recovered\nquarter → selected", "{recovered_quarter} → {recovered_selected} ({failures})"),
    Column("Utility\npopulation", "{population} ({n})"),
    Column("Mean\ngain", "{mean_gain:.3f}", per=1e-3),
    Column("Advantage over quarter\n[95% CI]", "{advantage:.3f}", per=1e-3, ci=True),
    paper="tab:interventions-main",
    keys={"quadratic": "Quadratic", "bound": "Bound"},
    notes=lambda rows, _: kept_notes([row for row in rows if row.key == "bound"]),
)
def interventions(updates: Updates) -> Values:
    """Utility units: 0.001. Recovery counts show quarter and selected scale (failure denominator); utility populations
    are listed separately. Brackets give paired 95% intervals. Bound selection uses FP64.
    """
    rows: dict[str, Values] = {}
    failures = updates.finite_step
    if _has_rounded(updates):
        quarter, selected = (updates.floats(name) for name in BF16_GAINS.values())
        rows["quadratic"] = {
            "recovered_quarter": (quarter[failures] > 0).sum(),
            "recovered_selected": (selected[failures] > 0).sum(),
            "failures": failures.sum(),
            "population": "All questions",
            "n": len(updates),
            "mean_gain": Mean(selected),
            "advantage": Mean(selected - quarter),
            "without_scale": 0,
        }
    if _has_bound(updates):
        found = bound_selected_values(updates.where(failures))
        rows["bound"] = {
            "recovered_quarter": found["quarter_positive"],
            "recovered_selected": found["selected_positive"],
            "failures": found["n"],
            "population": "Failures",
            **{name: found[name] for name in ("n", "mean_gain", "advantage", "without_scale")},
        }
    return rows


@table(
    "transitions",
    "Quadratic scale selection across transitions",
    updates_with("grid_gain", "quadratic_gain", level=Level.GRID, about=OPTION_TASKS),
    panel(
        "(a) Recovery and mean immediate gain",
        *(*IDENTITY, Column("Failures", "{failures}")),
        Column("Recovered\nquarter → quadratic", "{recovered_quarter} → {recovered_quadratic}"),
        *(Column(name.title(), f"{{{name}:.3f}}", per=1e-3) for name in ("full", "quarter", "quadratic")),
    ),
    panel(
        "(b) Endpoint prediction and paired gain",
        *IDENTITY,
        Column("Sign A (%)", "{sign_slope:.2%}"),
        Column("Sign A+Q (%)", "{sign_quadratic:.2%}"),
        Column("Quadratic − full\n[95% CI]", "{over_full:.3f}", per=1e-3, ci=True),
        Column("before", "{accuracy_before:.1%}", group="Accuracy (%)"),
        Column("after", "{accuracy_after:.1%}", group="Accuracy (%)"),
    ),
    paper="tab:hellaswag-transitions",
)
def transitions(updates: Updates) -> Values:
    """Option tasks, with one scale shared by all options of a question. (a) Recovery counts use the original
    finite-step failures. Mean gains use all questions, in units of 0.001. (b) Full-step sign accuracy and paired
    quadratic-minus-full gain with 95% question-bootstrap intervals. Each transition is an independent intervention
    before further recurrence.
    """
    gain, quarter, quadratic = updates.gain, updates.quarter_gain, updates.floats("quadratic_gain")
    failures, (before, after) = updates.finite_step, ends_of(updates.condition.transition or 0)
    return {
        "failures": failures.sum(),
        "recovered_quarter": (quarter[failures] > 0).sum(),
        "recovered_quadratic": (quadratic[failures] > 0).sum(),
        "full": Mean(gain),
        "quarter": Mean(quarter),
        "quadratic": Mean(quadratic),
        **{name: Mean(right) for name, right in updates.right_signs.items()},
        "over_full": Mean(quadratic - gain),
        "recovered_beyond_margin": (quadratic[failures] > EFFECT_MARGIN).sum(),
        "failures_quarter": Mean(quarter[failures]),
        "failures_quadratic": Mean(quadratic[failures]),
        "accuracy_before": _accuracy(updates.sweep, before),
        "accuracy_after": _accuracy(updates.sweep, after),
    }


def _accuracy(sweep: DepthSweep | None, depth: int) -> Statistic:
    """Share of questions whose best-scored option is the right one."""
    if sweep is None or sweep.correct is None or depth not in sweep.depths:
        return Mean([])
    return Mean(sweep.correct[:, sweep.depths.index(depth)])


@figures.figure("contraction", "Quarter-step recovery", paper="fig:contraction", over=contraction.over)
def contraction_figure(groups: tuple[Updates, ...], bootstrap: Bootstrap) -> figures.Picture | str:
    """Each update uses one quarter of its proposed displacement along the same direction. (a) Share of finite-step
    failures whose utility gain is then positive, with recovered/total counts. (b) Mean gain over the same failures,
    unrecovered ones included, in nats on a symmetric-log axis. Lines are intervals over the failures; purple rows are
    CommonsenseQA.
    """
    rows = [row for updates in groups for row in contraction.rows(updates, bootstrap)]
    if not any(row["failures"] for row in rows):
        return "no finite-step failure in these runs"
    ids = {
        str(updates.condition): [updates.ids[index] for index in np.flatnonzero(updates.finite_step)]
        for updates in groups
    }
    recovered, failures = (sum(row[name] for row in rows) for name in ("recovered", "failures"))
    shown = {"rows": contraction.finish(rows).to_polars().to_dicts(), "failures": ids}
    more = f"{recovered} of {failures} in all."
    return figures.Picture(0.75 + 0.2 * len(rows), lambda figure: _recovery(figure, rows), shown, more)


def _recovery(figure: Figure, rows: Sequence[Row]) -> None:
    conditions = [row.condition for row in rows]
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        if not row["failures"]:
            left.text(0, place, "no failure", va="center", color=figures.GREY, fontsize=6.5, style="italic")
            continue
        colour = figures.PURPLE if row.condition.task == PURPLE_TASK else figures.VERMILLION
        for axes, name, factor in ((left, "recovery", 100.0), (right, "mean_gain", 1.0)):
            axes.plot(np.multiply(figures.ends(row[name]), factor), [place, place], color=colour, linewidth=1.0)
            axes.plot(row[name].value * factor, place, "o", color=colour, markersize=4)
        beside: Any = {"xycoords": left.get_yaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
        counts = f"{row['recovered']}/{row['failures']}"
        left.annotate(counts, (1.0, place), (2, 0), va="center", fontsize=6.5, **beside)
    left.set_yticks(range(len(rows)), figures.names_of(conditions))
    left.set_ylim(len(rows) - 0.4, -0.6)
    left.set_xlim(-4, 104)
    left.set_xlabel("Recovered (%)")
    figures.panel_letter(left, "a", figures.shared_model(conditions))
    known = [row["mean_gain"] for row in rows if row["failures"]]
    reach = np.array([(estimate.value, *figures.ends(estimate)) for estimate in known])
    threshold = figures.symlog_threshold(reach[:, 0])
    limit = max(float(np.abs(reach).max()), threshold) * 1.5
    figures.symlog(right, "x", threshold, limit)
    right.axvline(0, color=figures.BLACK, linewidth=0.5)
    # Recovery is about positive gains: give the negative side only the space that it needs.
    right.set_xlim(min(float(reach.min()) * 1.5, -0.5 * threshold), limit)
    right.set_xlabel("Mean utility gain")
    figures.panel_letter(right, "b")
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=figures.GREY, alpha=0.25, linewidth=0.4)
        axes.set_axisbelow(True)
