"""One model replica that measures work units: rows in, columns of every table out.

The next unit is encoded in a thread of its own, and the next batch is launched before the last one is finished, so that
a GPU has something to do while the host puts rows together. Two batches are never alive at a time: what waits is a
launched batch's results, which are small. Only while kernels are still being compiled, batches that have gone through
their loops wait with their states, within a share of the device's memory. A batch that runs out of memory is halved.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from loopscope.errors import LoopscopeError, setting
from loopscope.kernels.language import is_compiling, wait_for_compilers
from loopscope.measuring.compile_ahead import compile_ahead
from loopscope.measuring.continued import StateSource
from loopscope.measuring.depth_pass import PendingTrip, Tables, Trip
from loopscope.measuring.layout import Question, example_columns, padded_tokens, plan_batches, shrunk
from loopscope.measuring.model_check import checked
from loopscope.measuring.own_answers import OwnAnswers, own_answers
from loopscope.measuring.plan import ModelFacts, PlannedTask, QuestionEncoder, Request, facts_of
from loopscope.measuring.progress import stage
from loopscope.measuring.settings import Settings
from loopscope.measuring.stored_states import Midway, StoredStates, encode_states
from loopscope.measuring.transfer import stacked
from loopscope.models import recorded_step
from loopscope.models.load import card_of
from loopscope.models.protocol import LoopedModel
from loopscope.readout.checks import is_out_of_memory
from loopscope.store.run_directory import WorkUnit
from loopscope.tasks.encoding import LoadedTask, Row


def release() -> None:
    """Give back what a failed attempt left behind."""
    recorded_step.forget()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


HELD = 1 / 16
"""Share of a GPU's memory that states may take which wait for a compiler."""

Name = TypeVar("Name")
Result = TypeVar("Result")


class MeasuredBatch(NamedTuple):
    """Questions and token positions that are measured now; negative where a worker was lost with them."""

    questions: int
    positions: int


@dataclass(frozen=True)
class Measured(Generic[Name]):
    """A measured unit.

    Attributes:
        unit: which one.
        tables: its columns by table, rows in any order.
        notices: what there is to say about it, one line each.
        ways_taken: how φ was computed.
        states: the file of its recurrent states, where they are kept.
    """

    unit: Name
    tables: Tables
    notices: list[str]
    ways_taken: set[str]
    states: bytes | None = None


@dataclass
class _Unit(Generic[Name]):
    """A unit on its way: the tables of its batches so far, their states where they are kept, and where they begin."""

    name: Name
    questions: Sequence[Question]
    stored: StoredStates | None = None
    batches: list[Tables] = field(default_factory=list)
    kept: list[Midway] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    ways_taken: set[str] = field(default_factory=set)

    def tables(self) -> Tables:
        for number, tables in enumerate(self.batches):
            if "row" in tables["questions"]:
                tables["questions"]["batch"] = np.full(len(tables["questions"]["row"]), number)
        joined = {name: stacked([tables[name] for tables in self.batches]) for name in self.batches[0]}
        joined["examples"] = example_columns(self.questions)
        return joined


@dataclass
class _Flight(Generic[Name]):
    """A batch on its way; the last one of its unit completes it.

    Attributes:
        trip: what was asked of the device so far.
        last: whether the unit ends with it.
        waits: the bytes of states that wait for a compiler.
        pending: its results, once everything was asked for; None where memory did not suffice.
        begun: tells when the device is through what it was asked for in the beginning, where something waits.
    """

    unit: _Unit[Name]
    batch: Sequence[Question]
    trip: Trip
    last: bool
    waits: int = 0
    pending: PendingTrip | None = None
    begun: torch.cuda.Event | None = None


