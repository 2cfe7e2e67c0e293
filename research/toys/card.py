"""The tables of the embedded models' card, research/embedded-models.md: `python -m research.toys.card [--write]`.

From toy_curves.json (training logs, greedy answers) and toy_updates.npz beside this file: for each model and update the
slope A, the curvature Q, and the gains of the full, the quarter and the quadratic step, of 1,024 held-out documents of
the task stories in float64.

`--measure FOLDER` measures the first update beyond training of each model again, with `loopscope measure` in float32
on a CPU, and prints the same columns beside the largest difference from toy_updates.npz; `--questions` takes fewer
documents than all. The runs stay in FOLDER, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from loopscope.api import measure
from loopscope.stats import Bootstrap, Estimate, Mean, Ratio
from loopscope.store import StoredRun
from loopscope.studies.records import Records

FOLDER = Path(__file__).resolve().parent
CARD = FOLDER.parent / "embedded-models.md"
FIRST = {"toy-ouro": 4, "toy-ouro:inside=3": 3, "toy-huginn": 3}
"""The first update beyond the trained depth of each model."""
DOCUMENTS = 1024
MARGIN = 1e-4
BOOTSTRAP = Bootstrap()


def training() -> dict[str, Any]:
    """The compact copy of the training log and of the greedy accuracy."""
    loaded: dict[str, Any] = json.loads((FOLDER / "toy_curves.json").read_text())
    return loaded


def updates() -> dict[str, npt.NDArray[np.float64]]:
    """A, Q, gain, quarter gain and quadratic gain [documents, 5] by model and update."""
    with np.load(FOLDER / "toy_updates.npz") as stored:
        return {name: stored[name].astype(np.float64) for name in stored.files}


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, the others to the right."""
    lines = [heads, [":---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(estimate: Estimate, scale: float, digits: int) -> str:
    """`value [low, high]`, or a dash where the population is empty."""
    if estimate.value is None:
        return "—"
    text, ends = f"{estimate.value * scale:.{digits}f}", estimate.interval
    return f"{text} [{ends.low * scale:.{digits}f}, {ends.high * scale:.{digits}f}]" if ends else text


def training_table() -> str:
    """Steps, tokens, seconds and the last losses."""
    rows = []
    for name, made in training().items():
        last = made["curves"][-1]
        losses = [f"{value:.4f}" for kind in ("loss_by_depth", "story_loss_by_depth") for value in last[kind].values()]
        rows.append(
            (f"`{name}`", f"{made['steps']:,}", f"{made['tokens'] / 1e6:.1f}", f"{made['seconds']:.0f}", *losses)
        )
    return grid(("model", "steps", "million tokens", "seconds", "last loss, solutions", "last loss, stories"), rows)


def accuracy_table() -> str:
    """Greedy answers by number of operations."""
    rows = []
    for name, made in training().items():
        ((setting, counts),) = made["accuracy"].items()
        right, asked = counts["right"], counts["asked"]
        few = [count for count in asked if int(count) <= 4]
        up_to_four = sum(right[count] for count in few), sum(asked[count] for count in few)
        ends = binomtest(*up_to_four).proportion_ci(0.95, method="exact")
        share = f"{up_to_four[0] / up_to_four[1]:.1%} [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"
        each = [f"{right[count]}/{asked[count]}" for count in sorted(asked)]
        rows.append((f"`{name}`", setting, *each, share))
    return grid(("model", "setting", *(f"{count} operations" for count in range(2, 7)), "up to four"), rows)


def estimates(update: npt.NDArray[np.float64]) -> dict[str, Estimate]:
    """What the card says of one update, with intervals over documents."""
    slope, quadratic, gain, quarter, shorter = update.T
    harmful = gain < 0
    failed = harmful & (slope > 0)
    return BOOTSTRAP.estimate(
        {
            "gain": Mean(gain),
            "share": Ratio(failed, harmful),
            "beyond": Ratio(failed & (gain < -MARGIN), failed),
            "A": Mean((slope > 0) == (gain > 0)),
            "A+Q": Mean((slope + quadratic > 0) == (gain > 0)),
            "quarter": Ratio(failed & (quarter > 0), failed),
            "quadratic": Ratio(failed & (shorter > 0), failed),
        }
    )


HEADS = (
    "model, update", "mean gain (1e-3)", "finite-step/harmful", "share (%)", "sign A (%)", "sign A+Q (%)",
    "quarter (%)", "quadratic (%)",
)  # fmt: skip


def update_row(name: str, update: npt.NDArray[np.float64]) -> tuple[str, ...]:
    """Gains, failures, signs and recovery of one update, under its model and transition."""
    model, transition = name.rsplit(" ", 1)
    found, gain = estimates(update), update[:, 2]
    failed = int(((gain < 0) & (update[:, 0] > 0)).sum())
    return (
        f"{model} {transition}→{int(transition) + 1}",
        number(found["gain"], 1e3, 2),
        f"{failed}/{(gain < 0).sum()}",
        *(number(found[key], 100, 1) for key in ("share", "A", "A+Q", "quarter", "quadratic")),
    )


def update_table(seeds: bool) -> str:
    """The updates of the shipped weights, or the first beyond training of toy-ouro's three seeds."""
    shown = (
        (name, update)
        for name, update in updates().items()
        if (" seed " in name) == seeds and not (seeds and "inside" in name)
    )
    return grid(HEADS, (update_row(*each) for each in shown))


def measured(run: StoredRun) -> npt.NDArray[np.float64]:
    """What toy_updates.npz holds of an update [documents, 5], from a run of level grid."""
    (found,) = Records([run]).updates
    columns = (found.slope, found.quadratic, found.gain, found.quarter_gain, found.floats("quadratic_gain"))
    return np.stack(columns, axis=1)


def measured_table(folder: Path, questions: int) -> str:
    """The first update beyond training as `loopscope measure` finds it, and how far that is from the stored numbers."""
    stored, rows = updates(), []
    for model, transition in FIRST.items():
        name, _, chosen = model.partition(":")
        run = measure(
            name, "stories", model_args=chosen or None, transitions=[transition], depths=[transition, transition + 1],
            limit=questions, output=folder / re.sub(r"\W", "-", model), device="cpu", dtype="float32",
        )  # fmt: skip
        name, here = f"{model} {transition}", measured(run)
        before = stored[name][:questions]
        signs = int((np.sign(here) != np.sign(before)).sum())
        rows.append((*update_row(name, here), f"{np.abs(here - before).max():.0e}", str(signs)))
    return grid((*HEADS, "largest difference", "other signs"), rows)


def tables() -> dict[str, str]:
    """Every table of the card by the name of its markers."""
    shown = {"training": training_table(), "accuracy": accuracy_table()}
    return shown | {"updates": update_table(seeds=False), "seeds": update_table(seeds=True)}


def write(card: str, made: dict[str, str]) -> str:
    """The card with the tables between their markers."""
    for name, text in made.items():
        between = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        card, count = between.subn(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", card)
        if count != 1:
            raise SystemExit(f"{count} places for the table {name!r} in the card")
    return card


def main() -> None:
    """Print the tables, or put them into the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into research/embedded-models.md")
    parser.add_argument(
        "--measure", type=Path, metavar="FOLDER", help="measure the first updates beyond training again"
    )
    parser.add_argument("--questions", type=int, default=DOCUMENTS, help="documents to measure again")
    given = parser.parse_args()
    if given.measure is not None:
        print(measured_table(given.measure, given.questions))
        return
    made = tables()
    if given.write:
        CARD.write_text(write(CARD.read_text(encoding="utf-8"), made), encoding="utf-8")
        return
    for name, text in made.items():
        print(f"<!-- table: {name} -->\n{text}\n<!-- end -->\n")


if __name__ == "__main__":
    main()
