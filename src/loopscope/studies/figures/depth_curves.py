"""Reference utility over recurrent depth with the first confirmed decline marked: Appendix E.1."""

from typing import Any, NamedTuple

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
    FigureResult,
    drawing,
    empty_figure,
    literal,
    paper_style,
)
from loopscope.studies.records import DepthSweep, Floats, Records
from loopscope.studies.tables.depth_coverage import RunningBest, running_best
from loopscope.studies.usable_conditions import Selection, no_depths, notes_on

TITLE = "Utility over recurrent depth"
COLUMNS = {"one": 2, "two": 3}
LOGARITHMIC = 16
"""Depths beyond this are drawn on a logarithmic axis."""
RING: Any = {"marker": "o", "markerfacecolor": "none", "markersize": 7.0, "markeredgewidth": 1.0, "linestyle": "none"}
DECLINE: Any = {
    "marker": "v",
    "markersize": 5.5,
    "markeredgewidth": 0.6,
    "markeredgecolor": "white",
    "linestyle": "none",
}
SMALL = 0.5
"""Where the later depths span less than this part of the whole range, the panel shows their range."""


def depth_curves(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """One panel per evaluation set, one line per model."""
    if not records.sweeps:
        return empty_figure("depth-curves", TITLE, records, Selection((), (no_depths(records),)))
    settings = bootstrap or Bootstrap()
    panels: dict[str, list[DepthSweep]] = {}
    for sweep in records.sweeps:
        panels.setdefault(sweep.condition.set_title, []).append(sweep)
    declines = {id(sweep): running_best(sweep, settings) for sweep in records.sweeps}
    bands = {id(sweep): _band(sweep, settings) for sweep in records.sweeps}
    with paper_style():
        figure = _draw(panels, declines, bands)
    return FigureResult(
        "depth-curves",
        TITLE,
        _caption(panels, declines, bands, settings.level),
        figure,
        {"panels": [_described(sweep, declines[id(sweep)]) for sweep in records.sweeps]},
        records.inputs(),
        notes_on(sweep.condition for sweep in records.sweeps),
    )


class Band(NamedTuple):
    """Mean utility and its interval at every depth of a sweep."""

    mean: Floats
    low: Floats
    high: Floats


Bands = dict[int, Band]
"""By the identity of their sweep."""


def _band(sweep: DepthSweep, bootstrap: Bootstrap) -> Band:
    means = sweep.utility.mean(axis=0)
    estimates = bootstrap.estimate({index: Mean(sweep.utility[:, index]) for index in range(len(sweep.depths))})
    ends = [
        (e.interval.low, e.interval.high) if e.interval else (m, m)
        for e, m in zip(estimates.values(), means, strict=True)
    ]
    return Band(means, *np.array(ends).T)


def _caption(
    panels: dict[str, list[DepthSweep]], declines: dict[int, list[RunningBest]], bands: Bands, level: float
) -> str:
    """Only what is drawn is explained."""
    said = [f"Mean reference utility, in nats, with {100 * level:g}% question-bootstrap bands.", "Rings: best depth."]
    if any(pair.declines for pairs in declines.values() for pair in pairs):
        said.append("Triangles: earliest running-best decrease whose paired interval lies below zero.")
    if any(_first_shown(sweeps, bands) is not None for sweeps in panels.values()):
        said.append("Means below a panel's range stand at its lower edge as numbers, with their depths.")
    return " ".join(said)


def _first_shown(sweeps: list[DepthSweep], bands: Bands) -> int | None:
    """The first depth whose range a panel shows, where the ones before it would flatten all others; None: all.

    Every sweep has at least three depths from there on: a range of one model alone would push the others out.
    """

    def span(first: int) -> float:
        low, high = _range(sweeps, bands, first)
        return high - low

    depths = sorted({depth for sweep in sweeps for depth in sweep.depths})
    last = min(max(sorted(sweep.depths)[:-2], default=0) for sweep in sweeps)
    later = [depth for depth in depths[1:] if depth <= last]
    return next((depth for depth in later if span(depth) < SMALL * span(depths[0])), None)


def _range(sweeps: list[DepthSweep], bands: Bands, first: int) -> tuple[float, float]:
    """The lowest and the highest end of an interval from a depth on."""
    kept = [(bands[id(sweep)], np.array(sweep.depths) >= first) for sweep in sweeps]
    inside = [(band.low[later].min(), band.high[later].max()) for band, later in kept if later.any()]
    return float(min(low for low, _ in inside)), float(max(high for _, high in inside))


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


def _draw(panels: dict[str, list[DepthSweep]], declines: dict[int, list[RunningBest]], bands: Bands) -> Figure:
    most = COLUMNS[drawing().columns]
    columns = 2 if len(panels) in (2, 4) else min(most, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(drawing().width, 0.5 + 1.75 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    models = list(dict.fromkeys(_series(sweep) for sweeps in panels.values() for sweep in sweeps))
    looks = {model: index % len(SERIES_COLOURS) for index, model in enumerate(models)}
    for axes, (title, sweeps) in zip(grid.flat, panels.items(), strict=False):
        for sweep in sweeps:
            _line(axes, sweep, declines[id(sweep)], looks[_series(sweep)], bands[id(sweep)])
        axes.set_title(literal(title))
        # Rings and triangles stand above the highest point.
        axes.margins(y=0.12)
        _show_later(axes, sweeps, bands, {id(sweep): looks[_series(sweep)] for sweep in sweeps})
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
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 2 if drawing().narrow else 5))
    return figure


def _series(sweep: DepthSweep) -> str:
    return sweep.condition.model_title


def _line(axes: Axes, sweep: DepthSweep, pairs: list[RunningBest], look: int, band: Band) -> None:
    means = band.mean
    colour, marker = SERIES_COLOURS[look], SERIES_MARKERS[look]
    axes.fill_between(sweep.depths, band.low, band.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(sweep.depths, means, color=colour, marker=marker, markersize=2.8)
    best = int(np.argmax(means))
    axes.plot(sweep.depths[best], means[best], zorder=4, **RING, markeredgecolor=colour)
    first = next((pair for pair in pairs if pair.declines), None)
    if first is not None:
        at = dict(zip(sweep.depths, means, strict=True))
        # On the point itself: beside it, a mark belongs to no depth that can be read off.
        axes.plot(first.depth, at[first.depth], color=colour, zorder=5, **DECLINE)


def _show_later(axes: Axes, sweeps: list[DepthSweep], bands: Bands, looks: dict[int, int]) -> None:
    """The range of the later depths where earlier ones would flatten them; what lies below it is named."""
    first = _first_shown(sweeps, bands)
    if first is None:
        return
    low, high = _range(sweeps, bands, first)
    low, high = low - (0.1 + 0.1 * len(sweeps)) * (high - low), high + 0.08 * (high - low)
    axes.set_ylim(low, high)
    for line, sweep in enumerate(sweeps):
        means = zip(sweep.depths, bands[id(sweep)].mean.tolist(), strict=True)
        below = [f"{value:.2f} at {depth}".replace("-", "−") for depth, value in means if value < low]
        if below:
            axes.annotate(
                f"below: {', '.join(below)}",
                (0.98, 0.02),
                (0, 8 * line),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="right",
                color=SERIES_COLOURS[looks[id(sweep)]],
                fontsize=6.5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
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
