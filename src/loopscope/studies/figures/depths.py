"""Over recurrent depth: mean utility with the first confirmed decline (Appendix E.1), and what each loop flips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store.schema import ends_of
from loopscope.studies.declare import Row, rows_of
from loopscope.studies.figures import style
from loopscope.studies.populations import no_depths, no_trace, notes_on
from loopscope.studies.records import DepthSweep, Records
from loopscope.studies.tables.depths import Change, running_best
from loopscope.studies.tables.tokens import FLIPS
from loopscope.studies.tables.tokens import flips as flips_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RING: Any = {"marker": "o", "markerfacecolor": "none", "markersize": 7.0, "markeredgewidth": 1.0, "linestyle": "none"}
DECLINE: Any = {
    **{"marker": "v", "markersize": 5.5, "markeredgewidth": 0.6, "markeredgecolor": "white", "linestyle": "none"}
}
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

    def reach(self, first: int) -> tuple[float, float]:
        """The lowest and the highest end of an interval from a depth on."""
        kept = [style.ends(mean) for mean, depth in zip(self.means, self.sweep.depths, strict=True) if depth >= first]
        return min(low for low, _ in kept), max(high for _, high in kept)


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
        f"Mean reference utility, in nats, with {100 * bootstrap.level:g}% question-bootstrap bands.",
        "Rings: best depth.",
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
            "running_best": [
                {
                    "from": pair.reference,
                    "to": pair.depth,
                    "change": pair.change.value,
                    "interval": style.ends(pair.change),
                    "declines": pair.declines,
                }
                for pair in curve.pairs
            ],
            "ids": list(curve.sweep.ids),
        }
        for curve in every
    ]
    most = 2 if style.drawing().narrow else 3
    columns = 2 if len(panels) in (2, 4) else min(most, len(panels))
    rows = -(-len(panels) // columns)
    notes = notes_on(sweep.condition for sweep in records.sweeps)
    return style.Picture(
        0.5 + 1.75 * rows,
        lambda figure: _curves(figure, panels, rows, columns),
        " ".join(said),
        {"panels": described},
        notes,
    )


def first_shown(curves: list[Curve]) -> int | None:
    """The first depth whose range a panel shows, where the ones before it would flatten all others; None: all.

    Every sweep has at least three depths from there on, and its best depth and its first decline are shown.
    """

    def span(first: int) -> float:
        low, high = zip(*(curve.reach(first) for curve in curves), strict=True)
        return float(max(high) - min(low))

    depths = sorted({depth for curve in curves for depth in curve.sweep.depths})
    kept = [max(sorted(curve.sweep.depths)[:-2], default=0) for curve in curves]
    kept += [curve.best for curve in curves]
    kept += [curve.decline.reference for curve in curves if curve.decline is not None]
    last = min(kept)
    return next((depth for depth in depths[1:] if depth <= last and span(depth) < SMALL * span(depths[0])), None)


def _curves(figure: Figure, panels: dict[str, list[Curve]], rows: int, columns: int) -> None:
    grid = figure.subplots(rows, columns, squeeze=False)
    every = [curve for curves in panels.values() for curve in curves]
    looks = {
        model: style.series(i) for i, model in enumerate(dict.fromkeys(c.sweep.condition.model_title for c in every))
    }
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        for curve in curves:
            _curve(axes, curve, looks[curve.sweep.condition.model_title])
        first = first_shown(curves)
        axes.set_title(style.literal(title) + (f", depth ≥ {first}" if first else ""))
        axes.margins(y=0.12)  # rings and triangles stand above the highest point
        depths = sorted({depth for curve in curves for depth in curve.sweep.depths})
        style.depth_axis(axes, depths)
        if first is not None:
            low, high = zip(*(curve.reach(first) for curve in curves), strict=True)
            margin = 0.1 * (max(high) - min(low))
            axes.set_ylim(min(low) - margin, max(high) + margin)
            axes.set_xlim(left=first - 0.3)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for row in range(rows):
        grid[row, 0].set_ylabel("Mean utility")
    handles = [style.handle(look, label=style.literal(model)) for model, look in looks.items()]
    handles.append(style.handle(RING, color=style.BLACK, label="best depth"))
    handles += (
        [style.handle(DECLINE, color=style.BLACK, label="first decline")]
        if any(curve.decline for curve in every)
        else []
    )
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(len(handles), 2 if style.drawing().narrow else 5)
    )


def _curve(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    style.band(axes, curve.sweep.depths, curve.means, look)
    at = dict(zip(curve.sweep.depths, (mean.value or 0.0 for mean in curve.means), strict=True))
    axes.plot(curve.best, at[curve.best], zorder=4, **RING, markeredgecolor=look["color"])
    if curve.decline is not None:
        # On the point itself: next to it, a mark belongs to no depth that can be read off.
        axes.plot(curve.decline.depth, at[curve.decline.depth], color=look["color"], zorder=5, **DECLINE)


FLIPPED: dict[str, dict[str, Any]] = {
    "wrong_to_right": {"color": style.SERIES_COLOURS[0], "marker": "^", "label": "wrong to right"},
    "right_to_wrong": {"color": style.SERIES_COLOURS[1], "marker": "v", "label": "right to wrong"},
    "flipped": {"color": style.BLACK, "marker": "o", "linestyle": ":", "label": "all flips"},
}


@style.figure(
    "flips",
    "What the model would say, loop by loop",
    paper="fig:flips",
    summary="share right after each loop, and what each loop flipped",
    needs="--trace",
)
def flips(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """Two panels per evaluation set: the share that is right after each loop, and what each loop flipped."""
    sets = [rows_of(traced, flips_table.rows(traced, bootstrap), bootstrap) for traced in records.traces()]
    if not sets:
        return no_trace(records)
    conditions = [rows[0].condition for rows in sets]
    caption = (
        "Above: reference positions at which the likeliest token is the reference. Below: positions at which a loop "
        f"makes the likeliest token another one. Bands are {100 * bootstrap.level:g}% question-bootstrap intervals."
    )
    described = [
        {
            "condition": f"{rows[0].condition.model_title} {rows[0].condition.set_title}",
            "depths": _depths(rows),
            "positions": rows[0]["positions"],
            **{name: [row[name].value for row in rows] for name in FLIPS[:4]},
        }
        for rows in sets
    ]
    columns = min(2 if style.drawing().narrow else 3, len(sets))
    blocks = -(-len(sets) // columns)
    return style.Picture(
        0.5 + 2.6 * blocks,
        lambda figure: _flips(figure, sets, blocks, columns),
        caption,
        {"panels": described},
        notes_on(conditions),
    )


def _depths(rows: list[Row]) -> list[int]:
    return [ends_of(row.condition.transition or 0)[1] for row in rows]


def _flips(figure: Figure, sets: list[list[Row]], blocks: int, columns: int) -> None:
    grid = figure.subplots(2 * blocks, columns, squeeze=False)
    conditions = [rows[0].condition for rows in sets]
    model = style.shared_model(conditions)
    titles = [
        name.replace(condition.update, "").strip()
        for name, condition in zip(style.names_of(conditions), conditions, strict=True)
    ]
    for axes in grid.flat:
        axes.set_visible(False)
    for index, (rows, title) in enumerate(zip(sets, titles, strict=True)):
        block, place = divmod(index, columns)
        above, below = grid[2 * block, place], grid[2 * block + 1, place]
        for axes in (above, below):
            axes.set_visible(True)
            style.depth_axis(axes, _depths(rows))
        above.set_xlabel("")
        above.set_title(title or style.literal(model))
        style.band(
            above, _depths(rows), [row["right"] for row in rows], {"color": style.BLACK, "marker": "o"}, per=0.01
        )
        for name, look in FLIPPED.items():
            style.band(below, _depths(rows), [row[name] for row in rows], {**look, "label": ""}, per=0.01)
        below.set_ylim(bottom=0)
        if not place:
            above.set_ylabel("Right (%)")
            below.set_ylabel("Positions (%)")
    handles = [style.handle(look) for look in FLIPPED.values()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), title=model or None)
