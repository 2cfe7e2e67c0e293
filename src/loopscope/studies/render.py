"""One printed grid for every format: numbers as text, then plain text, Markdown and LaTeX from the same cells.

LaTeX is booktabs with the paper's heads; all text is escaped, so any name compiles. The type is chosen by how many
characters a line has, a wide table is turned, and what is still too wide is scaled down. A long table continues in
further floats.
"""

from __future__ import annotations

import math
import re
import textwrap
import tomllib
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from loopscope.stats import Estimate
from loopscope.studies.conditions import printable, spelled
from loopscope.studies.declare import KEY, Column, Panel, Row, TableResult, Value

DASH = "—"  # an undefined number
MOST_DECIMALS = 8
MEASURES_ACROSS = 6  # columns of numbers side by side: the paper's widest such table
GAP = "  "
_SPEC = re.compile(r"(\+?)\.(\d+)([f%])")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

PACKAGES = "array,booktabs,graphicx,makecell,rotating"
# Characters of a line up to which a layout serves, its float, its type and its lines on a page.
LAYOUTS = ((104, "table", "small", 44), (118, "table", "footnotesize", 48), (0, "sidewaystable", "footnotesize", 26))
MOST_FLOATS = 12  # of a long table before LaTeX has to place them: it keeps no more than 52, of a whole document
NAME_LENGTH, NAME_WIDTH = 24, "1.5in"  # characters of a column of words after which it is wrapped, and its width then
HEAD_LENGTH = 16  # characters of a head's line before it is wrapped
LONGEST_WORD = 16  # letters of a word in a wrapped cell after which it may be broken
_LATEX = tomllib.loads((Path(__file__).parent / "latex.toml").read_text(encoding="utf-8"))
_MATH: dict[str, str] = _LATEX["heads"]
_ESCAPES: dict[str, str] = _LATEX["characters"]
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327", "`'^~=u.\"rHvc", strict=True)
)
_LIGATURES = re.compile(r"(?<=-)(?=-)|(?<=')(?=')|(?<=[`?!])(?=`)|(?<=,)(?=,)")
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]\d+)?"
_INTERVAL = re.compile(rf"({_NUMBER}) \[({_NUMBER}), ({_NUMBER})\]")
_FORMULA = re.compile(r"(?<![\w.])(?:[+-]\d+(?:\.\d+)?(?:e[+-]\d+)?|\d+(?:\.\d+)?e[+-]\d+)")


@dataclass(frozen=True)
class Sheet:
    """One panel, ready to be laid out."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[str, ...], ...]

    def keeping(self, kept: Sequence[int]) -> Sheet:
        """Some of the columns."""
        lines = tuple(tuple(line[index] for index in kept) for line in self.lines)
        return replace(self, columns=tuple(self.columns[index] for index in kept), lines=lines)


def sheets(result: TableResult) -> list[Sheet]:
    """All panels of a table."""
    found = []
    for panel in result.panels:
        lines = tuple(_line(result, row, panel.columns) for row in result.rows)
        found += _pivoted(result, panel) if panel.across else [Sheet(panel.title, panel.columns, lines)]
    return found


def number(value: Value, spec: str, per: float = 1.0, *, ci: bool = False) -> str:
    """A value as it is printed, with more decimals where fewer than two digits would show.

    The paper does the same where a mean is far below the others of its column.

    >>> number(0.1234, ".1%"), number(1.53e-7, ".3f", 1e-4), number(1e-15, ".3f"), number(None, ".2f")
    ('12.3', '0.00153', '1.00e-15', '—')
    """
    interval = value.interval if ci and isinstance(value, Estimate) else None
    if isinstance(value, Estimate):
        value = value.value
    if isinstance(value, str):
        return printable(value) or DASH
    if value is None or math.isnan(value):
        return DASH
    spec = legible(value / per, spec)
    written = _decimal(value / per, spec)
    if interval is None:
        return written
    low, high = (_decimal(end / per, spec.lstrip("+")) for end in (interval.low, interval.high))
    return f"{written} [{low}, {high}]"


def legible(value: float, spec: str) -> str:
    """The format with so many decimals that the value shows two digits; a power of ten where they are many."""
    match, size = _SPEC.fullmatch(spec), abs(value) * (100 if "%" in spec else 1)
    if match is None or not size or not math.isfinite(size) or size >= 10.0 ** (1 - int(match[2])):
        return spec
    needed = 2 - math.floor(math.log10(size))
    return f"{match[1]}.2e" if needed > MOST_DECIMALS else f"{match[1]}.{needed}{match[3]}"


def _decimal(value: float, spec: str) -> str:
    """Without a minus sign in front of nothing but zeros; per cent signs stand in the head."""
    if spec in ("", "+"):
        return f"{value:{spec}.0f}" if value % 1 == 0 else f"{value:{spec}g}"
    written = f"{value:{spec}}".rstrip("%")
    return written.replace("-", "", 1) if written.startswith("-") and not written.strip("-+0.") else written


def on_screen(cell: str) -> str:
    """A cell with true minus signs and powers of ten as raised digits.

    >>> on_screen("-1.53e-07 [-2, 3]"), on_screen("M (1e-3)"), on_screen("GSM8K-x")
    ('−1.53×10⁻⁷ [−2, 3]', 'M (10⁻³)', 'GSM8K-x')
    """
    cell = re.sub(r"\(1e(-?\d+)\)", lambda found: f"(10{found[1].translate(_RAISED)})", cell)
    cell = re.sub(r"(?<=\d)e([+-]\d+)", lambda found: f"×10{str(int(found[1])).translate(_RAISED)}", cell)
    return re.sub(r"(?<![\w-])-(?=\d)", "−", cell)


def _cell(result: TableResult, row: Row, column: Column) -> str:
    if column.cell == KEY:
        return printable(result.key_names.get(row.key, row.key))
    written = [
        (text, None if name is None else number(row[name], spec, column.per, ci=column.ci))
        for text, name, spec in column.parts
    ]
    if all(value in (None, DASH) for _, value in written):
        return DASH
    return "".join(text + (value or "") for text, value in written)


def _line(result: TableResult, row: Row, columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(_cell(result, row, column) for column in columns)


def _pivoted(result: TableResult, panel: Panel) -> list[Sheet]:
    """Values of `panel.across` side by side; rows that agree in the text columns become one line.

    What does not fit next to each other goes below, in sheets of its own.
    """
    leads, measures = (tuple(column for column in panel.columns if column.left is left) for left in (True, False))
    lines: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = defaultdict(dict)
    for row in result.rows:
        lines[_line(result, row, leads)][str(row[panel.across])] = _line(result, row, measures)
    heads = list(dict.fromkeys(str(row[panel.across]) for row in result.rows))
    width, dashes, found = max(1, MEASURES_ACROSS // max(len(measures), 1)), (DASH,) * len(measures), []
    for start in range(0, max(len(heads), 1), width):
        shown = heads[start : start + width]
        columns = leads + tuple(
            replace(measure, group=head) if len(measures) > 1 else replace(measure, head=head, group="")
            for head in shown
            for measure in measures
        )
        body = tuple(
            lead + tuple(cell for head in shown for cell in across.get(head, dashes))
            for lead, across in lines.items()
            if any(head in across for head in shown)
        )
        found.append(Sheet(panel.title, columns, body))
    return found


def groups(columns: Sequence[Column]) -> Iterator[tuple[str, int]]:
    """Spanning heads from left to right with their widths; empty where a column has none."""
    for head, each in groupby(enumerate(columns), key=lambda entry: entry[1].group or entry[0]):
        yield head if isinstance(head, str) else "", len(list(each))


def as_text(result: TableResult) -> str:
    """The whole table with title, panels and notes; columns without any number are left out."""
    parts = [result.title]
    for sheet in sheets(result) if result.rows else ():
        parts += [f"\n{sheet.title}"] if sheet.title else []
        left = [index for index, column in enumerate(sheet.columns) if column.left]
        filled = [index for index in range(len(sheet.columns)) if any(line[index] != DASH for line in sheet.lines)]
        kept = sorted({*left, *filled})
        parts.append(_grid(sheet if kept == left else sheet.keeping(kept)))
    return "\n".join([*parts, *(f"note: {note}" for note in result.notes)])


def _grid(sheet: Sheet) -> str:
    stacks = [column.head.splitlines() for column in sheet.columns]
    height = max(len(stack) for stack in stacks)
    heads = [[""] * (height - len(stack)) + stack for stack in stacks]
    widths = [
        max(len(cell) for cell in (*head, *(line[index] for line in sheet.lines))) for index, head in enumerate(heads)
    ]
    # A spanning head may be wider than what it spans: widen its last column.
    start, above = 0, []
    for group, width in groups(sheet.columns):
        spanned = sum(widths[start : start + width]) + len(GAP) * (width - 1)
        widths[start + width - 1] += max(0, len(group) - spanned)
        above.append(group.center(max(spanned, len(group))))
        start += width
    rule = "─" * (sum(widths) + len(GAP) * (len(widths) - 1))

    def line(cells: Sequence[str]) -> str:
        sides = (str.ljust if column.left else str.rjust for column in sheet.columns)
        return GAP.join(side(cell, width) for side, cell, width in zip(sides, cells, widths, strict=True))

    lines = [rule, *([GAP.join(above)] if any(column.group for column in sheet.columns) else [])]
    lines += [line([head[level] for head in heads]) for level in range(height)]
    return "\n".join(each.rstrip() for each in [*lines, rule, *map(line, sheet.lines), rule])


def as_markdown(result: TableResult) -> str:
    """The whole table with a bold title, panels and notes."""
    parts = [f"**{_markdown(result.title)}.** {_markdown(result.caption)}"]
    for sheet in sheets(result):
        parts += [f"*{_markdown(sheet.title)}*"] if sheet.title else []
        heads = [f"{column.group}: {column.head}" if column.group else column.head for column in sheet.columns]
        rules = [":---" if column.left else "---:" for column in sheet.columns]
        lines = [list(map(_markdown, heads)), rules, *([_markdown(cell) for cell in line] for line in _body(sheet))]
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    if result.notes:
        parts.append("\n".join(f"- {_markdown(note)}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def _body(sheet: Sheet) -> tuple[tuple[str, ...], ...]:
    return sheet.lines or ((DASH,) + ("",) * (len(sheet.columns) - 1),)


def _markdown(text: str) -> str:
    """Text that cannot break out of a cell or become markup."""
    return re.sub(r"([\\`*_<>|])", r"\\\1", " ".join(text.split()))


