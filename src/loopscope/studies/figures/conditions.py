"""All conditions at a glance: slope against gain (Figure "fig:direction-progress"), quarter-step recovery (Figure
"fig:contraction"); and models compared, one point per run and task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from loopscope.path import Outcome
from loopscope.stats import Bootstrap
from loopscope.store import Level
from loopscope.studies.declare import Row
from loopscope.studies.figures import style
from loopscope.studies.populations import select
from loopscope.studies.records import Records, Updates
from loopscope.studies.tables.interventions import contraction as contraction_table
from loopscope.studies.tables.runs import families as families_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 4
"""Panels next to each other: each is wide enough for five tick labels."""
TALLEST_PANEL = 3.0
"""Inches of a single panel's height."""
MANY = 3000
"""Vector markers make a PDF slow to open; axes and text stay vectors."""
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
        plain = {"linestyle": "none", "markersize": 5}
        handles = [style.handle(style.OUTCOMES[each], label=each.label, **plain) for each in reversed(present)]
        title = style.shared_model([group.condition for group in groups]) or None
        figure.legend(handles=handles, title=title, loc="outside upper center", ncols=4, columnspacing=1.2)

    height = 0.55 + rows * min((style.WIDTH / columns) * 0.98, TALLEST_PANEL)
    return style.Picture(height, draw, caption, {"panels": described}, chosen.notes)


def _columns(groups: Sequence[Updates]) -> int:
    """One row per task or per model where all have equally many panels, as in the paper's matrix; else what fits."""
    conditions = [group.condition for group in groups]
    for rows in (
        Counter((condition.model_title, condition.evaluation_set) for condition in conditions),
        Counter(condition.model_title for condition in conditions),
    ):
        counts = set(rows.values())
        if len(rows) > 1 and len(counts) == 1 and 1 < max(counts) <= MOST_COLUMNS + 1:
            return counts.pop()
    return min(MOST_COLUMNS, len(groups))


def _panels(figure: Figure, groups: Sequence[Updates], rows: int, columns: int) -> None:
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    both = [values for group in groups for values in (group.slope, group.gain)]
    threshold = style.symlog_threshold(*both)
    limit = max(max(float(np.abs(values).max()) for values in both), threshold) * 1.6
    names = style.names_of([group.condition for group in groups])
    for axes, group, name in zip(grid.flat, groups, names, strict=False):
        _points(axes, group)
        style.symlog(axes, "xy", threshold, limit, 2)
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
    many = len(updates) > MANY
    for outcome in DRAWN:
        inside, look = updates.outcome == outcome, style.OUTCOMES[outcome]
        axes.plot(
            updates.slope[inside],
            updates.gain[inside],
            linestyle="none",
            markersize=(1.7 if look["marker"] == "." else 1.0) * (1.5 if many else 2.6),
            markeredgewidth=0.5 if outcome is Outcome.NEUTRAL else 0,
            alpha=0.5 if many else 0.75,
            rasterized=many,
            **look,
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
    caption = (
        "Each update uses one quarter of its proposed displacement along the same direction. (a) Share of finite-step "
        "failures whose utility gain is then positive, with recovered/total counts: "
        f"{sum(row['recovered'] for row in rows)} of {sum(row['failures'] for row in rows)} in all. (b) Mean gain over "
        "the same failures, unrecovered ones included, in nats on a symmetric-log axis. "
        f"Lines are {100 * bootstrap.level:g}% intervals over the failures."
        + (" Purple rows are CommonsenseQA." if any(map(_is_purple, rows)) else "")
    )
    shown = {"rows": table.to_polars().to_dicts(), "failures": ids}
    return style.Picture(0.75 + 0.2 * len(rows), lambda figure: _recovery(figure, rows), caption, shown, table.notes)


def _is_purple(row: Row) -> bool:
    return row.condition.task == "commonsense_qa"


def _recovery(figure: Figure, rows: Sequence[Row]) -> None:
    conditions = [row.condition for row in rows]
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        if not row["failures"]:
            left.text(0, place, "no failure", va="center", color=style.GREY, fontsize=6.5, style="italic")
            continue
        colour = style.PURPLE if _is_purple(row) else style.VERMILLION
        for axes, name, factor in ((left, "recovery", 100.0), (right, "mean_gain", 1.0)):
            reach = np.multiply(style.ends(row[name]), factor)
            axes.plot(reach, [place, place], color=colour, linewidth=1.0, solid_capstyle="butt")
            axes.plot(row[name].value * factor, place, "o", color=colour, markersize=4)
        counts = f"{row['recovered']}/{row['failures']}"
        beside = left.get_yaxis_transform()
        left.annotate(counts, (1.0, place), (2, 0), xycoords=beside, textcoords="offset points", va="center",
                      fontsize=6.5, annotation_clip=False)  # fmt: skip
    left.set_yticks(range(len(rows)), style.names_of(conditions))
    left.set_ylim(len(rows) - 0.4, -0.6)
    left.set_xlim(-4, 104)
    left.set_xlabel("Recovered (%)")
    style.panel_letter(left, "a", style.shared_model(conditions))
    known = [row["mean_gain"] for row in rows if row["mean_gain"].value is not None]
    threshold = style.symlog_threshold(np.array([estimate.value for estimate in known]))
    reach = np.array([(estimate.value, *style.ends(estimate)) for estimate in known])
    limit = max(float(np.abs(reach).max()), threshold) * 1.5
    style.symlog(right, "x", threshold, limit)
    right.axvline(0, color=style.BLACK, linewidth=0.5)
    # Recovery is about positive gains: give the negative side only the space that it needs.
    right.set_xlim(min(float(reach.min()) * 1.5, -0.5 * threshold), limit)
    right.set_xlabel("Mean utility gain")
    style.panel_letter(right, "b")
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=style.GREY, alpha=0.25, linewidth=0.4)
        axes.set_axisbelow(True)


