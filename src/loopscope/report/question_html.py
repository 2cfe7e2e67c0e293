"""A question as a notebook shows it: its words with tinted tokens next to the drawn path, as on the report's page.

Plain HTML and SVG with styles on the elements: no script, nothing loaded, and every text of the run escaped.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from loopscope.display import SOFT, Markup, element, html_table, swatch
from loopscope.path import GRID, classify
from loopscope.report.path_drawing import MODEL, UP, path_drawing
from loopscope.report.question_view import QuestionView
from loopscope.report.sentences import number, scale, signed
from loopscope.store.schema import ends_of, update_name
from loopscope.studies.conditions import spelled

DOWN = "176,71,154"
STRONGEST, FAINT = 0.62, 0.04
"""Opacity of the largest gain or loss of a question; below the second there is no tint."""
MOST_CHARACTERS = 12_000
"""Characters of a text that are shown."""
_BOX = "flex:1 1 310px;min-width:0;max-width:720px"


def as_html(view: QuestionView) -> str:
    """The whole display."""
    words = element("div", *_words(view), style=_BOX)
    drawn = element("div", path_drawing(view), _legend(view), _facts(view), style=_BOX)
    return element(
        "div",
        element("p", element("strong", view.title)),
        element("p", swatch(view.outcome), " ", view.verdict),
        element("div", words, drawn, style="display:flex;flex-wrap:wrap;gap:1.5em"),
        _updates(view),
        style="font-family:system-ui,sans-serif;line-height:1.45",
    )


def _words(view: QuestionView) -> Iterator[Markup]:
    yield _head("Question")
    yield _prose(_cut(view.example["prompt"]))
    rows = view.token_rows
    options = view.example["options"]
    yield _head("Reference solution" if options is None else "Options")
    most = _largest(rows)
    for index, text in enumerate(view.texts):
        label = ""
        if options is not None:
            right = " (right)" if index == view.example["correct_option"] else ""
            label = element("strong", f"{letter(index)}{right} ")
        here = None if rows is None else rows.filter(pl.col("option") == index)
        yield _prose(label, *_tinted(text, here, view.alpha, most))
    said = f"tint: gain (green) or loss (underlined) of a token at α = {scale(view.alpha)}, at most {number(most)}"
    yield element("p", said if rows is not None else "no token gains: measure with tokens=True to see them", style=SOFT)


def _head(text: str) -> Markup:
    return element("div", text, style="font-weight:600;margin-top:.6em")


def _prose(*content: Any) -> Markup:
    return element("div", *content, dir="auto", style="white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0 .8em")


def _cut(text: str) -> str:
    return visible(text) if len(text) <= MOST_CHARACTERS else visible(text[:MOST_CHARACTERS]) + "…"


def visible(text: str) -> str:
    r"""Text with the characters that hide or reorder others spelled out; lines and joined emoji stay.

    >>> visible("a\u202eb\n\x1b[0m")
    'a\\u202eb\n\\u001b[0m'
    """
    return "".join(
        spelled(c) if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") and c not in "\n\t\u200d" else c for c in text
    )


def letter(index: int) -> str:
    """A, B, …; numbers after Z."""
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def gains_at(rows: pl.DataFrame, alpha: float) -> list[float]:
    """φ of every token at a scale: stored points exactly, straight lines between them; NaN where none is stored."""
    if alpha == 1.0:
        return rows["gain"].to_list()
    grids = rows["grid_gain"].to_list()
    return [math.nan if grid is None else float(np.interp(alpha, GRID, grid)) for grid in grids]


def _largest(rows: pl.DataFrame | None) -> float:
    """The largest |φ| over tokens and scales: what gets the strongest tint."""
    if rows is None or not rows.height:
        return 1.0
    ends, inside = rows["gain"].abs().max(), rows["grid_gain"].explode().abs().max()
    return max(float(ends or 0.0), float(inside or 0.0)) or 1.0  # type: ignore[arg-type]


def _tinted(text: str, rows: pl.DataFrame | None, alpha: float, most: float) -> list[Any]:
    """A text with its tokens as spans; tokens that share characters (pieces of one letter) share a span."""
    if rows is None or not rows.height:
        return [_cut(text)]
    gains = gains_at(rows, alpha)
    if rows["text_start"].null_count():
        strip = [_span(str(token), gain, alpha, most) for token, gain in zip(rows["token"], gains, strict=True)]
        return [_cut(text), *(piece for span in strip for piece in (" ", span))]
    pieces: list[Any] = []
    cursor = 0
    shared = rows.with_columns(gain=pl.Series(gains)).group_by("text_start", "text_end", maintain_order=True)
    for start, end, gain in shared.agg(pl.col("gain").sum()).iter_rows():
        if start < cursor or cursor > MOST_CHARACTERS:
            continue
        pieces += [visible(text[cursor:start]), _span(visible(text[start:end]), gain, alpha, most)]
        cursor = end
    return [*pieces, _cut(text[cursor:])]


def _span(text: str, gain: float, alpha: float, most: float) -> Markup:
    weight = STRONGEST * math.sqrt(min(abs(gain) / most, 1.0)) if math.isfinite(gain) else 0.0
    style = None
    if weight > FAINT:
        style = f"border-radius:3px;background:rgba({UP if gain > 0 else DOWN},{weight:.2f})"
        if gain < 0:
            style += ";text-decoration:underline dotted 1px;text-underline-offset:.28em"
    title = f"{signed(gain)} nats at α = {scale(alpha)}" if math.isfinite(gain) else "no path is stored for this token"
    return element("span", text, style=style, title=title)


def _legend(view: QuestionView) -> Markup:
    said = [("currentColor", "━ ", "measured φ(α)   "), (MODEL, "╍ ", "quadratic Aα + Qα²   ")]
    if view.scales["safe"] > 0:
        said.append((f"rgba({UP},.5)", "▬ ", "sure to help"))
    parts = (piece for colour, mark, name in said for piece in (element("span", mark, style=f"color:{colour}"), name))
    return element("div", *parts, style=SOFT + ";white-space:pre-wrap;margin:.2em 0 .8em")


def _facts(view: QuestionView) -> Markup:
    scales = view.scales
    grid = "" if view.record["fp64_optimum_low"] is not None else " (grid)"
    known = {
        "A": signed(view.slope),
        "Q": signed(view.quadratic),
        "ΔU": signed(view.gain),
        "predicted scale α̂": scale(scales["predicted"]),
        f"best scale α*{grid}": scale(scales["best"]),
        "boundary r₁": scale(scales["boundary"]),
    }
    items = ((f"{name} ", element("strong", value), "   ") for name, value in known.items() if value != "—")
    return element("div", *(piece for item in items for piece in item), style="white-space:pre-wrap")


def _updates(view: QuestionView) -> Markup:
    """Every measured update, and the utility at both of its ends."""
    lines = []
    for t, slope, gain in view.updates.select("transition", "slope", "gain").iter_rows():
        outcome = classify(slope, gain)
        ends = (number(view.utilities[depth]) for depth in ends_of(t))
        update = element("strong" if t == view.transition else "span", update_name(t))
        lines.append((update, *ends, signed(gain), Markup(f"{swatch(outcome)} {outcome}")))
    heads = ["update", "U before", "U after", "ΔU", "outcome"]
    return html_table(heads, lines, words=[True, False, False, False, True])