class Worker:
    """Measures the questions of units with one model, with `answers` against the model's own.

    `stored` tells of a unit where its batches begin, in a run that continues another.

    A batch that does not fit into memory is halved, and no later batch of this worker is larger than what is left. One
    whose tokens the kernels gave up was measured twice; the worker then takes care from the start, which changes no
    number.
    """

    def __init__(
        self,
        model: LoopedModel,
        settings: Settings,
        answers: OwnAnswers | None = None,
        stored: Callable[[Any], StoredStates] | None = None,
    ) -> None:
        self._model, self._settings, self._answers, self._stored = model, settings, answers, stored
        self._ceiling: int | None = None
        self._careful = False
        self._said: set[str] = set()

    def run(self, units: Iterable[tuple[Name, Sequence[Question]]]) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Each unit in order, after its batches, as soon as the batch after its last one is launched."""
        held: deque[_Flight[Name]] = deque()
        flights: deque[_Flight[Name]] = deque()
        for name, questions in units:
            questions = questions if self._answers is None else self._answers(questions)
            unit = _Unit(name, questions, None if self._stored is None else self._stored(name))
            planned = plan_batches(questions, self._settings.batch)
            waiting = deque(planned if unit.stored is None else unit.stored.batches(questions))
            while waiting:
                waiting = deque(shrunk(waiting, self._ceiling))
                flight = self._begin(unit, waiting[0], last=len(waiting) == 1)
                if flight is not None:
                    waiting.popleft()
                    held.append(flight)
                    if self._holds(held):
                        continue
                elif not held:
                    self._halve(unit, waiting[0])
                    continue
                while held:
                    flights.append(self._launched(held.popleft()))  # one by one: its states are free then
                if flight is None:
                    release()
                for _ in range(min(2, len(flights) - 1)):  # two: what has waited is caught up with by and by
                    yield from self._land(flights.popleft())
        flights.extend(map(self._launched, held))
        while flights:
            yield from self._land(flights.popleft())

    def _holds(self, held: Sequence[_Flight[Any]]) -> bool:
        """Whether the batches go on waiting for a compiler; the host is never more than one ahead of the device."""
        if not (held[-1].waits and is_compiling()):
            return False
        if len(held) > 1 and held[-2].begun is not None:
            held[-2].begun.synchronize()
        memory = torch.cuda.get_device_properties(self._model.device).total_memory
        return sum(flight.waits for flight in held) <= HELD * memory

    def _land(self, flight: _Flight[Name]) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Finish a batch, and its unit if it is the last one of it."""
        unit = flight.unit
        unit.batches += self._finish(unit, flight.batch, flight.pending)
        yield MeasuredBatch(len(flight.batch), sum(question.positions for question in flight.batch))
        if flight.last:
            with stage("join"):
                tables = unit.tables()
                states = encode_states(unit.kept) if unit.kept else None
            yield Measured(unit.name, tables, unit.notices, unit.ways_taken, states)

    def _begin(self, unit: _Unit[Name], batch: Sequence[Question], *, last: bool) -> _Flight[Name] | None:
        """The batch on its way, as far as its kernels are there; None when it did not fit."""
        try:
            with stage("launch"):
                start = None if unit.stored is None else unit.stored.midway(batch)
                trip = Trip(self._model, self._settings, batch, careful=self._careful, start=start)
                flight = _Flight(unit, batch, trip, last, trip.begin())
                if flight.waits and self._model.device.type == "cuda":
                    flight.begun = torch.cuda.current_stream(self._model.device).record_event()
                return flight
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: the traceback no longer keeps the tensors of the failed attempt alive.
        return None

    def _launched(self, flight: _Flight[Name]) -> _Flight[Name]:
        """The same flight with everything asked for; what does not fit now is halved when its turn comes."""
        try:
            with stage("launch"):
                flight.pending = flight.trip.launch()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        return flight

    def _finish(self, unit: _Unit[Name], batch: Sequence[Question], trip: PendingTrip | None) -> list[Tables]:
        """The tables of a launched batch, or those of its halves where memory refused at the last moment."""
        try:
            if trip is not None:
                with stage("finish"):
                    tables = trip.finish()
                self._careful |= trip.repeated
                unit.ways_taken |= trip.ways_taken()
                unit.notices += sorted(trip.notes() - self._said)
                self._said |= trip.notes()
                unit.kept += [] if trip.kept is None else [trip.kept]
                return [tables]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._halve(unit, batch)
        waiting, found = deque(shrunk([batch], self._ceiling)), []
        while waiting:
            again = self._begin(unit, waiting[0], last=False)
            if again is None:
                self._halve(unit, waiting[0])
                waiting = deque(shrunk(waiting, self._ceiling))
            else:
                found += self._finish(unit, waiting.popleft(), self._launched(again).pending)
        return found

    def _halve(self, unit: _Unit[Name], batch: Sequence[Question]) -> None:
        """Give back what there is, and take at most half as much from now on."""
        release()
        if len(batch) == 1:
            raise LoopscopeError(
                f"question {batch[0].example.id} alone does not fit into memory: use a larger device,"
                f" {setting('dtype', 'bfloat16')} or a lower {setting('level')}, or choose other questions with"
                f" {setting('ids')}"
            )
        tokens = padded_tokens(batch)
        self._ceiling = tokens // 2
        unit.notices.append(
            f"out of memory with {len(batch)} questions ({tokens} padded tokens) in a batch:"
            f" going on with at most {self._ceiling} padded tokens"
        )