MOST_NAMED = 14
"""Topologies in the legend; series have as many looks in a row."""


@style.figure(
    "families",
    "Models compared",
    paper="fig:families",
    summary="finite-step share against sign accuracy, by topology",
    needs="quick",
)
def families(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """A colour for each topology; a model whose family records none has its family's name."""
    table = families_table.table(records, bootstrap)
    if not table.rows:
        return table.notes[-1]
    if len(table.rows) == 1:
        return "one run and one task: name several runs to compare them"
    drawn = [row for row in table.rows if row["share"].value is not None]
    names = list(dict.fromkeys(map(_topology, table.rows)))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row in drawn:
            (left, right), (low, high) = style.ends(row["share"]), style.ends(row["sign_slope"])
            x, y, look = row["share"].value, row["sign_slope"].value, style.series(names.index(_topology(row)))
            axes.plot([100 * left, 100 * right], [100 * y] * 2, color=look["color"], linewidth=0.7, alpha=0.5)
            axes.plot([100 * x] * 2, [100 * low, 100 * high], color=look["color"], linewidth=0.7, alpha=0.5)
            axes.plot(100 * x, 100 * y, linestyle="none", markersize=4.5, **look)
        axes.set(xlim=(-4, 104), ylim=(-4, 104))
        axes.set_xlabel("Finite-step failures among harmful updates (%)")
        axes.set_ylabel("Sign accuracy of the slope (%)")
        looks = [
            style.handle(style.series(place), label=style.literal(name), linestyle="none")
            for place, name in enumerate(names)
        ]
        figure.legend(handles=looks[:MOST_NAMED], loc="outside lower center", ncols=2)

    harmless = len(table.rows) - len(drawn)
    caption = (
        "Share of finite-step failures among harmful updates, and how often the slope has the sign of the full-step "
        f"gain; a point is a run and task, a colour a topology. Lines are {100 * bootstrap.level:g}% intervals over "
        "questions." + (f" {harmless} without a harmful update are not drawn." if harmless else "")
    )
    height = 2.6 + 0.16 * -(-min(len(names), MOST_NAMED) // 2)
    return style.Picture(height, draw, caption, {"rows": table.to_polars().to_dicts()}, table.notes)


def _topology(row: Row) -> str:
    return str(row["topology"] or row.condition.family)
