"""Models compared: finite-step share against sign accuracy, one point per run and task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopscope.stats import Bootstrap
from loopscope.studies.declare import Row
from loopscope.studies.figures import style
from loopscope.studies.records import Records
from loopscope.studies.tables.families import families as families_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMED = 14
"""Topologies in the legend; series have as many looks in a row."""


@style.figure(
    "families",
    "Models compared",
    paper="fig:families",
    summary="finite-step share against sign accuracy, by topology",
    needs="quick",
)
def families(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """A colour for each topology; a model whose family records none has its family's name."""
    table = families_table.table(records, bootstrap)
    if not table.rows:
        return table.notes[-1]
    if len(table.rows) == 1:
        return "one run and one task: name several runs to compare them"
    columns = 1 if style.drawing().narrow else 2
    names = list(dict.fromkeys(map(_group, table.rows)))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row in table.rows:
            if row["share"].value is None:
                continue
            (left, right), (low, high) = style.ends(row["share"]), style.ends(row["sign_slope"])
            x, y, look = row["share"].value, row["sign_slope"].value, style.series(names.index(_group(row)))
            axes.plot([100 * left, 100 * right], [100 * y] * 2, color=look["color"], linewidth=0.7, alpha=0.5)
            axes.plot([100 * x] * 2, [100 * low, 100 * high], color=look["color"], linewidth=0.7, alpha=0.5)
            axes.plot(100 * x, 100 * y, linestyle="none", markersize=4.5, **look)
        axes.set(xlim=(-4, 104), ylim=(-4, 104))
        axes.set_xlabel("Finite-step failures among harmful updates (%)")
        axes.set_ylabel("Sign accuracy of the slope (%)")
        looks = [
            style.handle(style.series(place), label=style.literal(name), linestyle="none")
            for place, name in enumerate(names)
        ]
        figure.legend(handles=looks[:MOST_NAMED], loc="outside lower center", ncols=columns)

    harmless = sum(row["share"].value is None for row in table.rows)
    caption = (
        "Share of finite-step failures among harmful updates, and how often the slope has the sign of the full-step "
        f"gain; a point is a run and task, a colour a topology. Lines are {100 * bootstrap.level:g}% intervals over "
        "questions." + (f" {harmless} without a harmful update are not drawn." if harmless else "")
    )
    height = 2.6 + 0.16 * -(-min(len(names), MOST_NAMED) // columns)
    return style.Picture(height, draw, caption, {"rows": table.to_polars().to_dicts()}, table.notes)


def _group(row: Row) -> str:
    return str(row["topology"] or row.condition.family)
