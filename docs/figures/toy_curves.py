"""The training curves of the embedded models: `python docs/figures/toy_curves.py` writes docs/images/toy-curves.png.

Loss of worked-solution tokens at some depths over the tokens seen, from toy_curves.json beside this file. A point is
the mean over ten seconds of training; toy-huginn draws its depth anew at every step, so a depth that was not drawn in
those seconds has no point there.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parent
PICTURE = FOLDER.parent / "images" / "toy-curves.png"
COLOURS = ("#D55E00", "#E69F00", "#56B4E9", "#0072B2", "#222222")


def main() -> None:
    """Draw both models side by side on one logarithmic scale."""
    made = json.loads((FOLDER / "toy_curves.json").read_text())
    figure, axes = plt.subplots(1, len(made), figsize=(8.4, 3.2), sharey=True, layout="constrained")
    for place, (name, run) in zip(axes, made.items(), strict=True):
        depths = sorted({int(depth) for point in run["curves"] for depth in point["loss_by_depth"]})
        for depth, colour in zip(depths, COLOURS, strict=False):
            points = [point for point in run["curves"] if str(depth) in point["loss_by_depth"]]
            tokens = [point["tokens"] / 1e6 for point in points]
            losses = [point["loss_by_depth"][str(depth)] for point in points]
            loops = "loop" if depth == 1 else "loops"
            place.plot(tokens, losses, color=colour, linewidth=1.2, marker=".", markersize=3, label=f"{depth} {loops}")
        place.set_yscale("log")
        place.set_title(name, fontsize=10)
        place.set_xlabel("million tokens seen")
        place.grid(alpha=0.25)
        place.legend(fontsize=8, frameon=False, ncols=2)
    axes[0].set_ylabel("loss of solution tokens (nats)")
    figure.savefig(PICTURE, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
