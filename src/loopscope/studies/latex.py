"""booktabs tables with the paper's heads, from the cells of `render`; all text is escaped, so any name compiles.

The type is chosen by how many characters a line has, a wide table is turned, and what is still too wide is scaled down.
A long table continues in further floats.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from dataclasses import replace

from loopscope.studies.conditions import printable, spelled
from loopscope.studies.declare import Column, TableResult
from loopscope.studies.render import DASH, Sheet, groups, sheets

PACKAGES = "array,booktabs,graphicx,makecell,rotating"
LAYOUTS = ((104, "table", "small", 44), (118, "table", "footnotesize", 48), (0, "sidewaystable", "footnotesize", 26))
"""Characters of a line up to which a layout serves, its float, its type and its lines on a page."""
MOST_FLOATS = 12
"""Floats of a long table before LaTeX has to place them: it keeps no more than 52, of a whole document."""
NAME_LENGTH, NAME_WIDTH = 24, "1.5in"
"""Characters of a column of words after which it is wrapped, and its width then."""
HEAD_LENGTH = 16
"""Characters of a head's line before it is wrapped."""
LONGEST_WORD = 16
"""Letters of a word in a wrapped cell after which it may be broken."""
_MATH = {
    **{name: f"${name}$" for name in ("A", "A+Q", "N", "n", "Q", "A>0, Q<0")},
    **{"M/(2κ)": r"$M/(2\kappa)$", "C/κ": r"$\overline C/\kappa$", "S/κ": r"$\overline S/\kappa$"},
    **{"C²/(2κ)": r"$\overline C^{2}/(2\kappa)$", "ΔU<0": r"$\Delta U<0$"},
}
"""Lines of heads that are formulas."""
_ESCAPES = {
    **{character: f"\\{character}" for character in "{}&%$#_"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"},
    **{">": r"\textgreater{}", "|": r"\textbar{}", "→": r"$\to$", "−": "$-$", "Δ": r"$\Delta$", "‖": r"$\|$"},
    **{"α": r"$\alpha$", "ε": r"$\varepsilon$", "κ": r"$\kappa$", "φ": r"$\phi$", "≤": r"$\leq$", "≥": r"$\geq$"},
    **{"×": r"$\times$", "·": r"$\cdot$", "²": "$^{2}$", "³": "$^{3}$", "…": r"\ldots{}", "–": r"\textendash{}"},
    **{"—": r"\textemdash{}", "‘": "`", "’": "'", "“": r"\textquotedblleft{}", "”": r"\textquotedblright{}"},
    '"': r"\texttt{\char34}",  # the roman font has no straight quotes
}
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327", "`'^~=u.\"rHvc", strict=True)
)
_LIGATURES = re.compile(r"(?<=-)(?=-)|(?<=')(?=')|(?<=[`?!])(?=`)|(?<=,)(?=,)")
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]\d+)?"
_INTERVAL = re.compile(rf"({_NUMBER}) \[({_NUMBER}), ({_NUMBER})\]")
_FORMULA = re.compile(r"(?<![\w.])(?:[+-]\d+(?:\.\d+)?(?:e[+-]\d+)?|\d+(?:\.\d+)?e[+-]\d+)")


def escape(text: str, *, breakable: bool = False) -> str:
    r"""Text that LaTeX prints as it stands: no command, no ligature, no character that its fonts lack.

    >>> print(escape("50% of a_b → 1, |x|<é"))
    50\% of a\_b $\to$ 1, \textbar{}x\textbar{}\textless{}\'{e}
    """
    words = [_LIGATURES.sub("{}", "".join(map(_letter, word))) for word in printable(text).split(" ")]
    if breakable:
        size = LONGEST_WORD // 2
        words = [
            r"\penalty500\hspace{0pt}".join(escape(word[i : i + size]) for i in range(0, len(word), size))
            if len(word) > LONGEST_WORD
            else known
            for word, known in zip(printable(text).split(" "), words, strict=True)
        ]
    return " ".join(words)


def _letter(character: str) -> str:
    if character in _ESCAPES or character.isascii():
        return _ESCAPES.get(character, character)
    decomposed = unicodedata.normalize("NFD", character)
    base, marks = decomposed[0], decomposed[1:]
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
        return f"\\{_ACCENTS[marks[0]]}{{{base}}}"
    return "".join(_ESCAPES.get(letter, letter) for letter in spelled(character))


def cell(text: str) -> str:
    r"""A printed cell with numbers as mathematics.

    >>> print(cell("-8.73 [-9.1, 2.0]"), cell("1.747e-05"), cell("132 → 179 (179)"), cell("—"))
    $-8.73\;[-9.1,2.0]$ $1.747\times10^{-5}$ 132 $\to$ 179 (179) ---
    """
    if text == DASH:
        return "---"
    if match := _INTERVAL.fullmatch(text):
        value, low, high = map(_powers, match.groups())
        return f"${value}\\;[{low},{high}]$"
    pieces, start = [], 0
    for found in _FORMULA.finditer(text):
        pieces += [escape(text[start : found.start()]), f"${_powers(found[0])}$"]
        start = found.end()
    return "".join([*pieces, escape(text[start:])])


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
        title = rf"\caption{{\textbf{{{escape(result.title)}.}} {escape(result.caption)}}}\label{{{result.label}}}"
        if number:
            title = rf"\addtocounter{{table}}{{-1}}\caption{{\textbf{{{escape(result.title)}}} (continued).}}"
        notes = [rf"\par\footnotesize {escape(note, breakable=True)}." for note in result.notes]
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


def _wrapped(sheet: Sheet) -> list[bool]:
    cells = zip(*sheet.lines, strict=True) if sheet.lines else [()] * len(sheet.columns)
    return [
        column.left and any(len(text) > NAME_LENGTH for text in each)
        for column, each in zip(sheet.columns, cells, strict=True)
    ]


def _characters(sheet: Sheet) -> int:
    cells = zip(*sheet.lines, strict=True) if sheet.lines else [()] * len(sheet.columns)
    widths = [max(map(len, [*_head(column), *each])) for column, each in zip(sheet.columns, cells, strict=True)]
    return sum(min(w, NAME_LENGTH) if c.left else w for w, c in zip(widths, sheet.columns, strict=True)) + 3 * len(
        widths
    )


def _height(line: tuple[str, ...], sheet: Sheet) -> int:
    return max(1 + len(text) // NAME_LENGTH * column.left for text, column in zip(line, sheet.columns, strict=True))


def _tabular(sheet: Sheet) -> list[str]:
    wrapped = _wrapped(sheet)
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
        lines.append(rf"\multicolumn{{{len(sheet.columns)}}}{{@{{}}l}}{{\textit{{{escape(sheet.title)}}}}} \\")
    if any(column.group for column in sheet.columns):
        spans, rules, start = [], [], 1
        for group, width in groups(sheet.columns):
            head = _stacked(textwrap.wrap(group, HEAD_LENGTH * width))
            spans.append(rf"\multicolumn{{{width}}}{{c}}{{{head}}}" if group else "")
            rules += [rf"\cmidrule(lr){{{start}-{start + width - 1}}}"] if group else []
            start += width
        lines += [" & ".join(spans) + r" \\", "".join(rules)]
    lines += [
        " & ".join(_stacked(_head(column)) for column in sheet.columns) + r" \\",
        r"\midrule",
        *_body(sheet, wrapped),
    ]
    return [*lines, r"\bottomrule", r"\end{tabular}}", r"\par\medskip"]


def _stacked(parts: list[str]) -> str:
    r"""A head of one or several lines; units such as `(1e-3)` become powers of ten.

    >>> print(_stacked(["MAE (1e-4)", "A+Q"]))
    \makecell{MAE ($10^{-4}$)\\{}$A+Q$}
    """
    written = [_MATH.get(part) or re.sub(r"\(1e(-?\d+)\)", r"($10^{\1}$)", escape(part)) for part in parts]
    # An empty group keeps a following bracket from being read as the line break's optional argument.
    return written[0] if len(written) == 1 else r"\makecell{" + r"\\{}".join(written) + "}"


def _body(sheet: Sheet, wrapped: list[bool]) -> list[str]:
    """Rows, with a repeated model name left out and a little space before the next model, as the paper sets them."""
    grouped = sheet.columns[0].left and len({line[0] for line in sheet.lines}) < len(sheet.lines)
    lines: list[str] = []
    previous: str | None = None
    for line in sheet.lines:
        first, *rest = [
            "---" if text == DASH else escape(text, breakable=wide) if column.left else cell(text)
            for text, column, wide in zip(line, sheet.columns, wrapped, strict=True)
        ]
        lines += [r"\addlinespace[3pt]"] if grouped and lines and first != previous else []
        shown = "" if grouped and first == previous else first
        # A line break takes a star or bracket that follows it for its own argument.
        guard = "{}" if shown.startswith(("[", "*")) else ""
        lines.append(guard + " & ".join([shown, *rest]) + r" \\")
        previous = first
    return lines or ["---" + " &" * (len(sheet.columns) - 1) + r" \\"]
