"""What the model would say, loop by loop: how often it is right, and how often a loop makes it right or wrong."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from loopscope.stats import Bootstrap, Estimate
from loopscope.studies.figures.depth_curves import depth_axis
from loopscope.studies.figures.style import (
    BLACK,
    SERIES_COLOURS,
    FigureResult,
    drawing,
    empty_figure,
    literal,
    names_of,
    paper_style,
    shared_model,
)
from loopscope.studies.records import Records
from loopscope.studies.tables.flips import FlipRow, flips_of
from loopscope.studies.trace_rows import TraceRows, no_trace, trace_rows
from loopscope.studies.usable_conditions import Selection, notes_on

TITLE = "What the model would say, loop by loop"
COLUMNS = {"one": 2, "two": 3}
SERIES: dict[str, dict[str, Any]] = {
    "wrong_to_right": {"color": SERIES_COLOURS[0], "marker": "^", "label": "wrong to right"},
    "right_to_wrong": {"color": SERIES_COLOURS[1], "marker": "v", "label": "right to wrong"},
    "flipped": {"color": BLACK, "marker": "o", "linestyle": ":", "label": "all flips"},
}


def flips(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """Two panels per evaluation set: the share that is right after each loop, and what each loop flipped."""
    traced = list(trace_rows(records))
    if not traced:
        return empty_figure("flips", TITLE, records, Selection((), (no_trace(records),)))
    rows = [flips_of(one, bootstrap) for one in traced]
    conditions = [one.condition for one in traced]
    with paper_style():
        figure = _draw(rows, names_of(conditions), shared_model(conditions))
    return FigureResult(
        "flips",
        TITLE,
        "Above: reference positions at which the likeliest token is the reference. Below: positions at which a loop "
        "makes the likeliest token another one. "
        f"Bands are {100 * (bootstrap or Bootstrap()).level:g}% question-bootstrap intervals.",
        figure,
        {"panels": [_described(one, found) for one, found in zip(traced, rows, strict=True)]},
        records.inputs(),
        notes_on(conditions),
    )


def _described(traced: TraceRows, rows: list[FlipRow]) -> dict[str, Any]:
    names = ("right", *SERIES)
    return {
        "condition": str(traced.condition),
        "depths": [_depth(row) for row in rows],
        "positions": len(traced.row_P),
        **{name: [row.value(name).value for row in rows] for name in names},  # type: ignore[union-attr]
    }


def _depth(row: FlipRow) -> int:
    assert row.condition.transition is not None
    return row.condition.transition + 1


def _draw(sets: list[list[FlipRow]], names: list[str], model: str) -> Figure:
    columns = min(COLUMNS[drawing().columns], len(sets))
    blocks = -(-len(sets) // columns)
    figure = Figure(figsize=(drawing().width, 0.5 + 2.6 * blocks), layout="constrained")
    grid = figure.subplots(2 * blocks, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for index, (rows, name) in enumerate(zip(sets, names, strict=True)):
        block, place = divmod(index, columns)
        above, below = grid[2 * block, place], grid[2 * block + 1, place]
        depths = [_depth(row) for row in rows]
        for axes in (above, below):
            axes.set_visible(True)
            depth_axis(axes, depths)
        above.set_xlabel("")
        above.set_title(name or literal(model))
        _line(above, depths, [row.right for row in rows], color=BLACK, marker="o")
        for field, look in SERIES.items():
            _line(below, depths, [getattr(row, field) for row in rows], **look)
        below.set_ylim(bottom=0)
        if not place:
            above.set_ylabel("Right (%)")
            below.set_ylabel("Positions (%)")
    handles = [Line2D([], [], markersize=3.5, **look) for look in SERIES.values()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), title=model or None)
    return figure


def _line(axes: Axes, depths: list[int], estimates: list[Estimate], **look: Any) -> None:
    values = [100 * (estimate.value or 0.0) for estimate in estimates]
    ends = [
        (100 * estimate.interval.low, 100 * estimate.interval.high) if estimate.interval else (value, value)
        for estimate, value in zip(estimates, values, strict=True)
    ]
    low, high = zip(*ends, strict=True)
    axes.fill_between(depths, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(depths, values, markersize=2.8, **{key: value for key, value in look.items() if key != "label"})
