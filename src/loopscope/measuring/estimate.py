"""What a pass will take before it starts: tokens, time, memory and disk, from a short calibration on this machine.

All questions are encoded and put into their batches, which needs no device. Some batches, of all sizes, are then
measured as the pass itself would measure them, a few of about a size one after the other: the host works on one while
a GPU runs the next. A cost for a batch, for a padded token and for a pair of tokens of a row is fitted to their times
and summed over all batches. How far such an estimate is off is measured on the way: each timed group of batches is
predicted from the others. What the first batches take beyond their rate (kernels are loaded) comes once; compiling
them, which a run finds done, is left out.
"""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

from loopscope.measuring.batch_costs import AnswerSize, BatchSize, Fit, GroupSize, Timed, left_out_error, spread
from loopscope.measuring.compile_clock import CompileClock
from loopscope.measuring.depth_pass import Tables
from loopscope.measuring.layout import Question, plan_batches
from loopscope.measuring.own_answers import OwnAnswers, own_answers
from loopscope.measuring.plan import Encodings, Request
from loopscope.measuring.run import chat_of, prepare
from loopscope.measuring.settings import BatchPolicy
from loopscope.measuring.transfer import stacked
from loopscope.measuring.worker import LocalEngine, Measured, Worker, release
from loopscope.store.run_directory import WorkUnit
from loopscope.store.shards import encode, to_arrow
from loopscope.store.tables import TABLES

SECONDS = 20.0
"""How long batches are timed by default; some run once before that."""
LEAST_TIMED = 3
"""Groups of batches that are timed however long they take."""
LONGEST_TIMED = 2.0
"""Seconds that a timed batch may take, or a fifth of the whole timing where that is more."""
IN_A_ROW = 3
"""Batches of a group: they follow each other as in a pass."""


