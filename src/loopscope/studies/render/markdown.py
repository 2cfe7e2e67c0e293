"""Markdown pipe tables."""

from loopscope.studies.render.dialect import PlainDialect
from loopscope.studies.render.sheet import Sheet, sheets
from loopscope.studies.result import Column, Row, TableResult


def render(result: TableResult[Row]) -> str:
    """The whole table with a bold title, panels and notes."""
    parts = [f"**{_escape(result.title)}.** {_escape(result.caption)}"]
    for sheet in sheets(result, PlainDialect()):
        if sheet.title:
            parts.append(f"*{_escape(sheet.title)}*")
        parts.append(_grid(sheet))
    if result.notes:
        parts.append("\n".join(f"- {_escape(note)}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def _grid(sheet: Sheet) -> str:
    heads = [_escape(_head(column)) for column in sheet.columns]
    rules = [":---" if column.text else "---:" for column in sheet.columns]
    body = sheet.lines or (("—",) + ("",) * (len(heads) - 1),)
    return "\n".join(_line(cells) for cells in (heads, rules, *([_escape(c) for c in line] for line in body)))


def _head(column: Column) -> str:
    head = column.head.replace("\n", " ")
    return f"{column.group}: {head}" if column.group else head


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Text that cannot break out of a cell or become markup."""
    text = " ".join(text.split())
    for character in "\\`*_<>|":
        text = text.replace(character, f"\\{character}")
    return text
