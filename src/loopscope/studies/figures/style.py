"""How figures look: sizes, fonts and the one place for colours; how one is declared, and what it is when finished.

A figure is a function of records under the decorator `figure`; it returns a `Picture`, whose `draw` fills matplotlib's
`Figure`, or the reason why there is nothing to draw. matplotlib is imported when something is drawn.

Colours are from Okabe and Ito's palette, which stays apart under the common kinds of colour blindness. Outcomes also
differ in shape, so that they can be distinguished in print without colour.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope._version import __version__
from loopscope.errors import LoopscopeError, choice, setting, text
from loopscope.limits import read_text
from loopscope.path import EFFECT_MARGIN, Outcome
from loopscope.stats import Bootstrap, Estimate
from loopscope.store import sha256_bytes
from loopscope.store.files import clear_write_errors, write_atomically
from loopscope.studies.conditions import Condition, printable, shortened, spelled
from loopscope.studies.populations import unfinished
from loopscope.studies.records import Floats, Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_FORMATS = ("pdf", "png", "svg")
WIDTHS = {"one": 3.3, "two": 6.8}
"""Inches of one and of two columns of a paper."""
SMALLEST_TYPE = 6.0
"""Points of the smallest text of any figure, at the width at which it is printed."""
SHOWN_DPI = 100
"""Pixels of a notebook per inch; twice as many are drawn for fine displays."""
LONGEST_NAME = 32
"""Characters of a model or task next to an axis or above a panel."""
MOST_STYLE_BYTES = 100_000

VERMILLION, BLUE, GREY, PURPLE = "#D55E00", "#0072B2", "#8A8A8A", "#AA4499"
GREEN, ORANGE, SKY, BLACK = "#009E73", "#E69F00", "#56B4E9", "#000000"
OUTCOME_COLOURS = {
    **{Outcome.PROGRESSING: GREY, Outcome.NEUTRAL: BLACK},
    **{Outcome.DIRECTIONAL_FAILURE: BLUE, Outcome.FINITE_STEP_FAILURE: VERMILLION},
}
OUTCOME_MARKERS = {
    **{Outcome.PROGRESSING: ".", Outcome.NEUTRAL: "x"},
    **{Outcome.DIRECTIONAL_FAILURE: "v", Outcome.FINITE_STEP_FAILURE: "o"},
}
SERIES_COLOURS = ("#332288", "#882255", "#999933", PURPLE, "#44AA99", ORANGE, SKY)
"""Of models and conditions: none of them is an outcome's, and none is the green of a shorter step that helps."""
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

