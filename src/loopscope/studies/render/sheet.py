"""The printed grid of a panel: heads and cells as strings, the same for text, Markdown and LaTeX."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from loopscope.studies.render.dialect import Dialect
from loopscope.studies.result import Column, Panel, Row, TableResult

MEASURES_ACROSS = 6
"""How many columns of numbers stand side by side: the paper's widest such table."""


@dataclass(frozen=True)
class Sheet:
    """One panel, ready to be laid out."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[Row | None, ...], ...] = ()
    """The row behind each cell; None where a cell belongs to several rows, or to none."""


def sheets(result: TableResult[Row], dialect: Dialect) -> list[Sheet]:
    """All panels of a table."""
    found: list[Sheet] = []
    for panel in result.panels:
        found += _pivoted(result, panel, dialect) if panel.across else [_plain(result, panel, dialect)]
    return found


def _plain(result: TableResult[Row], panel: Panel, dialect: Dialect) -> Sheet:
    lines = tuple(tuple(_cell(result, row, column, dialect) for column in panel.columns) for row in result.rows)
    return Sheet(panel.title, panel.columns, lines, tuple((row,) * len(panel.columns) for row in result.rows))


def _pivoted(result: TableResult[Row], panel: Panel, dialect: Dialect) -> list[Sheet]:
    """Values of `panel.across` side by side; rows that agree in the text columns become one line.

    What does not fit beside each other goes below, in sheets of its own.
    """
    leads = tuple(column for column in panel.columns if column.text)
    measures = tuple(column for column in panel.columns if not column.text)
    rows = result.rows
    leading = [tuple(_cell(result, row, column, dialect) for column in leads) for row in rows]
    sides = [str(row.value(panel.across)) for row in rows]
    if len(set(zip(leading, sides, strict=True))) < len(rows):
        # Two runs of one condition: name the run, or one would hide the other.
        sides = [f"{side} ({row.condition.run})" for side, row in zip(sides, rows, strict=True)]
    heads = list(dict.fromkeys(sides))
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for lead, side, row in zip(leading, sides, rows, strict=True):
        lines.setdefault(lead, {})[side] = row
    width = max(1, MEASURES_ACROSS // max(len(measures), 1))
    return [
        _side_by_side(result, panel, dialect, leads, measures, heads[start : start + width], lines)
        for start in range(0, max(len(heads), 1), width)
    ]


def _side_by_side(
    result: TableResult[Row],
    panel: Panel,
    dialect: Dialect,
    leads: tuple[Column, ...],
    measures: tuple[Column, ...],
    heads: list[str],
    lines: dict[tuple[str, ...], dict[str, Row]],
) -> Sheet:
    columns = leads + tuple(_beside(measure, head, len(measures) > 1) for head in heads for measure in measures)
    kept = [(lead, found) for lead, found in lines.items() if any(head in found for head in heads)]
    body = tuple(
        lead
        + tuple(
            _cell(result, found[head], measure, dialect) if head in found else dialect.dash
            for head in heads
            for measure in measures
        )
        for lead, found in kept
    )
    behind = tuple(
        (None,) * len(leads) + tuple(found.get(head) for head in heads for _ in measures) for _, found in kept
    )
    return Sheet(panel.title, columns, body, behind)


def _beside(measure: Column, head: str, grouped: bool) -> Column:
    return replace(measure, group=head) if grouped else replace(measure, head=head, latex="", group="")


def _cell(result: TableResult[Row], row: Row, column: Column, dialect: Dialect) -> str:
    if column.fields == ("key",):
        return dialect.text(result.key_title(row.key))
    values = [row.value(path) for path in column.fields]
    written = [dialect.cell(value, style) for value, style in zip(values, column.styles, strict=True)]
    if all(part == dialect.dash for part in written):
        return dialect.dash
    return dialect.weave(column.template, written)


def groups(columns: tuple[Column, ...]) -> Iterator[tuple[str, int]]:
    """Spanning heads from left to right with their widths; empty where a column has none."""
    start = 0
    while start < len(columns):
        end = start + 1
        while columns[start].group and end < len(columns) and columns[end].group == columns[start].group:
            end += 1
        yield columns[start].group, end - start
        start = end
