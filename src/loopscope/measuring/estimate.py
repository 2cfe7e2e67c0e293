"""What a pass will take: tokens are counted, a few batches are timed, the rest follows by the rate."""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batching import Question, padded_tokens, plan_batches, run_tokens
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.loading import in_memory
from loopscope.measuring.run import made_ready, tasks_first
from loopscope.measuring.worker import LocalEngine, Worker
from loopscope.models.in_memory import borrowed

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
    with borrowed(in_memory(config)):
        return _estimate(config.but(engine="local", workers=None), seconds)


def _estimate(config: MeasureConfig, seconds: float) -> CostEstimate:
    began = time.perf_counter()
    config, loaded = tasks_first(config)
    engine = LocalEngine(config)
    prepared = made_ready(config, loaded, engine)
    settings = prepared.settings
    batches: list[Sequence[Question]] = []
    for unit in prepared.manifest.units():
        planned = prepared.task_of(unit)
        questions = engine.encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        batches += plan_batches(questions, settings.batch)

    def tokens_of(batch: Sequence[Question]) -> int:
        return run_tokens(batch, settings.batch) if settings.batch.padding == "none" else padded_tokens(batch)

    worker = Worker(engine.model, settings)

    def took(batch: Sequence[Question]) -> float:
        start = time.perf_counter()
        for _ in worker.run([(None, batch)]):
            pass
        return time.perf_counter() - start

    largest, most = max(batches, key=tokens_of), 1
    loading = time.perf_counter() - began + took(largest[:1])  # kernels are loaded the first time
    while took(largest[:most]) < seconds / 4 and most < len(largest):
        most *= 2
    timed = spent = 0.0
    for batch in random.Random(0).sample(batches, len(batches)):
        spent += took(batch[:most])
        timed += tokens_of(batch[:most])
        if spent > seconds:
            break
    tokens = sum(map(tokens_of, batches))
    count = sum(len(planned.rows) for planned in prepared.tasks)
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
