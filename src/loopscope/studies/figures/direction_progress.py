"""Local improvement and full-step harm: Figure "fig:direction-progress", Appendix E.5.

Every record of every condition; identical symmetric-log transforms on the two axes and in all panels.
"""

from collections import Counter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from loopscope.path import Outcome
from loopscope.stats import Bootstrap
from loopscope.studies.figures.style import (
    BLACK,
    OUTCOME_COLOURS,
    OUTCOME_MARKERS,
    FigureResult,
    drawing,
    empty_figure,
    literal,
    names_of,
    paper_style,
    shared_model,
    symlog_threshold,
    symlog_ticks,
)
from loopscope.studies.records import Records, Updates
from loopscope.studies.usable_conditions import select

TITLE = "Local improvement and full-step harm"
COLUMNS = {"one": 2, "two": 4}
"""Panels beside each other by width: each is wide enough for five tick labels."""
MOST_NARROW = 10
"""Panels in two columns of one column's width: more would be higher than a page, and stand three beside each other."""
NARROWEST_LABELS = 1.3
"""Inches of a panel that has room for five tick labels."""
TALLEST_PANEL = 3.0
"""Inches: a single panel of two columns' width need not be as high as it is wide."""
MEANINGS = {
    Outcome.FINITE_STEP_FAILURE: "Vermillion circles mark updates whose directions locally increase reference utility "
    "but whose full steps decrease it.",
    Outcome.DIRECTIONAL_FAILURE: "Blue triangles mark harmful updates with nonpositive initial slopes.",
    Outcome.PROGRESSING: "Grey points mark full updates that increase reference utility.",
    Outcome.NEUTRAL: "Black crosses mark updates that leave reference utility as it is.",
}
DRAWN = (Outcome.PROGRESSING, Outcome.DIRECTIONAL_FAILURE, Outcome.FINITE_STEP_FAILURE, Outcome.NEUTRAL)
"""From the bottom to the top: failures must not disappear below the many progressing updates."""


def direction_progress(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """One panel per condition."""
    chosen = select(records, "slope", "gain")
    if not chosen.kept:
        return empty_figure("direction-progress", TITLE, records, chosen)
    with paper_style():
        figure = _draw(chosen.kept)
    return FigureResult(
        "direction-progress",
        TITLE,
        f"Each of the {sum(map(len, chosen.kept)):,} points is one question at one update: its initial slope A and its "
        "full-step gain ΔU, in nats, on symmetric-log axes that all panels share. "
        + " ".join(MEANINGS[outcome] for outcome in reversed(_present(chosen.kept))),
        figure,
        {"panels": [_described(updates) for updates in chosen.kept]},
        records.inputs(),
        chosen.notes,
    )


def _described(updates: Updates) -> dict[str, Any]:
    counts = {outcome.label: int((updates.outcome == outcome).sum()) for outcome in Outcome}
    return {"condition": str(updates.condition), "records": len(updates), "outcomes": counts, "ids": updates.ids}


def _draw(groups: tuple[Updates, ...]) -> Figure:
    columns = _columns(groups)
    rows = -(-len(groups) // columns)
    width = drawing().width
    figure = Figure(figsize=(width, 0.55 + rows * min((width / columns) * 0.98, TALLEST_PANEL)), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    threshold = symlog_threshold(*(values for group in groups for values in (group.slope, group.gain)))
    limit = max(float(np.abs(values).max()) for group in groups for values in (group.slope, group.gain))
    limit = max(limit, threshold) * 1.6
    flat = list(grid.flat)
    names = names_of([group.condition for group in groups])
    for axes, group, name in zip(flat, groups, names, strict=False):
        _panel(axes, group, threshold, limit, most=2 if width / columns > NARROWEST_LABELS else 1)
        # Model and task on lines of their own: a panel is narrower than both together.
        model = literal(group.condition.model_title)
        stacked = name.replace(f"{model} ", f"{model}\n", 1)
        axes.set_title(stacked, fontsize=7, linespacing=1.05)
    for axes in flat[len(groups) :]:
        axes.set_visible(False)
    for row in range(rows):
        grid[row, 0].set_ylabel(r"Full-step gain $\Delta U$")
    for index in range(columns):
        below = [axes for axes in grid[:, index] if axes.get_visible()][-1]
        below.set_xlabel(r"Initial slope $A$")
        below.tick_params(labelbottom=True)
    model = shared_model([group.condition for group in groups])
    figure.legend(
        handles=_handles(groups),
        title=model or None,
        loc="outside upper center",
        ncols=2 if drawing().narrow else 4,
        columnspacing=1.2,
    )
    return figure


def _columns(groups: tuple[Updates, ...]) -> int:
    """One row per task or per model where all have equally many panels, as in the paper's matrix; else what fits."""
    conditions = [group.condition for group in groups]
    most = COLUMNS[drawing().columns]
    for rows in (
        Counter((condition.model_title, condition.evaluation_set) for condition in conditions),
        Counter(condition.model_title for condition in conditions),
    ):
        counts = set(rows.values())
        if len(rows) > 1 and len(counts) == 1 and 1 < max(counts) <= most + (not drawing().narrow):
            return counts.pop()
    if drawing().narrow and len(groups) > MOST_NARROW:
        most = COLUMNS["one"] + 1
    return min(most, len(groups))


def _panel(axes: Axes, updates: Updates, threshold: float, limit: float, most: int) -> None:
    size = 2.6 if len(updates) <= 3000 else 1.5
    for outcome in DRAWN:
        inside = updates.outcome == outcome
        axes.plot(
            updates.slope[inside],
            updates.gain[inside],
            linestyle="none",
            marker=OUTCOME_MARKERS[outcome],
            color=OUTCOME_COLOURS[outcome],
            markersize=(1.7 if OUTCOME_MARKERS[outcome] == "." else 1.0) * size,
            markeredgewidth=0.5 if outcome is Outcome.NEUTRAL else 0,
            alpha=0.75 if len(updates) <= 3000 else 0.5,
            # Thousands of vector markers make a PDF slow to open; axes and text stay vectors.
            rasterized=len(updates) > 3000,
        )
    ticks = symlog_ticks(threshold, limit, most)
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("symlog", linthresh=threshold, linscale=0.6)
        axis.set_ticks(ticks)
        axis.set_ticks([], minor=True)
    axes.set_xlim(-limit, limit)
    axes.set_ylim(-limit, limit)
    axes.set_aspect("equal", adjustable="box")
    axes.axhline(0, color=BLACK, linewidth=0.4, zorder=0)
    axes.axvline(0, color=BLACK, linewidth=0.4, zorder=0)


def _present(groups: tuple[Updates, ...]) -> list[Outcome]:
    return [outcome for outcome in Outcome if any((group.outcome == outcome).any() for group in groups)]


def _handles(groups: tuple[Updates, ...]) -> list[Line2D]:
    return [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=OUTCOME_MARKERS[outcome],
            color=OUTCOME_COLOURS[outcome],
            markersize=8 if OUTCOME_MARKERS[outcome] == "." else 5,
            markeredgewidth=0.8 if outcome is Outcome.NEUTRAL else 0,
            label=outcome.label,
        )
        for outcome in reversed(_present(groups))
    ]
