"""The whole of `train-toy`: train, export, solve held-out problems with the exported weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from loopscope.errors import LoopscopeError, setting
from loopscope.models.generate import generate
from loopscope.models.load import find_device, load_model
from loopscope.models.protocol import LoopedModel
from loopscope.store.atomic import write_atomically
from loopscope.tasks.arithmetic.problem import answer_of
from loopscope.tasks.arithmetic.task import answer_context, problem, solution_context
from loopscope.toys.budget import Budget
from loopscope.toys.recipe import END_ID, get_recipe
from loopscope.toys.train import train

MOST_MINUTES = 30 * 24 * 60
"""A month; the embedded models took minutes."""
MOST_PROBLEMS = 1_000_000
MOST_WORKERS = 64
MOST_STEPS = 1_000_000_000
LARGEST_SEED = 2**63 - 1
MONITOR_EVERY = 200
"""Steps between two looks at what an update beyond the trained depth does."""


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
    minutes: float | None = None,
    output: Path | None = None,
    workers: int | None = None,
    problems: int = 500,
    save_every: int | None = None,
    report: Callable[[str], None] = _print,
) -> dict[str, Any]:
    """Trains an embedded model and reports its greedy accuracy on the test split at several depths.

    The same call goes on where an interrupted one stopped; more minutes train further. Left out, they are the recipe's.
    Every `save_every` steps a checkpoint is kept in OUTPUT/checkpoints/step-N, for `measure` to follow the training.
    Every 200 steps and at the end a monitor adds to OUTPUT/monitor.jsonl what the first update beyond the trained
    depth does.
    """
    recipe = get_recipe(name)
    minutes = recipe.minutes if minutes is None else minutes
    # Written so that a NaN is refused, too.
    if not 0 < minutes <= MOST_MINUTES:
        raise LoopscopeError(f"{setting('minutes', minutes)} must be above 0 and at most {MOST_MINUTES}")
    _check_count("seed", seed, 0, LARGEST_SEED)
    _check_count("problems", problems, 1, MOST_PROBLEMS)
    if workers is not None:
        _check_count("workers", workers, 0, MOST_WORKERS)
    if save_every is not None:
        _check_count("save_every", save_every, 1, MOST_STEPS)
    place = find_device(device)
    folder = Path("runs") / name if output is None else output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", None) or error
        raise LoopscopeError(f"the folder of {setting('output', str(folder))} cannot be made: {reason}") from None
    trainer = train(
        recipe,
        folder,
        Budget(minutes=minutes),
        seed=seed,
        device=place,
        workers=workers,
        report=report,
        save_every=save_every,
        monitor_every=MONITOR_EVERY,
    )
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


LONGEST_SOLUTION, LONGEST_ANSWER = 200, 6
"""More tokens than any reference solution or answer has."""


@dataclass
class Accuracy:
    """Right answers and problems by number of operations."""

    right: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)

    def add(self, operations: int, is_right: bool) -> None:
        """Counts one problem."""
        self.right[operations] = self.right.get(operations, 0) + is_right
        self.asked[operations] = self.asked.get(operations, 0) + 1

    def share(self, fewest: int = 0, most: int = 99) -> float:
        """The share of right answers among problems of `fewest` to `most` operations."""
        chosen = [count for count in self.asked if fewest <= count <= most]
        return sum(self.right[count] for count in chosen) / max(1, sum(self.asked[count] for count in chosen))

    def __str__(self) -> str:
        counts = [f"{count} ops {self.right[count]}/{self.asked[count]}" for count in sorted(self.asked)]
        return f"{', '.join(counts)}; up to four {self.share(most=4):.1%}, all {self.share():.1%}"


def greedy_accuracy(
    model: LoopedModel,
    tokenizer: Tokenizer,
    *,
    problems: int,
    depth: int | None = None,
    split: str = "test",
    direct: bool = False,
    batch: int = 250,
) -> Accuracy:
    """Solves the first problems of a split; `direct` asks for the bare answer instead of a worked solution."""
    result = Accuracy()
    for first in range(0, problems, batch):
        indices = list(range(first, min(first + batch, problems)))
        made = [problem(split, index) for index in indices]
        texts = [answer_context(one.story) if direct else solution_context(one.question) for one in made]
        prompts = [tokenizer.encode(text).ids for text in texts]
        new = generate(
            model,
            prompts,
            max_new_tokens=LONGEST_ANSWER if direct else LONGEST_SOLUTION,
            depth=depth,
            eos_ids=[END_ID],
            source_rows=indices,
        ).tokens
        for one, tokens in zip(made, new, strict=True):
            text = tokenizer.decode(tokens)
            result.add(one.operations, answer_of("Answer:" + text if direct else text) == one.answer)
    return result
