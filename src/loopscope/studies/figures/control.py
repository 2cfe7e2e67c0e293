"""Utility over cost, with rules as points and ceilings as levels; and the fitted scale of every update over depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loopscope.stats import Bootstrap
from loopscope.studies.declare import Row, TableResult
from loopscope.studies.figures import style
from loopscope.studies.figures.style import BLACK, BLUE, GREY, SKY, SMALLEST_TYPE, VERMILLION, Picture, literal
from loopscope.studies.records import Records
from loopscope.studies.tables.control import control as control_table
from loopscope.studies.tables.control import fitted_scale as fitted_scale_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES: Any = ("--", ":", "-.", (0, (6, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (6, 3)), (0, (1, 3)), (0, (8, 2)))
"""How the levels of the ceilings are distinguished."""


@style.figure(
    "control",
    "Utility over cost",
    paper="app:geometry-adaptive",
    summary="utility over cost, with ceilings",
    needs="--trace",
)
def control(records: Records, bootstrap: Bootstrap) -> Picture | str:
    """One panel per model and task with a trace."""
    return control_picture(control_table.table(records, bootstrap))


def control_picture(table: TableResult) -> Picture | str:
    """The picture of a finished table."""
    panels: dict[str, list[Row]] = {}
    for row in table.rows:
        panels.setdefault(str(row.condition), []).append(row)
    if not panels:
        return table.notes[-1]
    rules = list(dict.fromkeys(row.key for row in table.rows if row["kind"] in ("rule", "scale")))
    ceilings = list(dict.fromkeys(row.key for row in table.rows if row["kind"] == "ceiling"))

    def draw(figure: Figure) -> None:
        places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (title, rows) in zip(places, panels.items(), strict=True):
            _panel(axes, rows, rules, ceilings)
            axes.set_title(literal(title))
        named = {name: line for axes in places for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named, loc="outside lower center", ncols=4, fontsize=SMALLEST_TYPE)

    described = [
        {
            "condition": title,
            "policies": [
                {"name": row.key, "kind": row["kind"], "utility": row["utility"].value}
                | {name: row[name] if math.isfinite(row[name]) else None for name in ("cost", "loops")}
                for row in rows
            ],
        }
        for title, rows in panels.items()
    ]
    caption = (
        "Mean reference utility over mean cost in loops, checks of the logits included. The line joins fixed depths; "
        "points are rules fitted to one cost on train questions; dashed levels are oracles that know the reference."
    )
    height = 2.3 * len(panels) + 0.16 * ((len(rules) + len(ceilings)) // 4 + 2)
    return Picture(height, draw, caption, {"panels": described}, table.notes)


def _panel(axes: Axes, rows: list[Row], names: list[str], ceilings: list[str]) -> None:
    """One model and task; a rule has the same mark in every panel."""
    depths = [row for row in rows if row["kind"] == "depth"]
    costs = [row["cost"] for row in depths]
    axes.plot(costs, [_mean(row) for row in depths], color=BLACK, marker=".", label="fixed depths")
    drawn = [row for row in rows if row.key in names]
    for row in drawn:
        look = style.series(names.index(row.key))
        axes.plot(row["cost"], _mean(row), linestyle="none", markersize=4, label=literal(row.key), **look)
    for row in rows:
        if row.key in ceilings:
            dashes = _DASHES[ceilings.index(row.key) % len(_DASHES)]
            axes.axhline(_mean(row), color=GREY, linewidth=0.8, linestyle=dashes, label=literal(row.key))
    # Fixed depths far below the rules are left out, so that rules can be seen.
    lowest, highest = min(map(_mean, drawn or depths)), max(map(_mean, rows))
    axes.set_ylim(lowest - 0.2 * (highest - lowest) - 1e-6, highest + 0.05 * (highest - lowest) + 1e-6)
    axes.set_xlabel("Cost (loops)")
    axes.set_ylabel("Mean utility")


def _mean(row: Row) -> float:
    value = row["utility"].value
    return float("nan") if value is None else float(value)


@style.figure(
    "fitted-scale",
    "Fitted scale of every update",
    paper="app:geometry-adaptive",
    summary="the fitted scale over depth, with its gain and a temperature's",
    needs="--scales-to",
)
def fitted_scale(records: Records, bootstrap: Bootstrap) -> Picture | str:
    """One column of two panels per model and task."""
    return scales_picture(fitted_scale_table.table(records, bootstrap))


def scales_picture(table: TableResult) -> Picture | str:
    """The picture of a finished table: scales above, gains below."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        groups.setdefault(f"{row.condition.model_title}\n{row.condition.set_title}", []).append(row)
    if not groups:
        return table.notes[-1] if table.notes else "no line of logits was measured"

    def draw(figure: Figure) -> None:
        scale_panels(figure, {title: (rows, rows[0]["trained_depth"]) for title, rows in groups.items()})

    caption = (
        "Above: the scale of the update k > R that has the best mean utility on train questions. A scale above 1 says "
        "that the update is too short. Below: what it gains on test questions over the fixed depth R, next to a "
        "temperature alone. Bars are 95% intervals by question; the dotted line is the trained depth."
    )
    return Picture(3.4, draw, caption, {"rows": table.to_polars().to_dicts()}, table.notes)


