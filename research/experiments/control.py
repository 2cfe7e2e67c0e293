"""Rules, learned heads and ceilings on several models of one kind: the tables of docs/control.md.

    python -m research.experiments.control --models toy-ouro --tasks stories arithmetic --keep kept

Every model is a specification of `loopscope.load_model`: an embedded one, or the folder of another training.
States and results are kept in a folder, so that a second call goes on where the first stopped. Thresholds, depths,
scales and heads come from the train split; every number is of the test split.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

import loopscope as ls
from loopscope.control import Decision, Policy
from loopscope.control.act import Questions, costs_of
from loopscope.control.comparison import Comparison, coefficients, compare
from loopscope.control.heads import Gathered, Training, annotate, gather, train_exit_head, train_scale_head
from loopscope.control.trace import Trace
from loopscope.stats import Bootstrap, Mean

TRAINING = Training(hidden=32, epochs=4)


class Boosted(Policy):
    """A scale from gradient boosting on signals, least squares on −A/2Q with the weight −Q."""

    def __init__(self, depth: int) -> None:
        self.depth, self.name = depth, f"boosted scale at {depth - 1}→{depth}"

    def decide(self, seen: Any, memory: None) -> Decision:
        """Stop after the step, with its scale; `var_v` makes it pay for the logits that it reads."""
        if seen.depth != self.depth:
            return Decision()
        seen.signal("var_v")
        return Decision(True, seen.signal("boosted"))


def signal_features(gathered: Gathered, depth: int) -> np.ndarray:
    """Seventeen signals around one update, none of which knows the reference."""
    columns = gathered.trace.columns
    before, now = depth - 2, depth - 1

    def at(name: str, index: int) -> np.ndarray:
        return columns[name][:, index].astype(np.float64)

    def log(values: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(values, 1e-7))

    place = np.concatenate([np.arange(n) for n in np.bincount(gathered.trace.question_R)])
    change = (at("entropy", now) - at("entropy", before)) / np.sqrt(at("var_v", now) + 1e-6)
    parts = [at("entropy", index) for index in (before - 1, before, now)]
    parts += [at("top_prob", before), at("margin", before), at("top_prob", now)]
    parts += [log(at("kl_from_previous", now)), log(at("kl_from_previous", before)), log(at("var_v", now))]
    parts += [log(at("step_norm", now)), log(at("step_norm", before))]
    parts += [at("step_cosine", now), at("state_cosine", now), at("step_cosine", before), place]
    parts += [(at("top_id", now) != at("top_id", before)).astype(np.float64), change]
    return np.stack(parts, axis=1)


def boosted(train: Gathered, test: Gathered, depth: int) -> list[np.ndarray]:
    """The column of `Boosted` for both traces."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    A, Q = coefficients(train.trace, depth)
    weight = -2 * Q + 1e-4
    machine = HistGradientBoostingRegressor(
        max_iter=60, learning_rate=0.05, max_leaf_nodes=8, min_samples_leaf=min(500, 1 + len(A) // 20),
        l2_regularization=1.0, early_stopping=False,
    )  # fmt: skip
    machine.fit(signal_features(train, depth), A / weight, sample_weight=weight / weight.mean())
    found = []
    for gathered in (train, test):
        column = np.full((len(gathered.trace), gathered.trace.loops), np.nan, dtype=np.float32)
        column[:, depth - 1] = machine.predict(signal_features(gathered, depth)).clip(0, 1)
        found.append(column)
    return found


def gathered_of(spec: str, task: str, split: str, count: int, loops: int, keep: Path) -> Gathered:
    """States and signals of one split, kept."""
    path = keep / f"{Path(spec).name}-{task}-{split}.pkl"
    if path.exists():
        found: Gathered = pickle.loads(path.read_bytes())
        return found
    model = ls.load_model(spec, dtype=torch.float32)
    examples = list(ls.load_task(f"{task}:{split}", limit=count).encode(ls.load_tokenizer(spec)))
    depth = model.trained_depth
    run = ls.measure(
        spec, f"{task}:{split}", limit=count, dtype="float32", transitions=[depth - 1, depth], depths=f"1-{loops}",
        trace=True, output=path.with_suffix(""),
    )  # fmt: skip
    found = gather(model, Questions.of(examples), Trace.of(run.trace.collect()))
    path.write_bytes(pickle.dumps(found, protocol=4))
    return found


def experiment(spec: str, task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model and task: differences by question, and what stands beside them."""
    keep = Path(options.keep)
    path = keep / f"{Path(spec).name}-{task}-result.pkl"
    if path.exists():
        found: dict[str, Any] = pickle.loads(path.read_bytes())
        return found
    train, test = (
        gathered_of(spec, task, split, count, options.loops, keep)
        for split, count in (("train", options.train), ("test", options.test))
    )
    model = ls.load_model(spec, dtype=torch.float32)
    costs, depth = costs_of(model), model.trained_depth
    update = depth + 1
    short = dataclasses.replace(train, trace=train.trace.up_to(min(options.loops, update)))
    leave = train_exit_head(short, first=2, training=TRAINING)
    scale = train_scale_head(train, update, TRAINING)
    traces = [
        dataclasses.replace(trace, columns={**trace.columns, "boosted": column})
        for trace, column in zip(
            (annotate(train, leave, scale), annotate(test, leave, scale)), boosted(train, test, update), strict=True
        )
    ]
    result: dict[str, Any] = {"costs": costs}
    full = compare(*traces, [leave, scale, Boosted(update)], costs=costs, trained_depth=depth)
    result["best"] = _rows(full, full.best.result.utility_Q)
    result["best depth"] = full.best.name
    fewer = next(entry for entry in full.tested if entry.name == f"fixed {depth - 1}")
    cheap = compare(*traces, [leave], costs=costs, target=float(fewer.result.cost_Q.mean()), trained_depth=depth)
    result["fewer"] = _rows(cheap, fewer.result.utility_Q)
    path.write_bytes(pickle.dumps(result))
    return result


def _rows(found: Comparison, base: np.ndarray) -> dict[str, tuple[np.ndarray, float, float, float | None]]:
    return {
        entry.name: (
            entry.result.utility_Q - base,
            float(entry.result.cost_Q.mean()),
            float(entry.result.loops_Q.mean()),
            entry.null,
        )
        for entry in found.tested
    }


def show(title: str, results: list[dict[str, Any]], key: str) -> None:
    """One Markdown table: each model's difference and cost, and the mean over models with its interval."""
    print(f"\n{title}\n")
    names = list(results[0][key])
    heads = [f"model {index + 1}" for index in range(len(results))]
    print("| policy | loops | cost | " + " | ".join(heads) + " | mean [95%] | null |")
    print("|---|---|---|" + "---|" * (len(heads) + 2))
    for name in names:
        rows = [result[key][name] for result in results]
        estimate = Bootstrap().estimate({"": Mean(np.mean([row[0] for row in rows], axis=0))})[""]
        cells = [f"{row[0].mean() * 1e3:+.2f}" for row in rows]
        low, high = (estimate.interval.low, estimate.interval.high) if estimate.interval else (np.nan, np.nan)
        assert estimate.value is not None
        nulls = [row[3] for row in rows if row[3] is not None]
        null = f"{np.mean(nulls) * 1e3:.1f}" if nulls else ""
        print(
            f"| {name} | {np.mean([row[2] for row in rows]):.2f} | {np.mean([row[1] for row in rows]):.2f} | "
            + " | ".join(cells)
            + f" | {estimate.value * 1e3:+.2f} [{low * 1e3:+.2f}, {high * 1e3:+.2f}] | {null} |"
        )


def main(arguments: list[str] | None = None) -> None:
    """Parse the flags and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["toy-ouro"])
    parser.add_argument("--tasks", nargs="+", default=["stories"])
    parser.add_argument("--train", type=int, default=240, help="train questions")
    parser.add_argument("--test", type=int, default=120, help="test questions")
    parser.add_argument("--loops", type=int, default=6)
    parser.add_argument("--keep", default="control-experiment")
    options = parser.parse_args(arguments)
    Path(options.keep).mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        results = [experiment(spec, task, options) for spec in options.models]
        depths = ", ".join(result["best depth"] for result in results)
        show(f"{task}: utility over the best fixed depth ({depths}), 1e-3 nats, at its cost", results, "best")
        show(f"{task}: utility over one loop less than trained, 1e-3 nats, at its cost", results, "fewer")


if __name__ == "__main__":
    main()
