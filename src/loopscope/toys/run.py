"""The whole of `train-toy`: train, export, solve held-out problems with the exported weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError, setting
from loopscope.models.load import find_device, load_model
from loopscope.toys.export import greedy_accuracy
from loopscope.toys.recipe import get_recipe
from loopscope.toys.state import write_atomically
from loopscope.toys.train import Budget, train

MOST_MINUTES = 30 * 24 * 60
"""A month; the embedded models took eight minutes."""
MOST_PROBLEMS = 1_000_000
MOST_WORKERS = 64
LARGEST_SEED = 2**63 - 1


def _check_count(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise LoopscopeError(f"{setting(name, value)} must be from {least} to {most}")


def _print(line: str) -> None:
    print(line, flush=True)


def train_toy(
    name: str,
    *,
    seed: int = 0,
    device: str = "auto",
    minutes: float = 8.0,
    output: Path | None = None,
    workers: int | None = None,
    problems: int = 500,
    report: Callable[[str], None] = _print,
) -> dict[str, Any]:
    """Trains an embedded model and reports its greedy accuracy on the test split at several depths.

    The same call goes on where an interrupted one stopped; more minutes train further.
    """
    # Written so that a NaN is refused, too.
    if not 0 < minutes <= MOST_MINUTES:
        raise LoopscopeError(f"{setting('minutes', minutes)} must be above 0 and at most {MOST_MINUTES}")
    _check_count("seed", seed, 0, LARGEST_SEED)
    _check_count("problems", problems, 1, MOST_PROBLEMS)
    if workers is not None:
        _check_count("workers", workers, 0, MOST_WORKERS)
    recipe = get_recipe(name)
    place = find_device(device)
    folder = Path("runs") / name if output is None else output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", None) or error
        raise LoopscopeError(f"the folder of {setting('output', str(folder))} cannot be made: {reason}") from None
    trainer = train(recipe, folder, Budget(minutes=minutes), seed=seed, device=place, workers=workers, report=report)
    model = load_model(str(folder), device=trainer.device, dtype="float32")
    results: dict[str, Any] = {
        "name": name, "seed": seed, "steps": trainer.step, "tokens": trainer.tokens,
        "seconds": round(trainer.seconds, 1), "accuracy": {},
    }  # fmt: skip
    depths = [model.trained_depth, 1, max(2, model.trained_depth // 2), 2 * model.trained_depth]
    for depth in depths:
        for direct in (False, True):
            started = time.monotonic()
            # Other depths are for the picture: a third of the problems tells enough.
            count = problems if depth == model.trained_depth else max(1, problems // 3)
            found = greedy_accuracy(model, trainer.tokenizer, problems=count, depth=depth, direct=direct)
            form = "bare answers" if direct else "worked solutions"
            report(f"{name}: depth {depth}, {form}: {found}  ({time.monotonic() - started:.0f} s)")
            results["accuracy"][f"depth {depth}, {form}"] = {"right": found.right, "asked": found.asked}
            write_atomically(folder / "accuracy.json", (json.dumps(results, indent=1) + "\n").encode())
    return results
