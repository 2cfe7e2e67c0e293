"""Greedy answers to arithmetic problems under scaled readouts, next to fixed depths: fitted_scale_answers.json.

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
from typing import Any

import numpy as np
import torch

import loopscope as ls
from loopscope.control import FixedDepth, MarginScaled, Policy, ScaledReadout
from loopscope.control.act import Questions, costs_of, measure_lines
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


def answered(
    model: ls.LoopedModel, task: Any, tokenizer: Any, policy: Policy, loops: int, batch: int
) -> list[tuple[float, float, float]]:
    """Whether the line "Answer: …" is right, mean loops and mean checks of the new tokens, for every question."""
    found = []
    rows = list(zip(task.rows, task.encode(tokenizer), strict=True))
    for first in range(0, len(rows), batch):
        some = rows[first : first + batch]
        sequences = [example.sequences[0] for _, example in some]
        prompts = [sequence.token_ids[: sequence.positions[0] + 1] for sequence in sequences]
        made = ls.generate(
            model, prompts, max_new_tokens=200, depth=loops, policy=policy, stop="Problem:", tokenizer=tokenizer,
            source_rows=[example.source_row for _, example in some],
        )  # fmt: skip
        assert made.texts is not None
        for (row, _), text, loops_N, checks_N in zip(some, made.texts, made.loops, made.checks, strict=True):
            lines = [line.strip() for line in text.split("\n") if line.strip().startswith("Answer:")]
            right = bool(lines) and lines[0] == row.texts[0].strip().split("\n")[-1].strip()
            found.append((float(right), float(np.mean(loops_N)), float(np.mean(checks_N))))
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
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 3], help="where readouts are scaled")
    parser.add_argument("--fixed", type=int, nargs="+", default=[2, 3, 4, 5], help="fixed depths")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("fitted_scale_answers.json"))
    flags = parser.parse_args(arguments)
    model = ls.load_model(flags.model, dtype=torch.float32, device=flags.device)
    fitted = caps(model, flags.model, [(depth - 1, depth) for depth in flags.depths], flags.train)
    print(fitted, flush=True)
    policies: list[Policy] = [FixedDepth(depth) for depth in flags.fixed]
    for depth in flags.depths:
        omega = fitted[f"{depth - 1}>{depth}"]
        policies += [ScaledReadout(depth, depth - 1, omega), MarginScaled(depth, depth - 1, omega)]
    task, costs, started = ls.load_task("arithmetic:test", limit=flags.questions), costs_of(model), time.monotonic()
    tokenizer = ls.load_tokenizer(flags.model)
    accuracy: dict[str, np.ndarray] = {}
    result: dict[str, Any] = {"model": flags.model, "questions": flags.questions, "fitted": fitted, "policies": {}}
    for policy in policies:
        right, loops, checks = np.array(answered(model, task, tokenizer, policy, 5, flags.batch)).T
        accuracy[policy.name] = right
        entry: dict[str, Any] = {
            "accuracy": estimate(right),
            "cost": round(float(costs(loops, checks).mean()), 4),
            "loops": round(float(loops.mean()), 4),
        }
        if isinstance(policy, ScaledReadout):
            base = accuracy[f"fixed {policy.depth}"]
            entry |= {"omega": policy.omega, "over_fixed": estimate(accuracy[policy.name] - base)}
        result["policies"][policy.name] = entry
        print(policy.name, entry, round(time.monotonic() - started), flush=True)
        flags.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
