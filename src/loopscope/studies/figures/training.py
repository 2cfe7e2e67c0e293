"""A training in steps: outcomes, what makes the gain, gains of all updates, and utility by depth with the best one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from loopscope.path import Outcome
from loopscope.stats import Bootstrap, Estimate
from loopscope.studies.figures.style import (
    BLACK,
    OUTCOME_COLOURS,
    SERIES_COLOURS,
    SERIES_MARKERS,
    FigureResult,
    drawing,
    empty_figure,
    literal,
    paper_style,
)
from loopscope.studies.records import Records
from loopscope.studies.training import Moment, Training, no_steps, trainings
from loopscope.studies.usable_conditions import Selection, notes_on

TITLE = "A training in steps"
STACKED = {
    "finite_step": Outcome.FINITE_STEP_FAILURE,
    "directional": Outcome.DIRECTIONAL_FAILURE,
    "neutral": Outcome.NEUTRAL,
    "progressing": Outcome.PROGRESSING,
}
"""From the lower edge upwards."""
TERMS: dict[str, dict[str, Any]] = {
    "slope": {"color": SERIES_COLOURS[0], "marker": "^", "label": "$A$"},
    "accumulated_curvature": {"color": SERIES_COLOURS[1], "marker": "v", "label": r"$\Delta U-A$"},
    "gain": {"color": BLACK, "marker": "o", "label": r"$\Delta U$"},
}
BEST: dict[str, Any] = {"color": "#E69F00", "marker": "o", "label": "best depth"}
WIDE_RANGE = 5.0
"""Steps whose middle one lies below this part of the last are drawn on a logarithmic axis."""
PANEL_HEIGHT = 1.75
MOST_SETS = {"one": 1, "two": 2}
"""Trainings and evaluation sets that fit on a page."""
MOST_TICKS = 9
MOST_NAMED = 6
"""Updates that the legend of panel (c) names."""
SHADE = 0.75
TITLE_PAD = 15.0
"""Points between a panel and its title, where the panel's legend stands."""


