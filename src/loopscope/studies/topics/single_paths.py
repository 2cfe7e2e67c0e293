"""Single paths: the concept of a shorter step ("fig:intro-concept") and scale prediction ("fig:scale-prediction").

Appendix E.5, "Figure construction". (a, b) one finite-step failure of two conditions with its quadratic; (c, d) every
primary prediction against its numerical optimum, identical coordinates combined with marker area growing as the square
root of their count; (e) grid regret of five fixed scales and of the quadratic rule with conditional intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope.path import quadratic_value
from loopscope.stats import Bootstrap, Estimate
from loopscope.store import Level
from loopscope.studies import figures
from loopscope.studies.conditions import printable
from loopscope.studies.declare import Values, estimated
from loopscope.studies.populations import updates_with
from loopscope.studies.records import GRID_SCALES, Floats, Updates
from loopscope.studies.topics.scales import FIXED, scale_statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAME = 9  # decimals to which coordinates are called identical; optima are known no better than their brackets
LONGEST_HEAD = 20  # characters of a name above a panel
LARGEST_MARKER = 70.0  # area in square points


@dataclass(frozen=True)
class Example:
    """One finite-step failure."""

    updates: Updates
    place: int

    @cached_property
    def path(self) -> tuple[Floats, Floats]:
        """Scales and gains, as finely as the run stores them."""
        stored = self.updates.records.path(self.updates.condition, self.updates.frame["row"][self.place])
        return stored or (GRID_SCALES, self.updates.grid_gain[self.place])

    @property
    def source(self) -> str:
        """What the path is drawn from."""
        return "21-point grid" if len(self.path[0]) == len(GRID_SCALES) else f"{len(self.path[0])} stored FP64 nodes"

    def at(self, scale: float) -> float:
        """The gain at a scale, between stored ones on a straight line."""
        return float(np.interp(scale, *self.path))

    def number(self, name: str) -> float:
        """Slope, quadratic or predicted scale, of the FP64 path where the run has it."""
        fp64 = "fp64_predicted_scale" if name == "quadratic_scale" else f"fp64_{name}"
        return float(self.updates.floats(fp64 if self.updates.has(fp64) else name)[self.place])

    @property
    def optimum(self) -> float:
        """The numerical optimum estimate."""
        return float(optimum_estimate(self.updates)[self.place])

    def described(self) -> dict[str, Any]:
        """Plain values for the JSON next to a figure."""
        condition, chosen_from = self.updates.condition, int(self.updates.finite_step.sum())
        return {
            "condition": str(condition),
            "run": condition.run,
            "example_id": self.updates.ids[self.place],
            "chosen_from": chosen_from,
            "path": self.source,
            "predicted_scale": self.number("quadratic_scale"),
            "optimum": self.optimum,
        }


def optimum_estimate(updates: Updates) -> Floats:
    """The numerical optimum of every question: the middle of the FP64 bracket, or the grid optimum."""
    if updates.has("fp64_optimum_low", "fp64_optimum_high"):
        return 0.5 * (updates.floats("fp64_optimum_low") + updates.floats("fp64_optimum_high"))
    return np.asarray(updates.optimum.alpha)


def lower_median_failure(updates: Updates) -> Example | None:
    """The failure in the middle by optimum (the lower one of two), ids breaking ties: the paper's choice."""
    failures, optimum = np.flatnonzero(updates.finite_step), optimum_estimate(updates)
    ordered = sorted(failures.tolist(), key=lambda place: (optimum[place], updates.ids[place]))
    return Example(updates, ordered[(len(ordered) - 1) // 2]) if ordered else None


def clearest_failure(updates: Updates) -> Example | None:
    """The failure whose rise and whose fall are both large; None where no scale of the grid turns one into a gain."""
    clarity = updates.clarity
    return Example(updates, int(np.argmax(clarity))) if clarity.max(initial=0.0) > 0 else None


@figures.figure(
    "concept",
    "A shorter step can recover progress",
    paper="fig:intro-concept",
    over=updates_with("grid_gain", level=Level.GRID),
)
def concept(groups: tuple[Updates, ...], bootstrap: Bootstrap) -> figures.Picture | str:
    """A measured finite-step failure, chosen to be seen, not to be typical: the one whose rise and fall are both large.
    Utility gain is the change in the reference's utility, in nats, relative to the current state (scale 0); the
    proposed state is at scale 1.
    """
    found = [example for updates in groups if (example := clearest_failure(updates)) is not None]
    if not found:
        return "no finite-step failure that a grid scale turns into a gain"
    example = max(found, key=lambda each: each.updates.clarity.max())
    condition, failures = example.updates.condition, int(example.updates.finite_step.sum())
    question = printable(example.updates.ids[example.place])
    more = f"{condition}, question {question}, one of {failures}, drawn from its {example.source}."
    shown = {"example": example.described()}
    return figures.Picture(2.4, lambda figure: _concept(figure, example), shown, more)


def _concept(figure: Figure, example: Example) -> None:
    axes = figure.subplots()
    scale, gain = example.path
    # Dense points make the shaded edge meet the zero line; between stored points the path is drawn straight.
    dense = np.union1d(scale, np.linspace(0, 1, 401))
    values = np.interp(dense, scale, gain)
    axes.axhline(0, color=figures.BLACK, linewidth=0.6)
    for inside, colour in ((values >= 0, figures.GREEN), (values <= 0, figures.VERMILLION)):
        axes.fill_between(dense, 0, values, where=inside, color=colour, alpha=0.15, linewidth=0)
    axes.plot(scale, gain, color=figures.BLACK)
    height = float(np.ptp(gain))
    for place, colour, name, offset, side in (
        (0.0, figures.BLACK, "current", -0.10, "left"),
        (example.optimum, figures.GREEN, "shorter step", 0.08, "center"),
        (1.0, figures.VERMILLION, "proposed", -0.10, "right"),
    ):
        axes.plot(place, example.at(place), "o", color=colour, markersize=4.5, zorder=5, clip_on=False)
        vertical = "top" if offset < 0 else "bottom"
        axes.text(place, example.at(place) + offset * height, name, color=colour, ha=side, va=vertical)
    axes.set_ylim(float(gain.min()) - 0.28 * height, float(gain.max()) + 0.26 * height)
    _along_the_step(axes)


def _along_the_step(axes: Axes) -> None:
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xlabel(r"Step scale $\alpha$")
    axes.set_ylabel("Utility gain")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-1, 3), useMathText=True)


