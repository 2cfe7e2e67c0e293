"""Which training keeps a looped model from losing beyond its trained depth: the table of docs/training-experiment.md.

    python examples/training_experiment.py --keep training-experiment

trains one small model (Ouro's layout, trained depth 4, generated stories) in seven ways from three seeds and measures
each with `loopscope.measure` on held-out stories, to four times the trained depth. Every result is kept as soon as it
is there, and the same command goes on where it stopped. `--tune` trains every setting of every way, from another seed,
and measures on validation stories. `--watch 40` follows every training with `loopscope.Monitor`, on validation stories,
into a file beside its run. `--size large --device cuda` is for a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

import loopscope as ls
from loopscope.models.families.ouro import Ouro
from loopscope.store.atomic import write_atomically
from loopscope.tasks.arithmetic.problem import Chooser, key
from loopscope.tasks.stories.story import document
from loopscope.toys import training_ways as losses
from loopscope.toys.build import new_model, optimisers
from loopscope.toys.data import STORY
from loopscope.toys.objective import Supervised, supervise
from loopscope.toys.recipe import Recipe, ouro_config
from loopscope.toys.train import rate_factor

DEPTH = 4
DEEPEST = 4 * DEPTH
UPDATES = (DEPTH, DEPTH + 1, 7, 11, DEEPEST - 1)
"""Updates whose outcomes and shorter steps are measured; utilities are, at every depth."""
TUNING_SEED = 100
WATCHED = 16
"""Validation documents that a training is followed on."""


@dataclass(frozen=True)
class Size:
    """A model, its text and its training.

    Attributes:
        stories: of a document; one is split after its first sentence, of several the first is the context.
        documents: of one step.
        rate: what the learning rates of the embedded models are multiplied by.
    """

    hidden: int
    inner: int
    layers: int
    heads: int
    stories: int
    documents: int
    steps: int
    rate: float = 1.0


SIZES = {
    "tiny": Size(16, 32, 1, 1, stories=1, documents=2, steps=3),
    "small": Size(64, 192, 2, 2, stories=1, documents=8, steps=240),
    "large": Size(128, 384, 2, 4, stories=1, documents=64, steps=2000),
}


# --- text


def texts(split: str, index: int, stories: int) -> tuple[str, str]:
    """Context and continuation of one document."""
    head, told = document(Chooser(key("training experiment", split, index)), split, stories)
    if stories > 1:
        return f"{head}\n{told[0]}\n", "\n".join(told[1:])
    first, rest = told[0].split(". ", 1)
    return f"{head}\n{first}.", f" {rest}"


Document = tuple[list[int], list[int]]


def encoded(split: str, count: int, stories: int, first: int = 0) -> list[Document]:
    """Token ids of documents."""
    tokenizer = ls.load_tokenizer("toy-ouro")
    pairs = [texts(split, index, stories) for index in range(first, first + count)]
    return [(tokenizer.encode(context), tokenizer.encode(rest)) for context, rest in pairs]


def batches(size: Size, seed: int) -> Iterator[list[Document]]:
    """The documents of each step, alike in length, none of them twice."""
    order, ahead = np.random.default_rng(seed), 16
    for turn in range(0, size.steps, ahead):
        made = encoded("train", ahead * size.documents, size.stories, (seed * size.steps + turn) * size.documents)
        made.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        for place in order.permutation(ahead):
            yield made[place * size.documents : (place + 1) * size.documents]


def asked_of(documents: list[Document], vocabulary: int, device: torch.device) -> Supervised:
    """A batch in which every token but the first of a document is to be foretold."""
    lengths = [len(context) + len(rest) for context, rest in documents]
    tokens = torch.zeros(len(documents), max(lengths), dtype=torch.int64)
    for row, (context, rest) in enumerate(documents):
        tokens[row, : lengths[row]] = torch.tensor(context + rest)
    starts = torch.tensor([len(context) for context, _ in documents])
    placed = (part.to(device) for part in (tokens, starts, torch.tensor(lengths), torch.full_like(starts, STORY)))
    return supervise(*placed, prompt_weight=1.0, direct_weight=1.0, vocabulary=vocabulary)


# --- ways


@dataclass(frozen=True)
class Way:
    """A way to train: its loss, and the settings that were tried for it."""

    loss: Callable[[losses.Step, Any], Tensor]
    settings: tuple[Any, ...]
    chosen: int = 0
    """Which of them is trained from every seed: published or plain values, geometry's from pilots."""


