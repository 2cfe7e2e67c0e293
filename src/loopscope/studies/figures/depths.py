"""Mean utility over recurrent depth with the first confirmed decline (Appendix E.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.figures import style
from loopscope.studies.populations import no_depths, notes_on
from loopscope.studies.records import DepthSweep, Records
from loopscope.studies.tables.depths import Change, running_best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RING: Any = {"marker": "o", "markerfacecolor": "none", "markersize": 7.0, "markeredgewidth": 1.0, "linestyle": "none"}
DECLINE: Any = {"marker": "v", "markersize": 5.5, "markeredgewidth": 0.6, "markeredgecolor": "white", "linestyle": ""}
SMALL = 0.5
"""Where the later depths span less than this part of the whole range, the panel shows their range."""


class Curve(NamedTuple):
    """Mean utility at every depth of a sweep, and the best depth so far against each."""

    sweep: DepthSweep
    means: list[Estimate]
    pairs: list[Change]

    @property
    def decline(self) -> Change | None:
        """The earliest confirmed decline."""
        return next((pair for pair in self.pairs if pair.declines), None)

    @property
    def best(self) -> int:
        """The depth with the highest mean, the smallest of equals."""
        at = zip(self.sweep.depths, (mean.value or 0.0 for mean in self.means), strict=True)
        return max(at, key=lambda pair: (pair[1], -pair[0]))[0]


@style.figure(
    "depth-curves",
    "Utility over recurrent depth",
    paper="app:exp-coverage",
    summary="utility over depth, declines marked",
    needs="quick",
)
def depth_curves(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """One panel per evaluation set, one line per model."""
    if not records.sweeps:
        return no_depths(records)
    panels: dict[str, list[Curve]] = {}
    for sweep in records.sweeps:
        means = bootstrap.estimate({place: Mean(column) for place, column in enumerate(sweep.utility.T)})
        curve = Curve(sweep, list(means.values()), running_best(sweep, bootstrap))
        panels.setdefault(sweep.condition.set_title, []).append(curve)
    every = [curve for curves in panels.values() for curve in curves]
    said = [
        f"Mean reference utility, in nats, with {100 * bootstrap.level:g}% question-bootstrap bands. Rings: best depth."
    ]
    if any(curve.decline for curve in every):
        said.append("Triangles: earliest running-best decrease whose paired interval lies below zero.")
    if any(first_shown(curves) is not None for curves in panels.values()):
        said.append("A panel whose title says from which depth on it is drawn leaves out lower means before it.")
    described = [
        {
            "condition": str(curve.sweep.condition),
            "depths": list(curve.sweep.depths),
            "mean_utility": [mean.value for mean in curve.means],
            "declines": [[pair.reference, pair.depth] for pair in curve.pairs if pair.declines],
            "ids": list(curve.sweep.ids),
        }
        for curve in every
    ]
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: Figure) -> None:
        _curves(figure, panels, rows, columns)

    notes = notes_on(sweep.condition for sweep in records.sweeps)
    return style.Picture(0.5 + 1.75 * rows, draw, " ".join(said), {"panels": described}, notes)


def _range(curves: list[Curve], first: int) -> tuple[float, float]:
    """The lowest and the highest end of an interval from a depth on."""
    kept = [
        style.ends(mean)
        for curve in curves
        for mean, depth in zip(curve.means, curve.sweep.depths, strict=True)
        if depth >= first
    ]
    return min(low for low, _ in kept), max(high for _, high in kept)


def first_shown(curves: list[Curve]) -> int | None:
    """The first depth whose range a panel shows, where the ones before it would flatten all others; None: all.

    Every sweep has at least three depths from there on, and its best depth and its first decline are shown.
    """

    def span(first: int) -> float:
        low, high = _range(curves, first)
        return high - low

    depths = sorted({depth for curve in curves for depth in curve.sweep.depths})
    kept = [max(sorted(curve.sweep.depths)[:-2], default=0) for curve in curves]
    kept += [curve.best for curve in curves]
    kept += [curve.decline.reference for curve in curves if curve.decline is not None]
    last = min(kept)
    return next((depth for depth in depths[1:] if depth <= last and span(depth) < SMALL * span(depths[0])), None)


def _curves(figure: Figure, panels: dict[str, list[Curve]], rows: int, columns: int) -> None:
    grid = figure.subplots(rows, columns, squeeze=False)
    every = [curve for curves in panels.values() for curve in curves]
    models = list(dict.fromkeys(curve.sweep.condition.model_title for curve in every))
    looks = {model: style.series(place) for place, model in enumerate(models)}
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        for curve in curves:
            _curve(axes, curve, looks[curve.sweep.condition.model_title])
        first = first_shown(curves)
        axes.set_title(style.literal(title) + (f", depth ≥ {first}" if first else ""))
        axes.margins(y=0.12)  # rings and triangles stand above the highest point
        style.depth_axis(axes, sorted({depth for curve in curves for depth in curve.sweep.depths}))
        if first is not None:
            low, high = _range(curves, first)
            axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
            axes.set_xlim(left=first - 0.3)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for row in range(rows):
        grid[row, 0].set_ylabel("Mean utility")
    handles = [style.handle(look, label=style.literal(model)) for model, look in looks.items()]
    handles.append(style.handle(RING, color=style.BLACK, label="best depth"))
    if any(curve.decline for curve in every):
        handles.append(style.handle(DECLINE, color=style.BLACK, label="first decline"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))


def _curve(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    style.band(axes, curve.sweep.depths, curve.means, look)
    at = dict(zip(curve.sweep.depths, (mean.value or 0.0 for mean in curve.means), strict=True))
    axes.plot(curve.best, at[curve.best], zorder=4, **RING, markeredgecolor=look["color"])
    if curve.decline is not None:
        # On the point itself: next to it, a mark belongs to no depth that can be read off.
        axes.plot(curve.decline.depth, at[curve.decline.depth], color=look["color"], zorder=5, **DECLINE)
