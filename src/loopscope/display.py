"""What notebooks show: frames with outcomes by name, pandas, and HTML with the colours of the outcomes.

Styles are written on the elements and colours leave the background alone, so that a display looks the same in light and
dark notebooks and where style sheets are stripped. There are no scripts.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from loopscope.errors import LoopscopeError
from loopscope.path import Outcome

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

    Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)

OUTCOME_COLOURS = {
    Outcome.PROGRESSING: "#a19b91",
    Outcome.NEUTRAL: "#5d5850",
    Outcome.DIRECTIONAL_FAILURE: "#0072b2",
    Outcome.FINITE_STEP_FAILURE: "#d55e00",
}
"""As on the report's page; they stay apart under the common kinds of colour blindness."""
SOFT = "opacity:.7;font-size:.92em"
"""Notes in small type: notes, captions, units."""


LONGEST_LINE = 48
"""Characters of a cell that is never broken into lines."""


class Markup(str):
    """Text that is HTML already and was escaped where it was made."""

    __slots__ = ()


def escaped(content: Any) -> str:
    """Text as HTML shows it; `Markup` as it is.

    >>> escaped("<b>"), escaped(Markup("<b>x</b>"))
    ('&lt;b&gt;', '<b>x</b>')
    """
    return content if isinstance(content, Markup) else html.escape(str(content))


def element(name: str, *content: Any, **attributes: Any) -> Markup:
    """One element; an attribute that is None is left out, and `_` in its name is `-`.

    >>> element("td", "a & b", style="color:red", title=None)
    '<td style="color:red">a &amp; b</td>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{''.join(map(escaped, content))}</{name}>")


def html_table(heads: Sequence[Any], lines: Iterable[Sequence[Any]], *, words: Sequence[bool] | None = None) -> Markup:
    """A table; a cell is text, which is escaped, or `Markup`.

    Args:
        heads: of the columns.
        lines: the cells, line by line.
        words: which columns hold words, which are set left; all by default. Numbers are set right.
    """
    sides = [f"text-align:{'left' if word else 'right'}" for word in words or [True] * len(heads)]

    def row(name: str, cells: Sequence[Any]) -> Markup:
        styled = (f"{side};padding:.15em .6em{_wrapping(cell)}" for cell, side in zip(cells, sides, strict=True))
        return element("tr", *(element(name, cell, style=style) for cell, style in zip(cells, styled, strict=True)))

    head, body = row("th", heads), (row("td", line) for line in lines)
    table = element(
        "table",
        element("thead", head),
        element("tbody", *body),
        style="font-size:.92em;border-collapse:collapse",
    )
    return element("div", table, style="overflow-x:auto;margin:.4em 0")


def _wrapping(cell: Any) -> str:
    return "" if not isinstance(cell, Markup) and len(str(cell)) > LONGEST_LINE else ";white-space:nowrap"


def swatch(outcome: Outcome) -> Markup:
    """A small square in the colour of an outcome."""
    colour = OUTCOME_COLOURS[outcome]
    return element("span", style=f"display:inline-block;width:.7em;height:.7em;border-radius:2px;background:{colour}")


def with_outcome_names(frame: Frame) -> Frame:
    """The frame with its column `outcome`, where it has one as stored, as an ordered category of the paper's words.

    >>> import polars as pl
    >>> with_outcome_names(pl.DataFrame({"outcome": [3, 0]}, {"outcome": pl.Int8}))["outcome"].to_list()
    ['finite-step failure', 'progressing']
    """
    import polars as pl

    if frame.collect_schema().get("outcome") != pl.Int8:
        return frame
    labels = [outcome.label for outcome in Outcome]
    return frame.with_columns(
        pl.col("outcome").replace_strict(list(Outcome), labels, default=None, return_dtype=pl.Enum(labels))
    )


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """The same frame for pandas; enums become categories."""
    try:
        return frame.to_pandas()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pandas":
            raise
        raise LoopscopeError("to_pandas() needs pandas: pip install pandas") from error
