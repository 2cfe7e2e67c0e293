"""A shorter step can recover progress: Figure "fig:intro-concept", drawn from a measured finite-step failure.

Which path a figure shows: the paper's lower-median rule (Appendix E.5, "Figure construction").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from loopscope.stats import Bootstrap
from loopscope.store import Level
from loopscope.studies.conditions import Condition, printable
from loopscope.studies.figures.style import (
    BLACK,
    GREEN,
    VERMILLION,
    FigureResult,
    drawing,
    empty_figure,
    paper_style,
)
from loopscope.studies.records import GRID_SCALES, Floats, Records, Updates
from loopscope.studies.usable_conditions import select

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
        _caption(example),
        figure,
        {"example": example.described()},
        records.inputs(),
        chosen.notes,
    )


def _caption(example: Example) -> str:
    """What is drawn, in numbers of this very path."""
    best = float(np.interp(example.optimum, example.scale, example.gain))
    stored = f"at its {len(example.scale)} stored FP64 nodes" if example.fp64 else "on the 21-point grid"
    return (
        f"A measured finite-step failure: {example.condition}, question {printable(example.example_id)}, one of "
        f"{example.failures}. Utility gain is the change in the reference's utility, in nats, relative to the current "
        f"state (scale 0), {stored}. The proposed state (scale 1) loses {-float(example.gain[-1]):.3g}; scale "
        f"{example.optimum:.3g} gains {best:.3g}. The path was chosen to be seen, not to be typical: "
        f"{example.rule}."
    )


def _draw(example: Example) -> Figure:
    figure = Figure(figsize=(drawing().width, 2.0 if drawing().narrow else 2.4), layout="constrained")
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


@dataclass(frozen=True)
class Example:
    """One path: its stored evaluations, its coefficients and where its optimum lies."""

    condition: Condition
    example_id: str
    rule: str
    """How it was chosen."""
    failures: int
    """How many finite-step failures it was chosen from."""
    scale: Floats
    gain: Floats
    slope: float
    quadratic: float
    predicted: float
    """α̂."""
    optimum: float
    """Numerical optimum estimate: the middle of the FP64 bracket, or the grid optimum."""
    fp64: bool

    def described(self) -> dict[str, Any]:
        """Plain values for the JSON beside a figure."""
        return {
            "condition": str(self.condition),
            "run": self.condition.run,
            "example_id": self.example_id,
            "chosen_from": self.failures,
            "rule": self.rule,
            "path": "FP64 nodes" if self.fp64 else "21-point grid",
            "predicted_scale": self.predicted,
            "optimum": self.optimum,
        }


def optimum_estimate(updates: Updates) -> Floats:
    """The numerical optimum of every question, as exactly as the run knows it."""
    if updates.has("fp64_optimum_low", "fp64_optimum_high"):
        return 0.5 * (updates.floats("fp64_optimum_low") + updates.floats("fp64_optimum_high"))
    return np.asarray(updates.optimum.alpha)


def lower_median_failure(records: Records, updates: Updates) -> Example | None:
    """The finite-step failure in the middle by optimum (the lower one of two), ids breaking ties; None without any.

    The choice does not look at the quadratic approximation.
    """
    failures = np.flatnonzero(updates.finite_step)
    if not failures.size:
        return None
    optimum = optimum_estimate(updates)
    ordered = sorted(failures.tolist(), key=lambda index: (optimum[index], updates.ids[index]))
    rule = "finite-step failures by numerical optimum, then example id; lower median"
    return example_of(records, updates, ordered[(len(ordered) - 1) // 2], rule)


def balanced_failure(records: Records, updates: Updates) -> Example | None:
    """The finite-step failure whose best grid gain is nearest in size to its full-step loss; None without any.

    Chosen to be seen, not to be typical: both sides of the zero line are visible.
    """
    failures = np.flatnonzero(updates.finite_step & (updates.grid_gain.max(axis=1) > 0)).tolist()
    if not failures:
        return None

    def imbalance(index: int) -> tuple[float, str]:
        ratio = updates.grid_gain[index].max() / -updates.gain[index]
        return abs(float(np.log(ratio))), updates.ids[index]

    rule = "finite-step failure whose best grid gain is nearest in size to its full-step loss"
    return example_of(records, updates, min(failures, key=imbalance), rule)


def example_of(records: Records, updates: Updates, index: int, rule: str) -> Example:
    """One question's path, as finely as the run stores it."""
    fp64 = updates.has("fp64_slope", "fp64_quadratic", "fp64_predicted_scale")
    stored = records.path(updates.condition, updates.frame["row"][index])
    scale, gain = stored if stored is not None else (GRID_SCALES, updates.grid_gain[index])
    prefix = "fp64_" if fp64 else ""
    return Example(
        condition=updates.condition,
        example_id=updates.ids[index],
        rule=rule,
        failures=int(updates.finite_step.sum()),
        scale=scale,
        gain=gain,
        slope=float(updates.floats(f"{prefix}slope")[index]),
        quadratic=float(updates.floats(f"{prefix}quadratic")[index]),
        predicted=float(updates.floats("fp64_predicted_scale" if fp64 else "quadratic_scale")[index]),
        optimum=float(optimum_estimate(updates)[index]),
        fp64=stored is not None,
    )