@dataclass(frozen=True)
class CostEstimate:
    """What a pass will take.

    Attributes:
        model: its name.
        tasks: questions of each task.
        tokens: tokens of all sequences.
        padded: tokens that the model runs, padding included.
        batches: how many.
        seconds: of the pass, without what comes before.
        error: how far off some batches were predicted from the others, relative, root mean square.
        loading: seconds that loading the model and encoding the questions took.
        starting: seconds that the first batches took beyond their rate, while kernels are loaded.
        memory: bytes at the largest batch that was run: of the GPU, or of the process.
        rates: seconds for a batch, for a token that runs, for a scored one, for a pair of tokens of a row.
        compiling: seconds that kernels took to be compiled here and now; they are kept on disk for the next process.
        shortened: whether batches were too long to be timed whole, so that memory is only what a part of them takes.
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
    starting: float
    memory: int
    disk: int
    timed: int
    answering: float = 0.0
    states: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    compiling: float = 0.0
    shortened: bool = False

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
            starting=sum(cost.starting for cost in costs),
            memory=max(cost.memory for cost in costs),
            disk=sum(cost.disk for cost in costs),
            timed=sum(cost.timed for cost in costs),
            compiling=sum(cost.compiling for cost in costs),
            shortened=any(cost.shortened for cost in costs),
        )

    @property
    def whole(self) -> float:
        """Seconds from the command to the end."""
        return self.loading + self.starting + self.seconds

    @property
    def questions(self) -> int:
        """Of all tasks."""
        return sum(self.tasks.values())

    def lines(self) -> list[str]:
        """For people."""
        listed = ", ".join(f"{task} {count:,}" for task, count in self.tasks.items())
        answering = f", {duration(self.answering)} of it for own answers" if self.answering else ""
        states = f", {size(self.states)} of it kept states" if self.states else ""
        foretold = "" if np.isnan(self.error) else f"batches are foretold to ± {self.error:.0%}, "
        compiled = f", {duration(self.compiling)} of compiling done already" if self.compiling > 0.1 else ""
        of_what = "parts of batches, whole ones take more" if self.shortened else "the largest batch"
        return [
            f"model      {self.model}",
            f"questions  {self.questions:,} ({listed})",
            f"tokens     {self.tokens:,} in {self.batches:,} batches; {self.padded:,} with padding"
            f" ({self.padded / self.tokens:.2f} ×)",
            f"time       {duration(self.seconds)} for the pass{answering}, after {duration(self.loading)} of loading"
            f" and {duration(self.starting)} of starting{compiled} ({foretold}from {self.timed} timed)",
            f"memory     {size(self.memory)} at {of_what}",
            f"disk       {size(self.disk)}{states}",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def estimate(request: Request, seconds: float = SECONDS) -> CostEstimate:
    """Load the model, time some batches of the pass, and say what the whole will take; nothing is written."""
    with CompileClock() as clock:
        return _estimate(request, seconds, clock)


def _estimate(request: Request, seconds: float, clock: CompileClock) -> CostEstimate:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began = clock.now()
    request = replace(request, encodings=request.encodings or Encodings())  # encoded once, as the run's first look does
    as_chat = request.data.prompting.apply_chat_template
    if not as_chat:
        loaded = request.data.load()
        request = request.needing(loaded)
    engine = LocalEngine(request)
    if as_chat:  # the template is the tokenizer's, which may be the model's
        loaded = request.data.load(chat_of(engine.tokenizer))
    settings = request.settings_for(engine.facts())
    prepared = prepare(request, loaded, engine.facts(), engine.tokenizer)
    batches: list[_Planned] = []
    for unit in prepared.manifest.units():
        planned = prepared.task_of(unit)
        questions = engine.encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        stored = None if engine.stored is None else engine.stored(unit)
        cut = plan_batches(questions, settings.batch) if stored is None else stored.batches(questions)
        batches += [_Planned.of(unit, batch, settings.batch) for batch in cut]
    loading = clock.now() - began
    answers = own_answers(engine.model, engine.tokenizer, settings)
    timer = _Timer(Worker(engine.model, settings, stored=engine.stored), answers, settings.batch, clock, seconds)
    trial = _longest_timed(timer, batches) if engine.stored is None else _Trial()
    tried = _shortened(batches, settings.batch, trial.most)
    timings = _timed(timer, tried)
    parts = [timings.passed] if answers is None else [timings.passed, timings.answered]
    fits = [Fit.of(*part) for part in parts]
    totals = _totals(fits, batches)
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
        error=left_out_error(parts),
        loading=loading,
        starting=trial.starting + max(0.0, timings.starting - sum(_totals(fits, timings.first))),
        memory=timings.memory,
        rates=asdict(fits[0]),
        compiling=clock.compiling,
        shortened=tried != batches,
        disk=len(prepared.manifest.units()) * timings.per_unit + int(timings.per_question * len(everyone)) + states,
        timed=sum(len(group.sizes) for group in timings.passed.sizes if isinstance(group, GroupSize)),
        answering=sum(totals[1:]),
        states=states,
    )


class _Planned(NamedTuple):
    """A batch of a unit."""

    unit: WorkUnit
    questions: list[Question]
    size: BatchSize

    @classmethod
    def of(cls, unit: WorkUnit, questions: list[Question], policy: BatchPolicy) -> _Planned:
        """With its size."""
        return cls(unit, questions, BatchSize.of(questions, policy))


class _Trial(NamedTuple):
    """Tokens that a timed batch may have, and what the first of all took beyond its rate.

    By default everything is timed whole: states that a run goes on from are those of whole batches.
    """

    most: float = float("inf")
    starting: float = 0.0


def _totals(fits: Sequence[Fit], batches: Sequence[_Planned]) -> list[float]:
    """Seconds of the pass over some batches, and of the own answers to them where there is a fit for those."""
    found = [fits[0].seconds([batch.size for batch in batches])]
    found += [fit.seconds([AnswerSize.of(batch.questions) for batch in batches]) for fit in fits[1:]]
    return [float(seconds.sum()) for seconds in found]


class _Timings(NamedTuple):
    passed: Timed
    answered: Timed
    first: list[_Planned]
    starting: float
    memory: int
    per_unit: int
    per_question: float
    states_per_token: float


class _Timer(NamedTuple):
    """What runs batches, and by which clock for how long."""

    worker: Worker
    answers: OwnAnswers | None
    policy: BatchPolicy
    clock: CompileClock
    budget: float

    def answered(self, batch: Sequence[Question]) -> Sequence[Question]:
        """Against the model's own answers, where these are asked for."""
        return batch if self.answers is None else self.answers(batch)

    def measured(self, batches: Sequence[tuple[WorkUnit, Sequence[Question]]]) -> list[Measured[WorkUnit]]:
        """As a pass runs them: the next one is launched before the last one is finished."""
        found = [step for step in self.worker.run(batches) if isinstance(step, Measured)]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return found

    def once(self, batch: _Planned) -> float:
        """Seconds of a batch by itself."""
        began = self.clock.now()
        self.measured([(batch.unit, self.answered(batch.questions))])
        return self.clock.now() - began


