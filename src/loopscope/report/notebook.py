"""What a notebook shows: a run, and a question with its words and its path.

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
from loopscope.errors import LoopscopeError
from loopscope.path import GRID, Outcome, classify
from loopscope.report.question import QuestionView, number, scale, signed
from loopscope.store import StoredRun
from loopscope.store.schema import ends_of, update_name
from loopscope.studies.conditions import printable, spelled
from loopscope.studies.records import Records
from loopscope.studies.runs import run_lines

MOST_UPDATES = 60


def run_html(run: StoredRun) -> str:
    """A card; a damaged run says what is wrong instead."""
    manifest = run.manifest
    done = f"{len(run.unit_records)} of {len(run.units)} units stored"
    stored = ", ".join(table.name for table in manifest.tables())
    about = f"level {manifest.level}, states {manifest.dtypes.states}; {done} ({stored})"
    parts = [
        element("p", element("strong", printable(manifest.model.name)), f" · {printable(str(run.path))}"),
        element("p", about, style=SOFT),
    ]
    try:
        updates = Records([run]).updates
    except LoopscopeError as error:
        return element("div", *parts, element("p", str(error)))
    if not manifest.transitions:
        return element("div", *parts, element("pre", "\n".join(run_lines(run)[1:])))
    outcomes = [Markup(f"{swatch(outcome)} {outcome}") for outcome in Outcome]
    heads = ["Task", "Update", "Questions", "Mean ΔU", *outcomes]
    lines = []
    for each in updates[:MOST_UPDATES]:
        condition = each.condition
        counts = [int((each.outcome == outcome).sum()) for outcome in Outcome]
        lines.append([condition.set_title, condition.update, condition.n, signed(float(each.gain.mean())), *counts])
    parts.append(html_table(heads, lines, words=[True, True, *[False] * (2 + len(outcomes))]))
    if len(updates) > MOST_UPDATES:
        parts.append(element("p", f"… and {len(updates) - MOST_UPDATES} more updates", style=SOFT))
    return element("div", *parts)


DOWN = "176,71,154"
STRONGEST, FAINT = 0.62, 0.04
"""Opacity of the largest gain or loss of a question; below the second there is no tint."""
MOST_CHARACTERS = 12_000
"""Characters of a text that are shown."""
_BOX = "flex:1 1 310px;min-width:0;max-width:720px"


def question_html(view: QuestionView) -> str:
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


UP = "27,158,119"
MODEL, FINITE, ACCENT = "#9a8546", "#d55e00", "#4a72b8"
WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 12, 46
NAME_LINE = 15
MARKS = {
    "predicted": ("α̂", MODEL, "scale that the quadratic model predicts"),
    "best": ("α*", "currentColor", "best scale"),
    "root": ("r⁽²⁾", MODEL, "root of the quadratic model"),
    "boundary": ("r₁", FINITE, "progress boundary"),
}
"""Symbol, colour and meaning of the scales that are named above the plot, one per line."""


def path_drawing(view: QuestionView) -> Markup:
    """φ(α) with its quadratic model; where the model leaves the frame it is cut."""
    alphas, gains = view.path
    low, high = min(0.0, float(gains.min())), max(0.0, float(gains.max()))
    room = 0.14 * (high - low or 1e-9)
    labelled = [0.0, *(value for value in (low, high) if abs(value) > room / 2)]
    low, high = low - room, high + room
    marks = [(name, value) for name, value in view.scales.items() if name in MARKS and 0 <= value <= 1]
    top, bottom, right = TOP + NAME_LINE * len(marks), HEIGHT - BOTTOM, WIDTH - RIGHT

    def x(alpha: Any) -> Any:
        return np.round(LEFT + alpha * (right - LEFT), 2)

    def y(gain: Any) -> Any:
        return np.round(bottom + (gain - low) / (high - low) * (top - bottom), 2)

    def across(gain: float, opacity: float) -> Markup:
        return _line(LEFT, right, y(gain), y(gain), "currentColor", stroke_opacity=opacity)

    def curve(scales: Any, values: Any, colour: str, **more: Any) -> Markup:
        points = " ".join(f"{a},{b}" for a, b in zip(x(scales), y(values), strict=True))
        return element("polyline", points=points, fill="none", stroke=colour, stroke_width=2, **more)

    parts: list[Markup] = []
    if (safe := min(view.scales["safe"], 1.0)) > 0:
        size = {"width": x(safe) - x(0), "height": bottom - top}
        parts.append(element("rect", x=x(0), y=top, fill=f"rgba({UP},.13)", **size))
    for value in labelled:
        parts += [across(value, 0.4), _text(LEFT - 8, y(value) + 4, number(value), "end")]
    parts += [_text(x(value), bottom + 18, scale(value)) for value in (0, 0.25, 0.5, 0.75, 1)]
    parts.append(_text((LEFT + right) / 2, bottom + 38, "share α of the update"))
    parts.append(_text(0, 0, "gain φ(α), nats", transform=f"translate(12 {(top + bottom) / 2}) rotate(-90)"))
    for line, (name, value) in enumerate(marks):
        symbol, colour, meaning = MARKS[name]
        place = TOP + NAME_LINE * (line + 1) - 6
        parts.append(_line(x(value), x(value), place + 4, bottom, colour, stroke_dasharray="2 3"))
        title = element("title", f"{meaning}: {scale(value)}")
        parts.append(_text(x(value), place, Markup(f"{symbol}{title}")))
    fine = np.linspace(0, 1, 201)
    model = view.slope * fine + view.quadratic * fine**2
    outside = np.flatnonzero((model < low) | (model > high))
    until = int(outside[0]) if outside.size else fine.size
    parts.append(curve(fine[:until], model[:until], MODEL, stroke_dasharray="6 4"))
    parts.append(curve(alphas, gains, "currentColor"))
    now = float(np.interp(view.alpha, alphas, gains))
    parts.append(element("circle", cx=x(view.alpha), cy=y(now), r=5, fill=ACCENT))
    label = f"Gain along the update: slope {signed(view.slope)}, full step {signed(view.gain)}"
    style = f"width:100%;max-width:{WIDTH}px;overflow:visible"
    box = f"0 0 {WIDTH} {HEIGHT}"
    return element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=box, role="img", aria_label=label, style=style
    )


def _line(x1: float, x2: float, y1: float, y2: float, colour: str, **more: Any) -> Markup:
    return element("line", x1=x1, x2=x2, y1=y1, y2=y2, stroke=colour, **more)


def _text(x: float, y: float, content: Any, anchor: str = "middle", **more: Any) -> Markup:
    return element("text", content, x=x, y=y, text_anchor=anchor, fill="currentColor", font_size=12, **more)
