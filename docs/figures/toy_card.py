"""The tables of the embedded models' card: `python docs/figures/toy_card.py RUN… [--write]`.

Prints the Markdown of every table in docs/embedded-models.md, each under the name of its markers; `--write` puts them
between those markers. Accuracy and training come from toy_curves.json beside this file, everything else from the
run directories of `loopscope measure`. Intervals are loopscope's own: 2000 resamples of questions, seed 20260904.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from loopscope.path import EFFECT_MARGIN, Outcome, endpoint_prediction
from loopscope.stats import Bootstrap, Estimate, Mean, Ratio
from loopscope.studies import open_records
from loopscope.studies.records import DepthSweep, Records, Updates
from loopscope.studies.tables.depth_coverage import running_best
from loopscope.tasks.arithmetic.problem import wording
from loopscope.tasks.arithmetic.task import problem

FOLDER = Path(__file__).resolve().parent
CARD = FOLDER.parent / "embedded-models.md"
TRAINED = {"toy-ouro": 4, "toy-huginn": 8}
ROUNDING = 1e-6
"""Gains below this are as large as the difference between two machines' float32 sums."""
COUNTED = {"train": 20_000, "test": 5_000}
BOOTSTRAP = Bootstrap()


def training() -> dict[str, Any]:
    """The compact copy of the training log and of the greedy accuracy."""
    loaded: dict[str, Any] = json.loads((FOLDER / "toy_curves.json").read_text())
    return loaded


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, the others to the right."""
    lines = [heads, [":---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(estimate: Estimate, scale: float, digits: int, sign: bool = False) -> str:
    """`value [low, high]`, or a dash where the population is empty."""
    if estimate.value is None:
        return "—"
    form = f"{{:{'+' if sign else ''}.{digits}f}}"
    text = form.format(estimate.value * scale)
    ends = estimate.interval
    return f"{text} [{form.format(ends.low * scale)}, {form.format(ends.high * scale)}]" if ends else text


def training_table() -> str:
    """Steps, tokens, seconds and the last losses."""
    rows = []
    for name, made in training().items():
        last = made["curves"][-1]["loss_by_depth"]
        losses = ", ".join(f"{depth}: {last[depth]:.4f}" for depth in last)
        spent = (f"{made['steps']:,}", f"{made['tokens'] / 1e6:.1f}", f"{made['seconds']:.0f}")
        rows.append((f"`{name}`", *spent, losses))
    return grid(("model", "steps", "million tokens", "seconds", "loss by depth in the last ten seconds"), rows)


def accuracy_table() -> str:
    """Greedy answers by number of operations, model, form of answer and depth."""
    rows = []
    for name, made in training().items():
        for setting, counts in made["accuracy"].items():
            depth, form = setting.removeprefix("depth ").split(", ")
            right, asked = counts["right"], counts["asked"]
            few = [count for count in asked if int(count) <= 4]
            up_to_four = sum(right[count] for count in few), sum(asked[count] for count in few)
            ends = binomtest(*up_to_four).proportion_ci(0.95, method="exact")
            share = f"{up_to_four[0] / up_to_four[1]:.1%} [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"
            in_all = f"{sum(right.values())}/{sum(asked.values())}"
            each = [f"{right[count]}/{asked[count]}" for count in sorted(asked)]
            trained = " (trained)" if int(depth) == TRAINED[name] else ""
            rows.append((f"`{name}`", f"{depth}{trained}", form, *each, share, in_all))
    heads = ("model", "depth", "answer", *(f"{count} operations" for count in range(2, 7)), "up to four", "all")
    return grid(heads, rows)


def wordings_table() -> str:
    """Distinct wordings among the first problems of two splits, and how many they share."""
    found = {split: {wording(problem(split, i).story) for i in range(count)} for split, count in COUNTED.items()}
    rows = [(split, f"{count:,}", f"{len(found[split]):,}") for split, count in COUNTED.items()]
    rows.append(("in both", "", str(len(set.intersection(*found.values())))))
    return grid(("split", "problems", "distinct wordings"), rows)


def depth_table(records: Records) -> str:
    """Utility at depth one, at the trained depth and at the best one, and the first confirmed decline."""
    rows = []
    for sweep in records.sweeps:
        trained = TRAINED[sweep.condition.model]
        first, there = sweep.utility[:, 0], sweep.utility[:, sweep.depths.index(trained)]
        gain = BOOTSTRAP.estimate({"": Mean(there - first)})[""]
        best = sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))]
        decline = next((pair for pair in running_best(sweep, BOOTSTRAP) if pair.declines), None)
        rows.append(
            (
                f"`{sweep.condition.model}` {sweep.condition.task}",
                str(sweep.condition.n),
                f"{first.mean():.4f}",
                f"{there.mean():.4f} (depth {trained})",
                number(gain, 1, 4, sign=True),
                f"{100 * (there > first).mean():.1f}",
                str(best),
                f"{decline.reference}→{decline.depth}: {number(decline.change, 1e3, 3, sign=True)}" if decline else "—",
                _last(sweep, best),
            )
        )
    heads = ("model, task", "questions", "depth 1", "trained depth", "difference", "gain (%)", "best depth")
    return grid((*heads, "first decline (1e-3)", "deepest − best (1e-3)"), rows)


def _last(sweep: DepthSweep, best: int) -> str:
    change = sweep.utility[:, -1] - sweep.utility[:, sweep.depths.index(best)]
    return number(BOOTSTRAP.estimate({"": Mean(change)})[""], 1e3, 3, sign=True)


def choice_table(records: Records) -> str:
    """Share of questions whose best-scored option is the right one, at every depth."""
    rows = []
    for sweep in records.sweeps:
        if sweep.correct is None:
            continue
        for index, depth in enumerate(sweep.depths):
            estimate = BOOTSTRAP.estimate({"": Mean(sweep.correct[:, index])})[""]
            rows.append((f"`{sweep.condition.model}`", str(depth), number(estimate, 100, 1)))
    return grid(("model", "depth", "right option (%)"), rows)


def outcome_table(updates: Sequence[Updates]) -> str:
    """Outcome shares of every transition."""
    rows = []
    for one in updates:
        found = BOOTSTRAP.estimate(
            {
                "gain": Mean(one.gain),
                **{outcome: Mean(one.outcome == outcome) for outcome in Outcome},
                "share": Ratio(one.finite_step, one.harmful),
            }
        )
        rows.append(
            (
                one.condition.update,
                number(found["gain"], 1e3, 3, sign=True),
                *(number(found[outcome], 100, 1) for outcome in ORDER),
                f"{one.finite_step.sum()}/{one.harmful.sum()}",
                number(found["share"], 100, 1),
                f"{np.median(np.abs(one.gain)):.1e}",
                f"{100 * (np.abs(one.gain) < ROUNDING).mean():.1f}",
                str((one.finite_step & (np.abs(one.gain) >= ROUNDING)).sum()),
            )
        )
    names = ("progressing (%)", "neutral (%)", "directional (%)", "finite-step (%)")
    heads = ("transition", "mean ΔU (1e-3)", *names, "finite-step/harmful", "failure share (%)")
    sizes = ("median \\|ΔU\\|", "\\|ΔU\\| < 1e-6 (%)", "finite-step, \\|ΔU\\| ≥ 1e-6")
    return grid((*heads, *sizes), rows)


def prediction_table(updates: Sequence[Updates]) -> str:
    """Sign accuracy on all questions and recovery of the finite-step failures, of every transition."""
    rows = []
    for one in updates:
        predicted = endpoint_prediction(one.slope, one.quadratic)
        signs = BOOTSTRAP.estimate(
            {
                "A": Mean(np.sign(one.slope) == np.sign(one.gain)),
                "A+Q": Mean(np.sign(predicted) == np.sign(one.gain)),
            }
        )
        failed = one.finite_step
        shorter = {
            "quarter": one.quarter_gain,
            "quadratic": one.floats("quadratic_gain"),
            "bf16 quarter": one.floats("bf16_quarter_gain"),
            "bf16 quadratic": one.floats("bf16_quadratic_gain"),
        }
        recovered = BOOTSTRAP.estimate({name: Mean(gain[failed] > 0) for name, gain in shorter.items()})
        rows.append(
            (
                one.condition.update,
                number(signs["A"], 100, 1),
                number(signs["A+Q"], 100, 1),
                str(failed.sum()),
                *(number(recovered[name], 100, 1) for name in shorter),
                str((one.floats("quadratic_gain")[failed] > EFFECT_MARGIN).sum()),
            )
        )
    heads = ("transition", "sign A (%)", "sign A+Q (%)", "failures", "quarter (%)", "quadratic (%)")
    return grid((*heads, "quarter, BF16 (%)", "quadratic, BF16 (%)", "quadratic > 1e-4"), rows)


ORDER = (Outcome.PROGRESSING, Outcome.NEUTRAL, Outcome.DIRECTIONAL_FAILURE, Outcome.FINITE_STEP_FAILURE)


def tables(runs: Sequence[str]) -> dict[str, str]:
    """Every table of the card by the name of its markers."""
    made = {"training": training_table(), "accuracy": accuracy_table()}
    if not runs:
        return made
    records = open_records(list(runs))
    made["wordings"] = wordings_table()
    made |= {"depths": depth_table(records), "choices": choice_table(records)}
    groups: dict[str, list[Updates]] = {}
    for one in records.updates:
        groups.setdefault(f"{one.condition.model} {one.condition.task}", []).append(one)
    for name, updates in groups.items():
        made[f"outcomes {name}"] = outcome_table(updates)
        made[f"prediction {name}"] = prediction_table(updates)
    return made


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
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/embedded-models.md")
    options = parser.parse_args()
    made = tables(options.runs)
    if options.write:
        CARD.write_text(write(CARD.read_text(), made))
        return
    for name, text in made.items():
        print(f"<!-- table: {name} -->\n{text}\n<!-- end -->\n")


if __name__ == "__main__":
    main()