RC: Any = {
    **{"font.family": ["STIXGeneral", "DejaVu Sans"], "mathtext.fontset": "stix", "font.size": 8},
    **{"axes.labelsize": 8, "axes.titlesize": 8, "axes.titlepad": 4, "axes.labelpad": 2, "axes.linewidth": 0.6},
    **{f"{axis}tick.labelsize": 7 for axis in "xy"},
    **{f"{axis}tick.major.{name}": value for axis in "xy" for name, value in (("width", 0.6), ("size", 2.5))},
    **{f"{axis}tick.minor.{name}": value for axis in "xy" for name, value in (("width", 0.4), ("size", 1.5))},
    **{"axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.1, "path.simplify": True},
    **{"legend.fontsize": 7, "legend.frameon": False, "legend.handlelength": 1.4},
    **{"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "loopscope"},
}
KEPT = frozenset({"pdf.fonttype", "ps.fonttype", "svg.fonttype", "svg.hashsalt"})
"""Settings that make files sound and reproducible; only a style file changes them."""
_NO_DATE: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": "loopscope"},
    "svg": {"Date": None, "Creator": "loopscope"},
    "png": {"Software": "loopscope"},
}


def _matplotlib() -> Any:
    """The library, which comes with the extra `studies`."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise LoopscopeError("figures need matplotlib: pip install matplotlib") from error
    return matplotlib


@dataclass(frozen=True)
class Picture:
    """What a figure shows, before it is drawn.

    Attributes:
        height: in inches.
        draw: fills an empty figure.
        caption: what is drawn, in words.
        shown: ids and numbers behind each panel.
        notes: what a reader must know of the runs.
    """

    height: float
    draw: Callable[[Figure], None]
    caption: str
    shown: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FigureStudy:
    """A declared figure."""

    name: str
    title: str
    paper: str
    """LaTeX label of the figure or section of the paper that it reproduces."""
    summary: str
    needs: str
    """What a run must hold: a level of measurement, or an option of `measure`."""
    function: Callable[[Records, Bootstrap], Picture | str]

    kind = "figure"

    def figure(self, records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
        """The finished figure."""
        return self.drawn(self.function(records, bootstrap or Bootstrap()), records)

    def drawn(self, picture: Picture | str, records: Records) -> FigureResult:
        """A picture as a figure; a reason as a figure that says why there is nothing to draw."""
        matplotlib = _matplotlib()
        from matplotlib.figure import Figure

        with matplotlib.rc_context(drawing().settings()):
            if isinstance(picture, str):
                # However many runs the reason names, it has its lines; a layout would have no room left for axes.
                lines = textwrap.wrap(literal(picture, longest=None), width=int(14 * drawing().width))
                figure = Figure(figsize=(drawing().width, max(1.0, 0.4 + 0.2 * len(lines))))
                figure.text(0.5, 0.5, "\n".join(lines), ha="center", va="center")
                picture = Picture(0.0, lambda _: None, picture, {}, (picture,))
            else:
                figure = Figure(figsize=(drawing().width, picture.height), layout="constrained")
                picture.draw(figure)
        return FigureResult(
            self.name, self.title, picture.caption, figure, picture.shown, records.inputs(), picture.notes
        )


FIGURES: dict[str, FigureStudy] = {}
"""Every figure by name, in the order of declaration."""


def figure(
    name: str, title: str, *, paper: str, summary: str, needs: str
) -> Callable[[Callable[[Records, Bootstrap], Picture | str]], FigureStudy]:
    """Declare the figure that the decorated function makes of records."""
    return lambda function: FIGURES.setdefault(name, FigureStudy(name, title, paper, summary, needs, function))


@dataclass(frozen=True)
class Drawing:
    """How figures are drawn at the moment: their width, and the settings of a style file."""

    columns: str = "two"
    """A key of `WIDTHS`."""
    styled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> float:
        """In inches."""
        return WIDTHS[self.columns]

    @property
    def narrow(self) -> bool:
        """Whether there is one column only."""
        return self.columns == "one"

    def settings(self) -> Any:
        """Loopscope's settings, then those that were changed in this process, then those of a style file."""
        now, default = _matplotlib().rcParams, _matplotlib().rcParamsDefault
        changed = {name: now[name] for name in RC if name not in KEPT and now[name] != default[name]}
        found = {**RC, **changed, **self.styled}
        if found.get("text.usetex") and shutil.which("latex") is None:
            raise LoopscopeError("text.usetex needs LaTeX, and there is no latex here: install it, or leave that out")
        return found


_drawing = Drawing()


def drawing() -> Drawing:
    """How figures are drawn at the moment."""
    return _drawing


@contextmanager
def drawn_as(width: str = "two", style: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Within this block figures have this width and the settings of this style file (`NAME.mplstyle`)."""
    global _drawing
    before, _drawing = _drawing, Drawing(choice("width", width, tuple(WIDTHS)), _style_file(style))
    try:
        yield
    finally:
        _drawing = before


def _style_file(style: str | os.PathLike[str] | None) -> Any:
    """The settings of a style file; what matplotlib would only log or warn of is refused in one line."""
    if style is None:
        return {}
    # Read with loopscope's own limits first: matplotlib would also take an address on the network.
    written = read_text(style, setting("style").rstrip("="), MOST_STYLE_BYTES)
    lines = (line.partition("#")[0].partition(":")[0].strip() for line in written.splitlines())
    unknown = [name for name in lines if name and name not in _matplotlib().rcParams]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if unknown:
                raise ValueError(f"it has no setting {unknown[0]}")
            return dict(_matplotlib().rc_params_from_file(style, fail_on_error=True, use_default_template=False))
    except (Warning, ValueError) as error:
        said = f"{printable(Path(style).name)} is not a style of matplotlib: {' '.join(str(error).split())}"
        raise LoopscopeError(f"{setting('style')} {said}") from error


@dataclass(frozen=True)
class FigureResult:
    """A finished figure with what it shows and what it was made from."""

    study: str
    title: str
    caption: str
    figure: Figure
    shown: dict[str, Any]
    """Example ids and numbers behind each panel."""
    inputs: list[dict[str, object]]
    """Hashes of the manifests and shards that were read."""
    notes: tuple[str, ...] = ()
    settings: Any = field(default_factory=lambda: drawing().settings())
    """The settings of matplotlib with which it was drawn and is saved."""

    def __post_init__(self) -> None:
        # A picture travels without its notes: what must not get lost stands in it.
        if said := unfinished(self.notes):
            width = int(22 * self.figure.get_size_inches()[0])
            wrapped = textwrap.fill(literal("; ".join(said), longest=None), width=width)
            self.figure.supxlabel(wrapped, fontsize=SMALLEST_TYPE, color=BLACK)
        # The layout engine moves panels a little at every draw; settled once, every format shows the same figure.
        with _matplotlib().rc_context(self.settings):
            self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")

    def save(self, path: str | Path, *, dpi: int = 300) -> Path:
        """Write the figure as PDF, PNG or SVG by its suffix, and `NAME.json` with ids and hashes next to it.

        The same records give the same bytes: no date is embedded.
        """
        target = Path(text("path", path))
        kind = target.suffix.lstrip(".").lower()
        if kind not in FIGURE_FORMATS:
            kinds = ", ".join(FIGURE_FORMATS)
            raise LoopscopeError(f"{printable(target.name)}: figures are saved as {kinds}; give one of these suffixes")
        if target.parent.exists() and not target.parent.is_dir():
            raise LoopscopeError(f"{target.parent} is a file: save the figure into a folder")
        drawing = self.drawn(kind, dpi)
        with clear_write_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        described = target.with_suffix(".json")
        write_atomically(target, drawing)
        write_atomically(described, self.describe(target.name, drawing).encode())
        return target

    def drawn(self, kind: str, dpi: int) -> bytes:
        """The figure as a file's content."""
        buffer = io.BytesIO()
        with _matplotlib().rc_context(self.settings):
            self.figure.savefig(buffer, format=kind, dpi=dpi, metadata=_NO_DATE[kind])
        return buffer.getvalue()

    def describe(self, name: str, drawing: bytes) -> str:
        """What goes into the JSON next to a figure saved under that name."""
        description = {
            "figure": self.study,
            "title": self.title,
            "caption": self.caption,
            "width_inches": float(self.figure.get_size_inches()[0]),
            "loopscope_version": __version__,
            "file": {"name": printable(name), "sha256": sha256_bytes(drawing)},
            "shown": self.shown,
            "notes": list(self.notes),
            "inputs": self.inputs,
        }
        return json.dumps(description, indent=2, ensure_ascii=False, allow_nan=False, default=float) + "\n"

    def __repr__(self) -> str:
        return f'<Figure {self.study}: {self.title}; .save("{self.study}.pdf") writes it>'

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(SHOWN_DPI * inches) for inches in self.figure.get_size_inches())
        return self.drawn("png", dpi=2 * SHOWN_DPI), {"width": width, "height": height}


def literal(name: str, longest: int | None = LONGEST_NAME) -> str:
    """Text that is drawn as it stands: no mathematics, no character that the fonts lack, not wider than its place."""
    text = "".join(c if _has_glyph(c) else spelled(c) for c in printable(name))
    if longest is not None:
        text = shortened(text, longest)
    # Legends leave out what begins with an underscore.
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


@cache
def _has_glyph(character: str) -> bool:
    _matplotlib()
    from matplotlib.font_manager import findfont, get_font

    fonts = (get_font(findfont(family)) for family in RC["font.family"])
    return any(font.get_char_index(ord(character)) for font in fonts)


def handle(look: Mapping[str, Any], **more: Any) -> Any:
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **{"markersize": 3.5, **look, **more})


