"""How far a pass has come (`Progress`, through rich), and what it will take before it begins (`estimate`).

For an estimate tokens are counted and a few batches are timed; the rest follows by the rate.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Literal, Self

import torch

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batching import Question, plan_batches, run_tokens
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.loading import in_memory
from loopscope.measuring.worker import LocalEngine, Worker
from loopscope.models.in_memory import borrowed

Style = Literal["auto", "bar", "plain", "none"]
SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Questions and token positions so far on stderr: a bar on a terminal or in a notebook, plain lines, or nothing.

    Of `total` questions `done` were measured earlier.
    """

    def __init__(self, style: Style, title: str, total: int, done: int) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if style == "auto":
            shows = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
            style = "bar" if shows else "plain"
        self.style, self._tokens = style, 0
        self._began = self._last_line = time.monotonic()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[figures]}"),
            console=console,
            disable=style != "bar",
        )
        task = self._bar.add_task(title, total=total, completed=done, figures="")
        self._task, self._before = self._bar.tasks[task], done

    def advance(self, questions: int, tokens: int) -> None:
        """More questions, with their token positions, are measured; fewer, where a worker was lost with them."""
        self._tokens += tokens
        self._bar.advance(self._task.id, questions)
        self._bar.update(self._task.id, figures=self.figures())
        now = time.monotonic()
        if self.style == "plain" and (self._task.finished or now - self._last_line >= SECONDS_BETWEEN_LINES):
            self._last_line = now
            with suppress(OSError):  # a closed terminal ends no pass
                print(f"{self._task.description}: {self.figures()}", file=sys.stderr, flush=True)

    def figures(self) -> str:
        """Questions, rate, tokens per second and time left."""
        done, total = int(self._task.completed), int(self._task.total or 0)
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = (done - self._before) / seconds
        left = timedelta(seconds=round((total - done) / rate)) if rate > 0 else "unknown time"
        speed = f"{rate:.1f}/s, {self._tokens / seconds:.0f} tokens/s"
        return f"{done}/{total} questions ({100 * done // max(total, 1)}%), {speed}, {left} left"

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()


SECONDS = 5.0
"""How long batches are timed by default."""


@dataclass(frozen=True)
class CostEstimate:
    """What a pass will take.

    Attributes:
        model: its name.
        questions: of all tasks.
        tokens: tokens that the model runs, padding included.
        seconds: from the command to the end.
        memory: bytes at the largest batch that was timed: of the GPU, or of the process.
    """

    model: str
    questions: int
    tokens: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        return (
            f"{self.model}: {self.questions:,} questions, {self.tokens:,} tokens, {duration(self.seconds)},"
            f" {self.memory / 1e9:.1f} GB at the largest batch that was timed"
        )


def together(costs: Sequence[CostEstimate]) -> CostEstimate:
    """Passes one after the other."""
    questions, tokens, seconds = (sum(getattr(c, name) for c in costs) for name in ("questions", "tokens", "seconds"))
    names = ", ".join(dict.fromkeys(cost.model for cost in costs))
    return CostEstimate(names, questions, tokens, seconds, max(cost.memory for cost in costs))


def estimate(config: MeasureConfig, seconds: float = SECONDS) -> CostEstimate:
    """Load the model, time some batches of the pass, and say what the whole will take; nothing is written."""
    if not 0 < seconds < float("inf"):
        raise LoopscopeError(f"{setting('plan_seconds', seconds)} is not a time: give a number of seconds above 0")
    from loopscope.measuring.run import prepare, tasks_first

    began = time.perf_counter()
    with borrowed(in_memory(config)):
        config, loaded = tasks_first(config.but(engine="local", workers=None))
        engine = LocalEngine(config)
        prepared = prepare(config, loaded, engine.facts, engine.tokenizer)
        policy, worker = prepared.settings.batch, Worker(engine.model, prepared.settings)
        units = prepared.given(prepared.manifest.units())
        batches = [batch for _, questions in units for batch in plan_batches(questions, policy)]

        def took(batch: Sequence[Question]) -> float:
            start = time.perf_counter()
            for _ in worker.run([(None, batch)]):
                pass
            return time.perf_counter() - start

        largest, most = max(batches, key=lambda batch: run_tokens(batch, policy)), 1
        loading = time.perf_counter() - began + took(largest[:1])  # kernels are loaded the first time
        while took(largest[:most]) < seconds / 4 and most < len(largest):
            most *= 2
        timed = spent = 0.0
        for batch in random.Random(0).sample(batches, len(batches)):
            spent += took(batch[:most])
            timed += run_tokens(batch[:most], policy)
            if spent > seconds:
                break
    tokens = sum(run_tokens(batch, policy) for batch in batches)
    count = sum(len(encoded.questions) for encoded in prepared.tasks)
    return CostEstimate(prepared.manifest.model.name, count, tokens, loading + spent / timed * tokens, _memory())


def _memory() -> int:
    """The most that was in use so far."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(0.25), duration(42), duration(150), duration(9000)
    ('0.2 s', '42 s', '2 min 30 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
