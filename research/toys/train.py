"""Trains an embedded model from nothing: `python -m research.toys.train toy-ouro --output runs/toy-ouro`.

The budget is time or steps; the learning rate comes down at its end. Nothing in a step waits for the device: losses are
summed there and read when a progress line is due. The folder gets the checkpoint, `curves.json`, and where asked
`monitor.jsonl` and checkpoints on the way; at the end the model solves held-out problems.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

import loopscope as ls
from loopscope.models.families.ouro import Ouro
from loopscope.models.load import find_device
from research.data.arithmetic import problem
from research.data.problem import answer_of, key
from research.toys.build import compile_blocks, new_model, optimisers
from research.toys.objective import (
    Loss,
    Supervised,
    draw_recurrence,
    draw_state,
    huginn_loss,
    ouro_loss,
    supervise,
    train_gate,
    weighted_loss,
)
from research.toys.recipe import END_ID, RECIPES, Recipe
from research.toys.text import Rows, bare, build_tokenizer, stream, worked

CPU_BATCH_TOKENS = 4096
"""On a CPU many small steps teach more in the same time than a few large ones."""
WATCHED = 16
"""Held-out documents that a monitor looks at."""
REPORT_SECONDS = 10.0


def rate_factor(step: int, progress: float, warmup_steps: int, decay_from: float) -> float:
    """What the learning rate is multiplied by at `step` (from 0), `progress` of the budget being spent.

    >>> [round(rate_factor(1000, p, 100, 0.5), 2) for p in (0.0, 0.5, 0.75, 1.0, 1.2)]
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    warm = min(1.0, (step + 1) / max(1, warmup_steps))
    cool = min(1.0, max(0.0, (1.0 - progress) / (1.0 - decay_from)))
    return warm * cool


class Trainer:
    """A model, its optimisers, and what the curves are made of."""

    def __init__(self, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.recipe, self.seed, self.device = recipe, seed, device
        self.model = new_model(recipe, seed).to(device)
        self.optimisers = optimisers(self.model, recipe)
        self.step = self.tokens = 0
        self.curves: list[dict[str, Any]] = []
        self.sums: dict[int, Tensor] = {}

    def arithmetic(self) -> AbstractContextManager[Any]:
        """BF16 where the device has it."""
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def asked(self, rows: Rows) -> Supervised:
        """A batch on the device, and what is asked of it."""
        arrays = (rows.tokens, rows.start, rows.length, rows.form)
        tensors = (torch.from_numpy(array.astype(np.int64)).to(self.device, non_blocking=True) for array in arrays)
        weights = {"prompt_weight": self.recipe.prompt_weight, "direct_weight": self.recipe.direct_weight}
        return supervise(*tensors, **weights, vocabulary=self.model.vocabulary_size)

    def loss(self, asked: Supervised) -> Loss:
        """The recipe's objective; loops and the initial state are drawn from the seed and the step."""
        recipe, model, weights = self.recipe, self.model, self.recipe.depth_weights
        draw = key("huginn step", self.seed, self.step)
        rng = np.random.default_rng(draw)
        if isinstance(model, Ouro):
            if weights is None:
                return ouro_loss(model, asked, recipe.entropy_weight)
            if recipe.drawn:
                weights = (0.0,) * int(rng.choice(len(weights), p=weights)) + (1.0,)
            return weighted_loss(model, asked, weights)
        if weights is None:
            recurrence = draw_recurrence(rng, model.trained_depth, recipe.recurrence_spread)
        else:
            recurrence = int(rng.choice(len(weights), p=weights)) + 1
        generator = torch.Generator(self.device).manual_seed(draw % 2**63)
        state = draw_state(model, tuple(asked.targets.shape), generator)
        return huginn_loss(model, asked, state, recurrence, recipe.backprop_steps)

    def train_step(self, rows: Rows, factor: float) -> None:
        """One update from one batch at `factor` times the full learning rate."""
        with self.arithmetic():
            loss = self.loss(self.asked(rows))
        loss.total.backward()
        muon, adam = self.optimisers
        torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], 1.0)
        for optimiser, full in ((muon, self.recipe.matrix_rate), (adam, self.recipe.vector_rate)):
            optimiser.param_groups[0]["lr"] = full * factor
            optimiser.step()
        self.model.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += int(rows.length.sum())
        for depth, value in loss.by_depth.items():
            self.sums[depth] = self.sums.get(depth, 0.0) + value

    def note(self, seconds: float, factor: float) -> None:
        """Adds a point to the curves, from the sums since the last one, and prints it."""
        point: dict[str, Any] = {"step": self.step, "tokens": self.tokens, "seconds": seconds, "rate_factor": factor}
        for place, name in ((0, "loss_by_depth"), (2, "story_loss_by_depth")):
            pairs = {depth: value[place : place + 2].tolist() for depth, value in sorted(self.sums.items())}
            point[name] = {str(depth): total / count for depth, (total, count) in pairs.items() if count}
        self.sums = {}
        self.curves.append(point)
        print(json.dumps(self.curves[-1]), flush=True)


