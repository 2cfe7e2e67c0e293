"""HTML that notebooks show: escaped text, one way to write a table, and the colours of the outcomes.

Styles are written on the elements and colours leave the background alone, so that a display looks the same in light and
dark notebooks and where style sheets are stripped. There are no scripts.
"""

import html
from collections.abc import Iterable, Sequence
from typing import Any

from loopscope.path import Outcome

OUTCOME_COLOURS = {
    Outcome.PROGRESSING: "#a19b91",
    Outcome.NEUTRAL: "#5d5850",
    Outcome.DIRECTIONAL_FAILURE: "#0072b2",
    Outcome.FINITE_STEP_FAILURE: "#d55e00",
}
"""As on the report's page; they stay apart under the common kinds of colour blindness."""
SOFT = "opacity:.7;font-size:.92em"
"""What is said beside: notes, captions, units."""


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


def html_table(
    heads: Sequence[Any], lines: Iterable[Sequence[Any]], *, words: Sequence[bool] | None = None, above: Any = ""
) -> Markup:
    """A table; a cell is text, which is escaped, or `Markup`.

    Args:
        heads: of the columns.
        lines: the cells, line by line.
        words: which columns hold words, which are set left; all by default. Numbers are set right.
        above: rows of spanning heads, as `Markup`.
    """
    sides = [
        f"text-align:{'left' if word else 'right'};white-space:nowrap;padding:.15em .6em"
        for word in words or [True] * len(heads)
    ]
    head = element("tr", *(element("th", head, style=side) for head, side in zip(heads, sides, strict=True)))
    body = (
        element("tr", *(element("td", cell, style=side) for cell, side in zip(line, sides, strict=True)))
        for line in lines
    )
    table = element(
        "table",
        element("thead", above, head),
        element("tbody", *body),
        style="font-size:.92em;border-collapse:collapse",
    )
    return element("div", table, style="overflow-x:auto;margin:.4em 0")


def swatch(outcome: Outcome) -> Markup:
    """A small square in the colour of an outcome."""
    colour = OUTCOME_COLOURS[outcome]
    return element("span", style=f"display:inline-block;width:.7em;height:.7em;border-radius:2px;background:{colour}")