@dataclass(frozen=True)
class Shown:
    """What the figure of scale prediction shows of one condition; `values` are estimates of the primary subset."""

    updates: Updates
    example: Example
    values: Values

    @cached_property
    def predictions(self) -> tuple[Floats, Floats, Floats]:
        """Predicted scales of the primary updates and the ends of their optima, as exactly as the run knows them."""
        inside, names = self.updates.where(self.updates.primary), ("predicted_scale", "optimum_low", "optimum_high")
        if inside.has(*(f"fp64_{name}" for name in names)):
            predicted, low, high = (inside.floats(f"fp64_{name}") for name in names)
            return predicted, low, high
        optimum = np.asarray(inside.optimum.alpha)
        return inside.quadratic_scale, optimum, optimum

    @property
    def at_corner(self) -> int:
        """How many predictions and optima are both the full step."""
        predicted, low, high = self.predictions
        return int(((np.round(predicted, SAME) == 1.0) & (np.round(0.5 * (low + high), SAME) == 1.0)).sum())

    @property
    def regrets(self) -> dict[str, Estimate]:
        """Of the fixed scales and of the quadratic rule."""
        fixed = {f"{scale:g}": self.values[name] for scale, name in FIXED.items()}
        return {**fixed, "quad.": self.values["quadratic_regret"]}


@figures.figure(
    "scale-prediction",
    "Scale prediction",
    paper="fig:scale-prediction",
    over=updates_with("grid_gain", "quadratic_scale", level=Level.GRID),
)
def scale_prediction(groups: tuple[Updates, ...], bootstrap: Bootstrap) -> figures.Picture | str:
    """Above: utility path of a finite-step failure and its local quadratic approximation (finite-step failures by
    numerical optimum, then example id; lower median). Below: predicted scale against the optimum of the updates with
    A > 0 and Q < 0; the area of a marker grows as the square root of how many points lie on each other. Right: mean
    grid regret of fixed scales and of the quadratic rule over the same updates, in nats, with intervals; a regret of
    zero has no place on the logarithmic axis.
    """
    candidates = [updates for updates in groups if (updates.primary & updates.finite_step).any()]
    if not candidates:
        return "no finite-step failure with Q<0 in these runs"
    shown = []
    for updates in _two(candidates):
        example = lower_median_failure(updates)
        assert example is not None
        shown.append(Shown(updates, example, estimated(scale_statistics(updates.where(updates.primary)), bootstrap)))
    described = [
        {
            "condition": str(each.updates.condition),
            "example": each.example.described(),
            "primary_ids": each.updates.where(each.updates.primary).ids,
            "regret": {name: [found.value, *figures.ends(found)] for name, found in each.regrets.items()},
        }
        for each in shown
    ]
    return figures.Picture(3.4, lambda figure: _prediction(figure, shown), {"conditions": described})


def _two(candidates: list[Updates]) -> list[Updates]:
    """Solution tasks first, as in the paper, then the clearest failure; the second of another model, if there is."""
    if len(candidates) < 3:
        return candidates
    first, *others = sorted(candidates, key=lambda group: (group.condition.kind != "solution", -group.clarity.max()))
    second = (each for each in others if each.condition.model_title != first.condition.model_title)
    return [first, next(second, others[0])]


