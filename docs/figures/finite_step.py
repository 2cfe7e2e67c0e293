"""The first picture of the README: `python docs/figures/finite_step.py RUN` writes docs/images/finite-step-failure.png.

RUN is a run of one update at level grid; the picture in the documents is of

    loopscope measure --model toy-ouro --tasks stories --limit 256 --transitions 4 --dtype float32 --output RUN

Left: the gain along the step of every finite-step failure, and their mean. Right: how many of the harmful updates these
are, how often slope and curvature predict the sign of the gain, and how many failures a shorter step recovers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from loopscope import Run
from loopscope.stats import Estimate
from loopscope.studies.records import GRID_SCALES, Records, Updates

PICTURE = Path(__file__).resolve().parent.parent / "images" / "finite-step-failure.png"
GREEN, RED, BLUE, GREY = "#009E73", "#D55E00", "#0072B2", "#8A8A8A"


def draw_paths(axes: Axes, updates: Updates) -> None:
    """Every finite-step failure, thin, and their mean, thick, with its peak and its end."""
    gain = 1e3 * updates.grid_gain[updates.finite_step]
    mean = gain.mean(axis=0)
    best = int(np.argmax(mean))
    axes.axhline(0, color="black", linewidth=0.7)
    axes.plot(GRID_SCALES, gain.T, color=GREY, linewidth=0.5, alpha=0.35)
    axes.plot(GRID_SCALES, mean, color="black", linewidth=2)
    for index, colour, said, shift in ((best, GREEN, "shorter step", 8), (-1, RED, "the model's step", -14)):
        place = (float(GRID_SCALES[index]), float(mean[index]))
        axes.plot(*place, "o", color=colour, markersize=6, zorder=5, clip_on=False)
        side = "left" if index == best else "right"
        text = f"{said} {mean[index]:+.1f}"
        axes.annotate(text, place, (0, shift), textcoords="offset points", color=colour, ha=side, fontsize=9)
    # A few documents lose much more than the others; their ends would press everything else together.
    axes.set_ylim(float(np.quantile(gain[:, -1], 0.05)), 1.25 * float(gain.max()))
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xlabel("step scale α")
    axes.set_ylabel("gain along the step (1e-3 nats a token)")
    axes.set_title(f"{len(gain)} updates that point the right way and go too far", fontsize=9.5)


def draw_shares(axes: Axes, run: Run) -> None:
    """Five shares with their intervals, as the tables of the run have them."""
    (harm,), (quarter,) = run.table("mechanism").rows, run.table("contraction").rows
    quadratic = next(row for row in run.table("quadratic-intervention").rows if row.key == "quadratic")
    rows: tuple[tuple[str, Estimate, str], ...] = (
        (f"finite-step failures, of {harm['harmful']} harmful updates", harm["share"], RED),
        ("sign of the gain predicted by slope", harm["sign_slope"], GREY),
        ("by slope and curvature", harm["sign_quadratic"], BLUE),
        (f"recovered, of {harm['finite_step']} failures: quarter step", quarter["recovery"], GREY),
        ("step that slope and curvature predict (BF16)", quadratic["recovery"], GREEN),
    )
    for place, (said, estimate, colour) in enumerate(rows):
        if estimate.value is None or estimate.interval is None:
            continue
        value, ends = 100 * estimate.value, (100 * estimate.interval.low, 100 * estimate.interval.high)
        axes.barh(place, value, color=colour, height=0.42)
        axes.plot(ends, (place, place), color="black", linewidth=1.2)
        axes.text(0, place - 0.33, f"{said}: {value:.0f}%", fontsize=9, va="bottom")
    axes.set_ylim(len(rows) - 0.6, -0.75)
    axes.set_xlim(0, 100)
    axes.set_yticks([])
    axes.set_xlabel("%, with 95% intervals over documents")
    axes.spines[["top", "right", "left"]].set_visible(False)


def main() -> None:
    """Draw both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = Run(parser.parse_args().run)
    (updates,) = Records([run]).updates
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.5), layout="constrained")
    draw_paths(left, updates)
    draw_shares(right, run)
    condition = updates.condition
    about = f"{condition.model_title} on {condition.task}: {len(updates)} held-out documents, update {condition.update}"
    figure.suptitle(about, fontsize=10.5, fontweight="bold")
    figure.savefig(PICTURE, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
