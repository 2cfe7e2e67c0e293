"""What a pass will take before it starts: tokens are counted, a few batches are timed, the rest follows by the rate."""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from loopscope.measuring.batching import Question, padded_tokens, plan_batches, run_tokens
from loopscope.measuring.plan import Request
from loopscope.measuring.run import chat_of, prepare
from loopscope.measuring.worker import LocalEngine, Measured, Worker
from loopscope.store.schema import TABLES
from loopscope.store.shards import encode, to_arrow

SECONDS = 5.0
"""How long batches are timed by default."""


@dataclass(frozen=True)
class CostEstimate:
    """What a pass will take.

    Attributes:
        model: its name.
        tasks: questions of each task.
        tokens: tokens that the model runs, padding included.
        batches: how many.
        seconds: from the command to the end.
        memory: bytes at the largest batch that was timed: of the GPU, or of the process.
        disk: bytes of the run directory.
        timed: tokens that were timed.
    """

    model: str
    tasks: Mapping[str, int]
    tokens: int
    batches: int
    seconds: float
    memory: int
    disk: int
    timed: int

    def __str__(self) -> str:
        listed = ", ".join(f"{task} {count:,}" for task, count in self.tasks.items())
        lines = [
            f"model      {self.model}",
            f"questions  {sum(self.tasks.values()):,} ({listed})",
            f"tokens     {self.tokens:,} in {self.batches:,} {'batch' if self.batches == 1 else 'batches'}",
            f"time       {duration(self.seconds)}, from {self.timed:,} tokens timed",
            f"memory     {size(self.memory)} at the largest batch that was timed",
            f"disk       {size(self.disk)}",
        ]
        return "\n".join(lines)


def together(costs: Sequence[CostEstimate]) -> CostEstimate:
    """Passes one after the other."""
    tasks: dict[str, int] = {}
    for cost in costs:
        tasks |= {task: tasks.get(task, 0) + count for task, count in cost.tasks.items()}
    tokens, batches, timed = (sum(getattr(cost, name) for cost in costs) for name in ("tokens", "batches", "timed"))
    names = ", ".join(dict.fromkeys(cost.model for cost in costs))
    seconds, memory = sum(cost.seconds for cost in costs), max(cost.memory for cost in costs)
    return CostEstimate(names, tasks, tokens, batches, seconds, memory, sum(cost.disk for cost in costs), timed)


def estimate(request: Request, seconds: float = SECONDS) -> CostEstimate:
    """Load the model, time some batches of the pass, and say what the whole will take; nothing is written."""
    began = time.perf_counter()
    as_chat = request.data.prompting.apply_chat_template
    if not as_chat:
        loaded = request.data.load()
        request = request.needing(loaded)
    engine = LocalEngine(request)
    if as_chat:  # the template is the tokenizer's, which may be the model's
        loaded = request.data.load(chat_of(engine.tokenizer))
    settings = request.settings_for(engine.facts())
    prepared = prepare(request, loaded, engine.facts(), engine.tokenizer)
    batches: list[Sequence[Question]] = []
    for unit in prepared.manifest.units():
        planned = prepared.task_of(unit)
        questions = engine.encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        batches += plan_batches(questions, settings.batch)

    def tokens_of(batch: Sequence[Question]) -> int:
        return run_tokens(batch, settings.batch) if settings.batch.padding == "none" else padded_tokens(batch)

    worker = Worker(engine.model, settings)
    done: list[Measured[None]] = []

    def took(batch: Sequence[Question]) -> float:
        start = time.perf_counter()
        done.extend(step for step in worker.run([(None, batch)]) if isinstance(step, Measured))
        return time.perf_counter() - start

    largest = max(batches, key=tokens_of)
    most = 1
    loading = time.perf_counter() - began + took(largest[:1])  # kernels are loaded the first time
    while took(largest[:most]) < seconds / 4 and most < len(largest):
        most *= 2
    timed = spent = 0.0
    done.clear()
    for batch in random.Random(0).sample(batches, len(batches)):
        spent += took(batch[:most])
        timed += tokens_of(batch[:most])
        if spent > seconds:
            break
    tokens = sum(map(tokens_of, batches))
    tasks = {planned.task.name: len(planned.rows) for planned in prepared.tasks}
    stored = sum(_bytes(unit) for unit in done) / sum(len(unit.tables["examples"]["row"]) for unit in done)
    return CostEstimate(
        model=prepared.manifest.model.name,
        tasks=tasks,
        tokens=tokens,
        batches=len(batches),
        seconds=loading + spent / timed * tokens,
        memory=_memory(),
        disk=int(stored * sum(tasks.values())),
        timed=int(timed),
    )


def _bytes(unit: Measured[None]) -> int:
    fixed = dict.fromkeys(("model", "task", "split"), "name") | {"kind": "solution"}
    return sum(len(encode(TABLES[name], to_arrow(TABLES[name], rows, fixed))) for name, rows in unit.tables.items())


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


def size(number: float) -> str:
    """Bytes for people.

    >>> size(500), size(2_500_000), size(12_300_000_000)
    ('500 bytes', '2.5 MB', '12.3 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f} bytes"
