"""A training in steps: outcomes, what makes the gain, gains of all updates, and utility by depth with the best one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope.path import Outcome
from loopscope.stats import Bootstrap, Estimate
from loopscope.store.schema import update_name
from loopscope.studies.figures import style
from loopscope.studies.populations import notes_on
from loopscope.studies.records import Records
from loopscope.studies.training import Moment, Training, no_steps, trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STACKED = {
    "finite_step": Outcome.FINITE_STEP_FAILURE,
    "directional": Outcome.DIRECTIONAL_FAILURE,
    "neutral": Outcome.NEUTRAL,
    "progressing": Outcome.PROGRESSING,
}
"""From the lower edge upwards."""
TERMS: dict[str, dict[str, Any]] = {
    "slope": {"color": style.SERIES_COLOURS[0], "marker": "^", "label": "$A$"},
    "accumulated_curvature": {"color": style.SERIES_COLOURS[1], "marker": "v", "label": r"$\Delta U-A$"},
    "gain": {"color": style.BLACK, "marker": "o", "label": r"$\Delta U$"},
}
BEST: dict[str, Any] = {"color": style.ORANGE, "marker": "o", "label": "best depth"}
WIDE_RANGE = 5.0
"""Steps whose middle one lies below this part of the last are drawn on a logarithmic axis."""
PANEL_HEIGHT = 1.75
MOST_TICKS = 9
MOST_NAMED = 6
"""Updates that the legend of panel (c) names."""
SHADE = 0.75


@style.figure(
    "training",
    "A training in steps",
    paper="fig:training",
    summary="outcomes, gains and best depth over a training",
    needs="several steps",
)
def training(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """Four panels per training and evaluation set, as many as fit on a page."""
    every = [one for one in trainings(records, bootstrap) if one.updates]
    if not every:
        return no_steps(records)
    narrow = style.drawing().narrow
    found = every[: 1 if narrow else 2]
    notes = notes_on(moment.condition for one in found for moments in one.updates.values() for moment in moments)
    if left_out := [_name(one, every) for one in every[len(found) :]]:
        notes += (f"not drawn, for want of space on a page: {', '.join(left_out)} (the table training has them)",)
    chosen = {_update(one) for one in found}
    which = f"the update {chosen.pop()}" if len(chosen) == 1 else "the update named above it"
    said = [
        f"(a) Outcomes of {which} over the steps of the training, as shares of all questions. (b) Its mean gain ΔU, "
        "which is the slope A plus the accumulated curvature ΔU−A. (c) Mean gain of every measured update.",
    ]
    if any(one.depths for one in found):
        said.append("(d) Mean utility by depth, as nats below the best depth of the step; the line is the best depth.")
    said.append(f"Bars and bands are {100 * bootstrap.level:g}% intervals over questions.")
    height = len(found) * (0.45 + (4 if narrow else 2) * PANEL_HEIGHT)
    shown = {"panels": [_described(one) for one in found]}
    return style.Picture(height, lambda figure: _draw(figure, found), " ".join(said), shown, notes)


def _described(one: Training) -> dict[str, Any]:
    def numbers(estimate: Estimate) -> list[float | None]:
        low, high = style.ends(estimate) if estimate.value is not None else (None, None)
        return [estimate.value, low, high]

    return {
        "training": one.title,
        "condition": str(one.condition),
        "updates": [
            {"update": moment.condition.update, "step": moment.step, "n": moment.condition.n}
            | {name: numbers(estimate) for name, estimate in moment.found.items()}
            for moments in one.updates.values()
            for moment in moments
        ],
        "depths": [
            {
                "step": moment.step,
                "utility": {str(depth): numbers(estimate) for depth, estimate in moment.utility.items()},
                "best": numbers(moment.best),
            }
            for moment in one.depths
        ],
    }


def _update(one: Training) -> str:
    return update_name(one.leading or 0)


def _name(one: Training, found: Sequence[Training]) -> str:
    """What distinguishes this training from the others of the figure."""
    several = len({other.title for other in found}) > 1
    parts = (style.literal(one.title) if several else "", style.literal(one.condition.set_title))
    return " · ".join(part for part in parts if part)


def _draw(figure: Figure, found: list[Training]) -> None:
    rows, columns = (4, 1) if style.drawing().narrow else (2, 2)
    blocks: Any = figure.subfigures(len(found), 1, hspace=0.04, squeeze=False)[:, 0]
    for block, one in zip(blocks, found, strict=True):
        axes = list(block.subplots(rows, columns, squeeze=False).flat)
        assert one.leading is not None
        chosen, update = one.updates[one.leading], _update(one)
        _outcomes(axes[0], chosen)
        _lines(axes[1], {name: (look, chosen) for name, look in TERMS.items()})
        gains = {
            update_name(t): ({**style.series(place), "label": update_name(t)}, moments)
            for place, (t, moments) in enumerate(one.updates.items())
        }
        _lines(axes[2], gains, "gain")
        _depths(axes[3], one)
        titles = (f"outcomes of {update}", f"gain of {update}", "gain of every update", "utility by depth")
        for place, (panel, title) in enumerate(zip(axes, titles, strict=True)):
            # The panel's legend stands between it and its title.
            panel.set_title(f"({'abcd'[place]}) {title}", loc="left", pad=15.0)
            _step_axis(panel, one.steps, label=place >= 4 - columns)
        block.suptitle(_name(one, found), fontsize=8)


def _outcomes(axes: Axes, moments: list[Moment]) -> None:
    from matplotlib.patches import Patch

    known = [moment for moment in moments if all(name in moment.found for name in STACKED)]
    steps = [moment.step for moment in known]
    shares = [[100 * (moment.found[name].value or 0.0) for moment in known] for name in STACKED]
    colours = [style.OUTCOME_COLOURS[outcome] for outcome in STACKED.values()]
    if len(steps) > 1:
        axes.stackplot(steps, *shares, colors=colours, alpha=SHADE, linewidth=0)
    else:
        bottoms = np.cumsum([[0.0] * len(steps), *shares[:-1]], axis=0)
        for share, bottom, colour in zip(shares, bottoms, colours, strict=True):
            axes.bar(steps, share, bottom=bottom, color=colour, alpha=SHADE, width=0.5)
    _bars(axes, steps, [moment.found["finite_step"] for moment in known], 100.0, style.BLACK)
    axes.set_ylim(0, 100)
    axes.set_ylabel("Questions (%)")
    drawn = [outcome for outcome, share in zip(STACKED.values(), shares, strict=True) if any(share)]
    patches = [Patch(color=style.OUTCOME_COLOURS[o], alpha=SHADE, label=o.label) for o in reversed(drawn)]
    _legend(axes, patches, handlelength=0.8)


def _lines(axes: Axes, lines: dict[str, tuple[dict[str, Any], list[Moment]]], column: str = "") -> None:
    """A line for each look; `column` is what all of them show, where that is not the line's name."""
    for name, (look, moments) in lines.items():
        known = [moment for moment in moments if (column or name) in moment.found]
        estimates = [moment.found[column or name] for moment in known]
        style.band(axes, [moment.step for moment in known], estimates, {**look, "label": ""})
    axes.axhline(0, color=style.BLACK, linewidth=0.6)
    axes.set_ylabel("Nats")
    _legend(axes, [style.handle(look) for look, _ in lines.values()])


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
    _bars(axes, steps, [moment.best for moment in one.depths], 1.0, BEST["color"])
    axes.set_ylabel("Depth (loops)")
    _legend(axes, [style.handle(BEST)])
    axes.set_yticks(depths[:: -(-len(depths) // MOST_TICKS)])


def _edges(places: Sequence[float]) -> list[float]:
    """Boundaries half-way between neighbours.

    >>> _edges([1, 2, 4])
    [0.5, 1.5, 3.0, 5.0]
    """
    if len(places) == 1:
        return [places[0] - 0.5, places[0] + 0.5]
    inner = [(first + second) / 2 for first, second in pairwise(places)]
    return [places[0] - (inner[0] - places[0]), *inner, places[-1] + (places[-1] - inner[-1])]


def _bars(axes: Axes, steps: Sequence[int], estimates: Sequence[Estimate], factor: float, colour: str) -> None:
    lows, highs = (factor * np.array([style.ends(estimate)[side] for estimate in estimates]) for side in (0, 1))
    axes.vlines(steps, lows, highs, color=colour, linewidth=0.9, zorder=3)


def _legend(axes: Axes, handles: Sequence[Any], **more: Any) -> None:
    """In one line between a panel and its title; of many updates, the first and every so many."""
    shown = handles[:: -(-len(handles) // MOST_NAMED)]
    place: Any = {"loc": "lower left", "bbox_to_anchor": (-0.03, 0.985), "borderaxespad": 0.0, "fontsize": 6.5}
    gaps: Any = {"columnspacing": 0.9, "handletextpad": 0.4, "handlelength": 1.2}
    axes.legend(handles=shown, ncols=len(shown), **{**place, **gaps, **more})


def _step_axis(axes: Axes, steps: list[int], *, label: bool) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    if len(steps) > 2 and WIDE_RANGE * steps[len(steps) // 2] < steps[-1]:
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