FindTask = Callable[[WorkUnit], PlannedTask]
"""From a unit to the task that it belongs to."""

GivenUnit = tuple[WorkUnit, LoadedTask, Sequence[Row]]
"""A unit, its task and its rows."""

Step = Measured[WorkUnit] | MeasuredBatch
"""What an engine tells: each batch of a unit, then the unit."""


class LocalEngine:
    """One model in this process, loaded unless it is given; the units follow each other without a pause."""

    def __init__(self, request: Request, model: LoopedModel | None = None) -> None:
        self.model = request.model.load() if model is None else model
        self._facts = facts_of(self.model)
        settings = request.settings_for(self._facts)
        pool = ThreadPoolExecutor(1, "loopscope-compile-ahead")
        self._begun = pool.submit(compile_ahead, self.model, settings)
        pool.shutdown(wait=False)
        if card_of(self.model).is_own:
            checked(self.model).require()
        self.tokenizer = request.model.load_tokenizer(self.model)
        self.stored = None if request.source is None else StateSource(request.source).unit
        self._worker = Worker(self.model, settings, own_answers(self.model, self.tokenizer, settings), self.stored)
        self.encoder = QuestionEncoder(
            self.tokenizer,
            self._facts.max_positions,
            settings.long,
            spans=settings.spans,
            share=settings.share_context,
            encodings=request.encodings,
        )

    def facts(self) -> ModelFacts:
        """Those of the model in this process."""
        return self._facts

    def run(self, units: Sequence[WorkUnit], find: FindTask) -> Iterator[Step]:
        """Each unit in order; the next one is encoded meanwhile."""
        planned = ((unit, find(unit)) for unit in units)
        return self.measure((unit, of.task, of.rows[unit.start : unit.stop]) for unit, of in planned)

    def measure(self, given: Iterable[GivenUnit]) -> Iterator[Step]:
        """The same with the rows of each unit at hand."""
        self._begun.exception()  # what is wrong shows again where it is asked for
        return self._worker.run(one_ahead(partial(self._encoded, *unit) for unit in given))

    def _encoded(self, unit: WorkUnit, task: LoadedTask, rows: Sequence[Row]) -> tuple[WorkUnit, list[Question]]:
        with stage("encode"):
            return unit, self.encoder.questions(task, rows, unit.start)

    def wait_for_kernels(self) -> None:
        """Until everything that is compiled ahead is there."""
        self._begun.exception()
        wait_for_compilers()

    def close(self) -> None:
        """Nothing to give back."""


def one_ahead(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """The results of the calls, in order; each call is made while the result before it is in use.

    >>> list(one_ahead([lambda: 1, lambda: 2, lambda: 3]))
    [1, 2, 3]
    """
    pool = ThreadPoolExecutor(1, "loopscope-ahead")
    try:
        made: deque[Future[Result]] = deque()
        for call in calls:
            made.append(pool.submit(call))
            if len(made) > 1:
                yield made.popleft().result()
        while made:
            yield made.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
