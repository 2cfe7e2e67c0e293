"""Tables for screens: one number format for each column, true minus signs, powers of ten as raised digits."""

import math
import re
from dataclasses import replace

from loopscope.stats import Estimate
from loopscope.studies.render.dialect import PlainDialect, decimal
from loopscope.studies.result import Column, Row, Style, TableResult, Value

LONGEST = 8
"""Digits of a number in ordinary notation; a column that needs more is written in powers of ten."""
MANTISSA = 2
"""Digits after the point of a number with a power of ten."""
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNIT = re.compile(r"\b1e(-?\d+)\b")


def uniform(result: TableResult[Row]) -> TableResult[Row]:
    """The same table with one format for all numbers of a column, chosen so that the smallest shows two digits."""
    panels = (
        replace(panel, columns=tuple(_uniform(result, column) for column in panel.columns)) for panel in result.panels
    )
    return replace(result, panels=tuple(panels))


def _uniform(result: TableResult[Row], column: Column) -> Column:
    column = replace(column, head=_raised(column.head), group=_raised(column.group))
    if column.fields == ("key",):
        return column
    styles = (
        column_style([row.value(path) for row in result.rows], style)
        for path, style in zip(column.fields, column.styles, strict=True)
    )
    return replace(column, styles=tuple(styles))


def _raised(head: str) -> str:
    """A unit such as `(1e-3)` with raised digits."""
    return _UNIT.sub(lambda found: f"10{found[1].translate(_RAISED)}", head)


def column_style(values: list[Value], style: Style) -> Style:
    """One style for a column: its own, or more digits, or powers of ten where those would be too many.

    >>> column_style([0.5, 0.25], Style(3)).decimals, column_style([0.5, 0.00031], Style(3)).decimals
    (3, 5)
    >>> column_style([1524.62, 0.000799], Style(3)).scientific
    True
    """
    if style.decimals is None or style.scientific:
        return style
    sizes = [abs(number * style.factor) for number in map(_number, values) if number]
    if not sizes or min(sizes) >= 10.0 ** (1 - style.decimals):
        return style
    needed = 1 - math.floor(math.log10(min(sizes)))
    before = max(1, 1 + math.floor(math.log10(max(sizes))))
    if needed + before > LONGEST:
        return replace(style, decimals=MANTISSA, scientific=True)
    return replace(style, decimals=needed)


def _number(value: Value) -> float:
    if isinstance(value, Estimate):
        value = value.value
    return value if isinstance(value, int | float) and math.isfinite(value) else 0.0


class ScreenDialect(PlainDialect):
    """Cells of a table whose columns have one style each (`uniform`)."""

    def style(self, value: float, style: Style) -> Style:
        """The column's."""
        return style

    def number(self, value: float, style: Style) -> str:
        """Digits with a true minus; `1.53×10⁻⁷` instead of `1.53e-07`.

        >>> ScreenDialect().number(-1.53e-7, Style(2, scientific=True)), ScreenDialect().number(-0.5, Style(2))
        ('−1.53×10⁻⁷', '−0.50')
        """
        if value == 0 and style.scientific:
            return "0"
        digits, _, power = decimal(value, style).partition("e")
        raised = f"×10{str(int(power)).translate(_RAISED)}" if power and int(power) else ""
        return digits.replace("-", "−") + raised
