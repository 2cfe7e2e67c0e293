"""Utility over recurrent depth: where it peaks and declines, which update to look at, how evenly options are chosen."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies import figures
from loopscope.studies.declare import MODEL, TASK, Column, Values, panel, table, words
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
    def name(self) -> str:
        """As `19→20`."""
        return f"{self.reference}→{self.depth}"


def changes(sweep: DepthSweep, pairs: list[tuple[int, int]], bootstrap: Bootstrap) -> list[Change]:
    """The change between pairs of places among the stored depths; all share their resamples."""
    utility, depths = sweep.utility, sweep.depths
    found = bootstrap.estimate({pair: Mean(utility[:, pair[1]] - utility[:, pair[0]]) for pair in pairs})
    return [Change(depths[first], depths[second], found[first, second]) for first, second in pairs]


def first_decline(sweep: DepthSweep, bootstrap: Bootstrap) -> Change | None:
    """The earliest depth that clearly lies below the earlier one with the largest mean utility (ties: the smallest)."""
    means = sweep.utility.mean(axis=0)
    pairs = [(int(np.argmax(means[:index])), index) for index in range(1, len(sweep.depths))]
    return next((pair for pair in changes(sweep, pairs, bootstrap) if pair.sign == "falls"), None)


def neighbours(sweep: DepthSweep) -> list[tuple[int, int]]:
    """The places of stored depths t, t+1."""
    return [(index, index + 1) for index, (t, after) in enumerate(pairwise(sweep.depths)) if after == t + 1]


NEIGHBOURS = groups_of(lambda records: [sweep for sweep in records.sweeps if neighbours(sweep)], no_depths, "quick")


@table(
    "depth-coverage",
    "Depth-sweep coverage and observed utility declines",
    SWEEPS,
    panel(
        "",
        TASK,
        words("N", "{n}"),
        Column("Peak", "{peak}"),
        Column("Decline", "{decline}"),
        across="condition.model_title",
    ),
    paper="tab:evaluation-coverage",
)
def depth_coverage(sweep: DepthSweep, bootstrap: Bootstrap) -> Values:
    """Peak is the evaluated depth with highest mean reference utility. Decline is the earliest running-best decrease
    with a pointwise 95% paired interval below zero; a dash indicates none on the evaluated depths. Non-adjacent depth
    pairs represent cumulative changes.
    """
    first = first_decline(sweep, bootstrap)
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
    NEIGHBOURS,
    MODEL,
    TASK,
    Column("N", "{condition.n}"),
    Column("Pairs", "{examined}"),
    Column("Declines", "{declines}"),
    Column("Earliest", "{selected}"),
    Column("Change (1e-3)\n[95% CI]", "{change:.3f}", per=1e-3, ci=True),
    Column("Lowest", "{largest}"),
    Column("Change (1e-3)", "{largest_change:.3f}", per=1e-3),
    paper="app:exp-protocol",
)
def transition_selection(sweep: DepthSweep, bootstrap: Bootstrap) -> Values:
    """Earliest consecutive decrease of mean reference utility with a pointwise 95% paired interval below zero, among
    the neighbouring depths that are stored. Intervals do not adjust for the choice.
    """
    pairs = changes(sweep, neighbours(sweep), bootstrap)
    declines = [pair for pair in pairs if pair.sign == "falls"]
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
    NEIGHBOURS,
    MODEL,
    TASK,
    words("Pair", "{key}"),
    Column("N", "{condition.n}"),
    Column("Change (1e-3)\n[95% CI]", "{change:+.3f}", per=1e-3, ci=True),
    Column("Sign", "{sign}"),
    paper="app:exp-protocol",
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
    groups_of(
        lambda records: [sweep for sweep in records.sweeps if sweep.correct is not None],
        lambda records: OPTION_TASKS.none_here(records) if records.sweeps else no_depths(records),
        "quick",
    ),
    MODEL,
    TASK,
    Column("Depth", "{depth}"),
    Column("Most chosen\noption", "{option}"),
    Column("Chosen", "{chosen}/{condition.n}"),
    Column("Share (%) [95% CI]", "{share:.2%}", ci=True),
    Column("Right (%)", "{right:.2%}"),
    Column("Accuracy (%)", "{accuracy:.2%}"),
    paper="app:exp-coverage",
)
def option_responses(sweep: DepthSweep) -> Values:
    """The option that is chosen most often at each depth, counted from 0, and the share of questions whose right option
    it is. Where both differ widely, a change of utility says little about reasoning.
    """
    correct, all_chosen, right = sweep.correct, sweep.chosen, sweep.right
    assert correct is not None
    assert all_chosen is not None
    rows = {}
    for depth, chosen, right_now in zip(sweep.depths, all_chosen.T, correct.T, strict=True):
        option = int(np.bincount(chosen).argmax())  # the smallest of equals
        rows[str(depth)] = {
            "depth": depth,
            "option": option,
            "chosen": (chosen == option).sum(),
            "share": Mean(chosen == option),
            "right": np.mean(right == option),
            "accuracy": Mean(right_now),
        }
    return rows


RING: Any = {"marker": "o", "markerfacecolor": "none", "markersize": 7.0, "markeredgewidth": 1.0, "linestyle": "none"}
DECLINE: Any = {"marker": "v", "markersize": 5.5, "markeredgewidth": 0.6, "markeredgecolor": "white", "linestyle": ""}


class Curve(NamedTuple):
    """Mean utility at every depth of a sweep, the place of the best depth, and the earliest confirmed decline."""

    sweep: DepthSweep
    means: list[Estimate]
    best: int
    decline: Change | None


@figures.figure("depth-curves", "Utility over recurrent depth", paper="app:exp-coverage", over=SWEEPS)
def depth_curves(sweeps: tuple[DepthSweep, ...], bootstrap: Bootstrap) -> figures.Picture:
    """Mean reference utility, in nats, with question-bootstrap bands; one panel per evaluation set, one line per model.
    Rings: best depth. Triangles: earliest running-best decrease whose paired interval lies below zero. A panel whose
    title names a depth begins there: lower means before it are left out.
    """
    panels: dict[str, list[Curve]] = defaultdict(list)
    for sweep in sweeps:
        means = list(bootstrap.estimate({place: Mean(column) for place, column in enumerate(sweep.utility.T)}).values())
        best = int(np.argmax(sweep.utility.mean(axis=0)))  # the smallest of equals
        panels[sweep.condition.set_title].append(Curve(sweep, means, best, first_decline(sweep, bootstrap)))
    every = [curve for curves in panels.values() for curve in curves]
    described = [
        {
            "condition": str(curve.sweep.condition),
            "depths": list(curve.sweep.depths),
            "mean_utility": [mean.value for mean in curve.means],
            "decline": curve.decline and [curve.decline.reference, curve.decline.depth],
            "ids": list(curve.sweep.ids),
        }
        for curve in every
    ]
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    shape = -(-len(panels) // columns), columns
    return figures.Picture(0.5 + 1.75 * shape[0], lambda figure: _curves(figure, panels, shape), {"panels": described})


def _first_shown(curves: list[Curve]) -> int:
    """The first depth of a panel: those before it would flatten what is marked."""
    means = [pair for each in curves for pair in zip(each.sweep.depths, each.sweep.utility.mean(axis=0), strict=True)]
    last = min(each.sweep.depths[min(each.best, max(len(each.means) - 3, 0))] for each in curves)
    last = min([last, *(each.decline.reference for each in curves if each.decline)])
    spans = {first: np.ptp([mean for at, mean in means if at >= first]) for first, _ in means if first <= last}
    return next((first for first in sorted(spans) if spans[first] < 0.5 * max(spans.values())), min(spans))


def _curves(figure: Figure, panels: dict[str, list[Curve]], shape: tuple[int, int]) -> None:
    grid = figure.subplots(*shape, squeeze=False)
    models = dict.fromkeys(curve.sweep.condition.model_title for curves in panels.values() for curve in curves)
    looks = {model: figures.series(place) for place, model in enumerate(models)}
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        first = _first_shown(curves)
        for curve in curves:
            _curve(axes, curve, looks[curve.sweep.condition.model_title], first)
        later = first > min(curve.sweep.depths[0] for curve in curves)
        axes.set_title(figures.literal(title) + (f", depth ≥ {first}" if later else ""))
        axes.margins(y=0.12)  # rings and triangles stand above the highest point
        figures.depth_axis(axes, sorted({at for curve in curves for at in curve.sweep.depths if at >= first}))
    figures.hide_empty(grid, len(panels))
    for axes in grid[:, 0]:
        axes.set_ylabel("Mean utility")
    handles = [figures.handle(look, label=figures.literal(model)) for model, look in looks.items()]
    handles.append(figures.handle(RING, color=figures.BLACK, label="best depth"))
    if any(curve.decline for curves in panels.values() for curve in curves):
        handles.append(figures.handle(DECLINE, color=figures.BLACK, label="first decline"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))


def _curve(axes: Axes, curve: Curve, look: dict[str, Any], first: int) -> None:
    depths, values = curve.sweep.depths, [mean.value or 0.0 for mean in curve.means]
    start = sum(depth < first for depth in depths)
    figures.band(axes, depths[start:], curve.means[start:], look)
    axes.plot(depths[curve.best], values[curve.best], zorder=4, **RING, markeredgecolor=look["color"])
    if curve.decline is not None:
        # On the point itself: next to it, a mark belongs to no depth that can be read off.
        at = depths.index(curve.decline.depth)
        axes.plot(depths[at], values[at], color=look["color"], zorder=5, **DECLINE)