def train(
    recipe: Recipe,
    folder: Path,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    device: str = "auto",
    workers: int = 0,
    save_every: int | None = None,
    monitor_every: int | None = None,
    compiled: bool = True,
    tokenizer: Tokenizer | None = None,
) -> Trainer:
    """Trains for some minutes or steps and writes the folder.

    Args:
        recipe: which model and how.
        folder: where everything goes.
        minutes: time to train; compiling (the whole first step) and watching are not counted.
        steps: steps to train.
        seed: weights, problems and recurrences follow from it.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        workers: processes that write problems.
        save_every: steps between checkpoints that are kept in folders of their own.
        monitor_every: steps between two looks at the first update beyond the trained depth.
        compiled: whether blocks are compiled on a GPU.
        tokenizer: the tokenizer where it is built already.
    """
    started = reported = time.monotonic()
    place = find_device(device)
    most = CPU_BATCH_TOKENS if place.type == "cpu" else 2**31
    tokenizer = tokenizer or build_tokenizer()
    trainer = Trainer(recipe, seed, place)
    model, stretches, monitor = trainer.model, recipe.stretches, None
    folder.mkdir(parents=True, exist_ok=True)
    if place.type == "cuda" and compiled:
        compile_blocks(model)
    if monitor_every:
        watched = {"depths": range(1, model.trained_depth + 2), "limit": WATCHED, "log": folder / "monitor.jsonl"}
        monitor = ls.Monitor(model, "stories", every=monitor_every, tokenizer=tokenizer, **watched)
    shard, factor, stopped = 0, 0.0, 0.0

    def progress() -> float:
        spent = time.monotonic() - started - stopped
        shares = (spent / (60 * minutes) if minutes else 0.0, trainer.step / steps if steps else 0.0)
        return max(shares)

    for number, stretch in enumerate(stretches):
        if number:
            trainer.optimisers = optimisers(model, recipe)
        batches = stream(tokenizer.to_str(), stretch.mixture.at_most(most), seed, shard, workers)
        with closing(batches):
            while (share := progress() / stretch.until) < 1.0:
                factor = rate_factor(trainer.step, share, recipe.warmup_steps, stretch.decay_from)
                shard, rows = next(batches)
                trainer.train_step(rows, factor)
                if monitor is not None:
                    paused = time.monotonic()
                    monitor.step(trainer.step)
                    stopped += time.monotonic() - paused
                if trainer.step == 1 and compiled:
                    started, stopped = time.monotonic(), 0.0
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    trainer.note(reported - started - stopped, factor)
                if save_every and trainer.step % save_every == 0:
                    export(trainer, tokenizer, folder / "checkpoints" / f"step-{trainer.step}")
        shard += 1
    if trainer.sums:
        trainer.note(time.monotonic() - started - stopped, factor)
    if recipe.gate_steps:
        for module in model.modules():
            vars(module).pop("forward", None)  # what was compiled
        batches = stream(tokenizer.to_str(), stretches[-1].mixture.at_most(most), seed, shard, workers)
        with closing(batches), trainer.arithmetic():
            train_gate(model, (trainer.asked(rows) for _, rows in batches), recipe.gate_steps, recipe.entropy_weight)
    export(trainer, tokenizer, folder)
    (folder / "curves.json").write_text(json.dumps(trainer.curves) + "\n")
    return trainer


def export(trainer: Trainer, tokenizer: Tokenizer, folder: Path) -> None:
    """Rounds the weights to BF16 and writes the folder that `load_model` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    state, left_out = trainer.model.state_dict(), trainer.model.tied
    kept = {name: value.to("cpu", torch.bfloat16) for name, value in state.items() if name not in left_out}
    save_file(
        {name: value.contiguous() for name, value in kept.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    (folder / "config.json").write_text(json.dumps(dict(trainer.recipe.config), indent=2) + "\n")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True))


def greedy_accuracy(
    model: ls.LoopedModel, tokenizer: Tokenizer, problems: int, *, depth: int | None = None, direct: bool = False
) -> dict[int, tuple[int, int]]:
    """Right answers and problems by number of operations; `direct` asks for the bare answer."""
    asked: Counter[int] = Counter()
    right: Counter[int] = Counter()
    for first in range(0, problems, 250):
        numbers = range(first, min(first + 250, problems))
        made = [problem("test", number) for number in numbers]
        prompts = [tokenizer.encode(bare(one) if direct else worked(one)).ids for one in made]
        longest = 6 if direct else 200  # tokens; no reference has more
        new = ls.generate(
            model, prompts, max_new_tokens=longest, depth=depth, eos_ids=[END_ID], source_rows=list(numbers)
        )
        for one, ids in zip(made, new.tokens, strict=True):
            text = tokenizer.decode(ids)
            asked[one.operations] += 1
            right[one.operations] += answer_of(f"Answer:{text}" if direct else text) == one.answer
    return {count: (right[count], asked[count]) for count in sorted(asked)}


def main(arguments: list[str] | None = None) -> None:
    """Parse the flags, train, solve held-out problems with the exported weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--minutes", type=float, help="minutes of training, if not the recipe's")
    parser.add_argument("--output", type=Path, help="checkpoint folder (default: runs/NAME)")
    parser.add_argument("--workers", type=int, default=max(1, min(6, (os.cpu_count() or 1) // 2 - 1)))
    parser.add_argument("--problems", type=int, default=500, help="held-out problems to solve at the end")
    parser.add_argument("--save-every", type=int, help="steps between checkpoints that are kept")
    parser.add_argument("--monitor-every", type=int, default=200, help="steps between two looks of the monitor")
    flags = parser.parse_args(arguments)
    recipe, folder = RECIPES[flags.name], flags.output or Path("runs") / flags.name
    kept = {name: getattr(flags, name) for name in ("seed", "device", "workers", "save_every", "monitor_every")}
    trainer = train(recipe, folder, minutes=flags.minutes or recipe.minutes, **kept)
    model = ls.load_model(str(folder), device=trainer.device, dtype="float32")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for depth in (1, max(2, model.trained_depth // 2), model.trained_depth, 2 * model.trained_depth):
        for direct in (False, True):
            found = greedy_accuracy(model, tokenizer, flags.problems, depth=depth, direct=direct)
            print(f"depth {depth}, {'bare answers' if direct else 'worked solutions'}: {found}", flush=True)


if __name__ == "__main__":
    main()
