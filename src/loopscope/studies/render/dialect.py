"""How numbers, missing values and text are written in plain text and in LaTeX."""

import math
import re
import unicodedata
from abc import ABC, abstractmethod
from dataclasses import replace

from loopscope.stats import Estimate
from loopscope.studies.conditions import printable, spelled
from loopscope.studies.result import Style, Value

MOST_DECIMALS = 8


class Dialect(ABC):
    """One way to write cells."""

    dash: str
    """What an undefined number looks like."""

    @abstractmethod
    def text(self, value: str) -> str:
        """Words."""

    @abstractmethod
    def number(self, value: float, style: Style) -> str:
        """One number."""

    @abstractmethod
    def with_interval(self, value: str, low: str, high: str) -> str:
        """A number and its interval."""

    def weave(self, template: str, parts: list[str]) -> str:
        """Several cells in one."""
        return template.format(*parts)

    def cell(self, value: Value, style: Style) -> str:
        """Any value; a dash where there is none, never NaN."""
        if isinstance(value, str):
            return self.text(value) if value else self.dash
        if isinstance(value, Estimate):
            if value.value is None:
                return self.dash
            style = legible(value.value, style)
            written = self.number(value.value, style)
            if not style.interval or value.interval is None:
                return written
            plain = Style(style.decimals, style.factor, style.scientific)
            ends = (self.number(end, plain) for end in (value.interval.low, value.interval.high))
            return self.with_interval(written, *ends)
        if value is None or math.isnan(value):
            return self.dash
        return self.number(value, legible(value, style))


def legible(value: float, style: Style) -> Style:
    """The style with more decimals where fewer than two digits would show; a power of ten where that is too many.

    The paper does the same where a mean is far below the others of its column.

    >>> legible(1.53e-7, Style(3, 1e4)).decimals, legible(0.5, Style(3)).decimals, legible(1e-15, Style(3)).scientific
    (5, 3, True)
    """
    scaled = abs(value * style.factor)
    if style.decimals is None or style.scientific or scaled == 0 or scaled >= 10.0 ** (1 - style.decimals):
        return style
    needed = 2 - math.floor(math.log10(scaled))
    if needed > MOST_DECIMALS:
        return replace(style, decimals=2, scientific=True)
    return replace(style, decimals=needed)


def decimal(value: float, style: Style) -> str:
    """A number in ordinary notation, without a minus sign in front of nothing but zeros."""
    scaled = value * style.factor
    if style.decimals is None:
        return f"{scaled:+g}" if style.sign else f"{scaled:g}" if scaled % 1 else f"{scaled:.0f}"
    kind = "e" if style.scientific else "f"
    written = f"{scaled:{'+' if style.sign else ''}.{style.decimals}{kind}}"
    return written.replace("-", "", 1) if written.startswith("-") and not written.strip("-+0.") else written


class PlainDialect(Dialect):
    """Terminals and Markdown."""

    dash = "—"

    def text(self, value: str) -> str:
        """One line."""
        return printable(value)

    def number(self, value: float, style: Style) -> str:
        """Digits as Python writes them."""
        return decimal(value, style)

    def with_interval(self, value: str, low: str, high: str) -> str:
        """`49.18 [44.29, 54.10]`."""
        return f"{value} [{low}, {high}]"


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
