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
from loopscope.measuring.own_answers import OwnAnswers, own_answers
from loopscope.measuring.plan import Request
from loopscope.measuring.run import chat_of, prepare
from loopscope.measuring.transfer import stacked
from loopscope.measuring.worker import LocalEngine, Measured, Worker, release
from loopscope.store.run_directory import WorkUnit
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

    @property
    def terms(self) -> tuple[float, float, float]:
        """What `Fit` finds a cost for: a batch, its padded tokens, the pairs of tokens of its rows."""
        return 1.0, self.tokens, self.tokens * self.width


class AnswerSize(NamedTuple):
    """What decides how long generating the own answers of a batch takes: one token of every row in each step."""

    rows: int
    prompt: int
    steps: int

    @property
    def terms(self) -> tuple[float, float, float]:
        """What `Fit` finds a cost for: a step, a generated token, a padded token of the prompts."""
        return self.steps, self.steps * self.rows, self.rows * self.prompt


Size = BatchSize | AnswerSize


@dataclass(frozen=True)
class Fit:
    """Seconds for a batch, for a padded token of it, and for a pair of tokens of a row; none of them negative.

    Of own answers: for a step, for a generated token, for a padded token of the prompts.
    """

    batch: float
    token: float
    pair: float

    @classmethod
    def of(cls, sizes: Sequence[Size], seconds: Sequence[float]) -> Fit:
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

    def seconds(self, sizes: Sequence[Size]) -> Floats:
        """What batches of these sizes take."""
        found: Floats = (_terms(sizes) * np.array([self.batch, self.token, self.pair])).sum(axis=1)
        return found


