"""Greedy answers to arithmetic problems under scaled readouts, next to fixed depths: research/fitted_scale_answers.json.

    python -m research.experiments.generation --questions 512

The caps are fitted to the log probability of reference solutions of the train split, and frozen. A temperature changes
no greedy answer, so it is left out. Accuracy has a 95% bootstrap interval by question, and so has the difference from
the fixed depth of as many loops.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import loopscope as ls
from loopscope.control import FixedDepth, MarginScaled, Policy, ScaledReadout
from loopscope.control.act import Questions, costs_of, measure_lines
from loopscope.control.generate import answer
from loopscope.control.trace import Line
from loopscope.stats import Bootstrap, Mean

OMEGAS = np.linspace(-0.5, 2, 26)


def caps(model: ls.LoopedModel, spec: str, pairs: list[tuple[int, int]], count: int) -> dict[str, float]:
    """The omega and the margin's cap with the best mean log probability of train solutions, by the policy's name."""
    questions = Questions.of(list(ls.load_task("arithmetic:train", limit=count).encode(ls.load_tokenizer(spec))))
    lines = measure_lines(model, questions, pairs, OMEGAS.tolist())
    found = {}
    for before, after in pairs:
        worth = lines[Line("chord", before, after)].log_prob_RJ
        utility = [questions.utility(column).mean() for column in worth.T]
        found[f"{before}>{after}"] = float(OMEGAS[int(np.argmax(utility))])
    return found


def estimate(values: np.ndarray) -> list[float]:
    """The mean and its interval."""
    found = Bootstrap().estimate({"": Mean(values)})[""]
    assert found.value is not None
    assert found.interval is not None
    return [round(float(number), 5) for number in (found.value, found.interval.low, found.interval.high)]


def main(arguments: list[str] | None = None) -> None:
    """Parse the flags, generate, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="toy-ouro")
    parser.add_argument("--questions", type=int, default=512)
    parser.add_argument("--train", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("fitted_scale_answers.json"))
    flags = parser.parse_args(arguments)
    model = ls.load_model(flags.model, dtype=torch.float32)
    fitted = caps(model, flags.model, [(1, 2), (2, 3)], flags.train)
    print(fitted, flush=True)
    policies: list[Policy] = [FixedDepth(depth) for depth in (2, 3, 4, 5)]
    for depth in (2, 3):
        omega = fitted[f"{depth - 1}>{depth}"]
        policies += [ScaledReadout(depth, depth - 1, omega), MarginScaled(depth, depth - 1, omega)]
    task, costs, started = ls.load_task("arithmetic:test", limit=flags.questions), costs_of(model), time.monotonic()
    accuracy: dict[str, np.ndarray] = {}
    result: dict[str, object] = {"model": flags.model, "questions": flags.questions, "fitted": fitted, "policies": {}}
    for policy in policies:
        rows = answer(
            model, task, [policy], loops=5, max_new_tokens=200, costs=costs, batch_size=flags.batch
        ).sort("row")  # fmt: skip
        accuracy[policy.name] = rows["accuracy"].to_numpy()
        entry = {
            "accuracy": estimate(accuracy[policy.name]),
            "cost": round(float(rows["cost"].mean()), 4),  # type: ignore[arg-type]
            "loops": round(float(rows["loops"].mean()), 4),  # type: ignore[arg-type]
        }
        if isinstance(policy, ScaledReadout):
            base = accuracy[f"fixed {policy.depth}"]
            entry |= {"omega": policy.omega, "over_fixed": estimate(accuracy[policy.name] - base)}
        result["policies"][policy.name] = entry  # type: ignore[index]
        print(policy.name, entry, round(time.monotonic() - started), flush=True)
        flags.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
