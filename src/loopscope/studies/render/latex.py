"""booktabs tables with the paper's column heads, set so that they fit a page with 6.5 by 9 inches of text.

Widths are estimated from the plain cells: the largest type that fits is taken, the page is turned where no type does,
long names are wrapped, and what is too high continues in a further float. A last guard scales what is still too wide.
All text is escaped (`escape`), so that any name compiles.
"""

import math
import re
import textwrap
import unicodedata
from dataclasses import dataclass

from loopscope.studies.conditions import printable, spelled
from loopscope.studies.render.dialect import Dialect, PlainDialect, decimal
from loopscope.studies.render.sheet import Sheet, groups, sheets
from loopscope.studies.result import Column, Row, Style, TableResult

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # The roman font has no straight quotes.
    '"': r"\texttt{\char34}",
    "→": r"$\to$",
    "−": "$-$",
    "Δ": r"$\Delta$",
    "‖": r"$\|$",
    "α": r"$\alpha$",
    "ε": r"$\varepsilon$",
    "κ": r"$\kappa$",
    "φ": r"$\phi$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "²": "$^{2}$",
    "…": r"\ldots{}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "‘": "`",
    "’": "'",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
}


_MARKS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"


_ACCENTS = dict(zip(_MARKS, "`'^~=u.\"rHvc", strict=True))


_LIGATURES = re.compile(r"(?<=-)(?=-)|(?<=')(?=')|(?<=[`?!])(?=`)|(?<=,)(?=,)")


LONGEST_WORD = 16
"""Letters of a word after which it may be broken, in pieces of half as many."""


_BREAK = r"\penalty500\hspace{0pt}"


def escape(text: str) -> str:
    r"""Text that LaTeX prints as it stands: no command, no ligature, no character that its fonts lack.

    >>> print(escape("50% of a_b → 1, |x|<é"))
    50\% of a\_b $\to$ 1, \textbar{}x\textbar{}\textless{}\'{e}
    """
    return " ".join(_word(word) for word in printable(text).split(" "))


def _word(word: str) -> str:
    size = LONGEST_WORD // 2
    pieces = [word[i : i + size] for i in range(0, len(word), size)] if len(word) > LONGEST_WORD else [word]
    return _BREAK.join(_LIGATURES.sub("{}", "".join(map(_letter, piece))) for piece in pieces)


