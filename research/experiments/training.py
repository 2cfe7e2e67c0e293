"""Which training keeps a looped model from losing beyond its trained depth (research/training-experiment.md).

    python -m research.experiments.training --keep training-experiment

trains one small model (Ouro's layout, trained depth 4, generated stories) in seven ways from three seeds and measures
each with `loopscope.measure` on held-out stories, to four times the trained depth. Every result is kept as soon as it
is there, and the same command goes on where it stopped. `--tune` trains every setting of every way, from another seed,
measures on validation stories, and the same folder then uses the best of each. `--jobs 8` trains eight models at a
time, also on one GPU, which a model this small leaves mostly idle: `--size large --device cuda --jobs 8`. `--show FILE`
prints what a results.json or tuning.json holds, without training. One training is in trial.py, beside this.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.store.writer import write_atomically
from research.experiments import losses
from research.experiments.trial import DEEPEST, DEPTH, SIZES, UPDATES, Trial, shown

TUNING_SEED = 100


# --- ways


@dataclass(frozen=True)
class Way:
    """A way to train: its loss, and the settings that are tried for it, the first of them where nothing was tuned."""

    loss: Callable[[losses.Step, Any], Tensor]
    settings: tuple[Any, ...]


WAYS = {
    "last depth": Way(losses.last_depth, (None,)),
    "all depths": Way(losses.all_depths, ((0.25, 0.25, 0.25, 0.25), (0.1, 0.1, 0.1, 0.7), (0.1, 0.2, 0.3, 0.4))),
    "gate": Way(losses.gate, (0.05, 0.1, 0.02)),
    "random loops": Way(losses.random_loops, ((1, 4.0), (4, 6.0), (3, 6.0))),
    "fixed point": Way(losses.fixed_point, (0.05, 0.5, 5.0)),
    "Jacobian": Way(losses.jacobian, (0.1, 1.0, 10.0)),
    "geometry": Way(losses.geometry, ((6.0, 4.0), (4.0, 8.0), (8.0, 8.0))),
}


def trial(name: str, setting: Any, seed: int, split: str, options: argparse.Namespace) -> Trial:
    """As the flags ask for it."""
    way, keep = WAYS[name], Path(options.keep)
    return Trial(name, way.loss, setting, seed, split, options.size, options.device, options.questions, keep)


# --- results


class Results:
    """Results by name in one JSON file, in which each is kept as soon as it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, trials: list[Trial], jobs: int) -> list[dict[str, Any]]:
        """The results of trials, those that are not there yet made now, so many at a time."""
        missing = [one for one in trials if self.held.get(one.name, {}).get("size") != asdict(one.size)]
        for one, made in _all_of(missing, jobs):
            self.held[one.name] = made
            text = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(self.held.items()))
            write_atomically(self.path, f"{{\n{text}\n}}\n".encode())
            print(in_a_line(made), flush=True)
        return [self.held[one.name] for one in trials]


def in_a_line(entry: dict[str, Any]) -> str:
    """What one training gave and cost."""
    at, beyond = entry["utility"][DEPTH - 1], min(entry["utility"][DEPTH:])
    return (
        f"{entry['way']} {shown(entry['setting'])}, seed {entry['seed']}: utility at {DEPTH} {at:.4f}, worst beyond "
        f"{beyond - at:+.4f}, {entry['seconds']:.0f} s ({entry['core_seconds']:.0f} s of a core)"
    )


def _all_of(trials: list[Trial], jobs: int) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """Each with its result, as they come; in processes of one thread each where several run at a time."""
    if jobs == 1 or not trials:
        yield from ((one, one.run()) for one in trials)
        return
    context = multiprocessing.get_context("spawn")  # a process that was forked cannot use a GPU
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as pool:
        for text in {one.seed: one.text for one in trials}.values():
            list(pool.map(text.make, range(text.pieces)))
        made = {pool.submit(one.run): one for one in trials}
        for done in as_completed(made):
            if done.exception() is None:
                yield made[done], done.result()
        for done in made:
            done.result()  # raises what went wrong, now that the others are kept


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
    """Both tables as Markdown, which way reaches the goal, and what all of it cost."""
    found = {name: utilities(entries) for name, entries in results.items()}
    best = max(found, key=lambda name: found[name][:, DEPTH - 1].mean())
    top = found[best][:, DEPTH - 1]
    print(f"\n| loss | setting | utility at {DEPTH} | behind the best (%) | worst beyond − at {DEPTH} "
          f"| at {2 * DEPTH} | at {DEEPEST} | seconds | of a core |")  # fmt: skip
    print("| :--- | :--- |" + " ---: |" * 7)
    for name, entries in results.items():
        utility = found[name]
        behind = 100 * (top - utility[:, DEPTH - 1]) / np.abs(top)
        seconds = [np.mean([entry[key] for entry in entries]) for key in ("seconds", "core_seconds")]
        cells = [
            over_seeds(list(utility[:, DEPTH - 1])), over_seeds(list(behind), 1),
            over_seeds(list(worst_beyond(utility)), 4, "+"), f"{utility[:, 2 * DEPTH - 1].mean():.3f}",
            f"{utility[:, DEEPEST - 1].mean():.3f}", *(f"{mean:.0f}" for mean in seconds),
        ]  # fmt: skip
        print(f"| {name} | {shown(entries[0]['setting'])} | " + " | ".join(cells) + " |")
    print("\n| loss | update | mean gain | quarter step | quadratic step | harmful | finite-step "
          "| quarter recovers | quadratic recovers |")  # fmt: skip
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
    every = [entry for entries in results.values() for entry in entries]
    minutes = [sum(entry[key] for entry in every) / 60 for key in ("seconds", "core_seconds", "measuring")]
    tokens, times = np.mean([entry["tokens"] for entry in every]), [round(entry["seconds"]) for entry in every]
    print(f"\n{len(every)} trainings of {tokens / 1000:,.0f} thousand tokens, {min(times)} to {max(times)} s each")
    print(f"added up: {minutes[0]:.1f} minutes, {minutes[1]:.1f} of a core; {minutes[2]:.1f} minutes of measuring")


