"""Utility over cost: fixed depths as a line, rules and scales as points, ceilings as levels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from loopscope.stats import Bootstrap
from loopscope.studies.declare import Row, TableResult
from loopscope.studies.figures.style import (
    BLACK,
    GREY,
    SMALLEST_TYPE,
    FigureResult,
    Picture,
    drawing,
    figure,
    literal,
    series,
)
from loopscope.studies.records import Records
from loopscope.studies.tables.control import control as control_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES: Any = ("--", ":", "-.", (0, (6, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (6, 3)), (0, (1, 3)), (0, (8, 2)))
"""How the levels of the ceilings are told apart."""
_NEAR = 1.2
"""Fixed depths further below the best than this share of the drawn range are left out, so that rules can be seen."""


@figure(
    "control",
    "Utility over cost",
    paper="app:geometry-adaptive",
    summary="utility over cost, with ceilings",
    needs="--trace",
)
def control(records: Records, bootstrap: Bootstrap) -> Picture | str:
    """One panel per model and task with a trace."""
    return _picture(control_table.table(records, bootstrap))


def draw(table: TableResult, records: Records) -> FigureResult:
    """The figure of a finished table."""
    return control.drawn(_picture(table), records)


def _picture(table: TableResult) -> Picture | str:
    panels: dict[str, list[Row]] = {}
    for row in table.rows:
        panels.setdefault(str(row.condition), []).append(row)
    if not panels:
        return table.notes[-1]
    rules = list(dict.fromkeys(row.key for row in table.rows if row["kind"] in ("rule", "scale")))
    ceilings = list(dict.fromkeys(row.key for row in table.rows if row["kind"] == "ceiling"))
    columns = 2 if drawing().narrow else 4

    def fill(figure: Figure) -> None:
        places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (title, rows) in zip(places, panels.items(), strict=True):
            _panel(axes, rows, rules, ceilings)
            axes.set_title(literal(title))
        named = {name: line for axes in places for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named, loc="outside lower center", ncols=columns, fontsize=SMALLEST_TYPE)

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
    legend = 0.16 * ((len(rules) + len(ceilings)) // columns + 2)
    return Picture(2.3 * len(panels) + legend, fill, caption, {"panels": described}, table.notes)


def _panel(axes: Axes, rows: list[Row], names: list[str], ceilings: list[str]) -> None:
    """One model and task; a rule has the same mark in every panel."""
    depths = [row for row in rows if row["kind"] == "depth"]
    costs = [row["cost"] for row in depths]
    axes.plot(costs, [_mean(row) for row in depths], color=BLACK, marker=".", label="fixed depths")
    drawn = [row for row in rows if row.key in names]
    for row in drawn:
        look = series(names.index(row.key))
        axes.plot(row["cost"], _mean(row), linestyle="none", markersize=4, label=literal(row.key), **look)
    for row in rows:
        if row.key in ceilings:
            dashes = _DASHES[ceilings.index(row.key) % len(_DASHES)]
            axes.axhline(_mean(row), color=GREY, linewidth=0.8, linestyle=dashes, label=literal(row.key))
    lowest, highest = min(map(_mean, drawn or depths)), max(map(_mean, rows))
    axes.set_ylim(lowest - (_NEAR - 1) * (highest - lowest) - 1e-6, highest + 0.05 * (highest - lowest) + 1e-6)
    axes.set_xlabel("Cost (loops)")
    axes.set_ylabel("Mean utility")


def _mean(row: Row) -> float:
    value = row["utility"].value
    return float("nan") if value is None else float(value)
