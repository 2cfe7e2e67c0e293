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
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import torch

from loopscope.measuring.batch_costs import AnswerSize, BatchSize, Fit, GroupSize, Timed, left_out_error, spread
from loopscope.measuring.compile_clock import CompileClock
from loopscope.measuring.cost_estimate import CostEstimate
from loopscope.measuring.depth_pass import Tables
from loopscope.measuring.layout import Question, plan_batches
from loopscope.measuring.loaded_once import LoadedOnce
from loopscope.measuring.own_answers import OwnAnswers, own_answers
from loopscope.measuring.plan import Encodings, Request
from loopscope.measuring.run import chat_of, prepare
from loopscope.measuring.settings import BatchPolicy
from loopscope.measuring.transfer import stacked
from loopscope.measuring.worker import LocalEngine, Measured, Worker, release
from loopscope.store.run_directory import WorkUnit
from loopscope.store.shards import encode, to_arrow
from loopscope.store.tables import TABLES

SECONDS = 5.0
"""How long batches are timed by default; some run once before that."""
LEAST_TIMED = 3
"""Groups of batches that are timed however long they take."""
LONGEST_TIMED = 0.5
"""Seconds that a timed batch may take, or a fifth of the whole timing where that is more."""
IN_A_ROW = 3
"""Batches of a group, where they are short: they follow each other as in a pass."""


def estimate(request: Request, seconds: float = SECONDS, once: LoadedOnce | None = None) -> CostEstimate:
    """Load the model, time some batches of the pass, and say what the whole will take; nothing is written.

    Estimates of several runs load `once` what these have in common.
    """
    with CompileClock() as clock:
        return _estimate(request, seconds, clock, once or LoadedOnce(request.encodings or Encodings()))


def _estimate(request: Request, seconds: float, clock: CompileClock, once: LoadedOnce) -> CostEstimate:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began, spared, encoded = clock.now(), once.spared, once.encodings.tokens
    shared = request.encodings is not None  # by the runs themselves
    request = replace(request, encodings=once.encodings)  # encoded once, as the run's first look does
    as_chat = request.data.prompting.apply_chat_template
    if not as_chat:
        loaded = once.rows(request.data)
        request = request.needing(loaded)
    engine = LocalEngine(request, once.model(request.model))
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
    everyone = [question for batch in batches for question in batch.questions]
    tokens = sum(question.positions for question in everyone)
    loading = clock.now() - began + once.spared - spared
    if not shared:
        loading += once.encodings.spared(tokens - (once.encodings.tokens - encoded))
    answers = own_answers(engine.model, engine.tokenizer, settings)
    timer = _Timer(Worker(engine.model, settings, stored=engine.stored), answers, settings.batch, clock, seconds)
    trial = _longest_timed(timer, batches) if engine.stored is None else _Trial()
    tried = _shortened(batches, settings.batch, trial.most)
    timings = _timed(timer, tried, trial.in_a_row)
    parts = [timings.passed] if answers is None else [timings.passed, timings.answered]
    fits = [Fit.of(*part) for part in parts]
    totals = _totals(fits, batches)
    padded = sum(batch.size.tokens for batch in batches)
    states = int(timings.states_per_token * padded)
    return CostEstimate(
        model=prepared.manifest.model.name,
        tasks={planned.task.name: len(planned.rows) for planned in prepared.tasks},
        tokens=tokens,
        padded=padded,
        batches=len(batches),
        seconds=sum(totals),
        error=left_out_error(parts),
        loading=loading,
        starting=trial.starting + max(0.0, timings.starting - sum(_totals(fits, timings.first))),
        memory=timings.memory + int(trial.growth * (_most_tokens(batches) - _most_tokens(tried))),
        rates=asdict(fits[0]),
        compiling=clock.compiling,
        shortened=tried != batches,
        foretold=trial.growth > 0,
        disk=int(len(prepared.manifest.units()) * timings.per_unit + timings.per_question * len(everyone)) + states,
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
    """What ever longer parts of the largest batch tell.

    By default everything is timed whole: states that a run goes on from are those of whole batches.

    Attributes:
        most: tokens that a timed batch may have.
        starting: seconds that the first of all took beyond its rate.
        in_a_row: batches that are timed together.
        growth: bytes of a GPU that each further token takes; 0 where nobody says.
    """

    most: float = float("inf")
    starting: float = 0.0
    in_a_row: int = IN_A_ROW
    growth: float = 0.0


def _most_tokens(batches: Sequence[_Planned]) -> int:
    return max(batch.size.tokens for batch in batches)


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
    per_unit: float
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


def _timed(timer: _Timer, batches: Sequence[_Planned], in_a_row: int) -> _Timings:
    """Groups of batches in an order in which any beginning stands for all, after one batch of each task and size."""
    clock = timer.clock
    ordered = sorted(batches, key=lambda batch: -batch.size.tokens)
    in_a_row = min(in_a_row, -(-len(ordered) // LEAST_TIMED))
    groups = [ordered[start : start + in_a_row] for start in range(0, len(ordered), in_a_row)]
    places = list(spread([sum(batch.size.tokens for batch in group) for group in groups]))
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
    growth, peak = 0.0, _peak()
    while len(trial.questions) < len(longest.questions) and 2 * took < allowed:
        shorter, less = trial, peak
        trial = _Planned.of(longest.unit, longest.questions[: 2 * len(trial.questions)], timer.policy)
        took, peak = timer.once(trial), _peak()
        growth = max(0.0, (peak - less) / max(1, trial.size.tokens - shorter.size.tokens))
    in_a_row = max(1, min(IN_A_ROW, int(allowed / took)))
    if len(trial.questions) == len(longest.questions):
        return _Trial(starting=starting, in_a_row=in_a_row)
    return _Trial(max(1.0, allowed / took) * trial.size.tokens, starting, in_a_row, growth)


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

    shards: float
    rows: float


def _disk(measured: Sequence[Tables]) -> _Bytes:
    """As one unit of them all would be stored: what the second half of its rows adds to the first, the others add."""
    constants = {"model": "model", "task": "task", "split": "split", "kind": "solution"}
    shards = rows = 0.0
    for name in measured[0]:
        table = to_arrow(TABLES[name], stacked([tables[name] for tables in measured]), constants)
        half, whole = table.num_rows // 2, len(encode(TABLES[name], table))
        added = (whole - len(encode(TABLES[name], table.slice(0, half)))) / max(1, table.num_rows - half)
        shards, rows = shards + whole - added * table.num_rows, rows + added * table.num_rows
    return _Bytes(shards, rows)


def _peak() -> int:
    """Bytes of a GPU that were in use at most since this was asked last; 0 without one."""
    if not torch.cuda.is_available():
        return 0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak


def _memory() -> int:
    """The most that was in use so far: of the GPU, or of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
