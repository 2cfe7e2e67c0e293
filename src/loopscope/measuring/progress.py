"""How far a pass has come (`Progress`, through rich), and what it will take before it begins (`estimate`).

For an estimate tokens are counted and a few batches are timed; the rest follows by the rate.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Literal

from rich import progress
from rich.console import Console

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batching import Question, padded_tokens, plan_batches
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.worker import LocalEngine
from loopscope.models.in_memory import borrowed

Style = Literal["auto", "bar", "plain", "none"]
SECONDS_BETWEEN_LINES = 10.0


class Progress(progress.Progress):
    """Questions and token positions so far on stderr: a bar on a terminal or in a notebook, plain lines, or nothing.

    Of `total` questions (or what `unit` says) `done` were measured earlier.
    """

    def __init__(self, style: Style, title: str, total: int, done: int, unit: str = "questions") -> None:
        console = Console(stderr=True)
        if style == "auto":
            shows = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
            style = "bar" if shows else "plain"
        figures = progress.TextColumn("{task.fields[figures]}")
        columns = progress.TextColumn("{task.description}"), progress.BarColumn(), figures
        super().__init__(*columns, console=console, disable=style != "bar")
        self._title, self._style, self._unit, self._total, self._before = title, style, unit, total, done
        self._counted, self._tokens, self._began = done, 0, time.monotonic()
        self._last_line = self._began
        self._shown = self.add_task(title, total=total, completed=done, figures="")

    def count(self, questions: int, tokens: int) -> None:
        """More questions, with their token positions, are measured."""
        self._counted, self._tokens, now = self._counted + questions, self._tokens + tokens, time.monotonic()
        seconds = max(now - self._began, 1e-9)
        rate = (self._counted - self._before) / seconds
        left = timedelta(seconds=round((self._total - self._counted) / rate)) if rate > 0 else "unknown time"
        share = f"{self._counted}/{self._total} {self._unit} ({100 * self._counted // max(self._total, 1)}%)"
        figures = f"{share}, {rate:.1f}/s, {self._tokens / seconds:.0f} tokens/s, {left} left"
        self.update(self._shown, completed=self._counted, figures=figures)
        ended = self._counted >= self._total
        if self._style == "plain" and (ended or now - self._last_line >= SECONDS_BETWEEN_LINES):
            self._last_line = now
            with suppress(OSError):  # a closed terminal ends no pass
                print(f"{self._title}: {figures}", file=sys.stderr, flush=True)


SECONDS = 5.0
"""How long batches are timed by default."""


@dataclass(frozen=True)
class CostEstimate:
    """What a pass will take, from the command to the end; `tokens` are those that the model runs, with padding."""

    model: str
    questions: int
    tokens: int
    seconds: float

    def __add__(self, other: CostEstimate) -> CostEstimate:
        """One pass after the other."""
        sums = (getattr(self, name) + getattr(other, name) for name in ("questions", "tokens", "seconds"))
        return CostEstimate("together", *sums)

    def __str__(self) -> str:
        return f"{self.model}: {self.questions:,} questions, {self.tokens:,} tokens, {duration(self.seconds)}"


def estimate(config: MeasureConfig, seconds: float = SECONDS) -> CostEstimate:
    """Load the model, time some batches of the pass, and say what the whole will take; nothing is written."""
    if not 0 < seconds < float("inf"):
        raise LoopscopeError(f"{setting('seconds', seconds)} is not a time: give a number of seconds above 0")
    from loopscope.measuring.run import prepare, tasks_first

    began = time.perf_counter()
    with borrowed(config.model):
        config, loaded = tasks_first(config.but(engine="local", workers=None))
        engine = LocalEngine(config)
        prepared = prepare(config, loaded, engine.facts, engine.tokenizer)
        policy = prepared.settings.batch

        def tokens_that_run(batch: Sequence[Question]) -> int:
            return sum(q.group.tokens for q in batch) if policy.padding == "none" else padded_tokens(batch)

        units = prepared.given(prepared.manifest.units())
        batches = [batch for _, questions in units for batch in plan_batches(questions, policy)]
        list(engine.run([(None, batches[0][:1])]))  # kernels are loaded the first time
        start = time.perf_counter()
        timed, shuffled = 0, random.Random(0).sample(batches, len(batches))
        while shuffled and (not timed or time.perf_counter() - start < seconds):
            batch = shuffled.pop()
            list(engine.run([(None, batch)]))
            timed += tokens_that_run(batch)
        spent = time.perf_counter() - start
    tokens, questions = sum(map(tokens_that_run, batches)), sum(map(len, batches))
    return CostEstimate(prepared.manifest.model.name, questions, tokens, start - began + spent / timed * tokens)


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(0.25), duration(42), duration(150), duration(9000)
    ('0.2 s', '42 s', '2 min 30 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
