"""How figures look: sizes, fonts and the one place for colours; how one is declared, and what it is when finished.

A figure is a function under the decorator `figure`, of the groups of a population or of a finished table; it returns a
`Picture`, whose `draw` fills matplotlib's `Figure`, or the reason why there is nothing to draw. The function's
docstring is the figure's caption; bars and bands are the bootstrap's intervals. matplotlib is imported
when something is drawn; settings that this process or a `matplotlibrc` changes win over loopscope's.

Colours are from Okabe and Ito's palette, which stays apart under the common kinds of colour blindness. Outcomes also
differ in shape, so that they can be distinguished in print without colour.
"""

from __future__ import annotations

import inspect
import io
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope import __version__
from loopscope.errors import LoopscopeError, text
from loopscope.path import EFFECT_MARGIN, Outcome
from loopscope.stats import Bootstrap, Estimate
from loopscope.store import sha256_bytes
from loopscope.store.writer import clear_write_errors, write_atomically
from loopscope.studies.conditions import Condition, printable, shortened, spelled, told_apart
from loopscope.studies.declare import Table, TableResult
from loopscope.studies.populations import Population, Selection, unfinished
from loopscope.studies.records import Floats, Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_FORMATS = ("pdf", "png", "svg")
WIDTH = 6.8  # inches of two columns of a paper
SMALLEST_TYPE = 6.0  # points of the smallest text of any figure, at the width at which it is printed
SHOWN_DPI = 100  # pixels of a notebook per inch; twice as many are drawn for fine displays
PRINT_DPI = 300
LONGEST_NAME = 32  # characters of a model or task next to an axis or above a panel

VERMILLION, BLUE, GREY, PURPLE = "#D55E00", "#0072B2", "#8A8A8A", "#AA4499"
GREEN, ORANGE, SKY, BLACK = "#009E73", "#E69F00", "#56B4E9", "#000000"
OUTCOMES: dict[Outcome, dict[str, Any]] = {
    Outcome.PROGRESSING: {"color": GREY, "marker": "."},
    Outcome.NEUTRAL: {"color": BLACK, "marker": "x"},
    Outcome.DIRECTIONAL_FAILURE: {"color": BLUE, "marker": "v"},
    Outcome.FINITE_STEP_FAILURE: {"color": VERMILLION, "marker": "o"},
}
# Of models and conditions: none of them is an outcome's, and none is the green of a shorter step that helps.
SERIES_COLOURS = ("#332288", "#882255", "#999933", PURPLE, "#44AA99", ORANGE, SKY)
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE = Path(__file__).parent / "figures.mplstyle"
# What embeds fonts and gives the same bytes again, and what LaTeX would need: not the user's to change.
FIXED = ("pdf.fonttype", "ps.fonttype", "svg.fonttype", "svg.hashsalt", "text.usetex")
_NO_DATE: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": "loopscope"},
    "svg": {"Date": None, "Creator": "loopscope"},
    "png": {"Software": "loopscope"},
}


def settings() -> Any:
    """Matplotlib's settings for a figure."""
    try:
        from matplotlib import rc_params_from_file, rcParams, rcParamsDefault
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise LoopscopeError("figures need matplotlib: pip install '.[studies]' in loopscope's folder") from error
    ours = dict(rc_params_from_file(STYLE, use_default_template=False))
    users = {name: rcParams[name] for name in ours if rcParams[name] != rcParamsDefault[name]}
    return ours | {name: value for name, value in users.items() if name not in FIXED}