def training(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """Four panels per training and evaluation set."""
    every = [one for one in trainings(records, bootstrap) if one.updates]
    if not every:
        return empty_figure("training", TITLE, records, Selection((), (no_steps(records),)))
    found = every[: MOST_SETS[drawing().columns]]
    notes = notes_on(moment.condition for one in found for moments in one.updates.values() for moment in moments)
    if left_out := [_name(one, every) for one in every[len(found) :]]:
        notes += (f"not drawn, for want of space on a page: {', '.join(left_out)} (the table training has them)",)
    level = (bootstrap or Bootstrap()).level
    with paper_style():
        figure = _draw(found)
    return FigureResult(
        "training",
        TITLE,
        _caption(found, level),
        figure,
        {"panels": [_described(one) for one in found]},
        records.inputs(),
        notes,
    )


def _caption(found: list[Training], level: float) -> str:
    chosen = {_update(one) for one in found}
    which = f"the update {chosen.pop()}" if len(chosen) == 1 else "the update named above it"
    said = [
        f"(a) Outcomes of {which} over the steps of the training, as shares of all questions. (b) Its mean gain ΔU, "
        "which is the slope A plus the accumulated curvature ΔU−A. (c) Mean gain of every measured update.",
    ]
    if any(one.depths for one in found):
        said.append("(d) Mean utility by depth, as nats below the best depth of the step; the line is the best depth.")
    said.append(f"Bars and bands are {100 * level:g}% intervals over questions.")
    return " ".join(said)


def _described(one: Training) -> dict[str, Any]:
    return {
        "training": one.title,
        "condition": str(one.condition),
        "updates": [
            {
                "update": moment.condition.update,
                "step": moment.step,
                "n": moment.condition.n,
                **{name: _numbers(estimate) for name, estimate in moment.found.items()},
            }
            for moments in one.updates.values()
            for moment in moments
        ],
        "depths": [
            {
                "step": moment.step,
                "utility": {str(depth): _numbers(estimate) for depth, estimate in moment.utility.items()},
                "best": _numbers(moment.best),
            }
            for moment in one.depths
        ],
    }


def _numbers(estimate: Estimate) -> list[float | None]:
    low, high = _ends(estimate)
    return [estimate.value, low, high]


def _ends(estimate: Estimate) -> tuple[float | None, float | None]:
    interval = estimate.interval
    return (interval.low, interval.high) if interval else (estimate.value, estimate.value)


def _update(one: Training) -> str:
    return f"{one.leading}→{(one.leading or 0) + 1}"


def _draw(found: list[Training]) -> Figure:
    narrow = drawing().narrow
    rows, columns = (4, 1) if narrow else (2, 2)
    figure = Figure(figsize=(drawing().width, len(found) * (0.45 + rows * PANEL_HEIGHT)), layout="constrained")
    blocks: Any = figure.subfigures(len(found), 1, hspace=0.04, squeeze=False)[:, 0]
    for block, one in zip(blocks, found, strict=True):
        axes = list(block.subplots(rows, columns, squeeze=False).flat)
        assert one.leading is not None
        chosen = one.updates[one.leading]
        _outcomes(axes[0], chosen)
        _terms(axes[1], chosen)
        _gains(axes[2], one)
        _depths(axes[3], one)
        update = _update(one)
        titles = (f"outcomes of {update}", f"gain of {update}", "gain of every update", "utility by depth")
        for place, (panel, title) in enumerate(zip(axes, titles, strict=True)):
            panel.set_title(f"({'abcd'[place]}) {title}", loc="left", pad=TITLE_PAD)
            _step_axis(panel, one.steps, label=place >= 4 - columns)
        block.suptitle(_name(one, found), fontsize=8)
    return figure


def _name(one: Training, found: Sequence[Training]) -> str:
    """What tells this training from the others of the figure."""
    several = len({other.title for other in found}) > 1
    parts = (literal(one.title) if several else "", literal(one.condition.set_title))
    return " · ".join(part for part in parts if part)


def _outcomes(axes: Axes, moments: list[Moment]) -> None:
    known = [moment for moment in moments if all(name in moment.found for name in STACKED)]
    steps = [moment.step for moment in known]
    shares = [[100 * (moment.found[name].value or 0.0) for moment in known] for name in STACKED]
    colours = [OUTCOME_COLOURS[outcome] for outcome in STACKED.values()]
    if len(steps) > 1:
        axes.stackplot(steps, *shares, colors=colours, alpha=SHADE, linewidth=0)
    else:
        bottoms = np.cumsum([[0.0] * len(steps), *shares[:-1]], axis=0)
        for share, bottom, colour in zip(shares, bottoms, colours, strict=True):
            axes.bar(steps, share, bottom=bottom, color=colour, alpha=SHADE, width=0.5)
    _bars(axes, steps, [moment.found["finite_step"] for moment in known], 100.0, color=BLACK)
    axes.set_ylim(0, 100)
    axes.set_ylabel("Questions (%)")
    drawn = [pair for pair, share in zip(STACKED.items(), shares, strict=True) if any(share)]
    handles = [
        Patch(color=OUTCOME_COLOURS[outcome], alpha=SHADE, label=outcome.label) for _, outcome in reversed(drawn)
    ]
    _legend(axes, handles, handlelength=0.8)


def _terms(axes: Axes, moments: list[Moment]) -> None:
    for name, look in TERMS.items():
        _line(axes, [(moment.step, moment.found[name]) for moment in moments if name in moment.found], look)
    _zero(axes)
    _legend(axes, [_handle(look) for look in TERMS.values()])


def _gains(axes: Axes, one: Training) -> None:
    looks = {
        transition: {
            "color": SERIES_COLOURS[place % len(SERIES_COLOURS)],
            "marker": SERIES_MARKERS[place % len(SERIES_MARKERS)],
            "label": f"{transition}→{transition + 1}",
        }
        for place, transition in enumerate(one.updates)
    }
    for transition, moments in one.updates.items():
        _line(axes, [(moment.step, moment.found["gain"]) for moment in moments], looks[transition])
    _zero(axes)
    _legend(axes, [_handle(look) for look in looks.values()])


def _depths(axes: Axes, one: Training) -> None:
    """Cells of utility below the best, and the best depth with its interval on them."""
    depths = sorted({depth for moment in one.depths for depth in moment.utility})
    if not depths:
        axes.set_visible(False)
        return
    steps = [moment.step for moment in one.depths]
    below = np.full((len(depths), len(steps)), np.nan)
    for place, moment in enumerate(one.depths):
        values = [moment.utility[depth].value if depth in moment.utility else None for depth in depths]
        held = np.array([np.nan if value is None else value for value in values])
        below[:, place] = np.nanmax(held) - held
    mesh = axes.pcolormesh(_edges(steps), _edges(depths), below, cmap="Greys", vmin=0.0, shading="flat", linewidth=0)
    bar = axes.figure.colorbar(mesh, ax=axes, aspect=12, pad=0.02)
    bar.set_label("nats below the best", fontsize=7)
    bar.ax.tick_params(labelsize=6.5)
    bar.outline.set_visible(False)
    best = [moment.best.value or 0.0 for moment in one.depths]
    axes.plot(steps, best, color=BEST["color"], marker=BEST["marker"], markersize=4, zorder=4)
    _bars(axes, steps, [moment.best for moment in one.depths], 1.0, color=BEST["color"])
    axes.set_ylabel("Depth (loops)")
    _legend(axes, [_handle(BEST)])
    axes.yaxis.set_major_locator(FixedLocator(depths[:: -(-len(depths) // MOST_TICKS)]))


def _edges(places: Sequence[float]) -> list[float]:
    """Boundaries half-way between neighbours.

    >>> _edges([1, 2, 4])
    [0.5, 1.5, 3.0, 5.0]
    """
    if len(places) == 1:
        return [places[0] - 0.5, places[0] + 0.5]
    inner = [(first + second) / 2 for first, second in pairwise(places)]
    return [places[0] - (inner[0] - places[0]), *inner, places[-1] + (places[-1] - inner[-1])]


def _line(axes: Axes, points: Sequence[tuple[int, Estimate]], look: dict[str, Any]) -> None:
    known = [(step, estimate) for step, estimate in points if estimate.value is not None]
    steps = [step for step, _ in known]
    low, high = zip(*(_ends(estimate) for _, estimate in known), strict=True) if known else ((), ())
    axes.fill_between(steps, low, high, color=look["color"], alpha=0.18, linewidth=0)
    values = [float(estimate.value) for _, estimate in known if estimate.value is not None]
    axes.plot(steps, values, color=look["color"], marker=look["marker"], markersize=2.8)


def _bars(axes: Axes, steps: Sequence[int], estimates: Sequence[Estimate], factor: float, color: str) -> None:
    ends = [_ends(estimate) for estimate in estimates]
    lows, highs = ([factor * (end[side] or 0.0) for end in ends] for side in (0, 1))
    axes.vlines(steps, lows, highs, color=color, linewidth=0.9, zorder=3)


def _zero(axes: Axes) -> None:
    axes.axhline(0, color=BLACK, linewidth=0.6)
    axes.set_ylabel("Nats")


def _legend(axes: Axes, handles: Sequence[Patch | Line2D], **more: Any) -> None:
    """In one line between a panel and its title; of many updates, the first and every so many."""
    shown = handles[:: -(-len(handles) // MOST_NAMED)]
    axes.legend(
        handles=shown,
        ncols=len(shown),
        loc="lower left",
        bbox_to_anchor=(-0.03, 0.985),
        borderaxespad=0.0,
        columnspacing=0.9,
        handletextpad=0.4,
        fontsize=6.5,
        **{"handlelength": 1.2, **more},
    )


def _handle(look: dict[str, Any]) -> Line2D:
    return Line2D([], [], markersize=3.5, **look)


def _step_axis(axes: Axes, steps: list[int], *, label: bool) -> None:
    middle = steps[len(steps) // 2]
    if len(steps) > 2 and WIDE_RANGE * middle < steps[-1]:
        if steps[0] > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=float(steps[1]))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    edges = _edges(steps)
    axes.set_xlim(max(edges[0], 0.7 * steps[0]) if axes.get_xscale() == "log" else edges[0], edges[-1])
    if label:
        axes.set_xlabel("Training step")
