"""What a pass will take before it starts: tokens, time, memory and disk, from a short calibration on this machine.

All questions are encoded and put into their batches, which needs no device. Some batches, of all sizes, are then
measured as the pass itself would measure them; a cost for a batch, for a padded token and for a pair of tokens of a
row is fitted to their times and summed over all batches. How far such an estimate is off is measured on the way: each
timed batch is predicted from the others.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from loopscope.measuring.depth_pass import Tables
from loopscope.measuring.layout import Question, padded_tokens, plan_batches
from loopscope.measuring.plan import Request
from loopscope.measuring.run import chat_of, prepare
from loopscope.measuring.transfer import stacked
from loopscope.measuring.worker import LocalEngine, Measured, Worker, release
from loopscope.store.shards import encode, to_arrow
from loopscope.store.tables import TABLES

SECONDS = 20.0
"""How long batches are timed by default; the largest one is run once more before that."""
LEAST_TIMED = 3
"""Batches that are timed however long they take."""
Floats = npt.NDArray[np.float64]


class BatchSize(NamedTuple):
    """What decides how long a batch takes."""

    rows: int
    width: int

    @property
    def tokens(self) -> int:
        """Padded tokens."""
        return self.rows * self.width


@dataclass(frozen=True)
class Fit:
    """Seconds for a batch, for a padded token of it, and for a pair of tokens of a row; none of them negative."""

    batch: float
    token: float
    pair: float

    @classmethod
    def of(cls, sizes: Sequence[BatchSize], seconds: Sequence[float]) -> Fit:
        """Least squares of relative errors over the terms that come out positive.

        >>> Fit.of([BatchSize(1, 10), BatchSize(2, 10), BatchSize(4, 10)], [1.1, 1.2, 1.4])
        Fit(batch=1.0, token=0.01, pair=0.0)
        """
        terms, times = _terms(sizes), np.asarray(seconds)
        weighted = terms / times[:, None]
        found, least = np.array([0.0, times.sum() / terms[:, 1].sum(), 0.0]), np.inf
        for chosen in chain.from_iterable(combinations(range(3), count) for count in range(1, min(3, len(times)) + 1)):
            solved, *_ = np.linalg.lstsq(weighted[:, chosen], np.ones(len(times)), rcond=None)
            error = float(np.square(weighted[:, chosen] @ solved - 1).sum())
            # A term must earn its place: three timings fit three terms whatever they are.
            if (solved > 0).all() and error < 0.8 * least - 1e-12:
                found, least = np.zeros(3), error
                found[list(chosen)] = solved
        return cls(*(float(f"{value:.12g}") for value in found))

    def seconds(self, sizes: Sequence[BatchSize]) -> Floats:
        """What batches of these sizes take."""
        found: Floats = (_terms(sizes) * np.array([self.batch, self.token, self.pair])).sum(axis=1)
        return found


def _terms(sizes: Sequence[BatchSize]) -> Floats:
    return np.array([[1.0, size.tokens, size.tokens * size.width] for size in sizes])


@dataclass(frozen=True)
class CostEstimate:
    """What a pass will take.

    Attributes:
        model: its name.
        tasks: questions of each task.
        tokens: tokens of all sequences.
        padded: tokens that the model runs, padding included.
        batches: how many.
        seconds: of the pass, without loading the model.
        error: how far off single batches were predicted from the others, relative, root mean square.
        loading: seconds that loading the model and encoding the questions took.
        memory: bytes at the largest batch: of the GPU, or of the process.
        disk: bytes of the run directory.
        timed: batches that were timed.
    """

    model: str
    tasks: Mapping[str, int]
    tokens: int
    padded: int
    batches: int
    seconds: float
    error: float
    loading: float
    memory: int
    disk: int
    timed: int

    @property
    def questions(self) -> int:
        """Of all tasks."""
        return sum(self.tasks.values())

    def lines(self) -> list[str]:
        """For people."""
        listed = ", ".join(f"{task} {count:,}" for task, count in self.tasks.items())
        return [
            f"model      {self.model}",
            f"questions  {self.questions:,} ({listed})",
            f"tokens     {self.tokens:,} in {self.batches:,} batches; {self.padded:,} with padding"
            f" ({self.padded / self.tokens:.2f} ×)",
            f"time       {duration(self.seconds)} for the pass, after {duration(self.loading)} of loading"
            f" (single batches are foretold to ± {self.error:.0%}, from {self.timed} timed ones)",
            f"memory     {size(self.memory)} at the largest batch",
            f"disk       {size(self.disk)}",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


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
    settings = request.settings.on(engine.facts().device_type)
    prepared = prepare(request, loaded, engine.facts(), engine.tokenizer)
    batches: list[list[Question]] = []
    units = 0
    for planned in prepared.tasks:
        questions = engine.encoder.questions(planned.task, planned.rows, 0)
        for start in range(0, len(questions), settings.unit_size):
            batches += plan_batches(questions[start : start + settings.unit_size], settings.batch)
            units += 1
    loading = time.perf_counter() - began
    sizes = [_size(batch) for batch in batches]
    timings = _timed(Worker(engine.model, settings), batches, sizes, seconds)
    fit = Fit.of([sizes[i] for i in timings.seconds], list(timings.seconds.values()))
    everyone = [question for batch in batches for question in batch]
    return CostEstimate(
        model=prepared.manifest.model.name,
        tasks={planned.task.name: len(planned.rows) for planned in prepared.tasks},
        tokens=sum(question.positions for question in everyone),
        padded=sum(map(padded_tokens, batches)),
        batches=len(batches),
        seconds=float(fit.seconds(sizes).sum()),
        error=_left_out_error([sizes[i] for i in timings.seconds], list(timings.seconds.values())),
        loading=loading,
        memory=timings.memory,
        disk=units * timings.per_unit + int(timings.per_question * len(everyone)),
        timed=len(timings.seconds),
    )


def _size(batch: Sequence[Question]) -> BatchSize:
    width = max(question.width for question in batch)
    return BatchSize(padded_tokens(batch) // width, width)


class _Timings(NamedTuple):
    seconds: dict[int, float]
    memory: int
    per_unit: int
    per_question: float


def _timed(worker: Worker, batches: Sequence[list[Question]], sizes: Sequence[BatchSize], budget: float) -> _Timings:
    """Batches in an order in which any beginning has all sizes; the largest runs first and is timed the second time."""
    _measured(worker, batches[max(range(len(batches)), key=lambda index: sizes[index].tokens)])
    memory = _memory()
    alike: dict[tuple[str, ...], list[Tables]] = defaultdict(list)
    found: dict[int, float] = {}
    began = time.perf_counter()
    ordered = sorted(range(len(batches)), key=lambda index: -sizes[index].tokens)
    for place in _spread(len(ordered)):
        if len(found) >= LEAST_TIMED and time.perf_counter() - began > budget:
            break
        index = ordered[place]
        start = time.perf_counter()
        measured = _measured(worker, batches[index])
        found[index] = time.perf_counter() - start
        alike[tuple(measured.tables["questions"])].append(measured.tables)
    release()
    stored = [_disk(tables) for tables in alike.values()]
    questions = sum(len(batches[index]) for index in found)
    return _Timings(found, memory, stored[0].shards, sum(part.rows for part in stored) / questions)


def _measured(worker: Worker, batch: list[Question]) -> Measured[int]:
    found = next(step for step in worker.run([(0, batch)]) if isinstance(step, Measured))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found


def _spread(count: int) -> Iterator[int]:
    """The places 0, …, count − 1 in an order that fills the range evenly: both ends, then ever finer halves.

    >>> list(_spread(5)), list(_spread(1))
    ([0, 4, 2, 1, 3], [0])
    """
    seen: set[int] = set()
    parts = 1
    while len(seen) < count:
        for part in range(parts + 1):
            place = round(part * (count - 1) / parts)
            if place not in seen:
                seen.add(place)
                yield place
        parts *= 2


def _left_out_error(sizes: Sequence[BatchSize], seconds: Sequence[float]) -> float:
    """Root mean square of the relative error at each timing, predicted from the others."""
    if len(seconds) < 2:
        return float("nan")
    errors = []
    for left in range(len(seconds)):
        others = [i for i in range(len(seconds)) if i != left]
        fit = Fit.of([sizes[i] for i in others], [seconds[i] for i in others])
        errors.append(float(fit.seconds([sizes[left]])[0]) / seconds[left] - 1)
    return float(np.sqrt(np.mean(np.square(errors))))


class _Bytes(NamedTuple):
    """Of the shards with some rows: what every shard has, and what the rows add."""

    shards: int
    rows: int


def _disk(measured: Sequence[Tables]) -> _Bytes:
    """As one unit of them all would be stored."""
    constants = {"model": "model", "task": "task", "split": "split", "kind": "solution"}
    shards = rows = 0
    for name in measured[0]:
        table = to_arrow(TABLES[name], stacked([tables[name] for tables in measured]), constants)
        empty = len(encode(TABLES[name], table.slice(0, 0)))
        shards, rows = shards + empty, rows + len(encode(TABLES[name], table)) - empty
    return _Bytes(shards, rows)


def _memory() -> int:
    """The most that was in use so far: of the GPU, or of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.25), duration(42), duration(150), duration(9000)
    ('0.2 s', '42 s', '2 min 30 s', '2 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(number: float) -> str:
    """Bytes as people say them.

    >>> size(500), size(2_500_000), size(12_300_000_000)
    ('500 bytes', '2.5 MB', '12.3 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f} bytes"
