"""Trains an embedded model from nothing, or goes on where a run stopped.

The budget is time or steps; the learning rate comes down at its end. Nothing in a step waits for the device:
losses are summed there and read when a progress line is due.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.models.families.huginn import Huginn
from loopscope.models.families.ouro import Ouro
from loopscope.models.load import find_device
from loopscope.tasks.arithmetic.problem import key
from loopscope.toys.budget import Budget, rate_factor
from loopscope.toys.build import Toy, compile_blocks, new_model, optimisers
from loopscope.toys.data import Place, Rows, build_tokenizer, stream
from loopscope.toys.gate import train_gate
from loopscope.toys.objective import (
    Loss,
    Supervised,
    draw_recurrence,
    draw_state,
    huginn_loss,
    ouro_loss,
    supervise,
    weighted_loss,
)
from loopscope.toys.recipe import Recipe, Stretch
from loopscope.toys.training_files import CHECKPOINTS, STATE, export, load_state, save_state
from loopscope.toys.watching import look, monitor_of

if TYPE_CHECKING:
    from loopscope.monitor.watch import Monitor

Report = Callable[[str], None]

CPU_BATCH_TOKENS = 4096
"""On a CPU many small steps teach more in the same time than a few large ones."""


def _shown(by_depth: dict[int, float]) -> str:
    """Huginn's steps reach many depths: one in a few tells enough in a line, the curves keep all."""
    shown = [depth for depth in by_depth if len(by_depth) <= 8 or depth in (1, 2, 4, 6, 8, 12, 16)]
    return " ".join(f"{depth}:{by_depth[depth]:.4f}" for depth in shown)


