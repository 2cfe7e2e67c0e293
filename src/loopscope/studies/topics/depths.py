"""Utility over recurrent depth: where it peaks and declines, which update to look at, how evenly options are chosen."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies import figures
from loopscope.studies.declare import MODEL, TASK, Column, Panel, Values, table, words
from loopscope.studies.populations import OPTION_TASKS, SWEEPS, groups_of, no_depths
from loopscope.studies.records import DepthSweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Change(NamedTuple):
    """The mean utility of a depth minus that of an earlier one, paired by question."""

    reference: int
    depth: int
    change: Estimate

    @property
    def sign(self) -> str:
        """Whether the interval lies above zero, below zero or holds it."""
        interval = self.change.interval
        if interval is None or interval.covers(0.0):
            return "unresolved"
        return "rises" if interval.low > 0 else "falls"

    @property
    def declines(self) -> bool:
        """Whether the interval lies below zero."""
        return self.sign == "falls"

    @property
    def name(self) -> str:
        """As `19→20`."""
        return f"{self.reference}→{self.depth}"


def changes(sweep: DepthSweep, pairs: list[tuple[int, int]], bootstrap: Bootstrap) -> list[Change]:
    """The change between pairs of places among the stored depths; all share their resamples."""
    utility, depths = sweep.utility, sweep.depths
    found = bootstrap.estimate({pair: Mean(utility[:, pair[1]] - utility[:, pair[0]]) for pair in pairs})
    return [Change(depths[first], depths[second], found[first, second]) for first, second in pairs]


def running_best(sweep: DepthSweep, bootstrap: Bootstrap) -> list[Change]:
    """Every depth after the first against the earlier depth with the largest mean utility (ties: the smallest)."""
    means = sweep.utility.mean(axis=0)
    pairs = [(int(np.argmax(means[:index])), index) for index in range(1, len(sweep.depths))]
    return changes(sweep, pairs, bootstrap)


def neighbours(sweep: DepthSweep) -> list[tuple[int, int]]:
    """The places of stored depths t, t+1."""
    return [(index, index + 1) for index, (t, after) in enumerate(pairwise(sweep.depths)) if after == t + 1]


NEIGHBOURS = groups_of(lambda records: [sweep for sweep in records.sweeps if neighbours(sweep)], no_depths, "quick")


@table(
    "depth-coverage",
    "Depth-sweep coverage and observed utility declines",
    paper="tab:evaluation-coverage",
    summary="best depth and first running-best decline",
    over=SWEEPS,
    columns=(
        Panel(
            (TASK, words("N", "{n}"), Column("Peak", "{peak}"), Column("Decline", "{decline}")),
            across="condition.model_title",
        ),
    ),
)
def depth_coverage(sweep: DepthSweep, bootstrap: Bootstrap) -> Values:
    """Peak is the evaluated depth with highest mean reference utility. Decline is the earliest running-best decrease
    with a pointwise 95% paired interval below zero; a dash indicates none on the evaluated depths. Non-adjacent depth
    pairs represent cumulative changes.
    """
    first = next((pair for pair in running_best(sweep, bootstrap) if pair.declines), None)
    return {
        "n": sweep.condition.n,
        "depths": ",".join(map(str, sweep.depths)),
        "peak": sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))],
        "decline": first.name if first else None,
        "decline_change": first.change if first else Estimate(None, sweep.condition.n),
    }


@table(
    "transition-selection",
    "Selection of a transition",
    paper="app:exp-protocol",
    summary="earliest consecutive decline with its interval",
    over=NEIGHBOURS,
    columns=(
        *(MODEL, TASK, Column("N", "{condition.n}"), Column("Pairs", "{examined}"), Column("Declines", "{declines}")),
        Column("Earliest", "{selected}"),
        Column("Change (1e-3)\n[95% CI]", "{change:.3f}", per=1e-3, ci=True),
        Column("Lowest", "{largest}"),
        Column("Change (1e-3)", "{largest_change:.3f}", per=1e-3),
    ),
)
def transition_selection(sweep: DepthSweep, bootstrap: Bootstrap) -> Values:
    """Earliest consecutive decrease of mean reference utility with a pointwise 95% paired interval below zero, among
    the neighbouring depths that are stored. Intervals do not adjust for the choice.
    """
    pairs = changes(sweep, neighbours(sweep), bootstrap)
    declines = [pair for pair in pairs if pair.declines]
    lowest = min(pairs, key=lambda pair: pair.change.value or 0.0)
    return {
        "examined": len(pairs),
        "declines": len(declines),
        "selected": declines[0].name if declines else None,
        "change": declines[0].change if declines else Estimate(None, sweep.condition.n),
        "largest": lowest.name,
        "largest_change": lowest.change,
    }


@table(
    "consecutive-changes",
    "Mean utility change of every consecutive pair of depths",
    paper="app:exp-protocol",
    summary="every consecutive change, and whether its sign is resolved",
    over=NEIGHBOURS,
    columns=(
        *(MODEL, TASK, words("Pair", "{key}"), Column("N", "{condition.n}")),
        Column("Change (1e-3)\n[95% CI]", "{change:+.3f}", per=1e-3, ci=True),
        Column("Sign", "{sign}"),
    ),
)
def consecutive(sweep: DepthSweep, bootstrap: Bootstrap) -> Values:
    """Mean utility after a loop minus that before it, for neighbouring depths that are stored, with pointwise 95%
    paired intervals; the sign is unresolved where the interval holds zero.
    """
    pairs = changes(sweep, neighbours(sweep), bootstrap)
    return {pair.name: {"change": pair.change, "sign": pair.sign} for pair in pairs}


@table(
    "option-responses",
    "Response imbalance by depth",
    paper="app:exp-coverage",
    summary="response imbalance of option tasks by depth",
    over=groups_of(
        lambda records: [sweep for sweep in records.sweeps if sweep.correct is not None],
        lambda records: OPTION_TASKS.none_here(records) if records.sweeps else no_depths(records),
        "quick",
    ),
    columns=(
        *(MODEL, TASK, Column("Depth", "{depth}"), Column("Most chosen\noption", "{option}")),
        Column("Chosen", "{chosen}/{condition.n}"),
        Column("Share (%) [95% CI]", "{share:.2%}", ci=True),
        Column("Right (%)", "{right:.2%}"),
        Column("Accuracy (%)", "{accuracy:.2%}"),
    ),
)
def option_responses(sweep: DepthSweep) -> Values:
    """The option that is chosen most often at each depth, counted from 0, and the share of questions whose right option
    it is. Where both differ widely, a change of utility says little about reasoning.
    """
    correct, all_chosen, right = sweep.correct, sweep.chosen, sweep.right
    assert correct is not None
    assert all_chosen is not None
    assert right is not None
    rows = {}
    for index, (depth, chosen) in enumerate(zip(sweep.depths, all_chosen.T, strict=True)):
        option = int(np.bincount(chosen).argmax())  # the smallest of equals
        rows[str(depth)] = {
            "depth": depth,
            "option": option,
            "chosen": (chosen == option).sum(),
            "share": Mean(chosen == option),
            "right": (right == option).mean(),
            "accuracy": Mean(correct[:, index]),
        }
    return rows


RING: Any = {"marker": "o", "markerfacecolor": "none", "markersize": 7.0, "markeredgewidth": 1.0, "linestyle": "none"}
DECLINE: Any = {"marker": "v", "markersize": 5.5, "markeredgewidth": 0.6, "markeredgecolor": "white", "linestyle": ""}
SMALL = 0.5
"""Where the later depths span less than this part of the whole range, the panel shows their range."""


class Curve(NamedTuple):
    """Mean utility at every depth of a sweep, and the best depth so far against each."""

    sweep: DepthSweep
    means: list[Estimate]
    pairs: list[Change]

    @property
    def decline(self) -> Change | None:
        """The earliest confirmed decline."""
        return next((pair for pair in self.pairs if pair.declines), None)

    @property
    def best(self) -> int:
        """The depth with the highest mean, the smallest of equals."""
        at = zip(self.sweep.depths, (mean.value or 0.0 for mean in self.means), strict=True)
        return max(at, key=lambda pair: (pair[1], -pair[0]))[0]


@figures.figure(
    "depth-curves",
    "Utility over recurrent depth",
    paper="app:exp-coverage",
    summary="utility over depth, declines marked",
    over=SWEEPS,
)
def depth_curves(sweeps: tuple[DepthSweep, ...], bootstrap: Bootstrap) -> figures.Picture:
    """One panel per evaluation set, one line per model."""
    panels: dict[str, list[Curve]] = {}
    for sweep in sweeps:
        means = bootstrap.estimate({place: Mean(column) for place, column in enumerate(sweep.utility.T)})
        curve = Curve(sweep, list(means.values()), running_best(sweep, bootstrap))
        panels.setdefault(sweep.condition.set_title, []).append(curve)
    every = [curve for curves in panels.values() for curve in curves]
    said = [
        f"Mean reference utility, in nats, with {100 * bootstrap.level:g}% question-bootstrap bands. Rings: best depth."
    ]
    if any(curve.decline for curve in every):
        said.append("Triangles: earliest running-best decrease whose paired interval lies below zero.")
    if any(first_shown(curves) is not None for curves in panels.values()):
        said.append("A panel whose title says from which depth on it is drawn leaves out lower means before it.")
    described = [
        {
            "condition": str(curve.sweep.condition),
            "depths": list(curve.sweep.depths),
            "mean_utility": [mean.value for mean in curve.means],
            "declines": [[pair.reference, pair.depth] for pair in curve.pairs if pair.declines],
            "ids": list(curve.sweep.ids),
        }
        for curve in every
    ]
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: Figure) -> None:
        _curves(figure, panels, rows, columns)

    return figures.Picture(0.5 + 1.75 * rows, draw, " ".join(said), {"panels": described})


def _range(curves: list[Curve], first: int) -> tuple[float, float]:
    """The lowest and the highest end of an interval from a depth on."""
    kept = [
        figures.ends(mean)
        for curve in curves
        for mean, depth in zip(curve.means, curve.sweep.depths, strict=True)
        if depth >= first
    ]
    return min(low for low, _ in kept), max(high for _, high in kept)


def first_shown(curves: list[Curve]) -> int | None:
    """The first depth whose range a panel shows, where the ones before it would flatten all others; None: all.

    Every sweep has at least three depths from there on, and its best depth and its first decline are shown.
    """

    def span(first: int) -> float:
        low, high = _range(curves, first)
        return high - low

    depths = sorted({depth for curve in curves for depth in curve.sweep.depths})
    kept = [max(sorted(curve.sweep.depths)[:-2], default=0) for curve in curves]
    kept += [curve.best for curve in curves]
    kept += [curve.decline.reference for curve in curves if curve.decline is not None]
    last = min(kept)
    return next((depth for depth in depths[1:] if depth <= last and span(depth) < SMALL * span(depths[0])), None)


def _curves(figure: Figure, panels: dict[str, list[Curve]], rows: int, columns: int) -> None:
    grid = figure.subplots(rows, columns, squeeze=False)
    every = [curve for curves in panels.values() for curve in curves]
    models = list(dict.fromkeys(curve.sweep.condition.model_title for curve in every))
    looks = {model: figures.series(place) for place, model in enumerate(models)}
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        for curve in curves:
            _curve(axes, curve, looks[curve.sweep.condition.model_title])
        first = first_shown(curves)
        axes.set_title(figures.literal(title) + (f", depth ≥ {first}" if first else ""))
        axes.margins(y=0.12)  # rings and triangles stand above the highest point
        figures.depth_axis(axes, sorted({depth for curve in curves for depth in curve.sweep.depths}))
        if first is not None:
            low, high = _range(curves, first)
            axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
            axes.set_xlim(left=first - 0.3)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for row in range(rows):
        grid[row, 0].set_ylabel("Mean utility")
    handles = [figures.handle(look, label=figures.literal(model)) for model, look in looks.items()]
    handles.append(figures.handle(RING, color=figures.BLACK, label="best depth"))
    if any(curve.decline for curve in every):
        handles.append(figures.handle(DECLINE, color=figures.BLACK, label="first decline"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))


def _curve(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    figures.band(axes, curve.sweep.depths, curve.means, look)
    at = dict(zip(curve.sweep.depths, (mean.value or 0.0 for mean in curve.means), strict=True))
    axes.plot(curve.best, at[curve.best], zorder=4, **RING, markeredgecolor=look["color"])
    if curve.decline is not None:
        # On the point itself: next to it, a mark belongs to no depth that can be read off.
        axes.plot(curve.decline.depth, at[curve.decline.depth], color=look["color"], zorder=5, **DECLINE)
