"""Other step lengths instead of the proposed one: what they recover of the finite-step failures, and what they gain.

Interventions of `quadratic-intervention` and `interventions` are the computed BF16 states: the interpolated state is
rounded before it is read out, and gains are relative to the common current state. The curvature-bound rule reads FP64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from loopscope.errors import setting
from loopscope.path import EFFECT_MARGIN, GRID, scales_up_to
from loopscope.stats import Bootstrap, Mean, Statistic
from loopscope.store import Level
from loopscope.store.schema import ends_of
from loopscope.studies import figures
from loopscope.studies.declare import IDENTITY, KEY, Column, Panel, Row, Values, table, words
from loopscope.studies.populations import OPTION_TASKS, groups_of, updates_with, with_table
from loopscope.studies.records import DepthSweep, Floats, Updates, matrix
from loopscope.studies.topics.fp64 import bound_selected_values, kept_notes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BF16_GAINS = {"quarter": "bf16_quarter_gain", "quadratic": "bf16_quadratic_gain"}


@table(
    "contraction",
    "Quarter-step recovery",
    paper="fig:contraction",
    summary="quarter-step recovery of finite-step failures",
    over=updates_with("grid_gain", level=Level.GRID),
    columns=(
        *(*IDENTITY, Column("Recovered", "{recovered}/{failures}")),
        Column("Recovery (%)\n[95% CI]", "{recovery:.1%}", ci=True),
        Column("Mean gain (1e-3)\n[95% CI]", "{mean_gain:+.3f}", per=1e-3, ci=True),
        Column("Beyond\nthe margin", "{recovered_beyond_margin}"),
    ),
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
    summary="quadratic and quarter step, BF16 states",
    over=updates_with(*BF16_GAINS.values(), level=Level.GRID),
    columns=(
        *(*IDENTITY, words("Action", KEY)),
        Column("Mean gain\n[95% CI]", "{mean_gain:+.3f}", per=1e-3, ci=True),
        Column("Recovered", "{recovered} / {failures}"),
        Column("Recovery (%)", "{recovery:.2%}", ci=True),
    ),
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
    paper="tab:interventions-main",
    summary="quadratic and bound-selected steps at a glance",
    over=groups_of(
        lambda records: [updates for updates in records.updates if _has_rounded(updates) or _has_bound(updates)],
        lambda records: records.nothing(f"no condition has interventions: measure with {setting('level', 'grid')}"),
        "grid",
    ),
    columns=(
        *(*IDENTITY, words("Rule", KEY)),
        Column("Recovered\nquarter → selected", "{recovered_quarter} → {recovered_selected} ({failures})"),
        Column("Utility\npopulation", "{population} ({n})"),
        Column("Mean\ngain", "{mean_gain:.3f}", per=1e-3),
        Column("Advantage over quarter\n[95% CI]", "{advantage:.3f}", per=1e-3, ci=True),
    ),
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
    paper="tab:hellaswag-transitions",
    summary="option tasks, transition by transition",
    over=updates_with("grid_gain", "quadratic_gain", level=Level.GRID, about=OPTION_TASKS),
    columns=(
        Panel(
            (
                *(*IDENTITY, Column("Failures", "{failures}")),
                Column("Recovered\nquarter → quadratic", "{recovered_quarter} → {recovered_quadratic}"),
                *(Column(name.title(), f"{{{name}:.3f}}", per=1e-3) for name in ("full", "quarter", "quadratic")),
            ),
            "(a) Recovery and mean immediate gain",
        ),
        Panel(
            (
                *IDENTITY,
                Column("Sign A (%)", "{sign_slope:.2%}"),
                Column("Sign A+Q (%)", "{sign_quadratic:.2%}"),
                Column("Quadratic − full\n[95% CI]", "{over_full:.3f}", per=1e-3, ci=True),
                Column("before", "{accuracy_before:.1%}", group="Accuracy (%)"),
                Column("after", "{accuracy_after:.1%}", group="Accuracy (%)"),
            ),
            "(b) Endpoint prediction and paired gain",
        ),
    ),
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


LONGER_STEPS = with_table("longer_steps", setting("scales_to", 2), "--scales-to")


def best_scales(gains: Floats) -> Floats:
    """The best of the scales 0, 0.05, … of every question, ties to the smallest."""
    scales = scales_up_to((gains.shape[1] - 1) / (len(GRID) - 1))
    return np.asarray(scales[gains.argmax(axis=1)]) if gains.size else np.empty(0)


@table(
    "longer-steps",
    "Steps that were too short",
    summary="steps that were too short: best scales beyond 1",
    over=LONGER_STEPS,
    columns=(
        *(*IDENTITY, words("Updates", KEY), Column("N", "{n}")),
        Column("φ'(1) > 0 (%)\n[95% CI]", "{too_short:.1%}", ci=True),
        Column("Best scale > 1 (%)\n[95% CI]", "{beyond:.1%}", ci=True),
        Column("Best\nat S", "{at_end}"),
        Column("Mean best\nscale", "{best_scale:.2f}"),
        Column("Over best of [0, 1] (1e-3)\n[95% CI]", "{extra:+.3f}", per=1e-3, ci=True),
        Column("Over full step (1e-3)\n[95% CI]", "{over_full:+.3f}", per=1e-3, ci=True),
        Column("Quadratic over\nfull step (1e-3)", "{quadratic_over_full:+.3f}", per=1e-3, ci=True),
    ),
    keys={"all": "All", "progressing": "Progressing", "harmful": "Harmful"},
)
def longer_steps(updates: Updates) -> Values:
    """φ'(1) > 0 says that the utility still rises where the step ends. The best scale is the best of 0, 0.05, …, S
    along the same direction, ties to the smallest; gains are in units of 0.001. The last column takes the maximiser
    of Aα + Qα² on [0, S]. Intervals resample questions.
    """
    frame = updates.other_table("longer_steps")
    gains, columns = matrix(frame["gains"]), [frame[name].to_numpy() for name in ("end_slope", "quadratic_gain")]
    end, rows = (gains.shape[1] - 1) / (len(GRID) - 1), {}
    populations = {"all": updates.gain == updates.gain, "progressing": updates.gain > 0, "harmful": updates.harmful}
    for key, inside in populations.items():
        end_slope, quadratic, gain = (values[inside] for values in (*columns, gains))
        best_scale, best_gain, full = best_scales(gain), gain.max(axis=1, initial=-np.inf), gain[:, len(GRID) - 1]
        rows[key] = {
            "n": inside.sum(),
            "end": end,
            "too_short": Mean(end_slope > 0),
            "beyond": Mean(best_scale > 1),
            "at_end": (best_scale == scales_up_to(end)[-1]).sum(),
            "best_scale": Mean(best_scale),
            "extra": Mean(best_gain - gain[:, : len(GRID)].max(axis=1, initial=-np.inf)),
            "over_full": Mean(best_gain - full),
            "quadratic_over_full": Mean(quadratic - full),
        }
    return rows


@figures.figure(
    "contraction",
    "Quarter-step recovery",
    paper="fig:contraction",
    summary="quarter-step recovery with intervals",
    over=contraction.over,
)
def contraction_figure(groups: tuple[Updates, ...], bootstrap: Bootstrap) -> figures.Picture | str:
    """One line per condition, those of CommonsenseQA in purple; a condition without failures says so."""
    rows = [row for updates in groups for row in contraction.rows(updates, bootstrap)]
    if not any(row["failures"] for row in rows):
        return "no finite-step failure in these runs"
    ids = {
        str(updates.condition): [updates.ids[index] for index in np.flatnonzero(updates.finite_step)]
        for updates in groups
    }
    caption = (
        "Each update uses one quarter of its proposed displacement along the same direction. (a) Share of finite-step "
        "failures whose utility gain is then positive, with recovered/total counts: "
        f"{sum(row['recovered'] for row in rows)} of {sum(row['failures'] for row in rows)} in all. (b) Mean gain over "
        "the same failures, unrecovered ones included, in nats on a symmetric-log axis. "
        f"Lines are {100 * bootstrap.level:g}% intervals over the failures."
        + (" Purple rows are CommonsenseQA." if any(map(_is_purple, rows)) else "")
    )
    shown = {"rows": contraction.finish(rows).to_polars().to_dicts(), "failures": ids}
    return figures.Picture(0.75 + 0.2 * len(rows), lambda figure: _recovery(figure, rows), caption, shown)


def _is_purple(row: Row) -> bool:
    return row.condition.task == "commonsense_qa"


def _recovery(figure: Figure, rows: Sequence[Row]) -> None:
    conditions = [row.condition for row in rows]
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        if not row["failures"]:
            left.text(0, place, "no failure", va="center", color=figures.GREY, fontsize=6.5, style="italic")
            continue
        colour = figures.PURPLE if _is_purple(row) else figures.VERMILLION
        for axes, name, factor in ((left, "recovery", 100.0), (right, "mean_gain", 1.0)):
            reach = np.multiply(figures.ends(row[name]), factor)
            axes.plot(reach, [place, place], color=colour, linewidth=1.0, solid_capstyle="butt")
            axes.plot(row[name].value * factor, place, "o", color=colour, markersize=4)
        counts = f"{row['recovered']}/{row['failures']}"
        beside = left.get_yaxis_transform()
        left.annotate(counts, (1.0, place), (2, 0), xycoords=beside, textcoords="offset points", va="center",
                      fontsize=6.5, annotation_clip=False)  # fmt: skip
    left.set_yticks(range(len(rows)), figures.names_of(conditions))
    left.set_ylim(len(rows) - 0.4, -0.6)
    left.set_xlim(-4, 104)
    left.set_xlabel("Recovered (%)")
    figures.panel_letter(left, "a", figures.shared_model(conditions))
    known = [row["mean_gain"] for row in rows if row["mean_gain"].value is not None]
    threshold = figures.symlog_threshold(np.array([estimate.value for estimate in known]))
    reach = np.array([(estimate.value, *figures.ends(estimate)) for estimate in known])
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