_KINDS: dict[str, dict[str, Any]] = {
    "one loop": {"color": VERMILLION, "marker": "o", "label": "update of one loop, R−1 > R"},
    "chord": {"color": SKY, "marker": "s", "label": "longer chords k > R", "linestyle": "none"},
    "temperature": {"color": GREY, "marker": "^", "label": "temperature alone", "linestyle": "--"},
    "next": {"color": BLUE, "marker": "x", "label": "one more loop", "linestyle": "none"},
}


def scale_panels(figure: Figure, groups: dict[str, tuple[Sequence[Any], int | None]]) -> None:
    """Scales above, gains below, one column for each group of rows, which are given with the trained depth.

    A row has `kind`, `reference`, `depth` and the estimates `fitted`, `gain` and `next_loop`.
    """
    grid = figure.subplots(2, len(groups), squeeze=False, sharex="col", sharey="row")
    for (title, (rows, trained)), above, below in zip(groups.items(), *grid, strict=True):
        lines = [row for row in rows if row["kind"] in ("path", "chord")]
        kind = "path" if any(row["kind"] == "path" for row in lines) else "chord"
        lines = [row for row in lines if row["kind"] == kind]
        drawn = {
            "chord": [row for row in lines if row["depth"] - row["reference"] > 1],
            "temperature": [row for row in rows if row["kind"] == "temperature" and row["depth"] > 1],
            "one loop": [row for row in lines if row["depth"] - row["reference"] == 1],
        }
        for name, chosen in drawn.items():
            _bars(above, chosen, "fitted", name)
            _bars(below, chosen, "gain", name, 1e-3)
        _bars(below, drawn["one loop"], "next_loop", "next", 1e-3)
        above.axhline(1, color=BLACK, linewidth=0.6)
        below.axhline(0, color=BLACK, linewidth=0.6)
        for axes in (above, below):
            if trained is not None:
                axes.axvline(trained, color=BLACK, linewidth=0.8, linestyle=":")
        above.set_title(literal(title))
        below.set_yscale("symlog", linthresh=1)
        below.set_xlabel("Loops R")
        below.xaxis.get_major_locator().set_params(integer=True)
    grid[0][0].set_ylabel("Fitted scale 1 + ω")
    grid[1][0].set_ylabel("Gain (1e-3 nats)")
    handles = grid[1][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4 if len(groups) > 3 else 2, fontsize=SMALLEST_TYPE)


def _bars(axes: Axes, rows: Sequence[Any], name: str, look: str, per: float = 1.0) -> None:
    """Estimates with their intervals over the depth."""
    known = [row for row in rows if row[name] is not None]
    style.bars(axes, [row["depth"] for row in known], [row[name] for row in known], _KINDS[look], per)
