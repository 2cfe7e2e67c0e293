"""All conditions of a run at a glance: slope against gain (Figure "fig:direction-progress"), quarter-step recovery
(Figure "fig:contraction").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope.path import Outcome
from loopscope.stats import Bootstrap, Estimate
from loopscope.store import Level
from loopscope.studies.declare import Row
from loopscope.studies.figures import style
from loopscope.studies.populations import select
from loopscope.studies.records import Records, Updates
from loopscope.studies.tables.interventions import contraction as contraction_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = {"one": 2, "two": 4}
"""Panels next to each other by width: each is wide enough for five tick labels."""
MOST_NARROW = 10
"""Panels in two columns of one column's width: more would be higher than a page, and stand three next to each other."""
NARROWEST_LABELS, TALLEST_PANEL = 1.3, 3.0
"""Inches of a panel that has room for five tick labels, and of a single panel's height."""
MANY = 3000
MEANINGS = {
    Outcome.FINITE_STEP_FAILURE: "Vermillion circles mark updates whose directions locally increase reference utility "
    "but whose full steps decrease it.",
    Outcome.DIRECTIONAL_FAILURE: "Blue triangles mark harmful updates with nonpositive initial slopes.",
    Outcome.PROGRESSING: "Grey points mark full updates that increase reference utility.",
    Outcome.NEUTRAL: "Black crosses mark updates that leave reference utility as it is.",
}
DRAWN = (Outcome.PROGRESSING, Outcome.DIRECTIONAL_FAILURE, Outcome.FINITE_STEP_FAILURE, Outcome.NEUTRAL)
"""From the bottom to the top: failures must not disappear below the many progressing updates."""


@style.figure(
    "direction-progress",
    "Local improvement and full-step harm",
    paper="fig:direction-progress",
    summary="slope against full-step gain by outcome",
    needs="quick",
)
def direction_progress(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """Every record of every condition, a panel each; identical symmetric-log transforms on all axes."""
    chosen = select(records, "slope", "gain")
    if not chosen.kept:
        return chosen.notes[-1]
    groups: tuple[Updates, ...] = chosen.kept
    present = [outcome for outcome in Outcome if any((group.outcome == outcome).any() for group in groups)]
    columns = _columns(groups)
    rows = -(-len(groups) // columns)
    caption = (
        f"Each of the {sum(map(len, groups)):,} points is one question at one update: its initial slope A and its "
        "full-step gain ΔU, in nats, on symmetric-log axes that all panels share. "
        + " ".join(MEANINGS[outcome] for outcome in reversed(present))
    )
    described = [
        {
            "condition": str(group.condition),
            "records": len(group),
            "outcomes": {outcome.label: int((group.outcome == outcome).sum()) for outcome in Outcome},
            "ids": group.ids,
        }
        for group in groups
    ]

    def draw(figure: Figure) -> None:
        _panels(figure, groups, rows, columns)
        handles = [
            style.handle(
                {
                    "linestyle": "none",
                    "marker": style.OUTCOME_MARKERS[outcome],
                    "color": style.OUTCOME_COLOURS[outcome],
                },
                markersize=8 if style.OUTCOME_MARKERS[outcome] == "." else 5,
                markeredgewidth=0.8 if outcome is Outcome.NEUTRAL else 0,
                label=outcome.label,
            )
            for outcome in reversed(present)
        ]
        title = style.shared_model([group.condition for group in groups]) or None
        ncols = 2 if style.drawing().narrow else 4
        figure.legend(handles=handles, title=title, loc="outside upper center", ncols=ncols, columnspacing=1.2)

    height = 0.55 + rows * min((style.drawing().width / columns) * 0.98, TALLEST_PANEL)
    return style.Picture(height, draw, caption, {"panels": described}, chosen.notes)


def _columns(groups: Sequence[Updates]) -> int:
    """One row per task or per model where all have equally many panels, as in the paper's matrix; else what fits."""
    conditions = [group.condition for group in groups]
    most = MOST_COLUMNS[style.drawing().columns]
    for rows in (
        Counter((condition.model_title, condition.evaluation_set) for condition in conditions),
        Counter(condition.model_title for condition in conditions),
    ):
        counts = set(rows.values())
        if len(rows) > 1 and len(counts) == 1 and 1 < max(counts) <= most + (not style.drawing().narrow):
            return counts.pop()
    if style.drawing().narrow and len(groups) > MOST_NARROW:
        most = MOST_COLUMNS["one"] + 1
    return min(most, len(groups))


def _panels(figure: Figure, groups: Sequence[Updates], rows: int, columns: int) -> None:
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    both = [values for group in groups for values in (group.slope, group.gain)]
    threshold = style.symlog_threshold(*both)
    limit = max(max(float(np.abs(values).max()) for values in both), threshold) * 1.6
    ticks = style.symlog_ticks(threshold, limit, 2 if style.drawing().width / columns > NARROWEST_LABELS else 1)
    for axes, group, name in zip(
        grid.flat, groups, style.names_of([group.condition for group in groups]), strict=False
    ):
        _points(axes, group)
        for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
            scale("symlog", linthresh=threshold, linscale=0.6)
            axis.set_ticks(ticks)
            axis.set_ticks([], minor=True)
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit))
        axes.set_aspect("equal", adjustable="box")
        axes.axhline(0, color=style.BLACK, linewidth=0.4, zorder=0)
        axes.axvline(0, color=style.BLACK, linewidth=0.4, zorder=0)
        # Model and task on lines of their own: a panel is narrower than both together.
        model = style.literal(group.condition.model_title)
        axes.set_title(name.replace(f"{model} ", f"{model}\n", 1), fontsize=7, linespacing=1.05)
    for axes in list(grid.flat)[len(groups) :]:
        axes.set_visible(False)
    for row in range(rows):
        grid[row, 0].set_ylabel(r"Full-step gain $\Delta U$")
    for index in range(columns):
        below = [axes for axes in grid[:, index] if axes.get_visible()][-1]
        below.set_xlabel(r"Initial slope $A$")
        below.tick_params(labelbottom=True)


