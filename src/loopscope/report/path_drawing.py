"""The path of one question as SVG for a notebook: axes, the measured line, its quadratic model, and named scales."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope.display import Markup, element
from loopscope.report.sentences import number, scale, signed

if TYPE_CHECKING:
    from loopscope.report.question_view import QuestionView

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
    for value in ticks(low, high):
        parts += [across(value, 0.2), _text(LEFT - 8, y(value) + 4, tick_text(value), "end")]
    parts.append(across(0, 0.5))
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


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers of a linear axis.

    >>> ticks(-0.1, 0.3)
    [-0.1, 0.0, 0.1, 0.2, 0.3]
    """
    rough = (high - low) / 5
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * base for factor in (1, 2, 2.5, 5, 10) if factor * base >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{at * step:.12g}") for at in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A number on an axis, without idle zeros.

    >>> tick_text(0.5), tick_text(-20.0), tick_text(0.00001)
    ('0.5', '−20', '1×10⁻⁵')
    """
    written = number(value)
    return written.rstrip("0").rstrip(".") if "." in written and "×" not in written else written