@dataclass(frozen=True)
class Picture:
    """What a figure shows, before it is drawn.

    Attributes:
        height: in inches.
        draw: fills an empty figure.
        shown: ids and numbers behind each panel.
        more: what the caption says of these runs.
        notes: what is to be said besides the notes of what it is drawn from.
    """

    height: float
    draw: Callable[[Figure], None]
    shown: dict[str, Any]
    more: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FigureStudy:
    """A declared figure.

    Attributes:
        name: as `loopscope figures --name` has it.
        title: of it.
        paper: LaTeX label of the figure or section of the paper that it reproduces.
        over: what it is drawn from: the groups of a population, or a table.
        function: makes the picture, or says why there is none.
    """

    name: str
    title: str
    paper: str
    over: Population | Table
    function: Callable[[Any, Bootstrap], Picture | str]

    kind = "figure"

    @property
    def needs(self) -> str:
        """What a run must hold: a level of measurement, or an option of `measure`."""
        return self.over.needs

    def figure(self, records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
        """The finished figure."""
        settings = bootstrap or Bootstrap()
        given = self.over.table(records, settings) if isinstance(self.over, Table) else self.over.choose(records)
        return self.of(given, records, settings)

    def of(self, given: Selection | TableResult, records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
        """The figure of groups or of a table that were made elsewhere."""
        groups, some = (told_apart(given.kept), given.kept) if isinstance(given, Selection) else (given, given.rows)
        if some:
            return self._drawn(self.function(groups, bootstrap or Bootstrap()), given.notes, records)
        return self._drawn(given.notes[-1] if given.notes else "nothing to draw", given.notes, records)

    def _drawn(self, picture: Picture | str, notes: tuple[str, ...], records: Records) -> FigureResult:
        """A picture as a figure; a reason as a figure that says why there is nothing to draw."""
        rc = settings()
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        with rc_context(rc):
            if isinstance(picture, str):
                # However many runs the reason names, it has its lines; a layout would have no room left for axes.
                lines = textwrap.wrap(literal(picture, longest=None), width=int(14 * WIDTH))
                figure = Figure(figsize=(WIDTH, max(1.0, 0.4 + 0.2 * len(lines))))
                figure.text(0.5, 0.5, "\n".join(lines), ha="center", va="center")
                notes = (picture,)
                caption, picture = picture, Picture(0.0, lambda _: None, {})
            else:
                figure = Figure(figsize=(WIDTH, picture.height), layout="constrained")
                picture.draw(figure)
                caption = " ".join([*(inspect.getdoc(self.function) or "").split(), picture.more]).rstrip()
            # A picture travels without its notes: what must not get lost stands in it.
            if said := unfinished((*notes, *picture.notes)):
                wrapped = textwrap.fill(literal("; ".join(said), longest=None), width=int(22 * WIDTH))
                figure.supxlabel(wrapped, fontsize=SMALLEST_TYPE, color=BLACK)
            # The layout engine moves panels a little at every draw; settled once, every format shows the same figure.
            # Text is up to 5% narrower at 100 pixels per inch than in print: the layout is made for print.
            figure.set_dpi(PRINT_DPI)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            figure.set_dpi(SHOWN_DPI)
        about = (caption, picture.shown, (*notes, *picture.notes))
        return FigureResult(self.name, self.title, *about, figure, records.inputs(), rc)


FIGURES: dict[str, FigureStudy] = {}  # in the order of declaration


def figure(
    name: str, title: str, *, paper: str, over: Population | Table
) -> Callable[[Callable[[Any, Bootstrap], Picture | str]], FigureStudy]:
    """Declare the figure that the decorated function makes of a population's groups, or of a table."""
    return lambda function: FIGURES.setdefault(name, FigureStudy(name, title, paper, over, function))


@dataclass(frozen=True)
class FigureResult:
    """A finished figure with what it shows and what it was made from.

    Attributes:
        study: its name.
        title: of it.
        caption: what is drawn, in words.
        shown: example ids and numbers behind each panel.
        notes: what a reader must know of the runs.
        figure: matplotlib's.
        inputs: hashes of the manifests and shards that were read.
        settings: those of matplotlib with which it was drawn and is saved.
    """

    study: str
    title: str
    caption: str
    shown: dict[str, Any]
    notes: tuple[str, ...]
    figure: Figure
    inputs: list[dict[str, object]]
    settings: Any

    def save(self, path: str | Path, *, dpi: int = PRINT_DPI) -> Path:
        """Write the figure as PDF, PNG or SVG by its suffix, and `NAME.json` with ids and hashes next to it.

        The same records give the same bytes: no date is embedded.
        """
        target = Path(text("path", path))
        kind = target.suffix.lstrip(".").lower()
        if kind not in FIGURE_FORMATS:
            kinds = ", ".join(FIGURE_FORMATS)
            raise LoopscopeError(f"{printable(target.name)}: figures are saved as {kinds}; give one of these suffixes")
        drawing = self.drawn(kind, dpi)
        with clear_write_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, drawing)
        write_atomically(target.with_suffix(".json"), self.describe(target.name, drawing).encode())
        return target

    def drawn(self, kind: str, dpi: int) -> bytes:
        """The figure as a file's content."""
        from matplotlib import rc_context

        buffer = io.BytesIO()
        with rc_context(self.settings):
            self.figure.savefig(buffer, format=kind, dpi=dpi, metadata=_NO_DATE[kind])
        return buffer.getvalue()

    def describe(self, name: str, drawing: bytes) -> str:
        """What goes into the JSON next to a figure saved under that name."""
        description = {
            "figure": self.study,
            "title": self.title,
            "caption": self.caption,
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
    from matplotlib.font_manager import findfont, get_font

    fonts = (get_font(findfont(family)) for family in settings()["font.family"])
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


def _drawable(
    places: Sequence[float], estimates: Sequence[Estimate], per: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Places, values and ends of the estimates that have a value."""
    known = [(place, each) for place, each in zip(places, estimates, strict=True) if each.value is not None]
    numbers = np.array([(each.value, *ends(each)) for _, each in known], dtype=float).reshape(-1, 3) / per
    return np.array([place for place, _ in known], dtype=float), *numbers.T


def band(
    axes: Axes, places: Sequence[float], estimates: Sequence[Estimate], look: Mapping[str, Any], per: float = 1.0
) -> None:
    """A line through estimates with a band of their intervals; what has no value is left out."""
    xs, values, low, high = _drawable(places, estimates, per)
    axes.fill_between(xs, low, high, color=look["color"], alpha=0.18, linewidth=0)
    axes.plot(xs, values, **{"markersize": 2.8, **look})


def bars(
    axes: Axes, places: Sequence[float], estimates: Sequence[Estimate], look: Mapping[str, Any], per: float = 1.0
) -> None:
    """Estimates with bars of their intervals, which contain them; what has no value is left out."""
    xs, values, low, high = _drawable(places, estimates, per)
    if xs.size:
        reach = np.maximum([values - low, high - values], 0.0)
        axes.errorbar(xs, values, reach, **{"markersize": 3, "capsize": 1.5, "elinewidth": 0.9, **look})


def hide_empty(grid: Any, used: int) -> None:
    """Hide the panels of a grid beyond those that are used."""
    for axes in list(grid.flat)[used:]:
        axes.set_visible(False)


def depth_axis(axes: Axes, depths: list[int]) -> None:
    """Loops along the x axis, with ticks at depths that were measured; many depths are drawn on a logarithmic axis."""
    axes.set_xlabel("Depth (loops)")
    ticks = depths[:: -(-len(depths) // 9)]
    if depths[-1] > 16:
        axes.set_xscale("log", base=2)
        ticks = [depth for depth in depths if depth & (depth - 1) == 0] or [depths[0], depths[-1]]
    axes.set_xticks(ticks, [str(depth) for depth in ticks])
    axes.set_xticks([], minor=True)


def symlog(axes: Axes, which: str, threshold: float, limit: float, most: int = 3) -> None:
    """Give the axes `which` ("x" or "xy") a symmetric-log scale with few symmetric ticks."""
    for name in which:
        getattr(axes, f"set_{name}scale")("symlog", linthresh=threshold, linscale=0.6)
        getattr(axes, f"set_{name}ticks")(symlog_ticks(threshold, limit, most))
        getattr(axes, f"set_{name}ticks")([], minor=True)


def symlog_threshold(*values: Floats) -> float:
    """Where a symmetric-log axis turns linear: the paper's effect margin, or lower where most data lie below it."""
    magnitudes = np.abs(np.concatenate([np.ravel(value) for value in values]))
    magnitudes = magnitudes[magnitudes > 0]
    if not magnitudes.size:
        return EFFECT_MARGIN
    return min(EFFECT_MARGIN, float(10.0 ** np.floor(np.log10(np.median(magnitudes)))))


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
    parts = ((literal(each.model_title) if models else "", literal(each.set_title), each.update) for each in conditions)
    return [" ".join(filter(None, part)) for part in parts]


def shared_model(conditions: Sequence[Condition]) -> str:
    """The one model of a figure, or nothing where there are several."""
    models = {condition.model_title for condition in conditions}
    return literal(models.pop()) if len(models) == 1 else ""


def panel_letter(axes: Axes, letter: str, title: str = "") -> None:
    """`(a) Title` above the left edge of a panel."""
    axes.set_title(f"({letter}) {title}".rstrip(), loc="left")