def latex_text(text: str, *, breakable: bool = False) -> str:
    r"""Text that LaTeX prints as it stands: no command, no ligature, no character that its fonts lack.

    >>> print(latex_text("50% of a_b → 1, |x|<é"))
    50\% of a\_b $\to$ 1, \textbar{}x\textbar{}\textless{}\'{e}
    """
    found = []
    for word in printable(text).split(" "):
        size = LONGEST_WORD // 2 if breakable and len(word) > LONGEST_WORD else max(len(word), 1)
        pieces = (word[start : start + size] for start in range(0, max(len(word), 1), size))
        written = (_LIGATURES.sub("{}", "".join(map(_letter, piece))) for piece in pieces)
        found.append(r"\penalty500\hspace{0pt}".join(written))
    return " ".join(found)


def _letter(character: str) -> str:
    if character in _ESCAPES or character.isascii():
        return _ESCAPES.get(character, character)
    decomposed = unicodedata.normalize("NFD", character)
    base, marks = decomposed[0], decomposed[1:]
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
        return f"\\{_ACCENTS[marks[0]]}{{{base}}}"
    return "".join(_ESCAPES.get(letter, letter) for letter in spelled(character))


def latex_cell(text: str) -> str:
    r"""A printed cell with numbers as mathematics.

    >>> print(latex_cell("-8.73 [-9.1, 2.0]"), latex_cell("1.747e-05"), latex_cell("132 → 179 (179)"), latex_cell("—"))
    $-8.73\;[-9.1,2.0]$ $1.747\times10^{-5}$ 132 $\to$ 179 (179) ---
    """
    if text == DASH:
        return "---"
    if match := _INTERVAL.fullmatch(text):
        value, low, high = map(_powers, match.groups())
        return f"${value}\\;[{low},{high}]$"
    pieces, start = [], 0
    for found in _FORMULA.finditer(text):
        pieces += [latex_text(text[start : found.start()]), f"${_powers(found[0])}$"]
        start = found.end()
    return "".join([*pieces, latex_text(text[start:])])


