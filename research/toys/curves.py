"""The training curves of the embedded models: `python -m research.toys.curves` writes research/images/toy-curves.png.

Loss of worked-solution and of story tokens at the last depth over the tokens seen, from toy_curves.json beside this
file. A point is the mean over twenty seconds of training; toy-ouro's rate goes up again with each of its stretches.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parent
PICTURE = FOLDER.parent / "images" / "toy-curves.png"


def main() -> None:
    """Draw both models side by side on one logarithmic scale."""
    made = json.loads((FOLDER / "toy_curves.json").read_text())
    figure, axes = plt.subplots(1, len(made), figsize=(8.4, 3.2), sharey=True, layout="constrained")
    for place, (name, run) in zip(axes, made.items(), strict=True):
        tokens = [point["tokens"] / 1e6 for point in run["curves"]]
        for key, label, colour in (
            ("loss_by_depth", "solutions", "#D55E00"),
            ("story_loss_by_depth", "stories", "#0072B2"),
        ):
            losses = [next(iter(point[key].values())) for point in run["curves"]]
            place.plot(tokens, losses, color=colour, linewidth=1.2, marker=".", markersize=3, label=label)
        place.set_yscale("log")
        place.set_title(name, fontsize=10)
        place.set_xlabel("million tokens seen")
        place.grid(alpha=0.25)
        place.legend(fontsize=8, frameon=False)
    axes[0].set_ylabel("loss at the last depth (nats)")
    figure.savefig(PICTURE, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
