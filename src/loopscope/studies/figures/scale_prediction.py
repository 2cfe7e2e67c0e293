"""Scale prediction: Figure "fig:scale-prediction" (a–e), constructed as Appendix E.5 says.

(a, b) the lower-median finite-step failure of two conditions with its quadratic; (c, d) every primary prediction
against its numerical optimum, identical coordinates combined with marker area growing as the square root of their
count; (e) grid regret of five fixed scales and of the quadratic rule with conditional bootstrap intervals.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loopscope.path import quadratic_value
from loopscope.stats import Bootstrap, Estimate
from loopscope.store import Level
from loopscope.studies.figures.concept import Example, lower_median_failure, optimum_estimate
from loopscope.studies.figures.style import (
    BLACK,
    GREY,
    SERIES_COLOURS,
    SERIES_MARKERS,
    FigureResult,
    drawing,
    empty_figure,
    literal,
    panel_letter,
    paper_style,
)
from loopscope.studies.records import Floats, Records, Updates
from loopscope.studies.tables.scale_prediction import FIXED_SCALES, ScaleRow, rows_of
from loopscope.studies.usable_conditions import select

TITLE = "Scale prediction"
SAME = 9
"""Decimals to which coordinates are called identical; numerical optima are known no better than their brackets."""

LONGEST_HEAD = 20
"""Characters of a name above a panel."""
LARGEST_MARKER = 70.0
"""Largest marker area, in square points."""


@dataclass(frozen=True)
class Panelled:
    """What the figure shows of one condition."""

    updates: Updates
    example: Example
    row: ScaleRow


def scale_prediction(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """The solution task with most finite-step failures, and the next condition of another model, else task."""
    chosen = select(records, "grid_gain", "quadratic_scale", level=Level.GRID)
    candidates = [updates for updates in chosen.kept if (updates.primary & updates.finite_step).any()]
    if not candidates:
        return empty_figure("scale-prediction", TITLE, records, chosen, "no finite-step failure with Q<0 in these runs")
    settings = bootstrap or Bootstrap()
    shown = [
        Panelled(updates, example, rows_of(updates, settings, keys=("primary",))[0])
        for updates in _two(candidates)
        if (example := lower_median_failure(records, updates)) is not None
    ]
    with paper_style():
        figure = _draw(shown)
    return FigureResult(
        "scale-prediction",
        TITLE,
        _caption(shown, settings.level),
        figure,
        {"conditions": [_described(panelled) for panelled in shown]},
        records.inputs(),
        chosen.notes,
    )


def _caption(shown: list[Panelled], level: float) -> str:
    """What the panels hold; their letters follow from how many conditions there are."""
    two = len(shown) > 1
    paths, scatters, last = ("(a, b)", "(c, d)", "(e)") if two else ("(a)", "(b)", "(c)")
    parts = [
        f"{paths} Utility path of the lower-median finite-step failure"
        f"{' of each condition' if two else ''} and its local quadratic approximation.",
        f"{scatters} Predicted scale against the optimum of the updates with A > 0 and Q < 0 "
        f"({' and '.join(str(int(panelled.updates.primary.sum())) for panelled in shown)}); the area of a marker grows "
        "as the square root of how many points lie on each other"
        + (
            f", {' and '.join(str(count) for count in corners)} of them at (1, 1)."
            if (corners := [count for panelled in shown if (count := _at_corner(panelled.updates)) > 1])
            else "."
        ),
        f"{last} Mean grid regret of fixed scales and of the quadratic rule over the same updates, in nats, with "
        f"{100 * level:g}% intervals; a regret of zero has no place on the logarithmic axis.",
    ]
    return " ".join(parts)


def _predictions(updates: Updates) -> tuple[Floats, Floats, bool]:
    """Predicted scales and optima of the primary updates, as exactly as the run knows them."""
    fp64 = updates.has("fp64_optimum_low", "fp64_optimum_high", "fp64_predicted_scale")
    predicted = updates.floats("fp64_predicted_scale" if fp64 else "quadratic_scale")[updates.primary]
    return predicted, optimum_estimate(updates)[updates.primary], fp64


def _at_corner(updates: Updates) -> int:
    """How many predictions and optima are both the full step."""
    predicted, optimum, _ = _predictions(updates)
    return int(((np.round(predicted, SAME) == 1.0) & (np.round(optimum, SAME) == 1.0)).sum())


def _two(candidates: list[Updates]) -> list[Updates]:
    # Mathematical sets first, as in the paper: their paths are those of the reference-token utility.
    ranked = sorted(candidates, key=lambda group: (group.condition.kind != "solution", -int(group.finite_step.sum())))
    first = ranked[0]
    here = first.condition

    def other(group: Updates) -> tuple[bool, bool, bool]:
        there = group.condition
        return (
            (there.run, there.model) != (here.run, here.model),
            there.evaluation_set != here.evaluation_set,
            there.transition != here.transition,
        )

    # `max` keeps the first of equals, which has most failures among them.
    return [first] if len(ranked) == 1 else [first, max(ranked[1:], key=other)]


def _described(panelled: Panelled) -> dict[str, Any]:
    updates, row = panelled.updates, panelled.row
    inside = np.flatnonzero(updates.primary)
    regrets = {f"fixed {scale:g}": row.fixed(scale) for scale in FIXED_SCALES} | {"quadratic": row.quadratic_regret}
    return {
        "condition": str(updates.condition),
        "example": panelled.example.described(),
        "primary_ids": [updates.ids[index] for index in inside],
        "regret": {
            name: {
                "mean": estimate.value,
                "interval": [estimate.interval.low, estimate.interval.high] if estimate.interval else None,
            }
            for name, estimate in regrets.items()
        },
    }


def _draw(shown: list[Panelled]) -> Figure:
    columns, narrow = len(shown), drawing().narrow
    figure = Figure(figsize=(drawing().width, 5.0 if narrow else 3.4), layout="constrained")
    if narrow:
        grid = figure.add_gridspec(3, columns, height_ratios=[1.0, 1.0, 1.2])
    else:
        grid = figure.add_gridspec(2, columns + 1, width_ratios=[1.0] * columns + [1.25 if columns > 1 else 1.0])
    letters = iter("abcde")
    for index, panelled in enumerate(shown):
        axes = figure.add_subplot(grid[0, index])
        _example(axes, panelled.example, SERIES_COLOURS[index], legend=index == 0)
        panel_letter(axes, next(letters), literal(panelled.updates.condition.model_title, LONGEST_HEAD))
    for index, panelled in enumerate(shown):
        axes = figure.add_subplot(grid[1, index])
        _scatter(axes, panelled.updates, SERIES_COLOURS[index])
        condition = panelled.updates.condition
        panel_letter(axes, next(letters), f"{literal(condition.set_title, LONGEST_HEAD - 4)} {condition.update}")
    axes = figure.add_subplot(grid[2, :] if narrow else grid[:, columns])
    _regret(axes, shown)
    panel_letter(axes, next(letters), "Grid regret")
    return figure


def _example(axes: Axes, example: Example, colour: str, *, legend: bool) -> None:
    dense = np.linspace(0, 1, 201)
    power, unit = _unit(example.gain)
    axes.axhline(0, color=BLACK, linewidth=0.5)
    axes.plot(example.scale, example.gain / unit, color=colour, label=r"path $\phi$")
    quadratic = quadratic_value(dense, example.slope, example.quadratic)
    axes.plot(dense, quadratic / unit, color=BLACK, linestyle=(0, (3, 2)), linewidth=0.9, label="quadratic $q$")
    top = float(np.interp(example.optimum, example.scale, example.gain))
    axes.plot(example.optimum, top / unit, "o", color=colour, markersize=5, label=r"$\alpha^\star$")
    predicted = float(np.interp(example.predicted, example.scale, example.gain))
    axes.plot(
        example.predicted,
        predicted / unit,
        "D",
        markerfacecolor="white",
        markeredgecolor=BLACK,
        markersize=2.8,
        markeredgewidth=0.7,
        label=r"$\hat\alpha$",
    )
    # The path must stay readable where the quadratic runs far away from it.
    low, high = float(example.gain.min()) / unit, float(example.gain.max()) / unit
    axes.set_ylim(max(min(low, float(quadratic.min()) / unit), low - 0.6 * (high - low)) - 0.06 * (high - low), None)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xlabel(r"Step scale $\alpha$")
    axes.set_ylabel("Utility gain" + (f" ($10^{{{power}}}$)" if power else ""))
    if legend:
        axes.legend(loc="lower left", labelspacing=0.25, borderaxespad=0.2, handletextpad=0.5)


def _unit(values: Floats) -> tuple[int, float]:
    """The power of ten that makes the largest value readable."""
    largest = float(np.abs(values).max())
    if largest == 0 or 0.1 <= largest < 1000:
        return 0, 1.0
    power = int(np.floor(np.log10(largest)))
    return power, 10.0**power


def _scatter(axes: Axes, updates: Updates, colour: str) -> None:
    inside = updates.primary
    predicted, optimum, fp64 = _predictions(updates)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.6, zorder=1)
    if fp64:
        low, high = updates.floats("fp64_optimum_low")[inside], updates.floats("fp64_optimum_high")[inside]
        axes.vlines(predicted, low, high, color=colour, linewidth=0.6, alpha=0.6)
    points, counts = np.unique(np.round(np.stack([predicted, optimum]), SAME), axis=1, return_counts=True)
    area = np.sqrt(counts)
    axes.scatter(
        points[0],
        points[1],
        # Area grows as the square root of the count; the largest marker must not cover the panel.
        s=min(7.0, LARGEST_MARKER / float(area.max())) * area,
        color=colour,
        alpha=0.45 if points.shape[1] < 1000 else 0.25,
        linewidth=0,
        zorder=2,
        rasterized=points.shape[1] > 3000,
    )
    if (corner := _at_corner(updates)) > 1:
        axes.annotate(
            f"{corner} points", (1, 1), (4, 5), textcoords="offset points", ha="right", va="bottom", fontsize=7
        )
    axes.set_xlim(-0.04, 1.1)
    axes.set_ylim(-0.04, 1.22)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xlabel(r"Predicted scale $\hat\alpha$")
    axes.set_ylabel("Grid optimum" if not fp64 else r"Optimum $\alpha^\star$")


def _regret(axes: Axes, shown: list[Panelled]) -> None:
    places = [*range(len(FIXED_SCALES)), len(FIXED_SCALES) + 0.4]
    names = _series_names(shown)
    for index, panelled in enumerate(shown):
        row = panelled.row
        estimates = [*(row.fixed(scale) for scale in FIXED_SCALES), row.quadratic_regret]
        offset = 0.16 * (index - (len(shown) - 1) / 2)
        colour, marker = SERIES_COLOURS[index], SERIES_MARKERS[index]
        drawn = [(place + offset, estimate) for place, estimate in zip(places, estimates, strict=True)]
        positive = [(place, estimate) for place, estimate in drawn if estimate.value]
        fixed = [(place, estimate.value) for place, estimate in positive if place < len(FIXED_SCALES) - 0.5]
        axes.plot(*zip(*fixed, strict=True) if fixed else ([], []), color=colour, linewidth=0.7, alpha=0.6)
        for place, estimate in positive:
            _point(axes, place, estimate, colour, marker)
        axes.plot([], [], color=colour, marker=marker, markersize=3.5, linewidth=0.7, label=literal(names[index]))
    axes.set_yscale("log")
    axes.axvline(len(FIXED_SCALES) - 0.3, color=GREY, linewidth=0.5, linestyle=(0, (1, 2)))
    axes.set_xticks(places, [*(f"{scale:g}" for scale in FIXED_SCALES), "quad."])
    axes.set_xlim(-0.5, places[-1] + 0.5)
    axes.set_xlabel("Fixed scale")
    axes.set_ylabel("Mean grid regret")
    axes.legend(loc="lower left", labelspacing=0.3, borderaxespad=0.2)


def _series_names(shown: list[Panelled]) -> list[str]:
    """What tells the two conditions apart, in as few words as possible."""
    conditions = [panelled.updates.condition for panelled in shown]
    for names in (
        [condition.model_title for condition in conditions],
        [condition.set_title for condition in conditions],
        [condition.update for condition in conditions],
    ):
        if len(set(names)) == len(names):
            return names
    return [condition.run for condition in conditions]


def _point(axes: Axes, place: float, estimate: Estimate, colour: str, marker: str) -> None:
    value = estimate.value or 0.0
    interval = estimate.interval
    spread = None
    if interval is not None and interval.low > 0:
        spread = np.array([[max(value - interval.low, 0.0)], [max(interval.high - value, 0.0)]])
    axes.errorbar(place, value, yerr=spread, color=colour, marker=marker, markersize=3.5, elinewidth=0.8, capsize=1.5)