def _powers(number: str) -> str:
    mantissa, exponent, power = number.partition("e")
    return f"{mantissa}\\times10^{{{int(power)}}}" if exponent else number


def as_latex(result: TableResult) -> str:
    """One table environment, or several where one page does not hold it."""
    found = sheets(result)
    longest = max(_characters(sheet) for sheet in found)
    layout = next((layout for layout in LAYOUTS if longest <= layout[0]), LAYOUTS[-1])
    _, environment, size, room = layout
    left = room - len(result.caption) // 90 - sum(1 + len(note) // 90 for note in result.notes)
    floats: list[list[str]] = [[]]
    for sheet in found:
        start = 0
        while start < max(len(sheet.lines), 1):
            if floats[-1] and left < 10:
                floats.append([])
                left = room
            part = replace(sheet, lines=sheet.lines[start : start + max(left - 5, 5)])
            floats[-1] += _tabular(part)
            left -= 6 + sum(_height(line, sheet) for line in part.lines)
            start += max(len(part.lines), 1)
    lines = [f"% Needs \\usepackage{{{PACKAGES}}}."]
    for number, body in enumerate(floats):
        title = (
            rf"\caption{{\textbf{{{latex_text(result.title)}.}} {latex_text(result.caption)}}}\label{{{result.label}}}"
        )
        if number:
            title = rf"\addtocounter{{table}}{{-1}}\caption{{\textbf{{{latex_text(result.title)}}} (continued).}}"
        notes = [rf"\par\footnotesize {latex_text(note, breakable=True)}." for note in result.notes]
        lines += [r"\clearpage"] if number and number % MOST_FLOATS == 0 else []
        lines += [
            rf"\begin{{{environment}}}" + ("" if environment == "sidewaystable" else "[tbp]"),
            rf"\centering{title}",
            rf"\{size}\vspace{{4pt}}",
            *body,
            *(notes if number == len(floats) - 1 else []),
            rf"\end{{{environment}}}",
        ]
    return "\n".join([*lines, ""])