def tune(kept: Results, options: argparse.Namespace) -> None:
    """Every setting of every way on validation stories, and the best of each way."""
    every = [(name, setting) for name in options.ways for setting in WAYS[name].settings]
    show_tuned(kept, kept.add([trial(*one, TUNING_SEED, "validation", options) for one in every], options.jobs))


def show_tuned(kept: Results, entries: list[dict[str, Any]]) -> None:
    """What every setting gave, and which is chosen."""
    print(f"\n| loss | setting | steps × documents | utility at {DEPTH} | worst beyond − at {DEPTH} | seconds |")
    print("| :--- | :--- |" + " ---: |" * 4)
    for entry in entries:
        utility, size = utilities([entry]), entry["size"]
        cells = [
            entry["way"], shown(entry["setting"]), f"{size['steps']:,} × {size['documents']}",
            f"{utility[0, DEPTH - 1]:.4f}", f"{worst_beyond(utility)[0]:+.4f}", f"{entry['seconds']:.0f}",
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |")
    print()
    for name in by_way(entries):
        print(f"{name}: {shown(chosen(name, kept))} is chosen", flush=True)


def by_way(entries: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Results by the name of the way, in the order in which the ways come up."""
    return {
        name: [entry for entry in entries if entry["way"] == name] for name in dict.fromkeys(e["way"] for e in entries)
    }


def show_kept(path: Path) -> None:
    """What a file of results holds: of tests both tables, of settings that were tried what each gave."""
    kept = Results(path)
    entries = sorted(kept.held.values(), key=lambda entry: (list(WAYS).index(entry["way"]), entry["seed"]))
    print(*map(in_a_line, entries), sep="\n")
    if any(entry["updates"] for entry in entries):
        show(by_way(entries))
    else:
        show_tuned(kept, entries)


def lowest(entry: dict[str, Any]) -> float:
    """The lowest utility from the trained depth on."""
    return min(entry["utility"][DEPTH - 1 :])


def worth(entry: dict[str, Any]) -> tuple[bool, float]:
    """What settings are compared by: whether they lose nothing beyond the trained depth; then, the lowest utility."""
    return lowest(entry) >= entry["utility"][DEPTH - 1], lowest(entry)


def chosen(name: str, tuned: Results) -> Any:
    """A way's setting: the best of those that were tuned, otherwise the first."""
    found = {shown(entry["setting"]): entry for entry in tuned.held.values() if entry["way"] == name}
    tried = [setting for setting in WAYS[name].settings if shown(setting) in found]
    return max(tried, key=lambda setting: worth(found[shown(setting)]), default=WAYS[name].settings[0])


def main(arguments: list[str] | None = None) -> None:
    """Parse the flags, train what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--steps", type=int, help="instead of the size's own")
    parser.add_argument("--questions", type=int, default=48, help="held-out documents")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--jobs", type=int, default=1, help="models that are trained at a time, each in its own process"
    )
    parser.add_argument("--tune", action="store_true", help="try every setting on validation stories instead")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print what a file of results holds, train nothing")
    parser.add_argument("--keep", default="training-experiment", help="folder of texts, results and runs")
    options = parser.parse_args(arguments)
    if options.show:
        if not options.show.is_file():
            parser.error(f"--show: there is no file {options.show}")
        show_kept(options.show)
        return
    options.size = SIZES[options.size]
    if options.steps:
        options.size = replace(options.size, steps=options.steps)
    folder = Path(options.keep)
    folder.mkdir(parents=True, exist_ok=True)
    tuned = Results(folder / "tuning.json")
    if options.tune:
        tune(tuned, options)
        return
    settings = {name: chosen(name, tuned) for name in options.ways}
    trials = [trial(name, settings[name], seed, "test", options) for seed in options.seeds for name in options.ways]
    show(by_way(Results(folder / "results.json").add(trials, options.jobs)))


if __name__ == "__main__":
    main()