def _points(axes: Axes, updates: Updates) -> None:
    size = 2.6 if len(updates) <= MANY else 1.5
    for outcome in DRAWN:
        inside, marker = updates.outcome == outcome, style.OUTCOME_MARKERS[outcome]
        axes.plot(
            updates.slope[inside],
            updates.gain[inside],
            linestyle="none",
            marker=marker,
            color=style.OUTCOME_COLOURS[outcome],
            markersize=(1.7 if marker == "." else 1.0) * size,
            markeredgewidth=0.5 if outcome is Outcome.NEUTRAL else 0,
            alpha=0.75 if len(updates) <= MANY else 0.5,
            # Thousands of vector markers make a PDF slow to open; axes and text stay vectors.
            rasterized=len(updates) > MANY,
        )


@style.figure(
    "contraction",
    "Quarter-step recovery",
    paper="fig:contraction",
    summary="quarter-step recovery with intervals",
    needs="grid",
)
def contraction(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """One line per condition, those of CommonsenseQA in purple; a condition without failures says so."""
    chosen = select(records, "grid_gain", level=Level.GRID)
    table = contraction_table.table(records, bootstrap)
    rows = table.rows
    if not any(row["failures"] for row in rows):
        return chosen.notes[-1] if not chosen.kept else "no finite-step failure in these runs"
    ids = {
        str(updates.condition): [updates.ids[index] for index in np.flatnonzero(updates.finite_step)]
        for updates in chosen.kept
    }
    purple = any(row.condition.task == "commonsense_qa" for row in rows)
    caption = (
        "Each update uses one quarter of its proposed displacement along the same direction. (a) Share of finite-step "
        "failures whose utility gain is then positive, with recovered/total counts: "
        f"{sum(row['recovered'] for row in rows)} of {sum(row['failures'] for row in rows)} in all. (b) Mean gain over "
        "the same failures, unrecovered ones included, in nats on a symmetric-log axis. "
        f"Lines are {100 * bootstrap.level:g}% intervals over the failures."
        + (" Purple rows are CommonsenseQA." if purple else "")
    )
    height = (2 if style.drawing().narrow else 1) * (0.75 + 0.2 * len(rows))
    shown = {"rows": table.to_polars().to_dicts(), "failures": ids}
    return style.Picture(height, lambda figure: _recovery(figure, rows), caption, shown, table.notes)


def _recovery(figure: Figure, rows: Sequence[Row]) -> None:
    narrow, conditions = style.drawing().narrow, [row.condition for row in rows]
    left, right = figure.subplots(*((2, 1) if narrow else (1, 2)), sharey=True)
    for place, row in enumerate(rows):
        if not row["failures"]:
            left.text(0, place, "no failure", va="center", color=style.GREY, fontsize=6.5, style="italic")
            continue
        colour = (
            style.PURPLE
            if row.condition.task == "commonsense_qa"
            else style.OUTCOME_COLOURS[Outcome.FINITE_STEP_FAILURE]
        )
        _bar(left, place, row["recovery"], 100.0, colour)
        _bar(right, place, row["mean_gain"], 1.0, colour)
        where: Any = {"xycoords": left.get_yaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
        counts = f"{row['recovered']}/{row['failures']}"
        left.annotate(counts, (1.0, place), (2, 0), va="center", fontsize=6.5, **where)
    left.set_yticks(range(len(rows)), style.names_of(conditions))
    left.set_ylim(len(rows) - 0.4, -0.6)
    left.set_xlim(-4, 104)
    left.set_xlabel("Recovered (%)")
    style.panel_letter(left, "a", style.shared_model(conditions))
    known = [row["mean_gain"] for row in rows if row["mean_gain"].value is not None]
    threshold = style.symlog_threshold(np.array([estimate.value for estimate in known]))
    reach = np.array([(estimate.value, *style.ends(estimate)) for estimate in known])
    limit = max(float(np.abs(reach).max()), threshold) * 1.5
    right.set_xscale("symlog", linthresh=threshold, linscale=0.6)
    right.axvline(0, color=style.BLACK, linewidth=0.5)
    right.set_xticks(style.symlog_ticks(threshold, limit))
    right.set_xticks([], minor=True)
    # Recovery is about positive gains: give the negative side only the space that it needs.
    right.set_xlim(min(float(reach.min()) * 1.5, -0.5 * threshold), limit)
    right.set_xlabel("Mean utility gain")
    style.panel_letter(right, "b", "" if not narrow else "Gain of the quarter step")
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=style.GREY, alpha=0.25, linewidth=0.4)
        axes.set_axisbelow(True)


def _bar(axes: Axes, place: float, estimate: Estimate, factor: float, colour: str) -> None:
    if estimate.value is not None:
        axes.plot(
            np.multiply(style.ends(estimate), factor),
            [place, place],
            color=colour,
            linewidth=1.0,
            solid_capstyle="butt",
        )
        axes.plot(estimate.value * factor, place, "o", color=colour, markersize=4)