def _letter(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isascii():
        return character
    base, *marks = list(unicodedata.normalize("NFD", character))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
        return f"\\{_ACCENTS[marks[0]]}{{{base}}}"
    return "".join(_ESCAPES.get(letter, letter) for letter in spelled(character))


def escape_head(text: str) -> str:
    r"""A head as LaTeX; units such as `(1e-3)` become powers of ten.

    >>> print(escape_head("MAE (1e-4)"))
    MAE ($10^{-4}$)
    """
    return re.sub(r"\(1e(-?\d+)\)", r"($10^{\1}$)", escape(text))


class LatexDialect(Dialect):
    """LaTeX with mathematics for signs and powers."""

    dash = "---"

    def weave(self, template: str, parts: list[str]) -> str:
        """Several cells in one; arrows between them are mathematics."""
        return template.replace("→", r"$\to$").format(*parts)

    def text(self, value: str) -> str:
        """Escaped."""
        return escape(value)

    def number(self, value: float, style: Style) -> str:
        r"""`$-8.73$`, `$1.747\times10^{-5}$`."""
        written = decimal(value, style)
        mantissa, exponent, power = written.partition("e")
        if exponent:
            return f"${mantissa}\\times10^{{{int(power)}}}$"
        return f"${written}$" if written.startswith(("-", "+")) else written

    def with_interval(self, value: str, low: str, high: str) -> str:
        r"""`$49.18\;[44.29,54.10]$`."""
        value, low, high = (part.strip("$") for part in (value, low, high))
        return f"${value}\\;[{low},{high}]$"


PACKAGES = "array,booktabs,graphicx,makecell,rotating"
WIDTH, HEIGHT = 6.5, 9.0
"""Inches of text on the page; turned, it is as wide as it was high."""
SIZES = {"small": (9.0, 11.0), "footnotesize": (8.0, 9.5), "scriptsize": (7.0, 8.0)}
"""Points of a letter and of a line."""
NAME_WIDTH = 1.4
"""Inches of a column of text before it is wrapped."""
MOST_FLOATS = 12
"""Floats of a long table before LaTeX is told to place them: it keeps no more than 52, of a whole document."""
HEAD_LENGTH = 16
"""Characters of a head's line before it is wrapped."""
GAP = 12.0
"""Points between columns."""
POINTS = 72.27
FILLED = 0.88
"""How much of a page's height a float may take: estimates are rough, and rules and captions have space around them."""


@dataclass(frozen=True)
class Layout:
    """Type and page of a table."""

    size: str
    turned: bool

    @property
    def width(self) -> float:
        """Points across."""
        return POINTS * (HEIGHT if self.turned else WIDTH)

    @property
    def height(self) -> float:
        """Points that a float may take."""
        return POINTS * FILLED * (WIDTH if self.turned else HEIGHT)

    @property
    def environment(self) -> str:
        """The float."""
        return "sidewaystable" if self.turned else "table"

    def text(self, words: str) -> float:
        """Points that words take: two letters an em are the rule, a third of it for the narrow ones."""
        return SIZES[self.size][0] * sum(
            0.3 if letter in " .,:;'|!ijlft()[]/-" else 0.75 if letter.isupper() or letter in "mw%+<>=→—" else 0.51
            for letter in words
        )


LAYOUTS = tuple(Layout(size, turned) for turned in (False, True) for size in SIZES)


def as_latex(result: TableResult[Row]) -> str:
    """One table environment, or several where one page does not hold it."""
    written, plain = sheets(result, LatexDialect()), sheets(result, PlainDialect())
    layout = next((way for way in LAYOUTS if all(_width(sheet, way) <= way.width for sheet in plain)), LAYOUTS[-1])
    notes = [rf"\par\footnotesize {escape(note)}." for note in result.notes]
    # A line of 10-point text holds about 90 letters on the upright page.
    caption_lines, note_lines = (
        sum(12.0 * math.ceil(len(text) * WIDTH * POINTS / 80 / layout.width) for text in texts)
        for texts in ((f"{result.title}. {result.caption}",), result.notes)
    )
    floats: list[list[str]] = [[]]
    left = layout.height - caption_lines - note_lines
    for sheet, shown in zip(written, plain, strict=True):
        heads, heights = _heights(shown, layout)
        start = 0
        while start < max(len(sheet.lines), 1):
            stop, used = start, heads
            while stop < len(sheet.lines) and (stop == start or used + heights[stop] <= left):
                used += heights[stop]
                stop += 1
            if floats[-1] and used > left:
                floats.append([])
                left = layout.height - 24.0 - note_lines
                continue
            part = Sheet(sheet.title, sheet.columns, sheet.lines[start:stop])
            floats[-1] += _tabular(part, shown, layout)
            left -= used
            start = max(stop, start + 1)
    return "\n".join(
        [f"% Needs \\usepackage{{{PACKAGES}}}.", *_floats(result, layout, floats, notes), ""],
    )


def _floats(result: TableResult[Row], layout: Layout, floats: list[list[str]], notes: list[str]) -> list[str]:
    lines: list[str] = []
    for number, body in enumerate(floats):
        if number and number % MOST_FLOATS == 0:
            lines.append(r"\clearpage")
        whole = rf"\caption{{\textbf{{{escape(result.title)}.}} {escape(result.caption)}}}"
        again = rf"\addtocounter{{table}}{{-1}}\caption{{\textbf{{{escape(result.title)}}} (continued).}}"
        place = "" if layout.turned else "[tbp]"
        lines += [
            rf"\begin{{{layout.environment}}}{place}",
            r"\centering",
            again if number else whole,
            *([] if number else [rf"\label{{{result.label}}}"]),
            rf"\{layout.size}\vspace{{4pt}}",
            *body,
            *(notes if number == len(floats) - 1 else []),
            rf"\end{{{layout.environment}}}",
        ]
    return lines


def _head_lines(column: Column) -> list[str]:
    return [part for line in column.head.splitlines() for part in textwrap.wrap(line, HEAD_LENGTH) or [""]]


def _column_widths(sheet: Sheet, layout: Layout) -> list[float]:
    """Points of each column; text no wider than it may be before it is wrapped."""
    widths = []
    for index, column in enumerate(sheet.columns):
        cells = [line[index] for line in sheet.lines]
        widest = max(map(layout.text, [*_head_lines(column), *cells]), default=0.0)
        widths.append(min(widest, NAME_WIDTH * POINTS) if column.text else widest)
    return widths


def _width(sheet: Sheet, layout: Layout) -> float:
    widths = _column_widths(sheet, layout)
    total, start = GAP * (len(widths) - 1), 0
    for group, span in groups(sheet.columns):
        lines = textwrap.wrap(group, HEAD_LENGTH * span) or [""]
        total += max(sum(widths[start : start + span]), max(map(layout.text, lines)) - GAP * (span - 1))
        start += span
    return total


def _heights(sheet: Sheet, layout: Layout) -> tuple[float, list[float]]:
    """Points of the heads with their rules, and of every line."""
    leading = 1.15 * SIZES[layout.size][1]
    limit = NAME_WIDTH * POINTS
    rows = [
        leading
        * max(
            math.ceil(1.1 * layout.text(cell) / limit) if column.text and layout.text(cell) > limit else 1
            for cell, column in zip(line, sheet.columns, strict=True)
        )
        + 3.0
        for line in sheet.lines
    ]
    return leading * (4 + max(len(_head_lines(column)) for column in sheet.columns)), rows


def _tabular(sheet: Sheet, plain: Sheet, layout: Layout) -> list[str]:
    limit = NAME_WIDTH * POINTS
    wide = [
        column.text and any(layout.text(line[index]) > limit for line in plain.lines)
        for index, column in enumerate(sheet.columns)
    ]
    alignment = "".join(
        rf">{{\raggedright\arraybackslash}}p{{{NAME_WIDTH}in}}" if wrapped else "l" if column.text else "r"
        for column, wrapped in zip(sheet.columns, wide, strict=True)
    )
    lines = [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
        r"\toprule",
    ]
    if sheet.title:
        lines.append(rf"\multicolumn{{{len(sheet.columns)}}}{{@{{}}l}}{{\textit{{{escape(sheet.title)}}}}} \\")
    lines += _heads(sheet)
    lines.append(r"\midrule")
    lines += _body(sheet)
    return [*lines, r"\bottomrule", r"\end{tabular}}", r"\par\medskip"]


def _heads(sheet: Sheet) -> list[str]:
    lines = []
    if any(column.group for column in sheet.columns):
        spans, rules, start = [], [], 1
        for group, width in groups(sheet.columns):
            head = _stacked(textwrap.wrap(group, HEAD_LENGTH * width))
            spans.append(rf"\multicolumn{{{width}}}{{c}}{{{head}}}" if group else "")
            if group:
                rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
            start += width
        lines += [" & ".join(spans) + r" \\", "".join(rules)]
    lines.append(" & ".join(column.latex or _stacked(_head_lines(column)) for column in sheet.columns) + r" \\")
    return lines


def _stacked(parts: list[str]) -> str:
    if len(parts) < 2:
        return escape_head("".join(parts))
    # An empty group keeps a following bracket from being read as the line break's optional argument.
    stacked = r"\\{}".join(map(escape_head, parts))
    return rf"\makecell{{{stacked}}}"


def _body(sheet: Sheet) -> list[str]:
    """Rows, with a repeated model name left out and a little space before the next model, as the paper sets them."""
    grouped = sheet.columns[0].text and len({line[0] for line in sheet.lines}) < len(sheet.lines)
    lines: list[str] = []
    previous: str | None = None
    for first, *rest in sheet.lines:
        if grouped and lines and first != previous:
            lines.append(r"\addlinespace[3pt]")
        shown = "" if grouped and first == previous else first
        # A line break takes a star or bracket that follows it for its own argument.
        guard = "{}" if shown.startswith(("[", "*")) else ""
        lines.append(guard + " & ".join([shown, *rest]) + r" \\")
        previous = first
    return lines or ["---" + " &" * (len(sheet.columns) - 1) + r" \\"]
