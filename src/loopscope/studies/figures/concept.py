"""A shorter step can recover progress: Figure "fig:intro-concept", drawn from a measured finite-step failure."""

import numpy as np
from matplotlib.figure import Figure

from loopscope.stats import Bootstrap
from loopscope.store import Level
from loopscope.studies.figures.examples import Example, balanced_failure
from loopscope.studies.figures.style import (
    BLACK,
    COLUMN_WIDTH,
    GREEN,
    VERMILLION,
    FigureResult,
    empty_figure,
    paper_style,
)
from loopscope.studies.records import Records
from loopscope.studies.selection import select

TITLE = "A shorter step can recover progress"


def concept(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """A clearly visible finite-step failure of the condition that has most of them."""
    chosen = select(records, "grid_gain", level=Level.GRID)
    example = None
    for updates in sorted(chosen.kept, key=lambda updates: -int(updates.finite_step.sum())):
        example = example or balanced_failure(records, updates)
    if example is None:
        return empty_figure(
            "concept", TITLE, records, chosen, "no finite-step failure that a grid scale turns into a gain"
        )
    with paper_style():
        figure = _draw(example)
    return FigureResult(
        "concept",
        TITLE,
        "Utility gain measures the change in support for the reference answer relative to the current state (0). "
        "The proposed state is at (1).",
        figure,
        {"example": example.described()},
        records.inputs(),
        chosen.notes,
    )


def _draw(example: Example) -> Figure:
    figure = Figure(figsize=(COLUMN_WIDTH, 1.9), layout="constrained")
    axes = figure.subplots()
    scale, gain = example.scale, example.gain
    # Dense points make the shaded edge meet the zero line; between stored points the path is drawn straight.
    dense = np.union1d(scale, np.linspace(0, 1, 401))
    values = np.interp(dense, scale, gain)
    axes.axhline(0, color=BLACK, linewidth=0.6)
    axes.fill_between(dense, 0, values, where=values >= 0, color=GREEN, alpha=0.15, linewidth=0)
    axes.fill_between(dense, 0, values, where=values <= 0, color=VERMILLION, alpha=0.15, linewidth=0)
    axes.plot(scale, gain, color=BLACK)
    height = float(np.ptp(gain))
    best = (example.optimum, float(np.interp(example.optimum, scale, gain)))
    for point, colour, name, offset, side in (
        ((0.0, 0.0), BLACK, "current", -0.10, "left"),
        (best, GREEN, "shorter step", 0.08, "center"),
        ((1.0, float(gain[-1])), VERMILLION, "proposed", -0.10, "right"),
    ):
        axes.plot(*point, "o", color=colour, markersize=4.5, zorder=5, clip_on=False)
        below = offset < 0
        axes.text(point[0], point[1] + offset * height, name, color=colour, ha=side, va="top" if below else "bottom")
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(float(gain.min()) - 0.28 * height, float(gain.max()) + 0.26 * height)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_xlabel(r"Step scale $\alpha$")
    axes.set_ylabel(r"Utility gain $\phi(\alpha)$")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)
    return figure
