"""Quarter-step recovery: Figure "fig:contraction", Section 4.4."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loopscope.path import Outcome
from loopscope.stats import Bootstrap, Estimate
from loopscope.store import Level
from loopscope.studies.figures.style import (
    BLACK,
    GREY,
    OUTCOME_COLOURS,
    FigureResult,
    drawing,
    empty_figure,
    names_of,
    panel_letter,
    paper_style,
    shared_model,
    symlog_threshold,
    symlog_ticks,
)
from loopscope.studies.records import Records
from loopscope.studies.render.csv_json import row_dict
from loopscope.studies.tables.interventions import ContractionRow
from loopscope.studies.tables.interventions import contraction as contraction_table
from loopscope.studies.usable_conditions import select

TITLE = "Quarter-step recovery"


def contraction(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """One line per condition; a condition without failures keeps its line and a dash."""
    chosen = select(records, "grid_gain", level=Level.GRID)
    table = contraction_table(records, bootstrap)
    if not any(row.failures for row in table.rows):
        return empty_figure("contraction", TITLE, records, chosen, "no finite-step failure in these runs")
    with paper_style():
        figure = _draw(table.rows)
    ids = {
        str(updates.condition): [updates.ids[index] for index in np.flatnonzero(updates.finite_step)]
        for updates in chosen.kept
    }
    return FigureResult(
        "contraction",
        TITLE,
        _caption(table.rows, (bootstrap or Bootstrap()).level),
        figure,
        {"rows": [row_dict(row) for row in table.rows], "failures": ids},
        records.inputs(),
        table.notes,
    )


def _caption(rows: tuple[ContractionRow, ...], level: float) -> str:
    without = sum(not row.failures for row in rows)
    return (
        "Each update uses one quarter of its proposed displacement along the same direction. (a) Share of finite-step "
        "failures whose utility gain is then positive, with recovered/total counts: "
        f"{sum(row.recovered for row in rows)} of {sum(row.failures for row in rows)} in all. (b) Mean gain over the "
        "same failures, unrecovered ones included, in nats on a symmetric-log axis. "
        f"Lines are {100 * level:g}% intervals over the failures."
        + (f" A dash: no finite-step failure ({without} of {len(rows)} conditions)." if without else "")
    )


def _draw(rows: tuple[ContractionRow, ...]) -> Figure:
    narrow = drawing().narrow
    height = 0.75 + 0.2 * len(rows)
    figure = Figure(figsize=(drawing().width, (2 if narrow else 1) * height), layout="constrained")
    left, right = figure.subplots(*((2, 1) if narrow else (1, 2)), sharey=True)
    for place, row in enumerate(rows):
        colour = OUTCOME_COLOURS[Outcome.FINITE_STEP_FAILURE]
        if not row.failures:
            left.text(0.5, place, "—", ha="center", va="center", transform=left.get_yaxis_transform(), color=GREY)
            continue
        _bar(left, place, row.recovery, 100.0, colour)
        left.annotate(
            f"{row.recovered}/{row.failures}",
            (1.0, place),
            (2, 0),
            xycoords=left.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
            annotation_clip=False,
        )
        _bar(right, place, row.mean_gain, 1.0, colour)
    left.set_yticks(range(len(rows)), names_of([row.condition for row in rows]))
    left.set_ylim(len(rows) - 0.4, -0.6)
    left.set_xlim(-4, 104)
    left.set_xlabel("Recovered (%)")
    panel_letter(left, "a", shared_model([row.condition for row in rows]))
    _gain_axis(right, rows)
    panel_letter(right, "b", "" if not narrow else "Gain of the quarter step")
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.4)
        axes.set_axisbelow(True)
    return figure


def _gain_axis(axes: Axes, rows: tuple[ContractionRow, ...]) -> None:
    ends = [
        end
        for row in rows
        if row.mean_gain.value is not None
        for end in (
            [row.mean_gain.value, row.mean_gain.interval.low, row.mean_gain.interval.high]
            if row.mean_gain.interval
            else [row.mean_gain.value]
        )
    ]
    threshold = symlog_threshold(np.array([row.mean_gain.value or 0.0 for row in rows]))
    limit = max(max(abs(end) for end in ends), threshold) * 1.5
    axes.set_xscale("symlog", linthresh=threshold, linscale=0.6)
    axes.axvline(0, color=BLACK, linewidth=0.5)
    # Recovery is about positive gains: give the negative side only the space that it needs.
    axes.set_xlim(min(min(ends) * 1.5, -0.5 * threshold), limit)
    axes.set_xticks(symlog_ticks(threshold, limit))
    axes.set_xticks([], minor=True)
    axes.set_xlim(min(min(ends) * 1.5, -0.5 * threshold), limit)
    axes.set_xlabel("Mean utility gain")


def _bar(axes: Axes, place: float, estimate: Estimate, factor: float, colour: str) -> None:
    if estimate.value is None:
        return
    value = estimate.value * factor
    if estimate.interval is not None:
        low, high = estimate.interval.low * factor, estimate.interval.high * factor
        axes.plot([low, high], [place, place], color=colour, linewidth=1.0, solid_capstyle="butt")
    axes.plot(value, place, "o", color=colour, markersize=4)
