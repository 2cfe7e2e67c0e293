"""Tables as aligned plain text for terminals and logs, and as Markdown."""

from __future__ import annotations

from loopscope.studies.render.dialect import PlainDialect
from loopscope.studies.render.sheet import Sheet, groups, sheets
from loopscope.studies.result import Column, Row, TableResult

GAP = "  "


def as_text(result: TableResult[Row]) -> str:
    """The whole table with title, panels and notes."""
    parts = [result.title]
    for sheet in sheets(result, PlainDialect()):
        if sheet.title:
            parts.append(f"\n{sheet.title}")
        parts.append(_grid(sheet))
    parts += [f"note: {note}" for note in result.notes]
    return "\n".join(parts)


def _grid(sheet: Sheet) -> str:
    stacks = [column.head.splitlines() for column in sheet.columns]
    height = max(len(stack) for stack in stacks)
    heads = [[""] * (height - len(stack)) + stack for stack in stacks]
    widths = [
        max(len(cell) for cell in (*head, *(line[index] for line in sheet.lines))) for index, head in enumerate(heads)
    ]
    # A spanning head may be wider than what it spans: widen its last column.
    start = 0
    for group, width in groups(sheet.columns):
        spanned = sum(widths[start : start + width]) + len(GAP) * (width - 1)
        widths[start + width - 1] += max(0, len(group) - spanned)
        start += width
    rule = "─" * (sum(widths) + len(GAP) * (len(widths) - 1))
    lines = [rule]
    if any(column.group for column in sheet.columns):
        lines.append(_group_line(sheet, widths))
    lines += [_line([head[level] for head in heads], sheet, widths) for level in range(height)]
    lines.append(rule)
    lines += [_line(list(cells), sheet, widths) for cells in sheet.lines] or ["—  (no records)"]
    return "\n".join(line.rstrip() for line in [*lines, rule])


def _line(cells: list[str], sheet: Sheet, widths: list[int]) -> str:
    padded = (
        cell.ljust(width) if column.text else cell.rjust(width)
        for cell, width, column in zip(cells, widths, sheet.columns, strict=True)
    )
    return GAP.join(padded)


def _group_line(sheet: Sheet, widths: list[int]) -> str:
    parts, start = [], 0
    for group, width in groups(sheet.columns):
        spanned = sum(widths[start : start + width]) + len(GAP) * (width - 1)
        parts.append(group.center(spanned))
        start += width
    return GAP.join(parts)


def as_markdown(result: TableResult[Row]) -> str:
    """The whole table with a bold title, panels and notes."""
    parts = [f"**{_escape(result.title)}.** {_escape(result.caption)}"]
    for sheet in sheets(result, PlainDialect()):
        if sheet.title:
            parts.append(f"*{_escape(sheet.title)}*")
        parts.append(_markdown_grid(sheet))
    if result.notes:
        parts.append("\n".join(f"- {_escape(note)}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def _markdown_grid(sheet: Sheet) -> str:
    heads = [_escape(_head(column)) for column in sheet.columns]
    rules = [":---" if column.text else "---:" for column in sheet.columns]
    body = sheet.lines or (("—",) + ("",) * (len(heads) - 1),)
    return "\n".join(_markdown_line(cells) for cells in (heads, rules, *([_escape(c) for c in line] for line in body)))


def _head(column: Column) -> str:
    head = column.head.replace("\n", " ")
    return f"{column.group}: {head}" if column.group else head


def _markdown_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Text that cannot break out of a cell or become markup."""
    text = " ".join(text.split())
    for character in "\\`*_<>|":
        text = text.replace(character, f"\\{character}")
    return text
