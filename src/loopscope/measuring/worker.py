"""Running out of memory, recognised and cleaned up after.

One model replica that measures work units: questions in, columns of every table out.

The next batch is launched before the last one is finished, so that a GPU has something to do while the host puts rows
together. Two batches are never alive at a time: what waits is a launched batch's results, which are small.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batches import Question, padded_tokens, plan_batches, shrunk
from loopscope.measuring.columns import stacked
from loopscope.measuring.layout import example_columns
from loopscope.measuring.settings import Settings
from loopscope.measuring.timing import part
from loopscope.measuring.trip import PendingTrip, Tables, Trip
from loopscope.models.protocol import LoopedModel


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host refused an allocation."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)


def release() -> None:
    """Give back what a failed attempt left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


Name = TypeVar("Name")


class MeasuredBatch(NamedTuple):
    """So many more questions, with so many token positions, are measured; less than none where a worker was lost."""

    questions: int
    positions: int


@dataclass
class Measured(Generic[Name]):
    """A unit with its tables, whose rows are in any order, and what there is to say about it."""

    name: Name
    tables: Tables
    notices: list[str]


@dataclass
class _Unit(Generic[Name]):
    """A unit on its way: the tables of its batches so far."""

    name: Name
    questions: Sequence[Question]
    parts: list[Tables] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def tables(self) -> Tables:
        for number, tables in enumerate(self.parts):
            if "row" in tables["questions"]:
                tables["questions"]["batch"] = np.full(len(tables["questions"]["row"]), number)
        joined = {name: stacked([tables[name] for tables in self.parts]) for name in self.parts[0]}
        joined["examples"] = example_columns(self.questions)
        return joined


@dataclass
class _Flight(Generic[Name]):
    """A launched batch; the last one of its unit completes it."""

    unit: _Unit[Name]
    batch: Sequence[Question]
    trip: PendingTrip
    last: bool


class Worker:
    """Measures the questions of units with one model.

    A batch that does not fit into memory is halved, and no later batch of this worker is larger than what is left. One
    whose tokens the kernels gave up was measured twice; the worker then takes care from the start, which changes no
    number.
    """

    def __init__(self, model: LoopedModel, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._ceiling: int | None = None
        self._careful = False

    def run(self, units: Iterable[tuple[Name, Sequence[Question]]]) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Each unit in order, after its batches, as soon as the batch after its last one is launched."""
        flights: deque[_Flight[Name]] = deque()
        for name, questions in units:
            unit = _Unit(name, questions)
            waiting = deque(plan_batches(questions, self._settings.batch))
            while waiting:
                waiting = deque(shrunk(waiting, self._ceiling))
                trip = self._launch(unit, waiting[0])
                if trip is None:
                    continue
                batch = waiting.popleft()
                flights.append(_Flight(unit, batch, trip, not waiting))
                if len(flights) > 1:
                    yield from self._land(flights.popleft())
        for flight in flights:
            yield from self._land(flight)

    def _land(self, flight: _Flight[Name]) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Finish a batch, and its unit if it is the last one of it."""
        unit = flight.unit
        unit.parts += self._finish(unit, flight.batch, flight.trip)
        yield MeasuredBatch(len(flight.batch), sum(question.positions for question in flight.batch))
        if flight.last:
            with part("join"):
                tables = unit.tables()
            yield Measured(unit.name, tables, unit.notices)

    def _launch(self, unit: _Unit[Name], batch: Sequence[Question]) -> PendingTrip | None:
        """The batch on its way, or None when it did not fit and smaller ones are to be tried."""
        try:
            with part("launch"):
                return Trip(self._model, self._settings, batch, careful=self._careful).launch()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: the traceback no longer keeps the tensors of the failed attempt alive.
        self._halve(unit, batch)
        return None

    def _finish(self, unit: _Unit[Name], batch: Sequence[Question], trip: PendingTrip) -> list[Tables]:
        """The tables of a launched batch, or those of its parts where memory refused at the last moment."""
        try:
            with part("finish"):
                tables = trip.finish()
            self._careful |= trip.repeated
            return [tables]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._halve(unit, batch)
        waiting, found = deque(shrunk([batch], self._ceiling)), []
        while waiting:
            again = self._launch(unit, waiting[0])
            if again is None:
                waiting = deque(shrunk(waiting, self._ceiling))
            else:
                found += self._finish(unit, waiting.popleft(), again)
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
