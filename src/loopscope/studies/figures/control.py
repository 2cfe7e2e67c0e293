"""Utility over cost: fixed depths as a line, rules and scales as points, ceilings as levels."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loopscope.stats import Bootstrap
from loopscope.studies.figures.style import (
    BLACK,
    GREY,
    SERIES_COLOURS,
    SERIES_MARKERS,
    SMALLEST_TYPE,
    FigureResult,
    drawing,
    empty_figure,
    literal,
    paper_style,
)
from loopscope.studies.records import Records
from loopscope.studies.result import TableResult
from loopscope.studies.tables.control import ControlRow
from loopscope.studies.tables.control import control as control_table
from loopscope.studies.usable_conditions import Selection

TITLE = "Utility over cost"
_DASHES = ("--", ":", "-.", (0, (6, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (6, 3)), (0, (1, 3)), (0, (8, 2, 1, 2)))
"""How the levels of the ceilings are told apart."""
_NEAR = 1.2
"""Fixed depths further below the best than this share of the drawn range are left out, so that rules can be seen."""


def control(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """One panel per model and task with a trace."""
    return draw(control_table(records, bootstrap), records)


def draw(table: TableResult[ControlRow], records: Records) -> FigureResult:
    """The figure of a finished table."""
    panels: dict[str, list[ControlRow]] = {}
    for row in table.rows:
        panels.setdefault(str(row.condition), []).append(row)
    if not panels:
        return empty_figure("control", TITLE, records, Selection((), table.notes[-1:]))
    rules = list(dict.fromkeys(row.key for row in table.rows if row.kind in ("rule", "scale")))
    ceilings = list(dict.fromkeys(row.key for row in table.rows if row.kind == "ceiling"))
    columns = 2 if drawing().narrow else 4
    legend = 0.16 * ((len(rules) + len(ceilings)) // columns + 2)
    with paper_style():
        height = 2.3 * len(panels) + legend
        figure = Figure(figsize=(drawing().width, height), layout="constrained")
        places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (title, rows) in zip(places, panels.items(), strict=True):
            _panel(axes, rows, rules, ceilings)
            axes.set_title(literal(title))
        named = {name: line for axes in places for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named, loc="outside lower center", ncols=columns, fontsize=SMALLEST_TYPE)
    return FigureResult(
        "control",
        TITLE,
        "Mean reference utility over mean cost in loops, checks of the logits included. The line joins fixed depths; "
        "points are rules fitted to one cost on train questions; dashed levels are oracles that know the reference.",
        figure,
        {"panels": [_described(title, rows) for title, rows in panels.items()]},
        records.inputs(),
        table.notes,
    )


def _panel(axes: Axes, rows: list[ControlRow], names: list[str], ceiling_names: list[str]) -> None:
    """One model and task; a rule has the same mark in every panel."""
    depths = [row for row in rows if row.kind == "depth"]
    rules = [row for row in rows if row.kind in ("rule", "scale")]
    ceilings = [row for row in rows if row.kind == "ceiling"]
    axes.plot(
        [row.cost for row in depths], [_mean(row) for row in depths], color=BLACK, marker=".", label="fixed depths"
    )
    for row in rules:
        index = names.index(row.key)
        axes.plot(
            row.cost,
            _mean(row),
            linestyle="none",
            color=SERIES_COLOURS[index % len(SERIES_COLOURS)],
            marker=SERIES_MARKERS[index // len(SERIES_COLOURS) % len(SERIES_MARKERS)],
            markersize=4,
            label=literal(row.key),
        )
    for row in ceilings:
        dashes = _DASHES[ceiling_names.index(row.key) % len(_DASHES)]
        axes.axhline(_mean(row), color=GREY, linewidth=0.8, linestyle=dashes, label=literal(row.key))
    lowest = min(map(_mean, rules), default=min(map(_mean, depths)))
    highest = max(map(_mean, rows))
    axes.set_ylim(lowest - (_NEAR - 1) * (highest - lowest) - 1e-6, highest + 0.05 * (highest - lowest) + 1e-6)
    axes.set_xlabel("Cost (loops)")
    axes.set_ylabel("Mean utility")


def _mean(row: ControlRow) -> float:
    return row.utility.value if row.utility.value is not None else float("nan")


def _described(title: str, rows: list[ControlRow]) -> dict[str, Any]:
    return {
        "condition": title,
        "policies": [
            {"name": row.key, "kind": row.kind, "utility": row.utility.value}
            | {"cost": _finite(row.cost), "loops": _finite(row.loops)}
            for row in rows
        ],
    }


def _finite(number: float) -> float | None:
    """None for what a ceiling does not have."""
    return number if math.isfinite(number) else None
