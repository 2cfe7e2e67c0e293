"""How numbers, missing values and text are written: what every format decides, and plain text."""

import math
from abc import ABC, abstractmethod
from dataclasses import replace

from loopscope.stats import Estimate
from loopscope.studies.conditions import printable
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

    def style(self, value: float, style: Style) -> Style:
        """How this one number of a column is written."""
        return legible(value, style)

    def cell(self, value: Value, style: Style) -> str:
        """Any value; a dash where there is none, never NaN."""
        if isinstance(value, str):
            return self.text(value) if value else self.dash
        if isinstance(value, Estimate):
            if value.value is None:
                return self.dash
            style = self.style(value.value, style)
            written = self.number(value.value, style)
            if not style.interval or value.interval is None:
                return written
            plain = Style(style.decimals, style.factor, style.scientific)
            ends = (self.number(end, plain) for end in (value.interval.low, value.interval.high))
            return self.with_interval(written, *ends)
        if value is None or math.isnan(value):
            return self.dash
        return self.number(value, self.style(value, style))


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
