"""booktabs tables with the paper's column heads; needs the packages booktabs and makecell."""

from loopscope.studies.render.dialect import LatexDialect, escape, escape_head
from loopscope.studies.render.sheet import Sheet, groups, sheets
from loopscope.studies.result import Column, Row, TableResult


def render(result: TableResult[Row]) -> str:
    """A complete table environment."""
    lines = [
        "% Needs \\usepackage{booktabs,makecell}.",
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{\textbf{{{escape(result.title)}.}} {escape(result.caption)}}}",
        rf"\label{{{result.label}}}",
        r"\small",
    ]
    for sheet in sheets(result, LatexDialect()):
        lines += _tabular(sheet)
    lines += [rf"\par\footnotesize {escape(note)}." for note in result.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _tabular(sheet: Sheet) -> list[str]:
    alignment = "".join("l" if column.text else "r" for column in sheet.columns)
    lines = [rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}", r"\toprule"]
    if sheet.title:
        lines.append(rf"\multicolumn{{{len(sheet.columns)}}}{{@{{}}l}}{{\textit{{{escape(sheet.title)}}}}} \\")
    lines += _heads(sheet)
    lines.append(r"\midrule")
    lines += _body(sheet)
    return [*lines, r"\bottomrule", r"\end{tabular}", ""]


def _heads(sheet: Sheet) -> list[str]:
    lines = []
    if any(column.group for column in sheet.columns):
        spans, rules, start = [], [], 1
        for group, width in groups(sheet.columns):
            spans.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_head(group)}}}" if group else "")
            if group:
                rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
            start += width
        lines += [" & ".join(spans) + r" \\", "".join(rules)]
    lines.append(" & ".join(_head(column) for column in sheet.columns) + r" \\")
    return lines


def _head(column: Column) -> str:
    if column.latex:
        return column.latex
    if "\n" in column.head:
        # An empty group keeps a following bracket from being read as the line break's optional argument.
        stacked = r"\\{}".join(escape_head(part) for part in column.head.splitlines())
        return rf"\makecell{{{stacked}}}"
    return escape_head(column.head)


def _body(sheet: Sheet) -> list[str]:
    """Rows, with a repeated model name left out and a little space before the next model, as the paper sets them."""
    grouped = sheet.columns[0].text and len({line[0] for line in sheet.lines}) < len(sheet.lines)
    lines: list[str] = []
    previous: str | None = None
    for first, *rest in sheet.lines:
        if grouped and lines and first != previous:
            lines.append(r"\addlinespace[3pt]")
        shown = "" if grouped and first == previous else first
        lines.append(" & ".join([shown, *rest]) + r" \\")
        previous = first
    return lines or ["---" + " &" * (len(sheet.columns) - 1) + r" \\"]
