"""Reference utility over recurrent depth with the first confirmed decline marked: Appendix E.1."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from loopscope.stats import Bootstrap, Mean
from loopscope.studies.figures.style import (
    BLACK,
    SERIES_COLOURS,
    SERIES_MARKERS,
    TEXT_WIDTH,
    FigureResult,
    empty_figure,
    literal,
    paper_style,
)
from loopscope.studies.records import DepthSweep, Records
from loopscope.studies.tables.depth_coverage import RunningBest, running_best
from loopscope.studies.usable_conditions import Selection, no_depths, notes_on

TITLE = "Utility over recurrent depth"
COLUMNS = 3
LOGARITHMIC = 16
"""Depths beyond this are drawn on a logarithmic axis."""
RING: Any = {"marker": "o", "markerfacecolor": "none", "markersize": 7.0, "markeredgewidth": 1.0, "linestyle": "none"}
DECLINE: Any = {"marker": "v", "markersize": 4.0, "markeredgewidth": 0.0, "linestyle": "none"}


def depth_curves(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """One panel per evaluation set, one line per model."""
    if not records.sweeps:
        return empty_figure("depth-curves", TITLE, records, Selection((), (no_depths(records),)))
    settings = bootstrap or Bootstrap()
    panels: dict[str, list[DepthSweep]] = {}
    for sweep in records.sweeps:
        panels.setdefault(sweep.condition.set_title, []).append(sweep)
    declines = {id(sweep): running_best(sweep, settings) for sweep in records.sweeps}
    with paper_style():
        figure = _draw(panels, declines, settings)
    return FigureResult(
        "depth-curves",
        TITLE,
        "Mean reference utility with 95% question-bootstrap bands. Rings mark the best evaluated depth; triangles, "
        "where there are any, mark the earliest running-best decrease whose paired interval lies below zero.",
        figure,
        {"panels": [_described(sweep, declines[id(sweep)]) for sweep in records.sweeps]},
        records.inputs(),
        notes_on(sweep.condition for sweep in records.sweeps),
    )


def _described(sweep: DepthSweep, pairs: list[RunningBest]) -> dict[str, Any]:
    return {
        "condition": str(sweep.condition),
        "depths": list(sweep.depths),
        "mean_utility": sweep.utility.mean(axis=0).tolist(),
        "running_best": [
            {
                "from": pair.reference,
                "to": pair.depth,
                "change": pair.change.value,
                "interval": [pair.change.interval.low, pair.change.interval.high] if pair.change.interval else None,
                "declines": pair.declines,
            }
            for pair in pairs
        ],
        "ids": list(sweep.ids),
    }


def _draw(panels: dict[str, list[DepthSweep]], declines: dict[int, list[RunningBest]], bootstrap: Bootstrap) -> Figure:
    columns = 2 if len(panels) in (2, 4) else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width = TEXT_WIDTH * max(columns, 2) / COLUMNS if columns < COLUMNS else TEXT_WIDTH
    figure = Figure(figsize=(width, 0.4 + 1.55 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    models = list(dict.fromkeys(_series(sweep) for sweeps in panels.values() for sweep in sweeps))
    looks = {model: index % len(SERIES_COLOURS) for index, model in enumerate(models)}
    for axes, (title, sweeps) in zip(grid.flat, panels.items(), strict=False):
        for sweep in sweeps:
            _line(axes, sweep, declines[id(sweep)], looks[_series(sweep)], bootstrap)
        axes.set_title(literal(title))
        # Rings and triangles stand above the highest point.
        axes.margins(y=0.12)
        depth_axis(axes, sorted({depth for sweep in sweeps for depth in sweep.depths}))
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for row in range(rows):
        grid[row, 0].set_ylabel("Mean utility")
    handles = [
        Line2D([], [], color=SERIES_COLOURS[look], marker=SERIES_MARKERS[look], markersize=3.5, label=literal(model))
        for model, look in looks.items()
    ]
    handles.append(Line2D([], [], color=BLACK, label="best depth", **RING))
    if any(pair.declines for pairs in declines.values() for pair in pairs):
        handles.append(Line2D([], [], color=BLACK, label="first decline", **DECLINE))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))
    return figure


def _series(sweep: DepthSweep) -> str:
    return sweep.condition.model_title


def _line(axes: Axes, sweep: DepthSweep, pairs: list[RunningBest], look: int, bootstrap: Bootstrap) -> None:
    means = sweep.utility.mean(axis=0)
    estimates = bootstrap.estimate({index: Mean(sweep.utility[:, index]) for index in range(len(sweep.depths))})
    colour, marker = SERIES_COLOURS[look], SERIES_MARKERS[look]
    low = [e.interval.low if e.interval else mean for e, mean in zip(estimates.values(), means, strict=True)]
    high = [e.interval.high if e.interval else mean for e, mean in zip(estimates.values(), means, strict=True)]
    axes.fill_between(sweep.depths, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(sweep.depths, means, color=colour, marker=marker, markersize=2.8)
    best = int(np.argmax(means))
    axes.plot(sweep.depths[best], means[best], zorder=4, **RING, markeredgecolor=colour)
    first = next((pair for pair in pairs if pair.declines), None)
    if first is not None:
        at = dict(zip(sweep.depths, means, strict=True))
        # Above the line: the point itself may lie under those of other models.
        axes.annotate(
            "▼",
            (first.depth, at[first.depth]),
            (0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            color=colour,
            fontsize=6,
            fontfamily="DejaVu Sans",
            zorder=5,
        )


def depth_axis(axes: Axes, depths: list[int]) -> None:
    """Loops along the x axis, with ticks at depths that were measured."""
    axes.set_xlabel("Depth (loops)")
    if depths[-1] > LOGARITHMIC:
        axes.set_xscale("log", base=2)
        ticks = [depth for depth in depths if depth & (depth - 1) == 0]
    else:
        ticks = depths if len(depths) <= 9 else depths[:: -(-len(depths) // 8)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [str(depth) for depth in ticks])