def _timed(timer: _Timer, batches: Sequence[_Planned]) -> _Timings:
    """Groups of batches in an order in which any beginning has all sizes, after one batch of each task and size."""
    clock = timer.clock
    ordered = sorted(batches, key=lambda batch: -batch.size.tokens)
    in_a_row = min(IN_A_ROW, -(-len(ordered) // LEAST_TIMED))
    groups = [ordered[start : start + in_a_row] for start in range(0, len(ordered), in_a_row)]
    places = list(spread(len(groups)))
    largest = {batch.unit.task: batch for batch in reversed(ordered)}
    early = {id(batch): batch for batch in (*largest.values(), *(groups[place][0] for place in places[:LEAST_TIMED]))}
    first = sorted(early.values(), key=lambda batch: -batch.size.tokens)
    starting, memory = sum(timer.once(batch) for batch in first), _memory()
    alike: dict[tuple[str, ...], list[Tables]] = defaultdict(list)
    passed, answered = Timed([], []), Timed([], [])
    questions = tokens = states = 0
    began = clock.now()
    for place in places:
        if len(passed.seconds) >= LEAST_TIMED and clock.now() - began > timer.budget:
            break
        start = clock.now()
        asked = [(batch.unit, timer.answered(batch.questions)) for batch in groups[place]]
        between = clock.now()
        found = timer.measured(asked)
        passed.seconds.append(clock.now() - between)
        sizes = [BatchSize.of(batch, timer.policy) for _, batch in asked]
        passed.sizes.append(GroupSize(sizes))
        answered.seconds.append(between - start)
        answered.sizes.append(GroupSize([AnswerSize.of(batch.questions) for batch in groups[place]]))
        tokens += sum(size.tokens for size in sizes)
        for (_, asked_of), measured in zip(asked, found, strict=True):
            alike[tuple(measured.tables["questions"])].append(measured.tables)
            questions += len(asked_of)
            states += 0 if measured.states is None else len(measured.states)
    release()
    stored = [_disk(tables) for tables in alike.values()]
    per_question = sum(part.rows for part in stored) / questions
    return _Timings(passed, answered, first, starting, memory, stored[0].shards, per_question, states / tokens)


def _longest_timed(timer: _Timer, batches: list[_Planned]) -> _Trial:
    """The tokens of a batch that does not take too long to be timed: the largest one is tried in ever longer parts."""
    longest, allowed = max(batches, key=lambda batch: batch.size.tokens), max(LONGEST_TIMED, timer.budget / 5)
    trial, elsewhere = _Planned.of(longest.unit, longest.questions[:1], timer.policy), timer.clock.elsewhere
    first, took = timer.once(trial), timer.once(trial)
    # Kernels are loaded the first time; for those that another thread compiles, the first time waits.
    starting = max(0.0, first - took - (timer.clock.elsewhere - elsewhere))
    # A few tokens do not fill a device, so what one question takes says little of many.
    while len(trial.questions) < len(longest.questions) and 2 * took < allowed:
        trial = _Planned.of(longest.unit, longest.questions[: 2 * len(trial.questions)], timer.policy)
        took = timer.once(trial)
    whole = len(trial.questions) == len(longest.questions)
    return _Trial(float("inf") if whole else max(1.0, allowed / took) * trial.size.tokens, starting)


def _shortened(batches: list[_Planned], policy: BatchPolicy, most: float) -> list[_Planned]:
    """The batches; those of more tokens are cut to their first questions."""
    found = []
    for batch in batches:
        kept = batch.questions
        while len(kept) > 1 and BatchSize.of(kept, policy).tokens > most:
            kept = kept[: len(kept) // 2]
        found.append(batch if len(kept) == len(batch.questions) else _Planned.of(batch.unit, kept, policy))
    return found


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
