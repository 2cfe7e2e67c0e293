"""The path of one question as SVG for a notebook: axes, quadratic model, and names of scales that never overlap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope.display import Markup, element
from loopscope.report.sentences import number, scale, signed

if TYPE_CHECKING:
    from loopscope.report.question_view import QuestionView

UP = "27,158,119"
MODEL, BEST, FINITE, ACCENT = "#9a8546", "currentColor", "#d55e00", "#4a72b8"
WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 12, 46
LINE = "stroke:currentColor;stroke-opacity:.2"


def _line(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low or 1.0
    return lambda value: round(start + (value - low) / span * (end - start), 2)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers of a linear axis.

    >>> ticks(-0.1, 0.3)
    [-0.1, 0.0, 0.1, 0.2, 0.3]
    """
    rough = (high - low) / wanted
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * base for factor in (1, 2, 2.5, 5, 10) if factor * base >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{at * step:.12g}") for at in range(first, last + 1)]


def _text(x: float, y: float, content: Any, anchor: str = "middle", **more: Any) -> Markup:
    return element("text", content, x=x, y=y, text_anchor=anchor, fill="currentColor", font_size=12, **more)


def _points(xs: Any, ys: Any, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return " ".join(f"{x(float(a))},{y(float(b))}" for a, b in zip(xs, ys, strict=True))


def path_drawing(view: QuestionView) -> Markup:
    """φ(α) with its quadratic model; where the model leaves the frame it is cut."""
    alphas, gains = view.path
    low, high = min(0.0, float(gains.min())), max(0.0, float(gains.max()))
    room = 0.14 * (high - low or 1e-9)
    low, high = low - room, high + room
    x = _line(0, 1, LEFT, WIDTH - RIGHT)
    marks = placed_marks(view.scales, x)
    top = TOP + NAME_LINE * (1 + max((mark.line for mark in marks), default=-1))
    y = _line(low, high, HEIGHT - BOTTOM, top)
    parts: list[Markup] = []
    safe = min(view.scales["safe"], 1.0)
    if safe > 0:
        height = HEIGHT - top - BOTTOM
        parts.append(element("rect", x=x(0), y=top, width=x(safe) - x(0), height=height, fill=f"rgba({UP},.13)"))
    for value in ticks(low, high):
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(value), y2=y(value), style=LINE))
        parts.append(_text(LEFT - 8, y(value) + 4, tick_text(value), "end"))
    parts.append(
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(0), y2=y(0), stroke="currentColor", stroke_opacity=0.5)
    )
    parts += [_text(x(value), HEIGHT - BOTTOM + 18, scale(value)) for value in (0, 0.25, 0.5, 0.75, 1)]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 38, "share α of the update"))
    turned = f"translate(12 {(top + HEIGHT - BOTTOM) / 2}) rotate(-90)"
    parts.append(_text(0, 0, "gain φ(α), nats", transform=turned))
    parts += [line for mark in marks for line in _guide(mark, view.scales, top)]
    fine = np.linspace(0, 1, 201)
    model = view.slope * fine + view.quadratic * fine**2
    inside = np.flatnonzero((model < low) | (model > high))
    until = int(inside[0]) if inside.size else fine.size
    parts.append(
        element(
            "polyline", points=_points(fine[:until], model[:until], x, y),
            fill="none", stroke=MODEL, stroke_width=1.6, stroke_dasharray="6 4",
        )
    )  # fmt: skip
    parts.append(
        element("polyline", points=_points(alphas, gains, x, y), fill="none", stroke="currentColor", stroke_width=2)
    )
    now = float(np.interp(view.alpha, alphas, gains))
    parts.append(element("circle", cx=x(view.alpha), cy=y(now), r=5, fill=ACCENT))
    label = f"Gain along the update: slope {signed(view.slope)}, full step {signed(view.gain)}"
    return element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
        aria_label=label, style=f"width:100%;max-width:{WIDTH}px;overflow:visible",
    )  # fmt: skip


MARKS = {
    "predicted": ("α̂", MODEL, "scale that the quadratic model predicts"),
    "best": ("α*", BEST, "best scale"),
    "root": ("r⁽²⁾", MODEL, "root of the quadratic model"),
    "boundary": ("r₁", FINITE, "progress boundary"),
}
"""Symbol, colour and meaning of the scales that are named above the plot."""


JOIN = 9
"""Pixels: marks that are nearer than this share a name."""
NAME_LINE = 15


@dataclass
class Mark:
    """One or several scales at one place of the axis, and where their name stands."""

    at: float
    names: list[str]
    line: int = 0

    @property
    def symbols(self) -> str:
        """What stands above the plot."""
        return ", ".join(MARKS[name][0] for name in self.names)

    @property
    def half(self) -> float:
        """Half the width of the name, in pixels."""
        return 4.0 * len(self.symbols) + 4

    @property
    def middle(self) -> float:
        """Where the name stands, within the drawing."""
        return min(max(self.at, self.half), WIDTH - self.half)


def placed_marks(scales: Mapping[str, float], x: Callable[[float], float]) -> list[Mark]:
    """The scales on the axis: those at one place share a name, and no name touches another."""
    marks: list[Mark] = []
    for value, name in sorted((value, name) for name, value in scales.items() if name in MARKS and 0 <= value <= 1):
        if marks and x(value) - marks[-1].at < JOIN:
            marks[-1].names.append(name)
        else:
            marks.append(Mark(x(value), [name]))
    ends: list[float] = []
    for mark in marks:
        start = mark.middle - mark.half
        mark.line = next((line for line, end in enumerate(ends) if end <= start), len(ends))
        ends[mark.line :] = [mark.middle + mark.half, *ends[mark.line + 1 :]]
    return marks


def _guide(mark: Mark, scales: Mapping[str, float], top: float) -> Iterator[Markup]:
    colour = MARKS[mark.names[0]][1] if len(mark.names) == 1 else "currentColor"
    y = top - 6 - NAME_LINE * mark.line
    style = f"stroke:{colour};stroke-dasharray:2 3"
    yield element("line", x1=mark.at, x2=mark.at, y1=y + 4, y2=HEIGHT - BOTTOM, style=style)
    title = element("title", "; ".join(f"{MARKS[name][2]}: {scale(scales[name])}" for name in mark.names))
    yield _text(mark.middle, y, Markup(f"{mark.symbols}{title}"))


def tick_text(value: float) -> str:
    """A number on an axis, without idle zeros.

    >>> tick_text(0.5), tick_text(-20.0), tick_text(0.00001)
    ('0.5', '−20', '1×10⁻⁵')
    """
    written = number(value)
    return written.rstrip("0").rstrip(".") if "." in written and "×" not in written else written
