"""The figures of research/training-experiment.md: `python research/experiments/figure.py` writes the pictures.

Left: utility by depth, a line for each seed and a thick one for their mean. Right: what each way loses beyond the
trained depth over what it costs there, a point for each seed. From results_small.json (a CPU) and
results_large.json (an H200) beside this file, each `results.json` of training.py: `--show FILE` prints the tables.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

FOLDER = Path(__file__).resolve().parent
IMAGES = FOLDER.parent / "images"
PICTURES = {"results_small": "training-experiment", "results_large": "training-experiment-h200"}
DEPTH = 4
COLOURS = {
    "last depth": "#000000",
    "all depths": "#56B4E9",
    "gate": "#0072B2",
    "random loops": "#009E73",
    "fixed point": "#CC79A7",
    "Jacobian": "#E69F00",
    "geometry": "#D55E00",
}


def main() -> None:
    """Draw every picture."""
    for results, picture in PICTURES.items():
        draw(FOLDER / f"{results}.json", IMAGES / f"{picture}.png")


def draw(results: Path, picture: Path) -> None:
    """Both panels."""
    entries = json.loads(results.read_text()).values()
    found = {name: np.array([entry["utility"] for entry in entries if entry["way"] == name]) for name in COLOURS}
    top = max(utility[:, DEPTH - 1].mean() for utility in found.values())
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.1), layout="constrained")
    depths = np.arange(1, 4 * DEPTH + 1)
    for name, colour in COLOURS.items():
        utility = found[name]
        left.plot(depths, utility.T, color=colour, linewidth=0.5, alpha=0.5)
        left.plot(depths, utility.mean(axis=0), color=colour, linewidth=1.8, zorder=3)
        behind = 100 * (top - utility[:, DEPTH - 1]) / abs(top)
        lost = -(utility[:, DEPTH:] - utility[:, DEPTH - 1 :][:, :1]).min(axis=1)
        points = {"color": colour, "markersize": 5, "alpha": 0.85, "clip_on": False}
        right.plot(behind, np.maximum(lost, 0.0), "o", label=name, **points)
    left.axvline(DEPTH, color="grey", linestyle=":", linewidth=1)
    left.set_ylim(top - 2.6, top + 0.15)
    left.set_xlabel("depth (loops)")
    left.set_ylabel("utility (nats per token)")
    left.set_title(f"utility by depth; trained depth {DEPTH}", fontsize=10)
    left.set_xticks([1, *range(4, 4 * DEPTH + 1, 4)])
    right.axvline(1.0, color="grey", linestyle=":", linewidth=1)
    right.set_yscale("symlog", linthresh=0.01)
    right.set_ylim(-0.002, 12)
    right.set_xlabel(f"utility at depth {DEPTH}: behind the best loss (%)")
    right.set_ylabel(f"most lost at depths {DEPTH + 1} to {4 * DEPTH} (nats)")
    right.set_title("the goal: left of 1%, on the bottom", fontsize=10)
    for place in (left, right):
        place.grid(alpha=0.25)
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncol=len(found))
    figure.savefig(picture, dpi=130, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