def series(place: int) -> dict[str, Any]:
    """Colour and marker of a model or condition by its place among the others."""
    turn, colour = divmod(place, len(SERIES_COLOURS))
    marker = turn % len(SERIES_MARKERS) if turn else place
    return {"color": SERIES_COLOURS[colour], "marker": SERIES_MARKERS[marker]}


def ends(estimate: Estimate) -> tuple[float, float]:
    """The ends of an interval; the value itself where there is none."""
    value = np.nan if estimate.value is None else estimate.value
    return (estimate.interval.low, estimate.interval.high) if estimate.interval else (value, value)


def band(
    axes: Axes,
    places: Sequence[float],
    estimates: Sequence[Estimate],
    look: Mapping[str, Any],
    per: float = 1.0,
    **more: Any,
) -> None:
    """A line through estimates with a band of their intervals; what has no value is left out."""
    known = [(place, each) for place, each in zip(places, estimates, strict=True) if each.value is not None]
    xs = [place for place, _ in known]
    low, high = (np.array([ends(each)[side] for _, each in known]) / per for side in (0, 1))
    axes.fill_between(xs, low, high, color=look["color"], alpha=0.18, linewidth=0)
    values = np.array([each.value for _, each in known], dtype=float) / per
    axes.plot(xs, values, **{"markersize": 2.8, **look, **more})