def _terms(sizes: Sequence[Size]) -> Floats:
    return np.array([size.terms for size in sizes], dtype=np.float64)


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
        answering: seconds of the pass that generating own answers takes, taken to be as long as the given references.
        states: bytes of the disk that kept states take.
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
    answering: float = 0.0
    states: int = 0

    @classmethod
    def together(cls, costs: Sequence[CostEstimate]) -> CostEstimate:
        """Passes of several models one after the other."""
        models = ", ".join(cost.model for cost in costs)
        seconds = sum(cost.seconds for cost in costs)
        return cls(
            model=f"{len(costs)} models: {models}",
            tasks={task: sum(cost.tasks[task] for cost in costs) for task in costs[0].tasks},
            tokens=sum(cost.tokens for cost in costs),
            padded=sum(cost.padded for cost in costs),
            batches=sum(cost.batches for cost in costs),
            seconds=seconds,
            error=float(np.sqrt(sum(cost.seconds * cost.error**2 for cost in costs) / max(seconds, 1e-12))),
            loading=sum(cost.loading for cost in costs),
            memory=max(cost.memory for cost in costs),
            disk=sum(cost.disk for cost in costs),
            timed=sum(cost.timed for cost in costs),
        )

    @property
    def questions(self) -> int:
        """Of all tasks."""
        return sum(self.tasks.values())

    def lines(self) -> list[str]:
        """For people."""
        listed = ", ".join(f"{task} {count:,}" for task, count in self.tasks.items())
        answering = f", {duration(self.answering)} of it for own answers" if self.answering else ""
        states = f", {size(self.states)} of it kept states" if self.states else ""
        return [
            f"model      {self.model}",
            f"questions  {self.questions:,} ({listed})",
            f"tokens     {self.tokens:,} in {self.batches:,} batches; {self.padded:,} with padding"
            f" ({self.padded / self.tokens:.2f} ×)",
            f"time       {duration(self.seconds)} for the pass{answering}, after {duration(self.loading)} of loading"
            f" (single batches are foretold to ± {self.error:.0%}, from {self.timed} timed ones)",
            f"memory     {size(self.memory)} at the largest batch",
            f"disk       {size(self.disk)}{states}",
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
    batches: list[_Planned] = []
    for unit in prepared.manifest.units():
        planned = prepared.task_of(unit)
        questions = engine.encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        stored = None if engine.stored is None else engine.stored(unit)
        cut = plan_batches(questions, settings.batch) if stored is None else stored.batches(questions)
        batches += [_Planned(unit, batch, _size(batch)) for batch in cut]
    loading = time.perf_counter() - began
    answers = own_answers(engine.model, engine.tokenizer, settings)
    timings = _timed(Worker(engine.model, settings, stored=engine.stored), answers, batches, seconds)
    parts = [timings.passed] if answers is None else [timings.passed, timings.answered]
    fits = [Fit.of(*part) for part in parts]
    totals = [float(fits[0].seconds([batch.size for batch in batches]).sum())]
    totals += [float(fit.seconds([_answer_size(batch.questions) for batch in batches]).sum()) for fit in fits[1:]]
    everyone = [question for batch in batches for question in batch.questions]
    padded = sum(batch.size.tokens for batch in batches)
    states = int(timings.states_per_token * padded)
    return CostEstimate(
        model=prepared.manifest.model.name,
        tasks={planned.task.name: len(planned.rows) for planned in prepared.tasks},
        tokens=sum(question.positions for question in everyone),
        padded=padded,
        batches=len(batches),
        seconds=sum(totals),
        error=_left_out_error(parts),
        loading=loading,
        memory=timings.memory,
        disk=len(prepared.manifest.units()) * timings.per_unit + int(timings.per_question * len(everyone)) + states,
        timed=len(timings.passed.seconds),
        answering=sum(totals[1:]),
        states=states,
    )


class _Planned(NamedTuple):
    """A batch of a unit."""

    unit: WorkUnit
    questions: list[Question]
    size: BatchSize


class _Part(NamedTuple):
    """Sizes of what was timed, and how long each took."""

    sizes: list[Size]
    seconds: list[float]


def _size(batch: Sequence[Question]) -> BatchSize:
    width = max(question.width for question in batch)
    return BatchSize(padded_tokens(batch) // width, width)


def _answer_size(batch: Sequence[Question]) -> Size:
    """An own option takes a pass to the trained depth, an own solution a step for each of its tokens."""
    if batch[0].example.answer is not None:
        return _size(batch)
    given = [question.example.sequences[0] for question in batch]
    prompts, steps = [s.positions[0] + 1 for s in given], [len(s.targets) for s in given]
    return AnswerSize(len(given), max(prompts), max(steps))


class _Timings(NamedTuple):
    passed: _Part
    answered: _Part
    memory: int
    per_unit: int
    per_question: float
    states_per_token: float


def _timed(worker: Worker, answers: OwnAnswers | None, batches: Sequence[_Planned], budget: float) -> _Timings:
    """Batches in an order in which any beginning has all sizes; the largest runs first and is timed the second time."""
    ordered = sorted(batches, key=lambda batch: -batch.size.tokens)
    _measured(worker, ordered[0].unit, _answered(answers, ordered[0].questions))
    memory = _memory()
    alike: dict[tuple[str, ...], list[Tables]] = defaultdict(list)
    passed, answered = _Part([], []), _Part([], [])
    questions = tokens = states = 0
    began = time.perf_counter()
    for place in _spread(len(ordered)):
        if len(passed.seconds) >= LEAST_TIMED and time.perf_counter() - began > budget:
            break
        unit, batch, _ = ordered[place]
        start = time.perf_counter()
        asked = _answered(answers, batch)
        between = time.perf_counter()
        measured = _measured(worker, unit, asked)
        passed.seconds.append(time.perf_counter() - between)
        passed.sizes.append(_size(asked))
        answered.seconds.append(between - start)
        answered.sizes.append(_answer_size(batch))
        alike[tuple(measured.tables["questions"])].append(measured.tables)
        questions, tokens = questions + len(batch), tokens + _size(asked).tokens
        states += 0 if measured.states is None else len(measured.states)
    release()
    stored = [_disk(tables) for tables in alike.values()]
    per_question = sum(part.rows for part in stored) / questions
    return _Timings(passed, answered, memory, stored[0].shards, per_question, states / tokens)


def _answered(answers: OwnAnswers | None, batch: Sequence[Question]) -> Sequence[Question]:
    return batch if answers is None else answers(batch)


def _measured(worker: Worker, unit: WorkUnit, batch: Sequence[Question]) -> Measured[WorkUnit]:
    found = next(step for step in worker.run([(unit, batch)]) if isinstance(step, Measured))
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


def _left_out_error(parts: Sequence[_Part]) -> float:
    """Root mean square of the relative error at each timed batch, predicted from the others, all parts together."""
    count = len(parts[0].seconds)
    if count < 2:
        return float("nan")
    errors = []
    for left in range(count):
        others = [i for i in range(count) if i != left]
        foretold = took = 0.0
        for sizes, seconds in parts:
            fit = Fit.of([sizes[i] for i in others], [seconds[i] for i in others])
            foretold, took = foretold + float(fit.seconds([sizes[left]])[0]), took + seconds[left]
        errors.append(foretold / took - 1)
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