def _head(column: Column) -> list[str]:
    return [part for line in column.head.splitlines() for part in textwrap.wrap(line, HEAD_LENGTH) or [""]]


def _longest(sheet: Sheet) -> list[int]:
    """Characters of the longest cell of each column, without its head."""
    return [max((len(line[index]) for line in sheet.lines), default=0) for index in range(len(sheet.columns))]


def _characters(sheet: Sheet) -> int:
    widths = [
        max(longest, *map(len, _head(column))) for longest, column in zip(_longest(sheet), sheet.columns, strict=True)
    ]
    return sum(3 + (min(w, NAME_LENGTH) if c.left else w) for w, c in zip(widths, sheet.columns, strict=True))


def _height(line: tuple[str, ...], sheet: Sheet) -> int:
    return max(1 + len(text) // NAME_LENGTH * column.left for text, column in zip(line, sheet.columns, strict=True))


def _tabular(sheet: Sheet) -> list[str]:
    wrapped = [each.left and size > NAME_LENGTH for each, size in zip(sheet.columns, _longest(sheet), strict=True)]
    alignment = "".join(
        rf">{{\raggedright\arraybackslash}}p{{{NAME_WIDTH}}}" if wide else "l" if column.left else "r"
        for wide, column in zip(wrapped, sheet.columns, strict=True)
    )
    lines = [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
        r"\toprule",
    ]
    if sheet.title:
        lines.append(rf"\multicolumn{{{len(sheet.columns)}}}{{@{{}}l}}{{\textit{{{latex_text(sheet.title)}}}}} \\")
    if any(column.group for column in sheet.columns):
        spans, rules, start = [], [], 1
        for group, width in groups(sheet.columns):
            head = _stacked(textwrap.wrap(group, HEAD_LENGTH * width))
            spans.append(rf"\multicolumn{{{width}}}{{c}}{{{head}}}" if group else "")
            rules += [rf"\cmidrule(lr){{{start}-{start + width - 1}}}"] if group else []
            start += width
        lines += [" & ".join(spans) + r" \\", "".join(rules)]
    heads = " & ".join(_stacked(_head(column)) for column in sheet.columns)
    lines += [heads + r" \\", r"\midrule", *_latex_lines(sheet, wrapped)]
    return [*lines, r"\bottomrule", r"\end{tabular}}", r"\par\medskip"]


def _stacked(parts: list[str]) -> str:
    r"""A head of one or several lines; units such as `(1e-3)` become powers of ten.

    >>> print(_stacked(["MAE (1e-4)", "A+Q"]))
    \makecell{MAE ($10^{-4}$)\\{}$A+Q$}
    """
    written = [_MATH.get(part) or re.sub(r"\(1e(-?\d+)\)", r"($10^{\1}$)", latex_text(part)) for part in parts]
    # An empty group keeps a following bracket from being read as the line break's optional argument.
    return written[0] if len(written) == 1 else r"\makecell{" + r"\\{}".join(written) + "}"


def _latex_lines(sheet: Sheet, wrapped: list[bool]) -> list[str]:
    """Rows, with a repeated model name left out and a little space before the next model, as the paper sets them."""
    grouped = sheet.columns[0].left and len({line[0] for line in sheet.lines}) < len(sheet.lines)
    lines: list[str] = []
    previous: str | None = None
    for line in sheet.lines:
        first, *rest = [
            "---" if text == DASH else latex_text(text, breakable=wide) if column.left else latex_cell(text)
            for text, column, wide in zip(line, sheet.columns, wrapped, strict=True)
        ]
        lines += [r"\addlinespace[3pt]"] if grouped and lines and first != previous else []
        shown = "" if grouped and first == previous else first
        # A line break takes a star or bracket that follows it for its own argument.
        guard = "{}" if shown.startswith(("[", "*")) else ""
        lines.append(guard + " & ".join([shown, *rest]) + r" \\")
        previous = first
    return lines or ["---" + " &" * (len(sheet.columns) - 1) + r" \\"]
