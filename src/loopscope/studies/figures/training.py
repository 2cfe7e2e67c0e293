"""A training in steps, drawn from the table: outcomes, what makes the gain, gains of all updates, the best depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loopscope.stats import Bootstrap
from loopscope.studies.declare import Row
from loopscope.studies.figures import style
from loopscope.studies.records import Records
from loopscope.studies.tables.runs import OUTCOMES
from loopscope.studies.tables.runs import training as training_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TERMS: dict[str, dict[str, Any]] = {
    "slope": {"color": style.SERIES_COLOURS[0], "marker": "^", "label": "$A$"},
    "accumulated_curvature": {"color": style.SERIES_COLOURS[1], "marker": "v", "label": r"$\Delta U-A$"},
    "gain": {"color": style.BLACK, "marker": "o", "label": r"$\Delta U$"},
}
WIDE_RANGE = 5.0
"""Steps whose middle one lies below this part of the last are drawn on a logarithmic axis."""
MOST_NAMED = 6
"""Updates that the legend of panel (c) names."""


@style.figure(
    "training",
    "A training in steps",
    paper="fig:training",
    summary="outcomes, gains and best depth over a training",
    needs="several steps",
)
def training(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """Four panels of the first training and evaluation set; the table has all of them."""
    table = training_table.table(records, bootstrap)
    if not table.rows:
        return table.notes[-1]
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        groups.setdefault(f"{row['series']} · {row.condition.set_title}", []).append(row)
    (name, rows), *others = groups.items()
    more = tuple(f"not drawn: {other} (the table training has it)" for other, _ in others)
    caption = (
        f"{name}. (a) Outcomes of the update {_leading(rows)[0].condition.update} over the steps of the training, as "
        "shares of all questions. (b) Its mean gain ΔU, which is the slope A plus the accumulated curvature ΔU−A. "
        "(c) Mean gain of every measured update. (d) The depth with the highest mean utility. Bars and bands are "
        f"{100 * bootstrap.level:g}% intervals over questions."
    )
    shown = {"rows": table.to_polars().to_dicts()}
    return style.Picture(3.9, lambda figure: _draw(figure, name, rows), caption, shown, table.notes + more)


def _leading(rows: Sequence[Row]) -> list[Row]:
    """The update to look at first: the one out of the trained depth, else the last one below it, else the first."""
    trained = rows[0]["trained_depth"]
    known = sorted({row.condition.transition or 0 for row in rows})
    below = [transition for transition in known if trained is None or transition <= trained]
    chosen = below[-1] if below else known[0]
    return [row for row in rows if row.condition.transition == chosen]


def _draw(figure: Figure, name: str, rows: list[Row]) -> None:
    grid, leading = figure.subplots(2, 2, sharex=True), _leading(rows)
    update, steps = leading[0].condition.update, sorted({row["step"] for row in rows})
    _outcomes(grid[0, 0], leading)
    for term, look in TERMS.items():
        _line(grid[0, 1], leading, term, look)
    by_update: dict[str, list[Row]] = {}
    for row in rows:
        by_update.setdefault(row.condition.update, []).append(row)
    for place, (label, some) in enumerate(by_update.items()):
        named = place % -(-len(by_update) // MOST_NAMED) == 0
        _line(grid[1, 0], some, "gain", style.series(place) | {"label": label if named else ""})
    best = {"color": style.ORANGE, "marker": "o", "markersize": 4}
    style.bars(grid[1, 1], [row["step"] for row in leading], [row["best_depth"] for row in leading], best)
    titles = (f"outcomes of {update}", f"gain of {update}", "gain of every update", "best depth")
    for letter, title, axes in zip("abcd", titles, grid.flat, strict=True):
        style.panel_letter(axes, letter, title)
    for axes in (grid[0, 1], grid[1, 0]):
        axes.axhline(0, color=style.BLACK, linewidth=0.6)
        axes.set_ylabel("Nats")
    for axes in (grid[0, 0], grid[0, 1], grid[1, 0]):
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6.5, handletextpad=0.4)
    grid[1, 1].set_ylabel("Depth (loops)")
    grid[1, 1].set_ylim(bottom=0)
    grid[1, 1].yaxis.get_major_locator().set_params(integer=True)
    for axes in grid[1]:
        _step_axis(axes, steps)
        axes.set_xlabel("Training step")
    figure.suptitle(style.literal(name), fontsize=8)


def _outcomes(axes: Axes, rows: list[Row]) -> None:
    steps = [row["step"] for row in rows]
    shares = [[100 * (row[name].value or 0.0) for row in rows] for name in OUTCOMES]
    drawn = [(outcome, share) for outcome, share in zip(OUTCOMES.values(), shares, strict=True) if any(share)]
    axes.stackplot(
        steps,
        *(share for _, share in drawn),
        labels=[outcome.label for outcome, _ in drawn],
        colors=[style.OUTCOMES[outcome]["color"] for outcome, _ in drawn],
        alpha=0.75,
        linewidth=0,
    )
    look = {"color": style.BLACK, "linestyle": "none", "markersize": 2}
    style.bars(axes, steps, [row["finite_step"] for row in rows], look, per=0.01)
    axes.set_ylim(0, 100)
    axes.set_ylabel("Questions (%)")


def _line(axes: Axes, rows: list[Row], name: str, look: dict[str, Any]) -> None:
    style.band(axes, [row["step"] for row in rows], [row[name] for row in rows], look)


def _step_axis(axes: Axes, steps: list[int]) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    if len(steps) > 2 and WIDE_RANGE * steps[len(steps) // 2] < steps[-1]:
        axes.set_xscale("symlog", linthresh=float(steps[0] or steps[1]))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
