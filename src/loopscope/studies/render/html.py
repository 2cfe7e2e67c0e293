"""Tables as notebooks show them."""

from __future__ import annotations

from loopscope.display import SOFT, Markup, element, html_table
from loopscope.studies.render.dialect import PlainDialect
from loopscope.studies.render.sheet import Sheet, groups, sheets
from loopscope.studies.result import Row, TableResult

MOST_LINES = 60
"""Lines of a panel that are shown; a comparison with the paper has hundreds."""


def as_html(result: TableResult[Row]) -> str:
    """The whole table with title, caption, panels and notes."""
    parts = [element("p", element("strong", f"{result.title}."), " ", element("span", result.caption, style=SOFT))]
    for sheet in sheets(result, PlainDialect()):
        if sheet.title:
            parts.append(element("p", element("em", sheet.title)))
        parts.append(_grid(sheet))
        if len(sheet.lines) > MOST_LINES:
            parts.append(element("p", f"… and {len(sheet.lines) - MOST_LINES} more lines", style=SOFT))
    parts += [element("p", f"note: {note}", style=SOFT) for note in result.notes]
    return element("div", *parts)


def _grid(sheet: Sheet) -> Markup:
    above = Markup()
    if any(column.group for column in sheet.columns):
        spans = groups(sheet.columns)
        above = element(
            "tr", *(element("th", group, colspan=width, style="text-align:center") for group, width in spans)
        )
    return html_table(
        [column.head.replace("\n", " ") for column in sheet.columns],
        sheet.lines[:MOST_LINES] or [("—",) + ("",) * (len(sheet.columns) - 1)],
        words=[column.text for column in sheet.columns],
        above=above,
    )