def _prediction(figure: Figure, shown: list[Shown]) -> None:
    columns = len(shown)
    grid = figure.add_gridspec(2, columns + 1, width_ratios=[1.0] * columns + [1.25 if columns > 1 else 1.0])
    for place, one in enumerate(shown):
        condition, colour = one.updates.condition, figures.series(place)["color"]
        above, below = (figure.add_subplot(grid[row, place]) for row in (0, 1))
        _example(above, one.example, colour, legend=place == 0)
        _scatter(below, one, colour)
        figures.panel_letter(above, "abcd"[place], figures.literal(condition.model_title, LONGEST_HEAD))
        name = f"{figures.literal(condition.set_title, LONGEST_HEAD - 4)} {condition.update}"
        figures.panel_letter(below, "abcd"[columns + place], name)
    axes = figure.add_subplot(grid[:, columns])
    _regrets(axes, shown)
    figures.panel_letter(axes, "abcde"[2 * columns], "Grid regret")


def _example(axes: Axes, example: Example, colour: str, *, legend: bool) -> None:
    scale, gain = example.path
    dense = np.linspace(0, 1, 201)
    quadratic = quadratic_value(dense, example.number("slope"), example.number("quadratic"))
    axes.axhline(0, color=figures.BLACK, linewidth=0.5)
    axes.plot(scale, gain, color=colour, label=r"path $\phi$")
    axes.plot(dense, quadratic, color=figures.BLACK, linestyle=(0, (3, 2)), linewidth=0.9, label="quadratic $q$")
    best, predicted = example.optimum, example.number("quadratic_scale")
    axes.plot(best, example.at(best), "o", color=colour, markersize=5, label=r"$\alpha^\star$")
    look: Any = {"markerfacecolor": "white", "markeredgecolor": figures.BLACK, "markersize": 2.8}
    axes.plot(predicted, example.at(predicted), "D", label=r"$\hat\alpha$", **look)
    # The path must stay readable where the quadratic runs far away from it.
    low, height = float(gain.min()), float(np.ptp(gain))
    axes.set_ylim(max(min(low, float(quadratic.min())), low - 0.6 * height) - 0.06 * height, None)
    _along_the_step(axes)
    if legend:
        axes.legend(loc="lower left", labelspacing=0.25, borderaxespad=0.2, handletextpad=0.5)


def _scatter(axes: Axes, one: Shown, colour: str) -> None:
    predicted, low, high = one.predictions
    axes.plot([0, 1], [0, 1], color=figures.GREY, linewidth=0.6, zorder=1)
    axes.vlines(predicted, low, high, color=colour, linewidth=0.6, alpha=0.6)
    coordinates = np.round(np.stack([predicted, 0.5 * (low + high)]), SAME)
    points, counts = np.unique(coordinates, axis=1, return_counts=True)
    area = np.sqrt(counts)
    # Area grows as the square root of the count; the largest marker must not cover the panel.
    size = min(7.0, LARGEST_MARKER / float(area.max(initial=1.0))) * area
    many = points.shape[1]
    look: Any = {"alpha": 0.45 if many < 1000 else 0.25, "linewidth": 0, "zorder": 2, "rasterized": many > 3000}
    axes.scatter(points[0], points[1], s=size, color=colour, **look)
    if (corner := one.at_corner) > 1:
        place: Any = {"textcoords": "offset points", "ha": "right", "va": "bottom", "fontsize": 7}
        axes.annotate(f"{corner} points", (1, 1), (4, 5), **place)
    axes.set(xlim=(-0.04, 1.1), ylim=(-0.04, 1.22), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set_xlabel(r"Predicted scale $\hat\alpha$")
    axes.set_ylabel(r"Optimum $\alpha^\star$" if one.updates.has("fp64_optimum_low") else "Grid optimum")


def _regrets(axes: Axes, shown: list[Shown]) -> None:
    places = [*range(len(FIXED)), len(FIXED) + 0.4]
    axes.set_yscale("log")
    names = figures.names_of([one.updates.condition for one in shown])
    for index, (one, name) in enumerate(zip(shown, names, strict=True)):
        look = figures.series(index) | {"markersize": 3.5}
        offset = 0.16 * (index - (len(shown) - 1) / 2)
        drawn = [(place + offset, each) for place, each in zip(places, one.regrets.values(), strict=True) if each.value]
        fixed = [(place, each.value) for place, each in drawn if place < len(FIXED) - 0.5]
        axes.plot(*np.array(fixed, dtype=float).reshape(-1, 2).T, color=look["color"], linewidth=0.7, alpha=0.6)
        figures.bars(axes, [place for place, _ in drawn], [each for _, each in drawn], look | {"linestyle": "none"})
        axes.plot([], [], linewidth=0.7, label=name, **look)
    axes.axvline(len(FIXED) - 0.3, color=figures.GREY, linewidth=0.5, linestyle=(0, (1, 2)))
    axes.set_xticks(places, list(shown[0].regrets))
    axes.set_xlim(-0.5, places[-1] + 0.5)
    axes.set_xlabel("Fixed scale")
    axes.set_ylabel("Mean grid regret")
    axes.legend(loc="lower left", labelspacing=0.3, borderaxespad=0.2)