class Trainer:
    """Model, optimisers and data stream of one run, with everything that is saved."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        seed: int,
        device: torch.device,
        workers: int,
        compiled: bool,
        report: Report,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.recipe, self.folder, self.seed, self.report = recipe, folder, seed, report
        self.device = device
        self.workers = workers
        self.tokenizer = build_tokenizer() if tokenizer is None else tokenizer
        self.model: Toy = new_model(recipe, seed).to(self.device)
        self.optimisers = optimisers(self.model, recipe)
        self.step = 0
        self.place = Place()
        self.tokens = 0
        self.seconds = 0.0
        self.gate_trained = False
        self.stretch = 0
        self.save_every: int | None = None
        self.monitor: Monitor | None = None
        self.curves: list[dict[str, Any]] = []
        self._resume()
        if compiled:
            self._compile()
        self._clear()

    @property
    def identity(self) -> dict[str, Any]:
        """What a saved state must agree with."""
        return {
            "name": self.recipe.name,
            "seed": self.seed,
            "config": dict(self.recipe.config),
            "batch_tokens": self.recipe.mixture.batch_tokens,
        }

    def _resume(self) -> None:
        found = load_state(self.folder, self.identity)
        if found is None:
            return
        state, self.curves = found
        try:
            self.model.load_state_dict(state["model"])
            for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(saved)
            self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
            self.place = Place(*state["place"])
            self.gate_trained, self.stretch = state["gate_trained"], state["stretch"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise LoopscopeError(
                f"{self.folder / STATE} does not fit the model ({reason}); delete it to train from nothing"
            ) from error
        self.report(f"{self.recipe.name}: resuming at step {self.step}, {self.seconds / 60:.1f} min trained")

    def save(self) -> None:
        """Writes the state that `_resume` reads."""
        if not all(bool(torch.isfinite(weight).all()) for weight in self.model.parameters()):
            raise RuntimeError(
                f"{self.recipe.name}: weights are no longer finite at step {self.step}; nothing was saved"
            )
        state = {
            "identity": self.identity,
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "step": self.step,
            "place": list(self.place),
            "tokens": self.tokens,
            "seconds": self.seconds,
            "gate_trained": self.gate_trained,
            "stretch": self.stretch,
        }
        save_state(self.folder, state, self.curves)

    def _compile(self) -> None:
        """Compiles the blocks and tries every shape; a machine without a working compiler trains without."""
        started = time.monotonic()
        mixture = self.recipe.mixture
        try:
            compile_blocks(self.model)
            for width in mixture.widths:
                rows = mixture.rows(width)
                tokens = torch.zeros((rows, width), dtype=torch.int64, device=self.device)
                ends = torch.full((rows,), width, dtype=torch.int64, device=self.device)
                asked = self._supervise(tokens, ends // 2, ends, torch.zeros_like(ends))
                with self.arithmetic():
                    self._loss(asked, self._most_loops()).total.backward()  # type: ignore[no-untyped-call]
            self.report(f"{self.recipe.name}: compiled in {time.monotonic() - started:.0f} s")
        except Exception as error:
            self.report(f"{self.recipe.name}: not compiled, training anyway ({type(error).__name__}: {error})"[:400])
            self._uncompile()
        self.model.zero_grad(set_to_none=True)

    def _most_loops(self) -> int:
        """As many as a step may have; more than gradients reach, so that the pass without them is compiled as well."""
        weights = self.recipe.depth_weights
        return self.recipe.backprop_steps + 1 if weights is None else len(weights)

    def _uncompile(self) -> None:
        for module in self.model.modules():
            vars(module).pop("forward", None)

    def arithmetic(self) -> AbstractContextManager[Any]:
        """BF16 where the device has it."""
        on_gpu = self.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()

    def _supervise(self, tokens: Tensor, start: Tensor, length: Tensor, form: Tensor) -> Supervised:
        return supervise(
            tokens,
            start,
            length,
            form,
            prompt_weight=self.recipe.prompt_weight,
            direct_weight=self.recipe.direct_weight,
            vocabulary=self.model.vocabulary_size,
        )

    def _loss(self, asked: Supervised, recurrence: int | None = None) -> Loss:
        recipe = self.recipe
        if isinstance(self.model, Ouro):
            if recipe.depth_weights is not None:
                return weighted_loss(self.model, asked, recipe.depth_weights)
            return ouro_loss(self.model, asked, recipe.entropy_weight)
        assert isinstance(self.model, Huginn)
        draw = key("huginn step", self.seed, self.step)
        if recurrence is None:
            rng = np.random.default_rng(draw)
            if recipe.depth_weights is not None:
                recurrence = int(rng.choice(len(recipe.depth_weights), p=recipe.depth_weights)) + 1
            else:
                recurrence = draw_recurrence(rng, self.model.trained_depth, recipe.recurrence_spread)
        generator = torch.Generator(self.device).manual_seed(draw % 2**63)
        rows, width = asked.batch.input_ids.shape
        state = draw_state(self.model, (rows, width), generator)
        return huginn_loss(self.model, asked, state, recurrence, recipe.backprop_steps)

    def supervise_rows(self, rows: Rows) -> Supervised:
        """A batch on the device, and what is asked of it."""

        def put(array: Any) -> Tensor:
            return torch.from_numpy(array.astype(np.int64)).to(self.device, non_blocking=True)

        return self._supervise(put(rows.tokens), put(rows.start), put(rows.length), put(rows.form))

    def train_step(self, rows: Rows, place: Place, factor: float) -> None:
        """One update from one batch at `factor` times the full learning rate."""
        asked = self.supervise_rows(rows)
        with self.arithmetic():
            loss = self._loss(asked)
        loss.total.backward()  # type: ignore[no-untyped-call]
        muon, adam = self.optimisers
        torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], 1.0)
        for optimiser, full in ((muon, self.recipe.matrix_rate), (adam, self.recipe.vector_rate)):
            for group in optimiser.param_groups:
                group["lr"] = full * factor
            optimiser.step()
        self.model.zero_grad(set_to_none=True)
        self.step += 1
        self.place = place
        self.tokens += int(rows.length.sum())
        self._note(loss)

    def _clear(self) -> None:
        self._sums: dict[int, Tensor] = {}
        self._exits: Tensor | None = None
        self._noted = 0

    def _note(self, loss: Loss) -> None:
        self._noted += 1
        for depth, value in loss.by_depth.items():
            self._sums[depth] = self._sums[depth] + value if depth in self._sums else value
        if loss.exits is not None:
            self._exits = loss.exits if self._exits is None else self._exits + loss.exits

    def take_note(self, factor: float, rate: float) -> None:
        """Reads the sums since the last note, adds a point to the curves and reports a line."""
        sums = {depth: value.tolist() for depth, value in sorted(self._sums.items())}
        solutions = {depth: total / count for depth, (total, count, _, _) in sums.items() if count}
        stories = {depth: total / count for depth, (_, _, total, count) in sums.items() if count}
        point: dict[str, Any] = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "rate_factor": round(factor, 4),
            "loss_by_depth": {str(depth): round(value, 5) for depth, value in solutions.items()},
            "story_loss_by_depth": {str(depth): round(value, 5) for depth, value in stories.items()},
        }
        exits = ""
        if self._exits is not None:
            shares = (self._exits / self._noted).tolist()
            point["exits"] = [round(share, 4) for share in shares]
            exits = "  exits " + " ".join(f"{share:.2f}" for share in shares)
        self.curves.append(point)
        self.report(
            f"{self.recipe.name} {self.seconds / 60:5.1f} min  step {self.step}  {self.tokens / 1e6:.1f}M tokens  "
            f"{rate / 1e3:.0f}k/s  rate {factor:.2f}  loss by depth: solutions {_shown(solutions)}, "
            f"stories {_shown(stories)}{exits}"
        )
        self._clear()

    def run(self, budget: Budget, *, report_seconds: float, save_seconds: float, report_steps: int | None) -> None:
        """Steps until the budget is spent; saves every `save_seconds` and at the end.

        The time of a monitor is none of the training's: it changes neither the rate nor the number of steps.
        """
        before, started = self.seconds, time.monotonic()
        reported = saved = started
        tokens_then = self.tokens
        factor = 0.0
        if budget.progress(self.seconds, self.step) < 1.0:
            self.gate_trained = False
        for index, stretch in enumerate(self.recipe.stretches):
            batches = self._batches(stretch)
            with closing(batches):  # type: ignore[type-var]
                while (progress := budget.progress(self.seconds, self.step)) < stretch.until:
                    self._enter(index)
                    share = progress / stretch.until
                    factor = rate_factor(self.step, share, self.recipe.warmup_steps, stretch.decay_from)
                    rows, place = next(batches)
                    self.train_step(rows, place, factor)
                    watched = look(self.monitor, self.step, self.recipe.name, self.report)
                    started, reported, saved = started + watched, reported + watched, saved + watched
                    now = time.monotonic()
                    due = now - reported >= report_seconds if report_steps is None else self.step % report_steps == 0
                    if due:
                        if self.device.type == "cuda":
                            torch.cuda.synchronize()
                        now = time.monotonic()
                        self.seconds = before + now - started
                        self.take_note(factor, (self.tokens - tokens_then) / max(now - reported, 1e-9))
                        reported, tokens_then = now, self.tokens
                    self.seconds = before + now - started
                    if self.save_every and self.step % self.save_every == 0:
                        export(self.model, self.recipe, self.tokenizer, self.folder / CHECKPOINTS / f"step-{self.step}")
                    if now - saved >= save_seconds:
                        self.save()
                        saved = time.monotonic()
        if self._noted:
            self.take_note(factor, (self.tokens - tokens_then) / max(time.monotonic() - reported, 1e-9))
        self.save()

    def _batches(self, stretch: Stretch) -> Iterator[tuple[Rows, Place]]:
        return stream(self.tokenizer.to_str(), stretch.mixture, self.seed, self.place, self.workers)

    def _enter(self, stretch: int) -> None:
        """Optimisers begin anew with a stretch, unless the training was resumed within it."""
        if stretch != self.stretch:
            self.optimisers = optimisers(self.model, self.recipe)
            self.stretch = stretch

    def run_gate(self) -> None:
        """Trains the gate where the recipe asks for it and it has not been done."""
        steps = self.recipe.gate_steps
        if self.gate_trained or not steps or not isinstance(self.model, Ouro):
            return
        self._uncompile()
        batches = self._batches(self.recipe.stretches[-1])
        with closing(batches):  # type: ignore[type-var]
            loss = train_gate(self.model, batches, self, steps, self.recipe.entropy_weight)
        self.gate_trained = True
        self.save()
        assert loss.exits is not None
        shares = " ".join(f"{share:.2f}" for share in loss.exits.tolist())
        self.report(f"{self.recipe.name}: {steps} steps for the gate, exits {shares}")


def train(
    recipe: Recipe,
    folder: Path,
    budget: Budget,
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    workers: int | None = None,
    compiled: bool | None = None,
    report: Report = print,
    report_seconds: float = 10.0,
    save_seconds: float = 60.0,
    report_steps: int | None = None,
    tokenizer: Tokenizer | None = None,
    save_every: int | None = None,
    monitor_every: int | None = None,
) -> Trainer:
    """Trains (or goes on training) and writes the checkpoint folder; returns the trainer.

    Args:
        recipe: which model and how.
        folder: where the checkpoint, the curves and the resumable state go.
        budget: when to stop.
        seed: weights, problems and recurrences follow from it.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        workers: processes that write problems; None chooses by the number of cores.
        compiled: whether to compile the blocks; None compiles on a GPU.
        report: where progress lines go.
        report_seconds: how often a line comes.
        save_seconds: how often the state is saved.
        report_steps: a line after this many steps instead.
        tokenizer: the tokenizer where it is built already.
        save_every: steps between checkpoints that are kept, each in a folder of its own; None keeps the last alone.
        monitor_every: steps between two looks at the first update beyond the trained depth, which is looked at
            after the last step as well; None looks at none.
    """
    chosen = find_device(device)
    if chosen.type == "cpu":
        recipe = recipe.in_batches_of(CPU_BATCH_TOKENS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    trainer = Trainer(
        recipe,
        folder,
        seed=seed,
        device=chosen,
        workers=max(1, min(6, cores // 2 - 1)) if workers is None else workers,
        compiled=chosen.type == "cuda" if compiled is None else compiled,
        report=report,
        tokenizer=tokenizer,
    )
    trainer.save_every = save_every
    if monitor_every is not None:
        trainer.monitor = monitor_of(trainer.model, trainer.tokenizer, folder, monitor_every)
    begun = trainer.step
    trainer.run(budget, report_seconds=report_seconds, save_seconds=save_seconds, report_steps=report_steps)
    if trainer.step > begun:
        look(trainer.monitor, trainer.step, recipe.name, report, is_last=True)
    trainer.run_gate()
    size = export(trainer.model, recipe, trainer.tokenizer, folder)
    report(f"{recipe.name}: {size / 1e6:.2f} MB in {folder}")
    return trainer