WAYS = {
    "last depth": Way(losses.last_depth, (None,)),
    "all depths": Way(losses.all_depths, ((0.25, 0.25, 0.25, 0.25), (0.1, 0.1, 0.1, 0.7))),
    "gate": Way(losses.gate, (0.05, 0.1)),
    "random loops": Way(losses.random_loops, ((1, 4.0), (3, 6.0))),
    "fixed point": Way(losses.fixed_point, (0.05, 0.5)),
    "Jacobian": Way(losses.jacobian, (0.1, 1.0)),
    "geometry": Way(losses.geometry, (3.0, 1.0)),
}


# --- training and measuring


def trained(
    way: Way, setting: Any, size: Size, seed: int, device: torch.device, watch: Callable[[Ouro], ls.Monitor] | None
) -> tuple[Ouro, dict[str, Any]]:
    """A model trained from nothing, and what it cost. Weights and text follow from the seed, whatever the way."""
    config = ouro_config(size.hidden, size.inner, size.layers, size.heads, DEPTH)
    recipe = Recipe("training experiment", "ouro", config, minutes=1.0)
    model = new_model(recipe, seed).to(device)
    assert isinstance(model, Ouro)
    muon, adam = optimisers(model, recipe)
    monitor = None if watch is None else watch(model)
    rng, generator = np.random.default_rng(seed), torch.Generator(device).manual_seed(seed)
    started, worked = time.monotonic(), time.process_time()
    curve, loss, tokens = [], torch.zeros(()), 0
    for number, documents in zip(range(size.steps), batches(size, seed), strict=False):
        progress = number / size.steps
        asked = asked_of(documents, model.vocabulary_size, device)
        autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
        with autocast:
            loss = way.loss(losses.Step(model, asked, rng, generator, progress), setting)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], 1.0)
        factor = size.rate * rate_factor(number, progress, warmup_steps=20, decay_from=0.4)
        for optimiser, full in ((muon, recipe.matrix_rate), (adam, recipe.vector_rate)):
            optimiser.param_groups[0]["lr"] = full * factor
            optimiser.step()
        model.zero_grad(set_to_none=True)
        if monitor is not None:
            monitor.step(number + 1)
        tokens += sum(len(context) + len(rest) for context, rest in documents)
        if number % max(1, size.steps // 10) == 0:
            curve.append([number, round(loss.item(), 4)])
    curve.append([size.steps, round(loss.item(), 4)])
    cost = {"seconds": round(time.monotonic() - started, 1), "core_seconds": round(time.process_time() - worked, 1)}
    return model, {**cost, "steps": size.steps, "tokens": tokens, "loss": curve}


def held_out(split: str, size: Size, questions: int) -> ls.Task:
    """The first documents of a split as a task."""
    documents = encoded(split, questions, size.stories)
    return ls.Task.from_ids([first for first, _ in documents], [rest for _, rest in documents], name=f"story-{split}")


def measured(model: Ouro, split: str, size: Size, questions: int, output: Path) -> dict[str, Any]:
    """What `loopscope.measure` finds on the first documents of a split; utilities at depths 1, 2, …"""
    level, updates = ("grid", UPDATES) if split == "test" else ("quick", ())
    task, depths = held_out(split, size, questions), range(1, DEEPEST + 1)
    run = ls.measure(model, task, transitions=updates, depths=depths, level=level, output=output, progress_style="none")
    utility = run.depths.group_by("depth").agg(pl.col("utility").mean()).sort("depth")["utility"]
    return {"utility": [round(value, 6) for value in utility], "updates": [_update(run, update) for update in updates]}


def _update(run: ls.Run, update: int) -> dict[str, Any]:
    rows = run.records.filter(pl.col("transition") == update).with_columns(quarter=pl.col("grid_gain").list.get(5))
    failed = rows.filter(pl.col("outcome") == "finite-step failure")
    return {
        "update": update,
        "questions": len(rows),
        "harmful": int((rows["gain"] < 0).sum()),
        "finite_step": len(failed),
        "quarter_recovers": int((failed["quarter"] > 0).sum()),
        "quadratic_recovers": int((failed["quadratic_gain"] > 0).sum()),
        "slope": round(float(rows["slope"].mean()), 6),  # type: ignore[arg-type]
        "gain": round(float(rows["gain"].mean()), 6),  # type: ignore[arg-type]
        "quarter_gain": round(float(rows["quarter"].mean()), 6),  # type: ignore[arg-type]
        "quadratic_gain": round(float(rows["quadratic_gain"].mean()), 6),  # type: ignore[arg-type]
    }


# --- results


class Results:
    """Results by name in one JSON file."""

    def __init__(self, path: Path) -> None:
        self.path, self.held = path, dict[str, dict[str, Any]]()

    def _read(self) -> None:
        if self.path.exists():
            self.held = json.loads(self.path.read_text())

    def get(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is kept, or made now and kept; another process may have added to the file meanwhile."""
        self._read()
        if name not in self.held:
            made = make()
            self._read()
            self.held[name] = made
            text = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(self.held.items()))
            write_atomically(self.path, f"{{\n{text}\n}}\n".encode())
        return self.held[name]


def result(name: str, setting: int, seed: int, split: str, options: argparse.Namespace) -> dict[str, Any]:
    """One training and its measurement."""
    way, size, device = WAYS[name], options.size, torch.device(options.device)
    chosen = way.settings[setting]
    folder = Path(options.keep) / f"{split}-{name.replace(' ', '-')}-{setting}-{seed}"

    def watch(model: Ouro) -> ls.Monitor:
        task, log = held_out("validation", size, WATCHED), folder.with_suffix(".jsonl")
        log.unlink(missing_ok=True)  # of a training that was interrupted
        return ls.Monitor(model, task, transitions=UPDATES[:2], every=options.watch, limit=WATCHED, log=log)

    model, cost = trained(way, chosen, size, seed, device, watch if options.watch else None)
    started = time.monotonic()
    found = measured(model, split, size, options.questions, folder)
    entry = {"way": name, "setting": chosen, "seed": seed, **cost, "measuring": round(time.monotonic() - started, 1)}
    entry |= found
    beyond = min(found["utility"][DEPTH:]) - found["utility"][DEPTH - 1]
    print(
        f"{name} {chosen}, seed {seed}: utility at {DEPTH} {found['utility'][DEPTH - 1]:.4f}, worst beyond "
        f"{beyond:+.4f}, {cost['seconds']:.0f} s ({cost['core_seconds']:.0f} s of a core)",
        flush=True,
    )
    return entry


STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""The 97.5% quantile of Student's t for a mean of so many seeds."""


def over_seeds(values: list[float], digits: int = 4, sign: str = "") -> str:
    """Mean and 95% interval over seeds."""
    mean = float(np.mean(values))
    if len(values) not in STUDENT:
        return f"{mean:{sign}.{digits}f}"
    half = STUDENT[len(values)] * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return f"{mean:{sign}.{digits}f} [{mean - half:{sign}.{digits}f}, {mean + half:{sign}.{digits}f}]"


def utilities(entries: list[dict[str, Any]]) -> np.ndarray:
    """By seed and depth; column 0 is depth 1."""
    return np.array([entry["utility"] for entry in entries])


def worst_beyond(utility_SL: np.ndarray) -> np.ndarray:
    """The lowest utility beyond the trained depth less that at it, by seed; above zero nothing was lost."""
    return (utility_SL[:, DEPTH:] - utility_SL[:, DEPTH - 1 : DEPTH]).min(axis=1)


def show(results: dict[str, list[dict[str, Any]]]) -> None:
    """Both tables as Markdown, and which way reaches the goal."""
    found = {name: utilities(entries) for name, entries in results.items()}
    best = max(found, key=lambda name: found[name][:, DEPTH - 1].mean())
    top = found[best][:, DEPTH - 1]
    print(f"\n| way | setting | utility at {DEPTH} | behind the best (%) | worst beyond − at {DEPTH} "
          f"| at {2 * DEPTH} | at {DEEPEST} | core seconds |")  # fmt: skip
    print("| :--- | :--- |" + " ---: |" * 6)
    for name, entries in results.items():
        utility = found[name]
        behind = 100 * (top - utility[:, DEPTH - 1]) / np.abs(top)
        seconds = float(np.mean([entry["core_seconds"] for entry in entries]))
        cells = [
            over_seeds(list(utility[:, DEPTH - 1])), over_seeds(list(behind), 1),
            over_seeds(list(worst_beyond(utility)), 4, "+"), f"{utility[:, 2 * DEPTH - 1].mean():.3f}",
            f"{utility[:, DEEPEST - 1].mean():.3f}", f"{seconds:.0f}",
        ]  # fmt: skip
        print(f"| {name} | {_shown(entries[0]['setting'])} | " + " | ".join(cells) + " |")
    print("\n| way | update | mean gain | quarter step | quadratic step | harmful | finite-step "
          "| quarter wins back | quadratic wins back |")  # fmt: skip
    print("| :--- | :--- |" + " ---: |" * 7)
    for name, entries in results.items():
        for index, update in enumerate(UPDATES):
            rows = [entry["updates"][index] for entry in entries]
            count = {key: sum(row[key] for row in rows) for key in rows[0]}
            means = [np.mean([row[key] for row in rows]) for key in ("gain", "quarter_gain", "quadratic_gain")]
            won = ("quarter_recovers", "quadratic_recovers")
            cells = [
                *(f"{mean:+.4f}" for mean in means), f"{count['harmful']}/{count['questions']}", count["finite_step"],
                *(f"{count[key]}" if count["finite_step"] else "—" for key in won),
            ]  # fmt: skip
            print(f"| {name} | {update}→{update + 1} | " + " | ".join(map(str, cells)) + " |")
    print()
    for name, utility in found.items():
        behind = 100 * float((top.mean() - utility[:, DEPTH - 1].mean()) / abs(top.mean()))
        loss = float(worst_beyond(utility).mean())
        reached = "reaches" if behind <= 1 and loss >= 0 else "misses"
        print(f"{name} {reached} the goal: {behind:.2f}% behind {best}, {loss:+.4f} at its worst beyond depth {DEPTH}")


def _shown(setting: Any) -> str:
    if setting is None:
        return "—"
    return ", ".join(f"{value:g}" for value in setting) if isinstance(setting, list | tuple) else f"{setting:g}"


def tune(kept: Results, options: argparse.Namespace) -> None:
    """Every setting of every way on validation stories, and the one whose utility from depth 4 to 16 is nowhere low."""
    for name in options.ways:
        scores = []
        for index, setting in enumerate(WAYS[name].settings):
            entry = kept.get(f"{name} {index}", partial(result, name, index, TUNING_SEED, "validation", options))
            scores.append(min(entry["utility"][DEPTH - 1 :]))
            at = entry["utility"][DEPTH - 1]
            print(f"{name} {_shown(setting)}: at {DEPTH} {at:.4f}, lowest from there on {scores[-1]:.4f}")
        print(f"{name}: setting {int(np.argmax(scores))} is chosen, {WAYS[name].chosen} is written here", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Parse the flags, train what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--steps", type=int, help="instead of the size's own")
    parser.add_argument("--questions", type=int, default=48, help="held-out documents")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--watch", type=int, default=0, help="follow each training every so many steps")
    parser.add_argument("--tune", action="store_true", help="try every setting on validation stories instead")
    parser.add_argument("--keep", default="training-experiment", help="folder of results and runs")
    options = parser.parse_args(arguments)
    options.size = SIZES[options.size]
    if options.steps:
        options.size = replace(options.size, steps=options.steps)
    Path(options.keep).mkdir(parents=True, exist_ok=True)
    if options.tune:
        tune(Results(Path(options.keep) / "tuning.json"), options)
        return
    kept = Results(Path(options.keep) / "results.json")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.ways}
    for seed in options.seeds:
        for name in options.ways:
            make = partial(result, name, WAYS[name].chosen, seed, "test", options)
            found[name].append(kept.get(f"{name} {seed}", make))
    show(found)


if __name__ == "__main__":
    main()