def depth_axis(axes: Axes, depths: list[int]) -> None:
    """Loops along the x axis, with ticks at depths that were measured; many depths are drawn on a logarithmic axis."""
    axes.set_xlabel("Depth (loops)")
    if depths[-1] > 16:
        axes.set_xscale("log", base=2)
        powers = [depth for depth in depths if depth & (depth - 1) == 0]
        ticks = powers if len(powers) > 1 else [depths[0], depths[-1]]
    else:
        ticks = depths if len(depths) <= 9 else depths[:: -(-len(depths) // 8)]
    axes.set_xticks(ticks, [str(depth) for depth in ticks])
    axes.set_xticks([], minor=True)


def symlog_threshold(*values: Floats) -> float:
    """Where a symmetric-log axis turns linear: the paper's effect margin, or lower where most data lie below it."""
    magnitudes = np.abs(np.concatenate([np.ravel(value) for value in values]))
    magnitudes = magnitudes[magnitudes > 0]
    if not magnitudes.size:
        return EFFECT_MARGIN
    middle = float(np.median(magnitudes))
    return EFFECT_MARGIN if middle > EFFECT_MARGIN else float(10.0 ** np.floor(np.log10(middle)))


def symlog_ticks(threshold: float, limit: float, most: int = 3) -> list[float]:
    """Symmetric ticks at powers of ten, at most `most` on each side of zero."""
    low, high = round(np.log10(threshold)), int(np.floor(np.log10(max(limit, threshold))))
    stride = max(1, -(-(high - low + 1) // most))
    powers = [10.0**power for power in range(high, low - 1, -stride)][::-1]
    return [-power for power in reversed(powers)] + [0.0] + powers


def names_of(conditions: Sequence[Condition]) -> list[str]:
    """Short names that tell the conditions of one figure apart: what they all share is left out.

    A single model is named once by the figure itself (`shared_model`).
    """
    models = len({condition.model_title for condition in conditions}) > 1
    runs = len({str(condition) for condition in conditions}) < len(conditions)
    parts = (
        (
            literal(condition.model_title) if models else "",
            literal(condition.set_title),
            condition.update,
            f"({literal(condition.run)})" if runs else "",
        )
        for condition in conditions
    )
    return [" ".join(filter(None, part)) for part in parts]


def shared_model(conditions: Sequence[Condition]) -> str:
    """The one model of a figure, or nothing where there are several."""
    models = {condition.model_title for condition in conditions}
    return literal(models.pop()) if len(models) == 1 else ""


def panel_letter(axes: Axes, letter: str, title: str = "") -> None:
    """`(a) Title` above the left edge of a panel."""
    axes.set_title(f"({letter}) {title}".rstrip(), loc="left")
