"""Engines: who measures the pending units. The driver alone writes, so records do not depend on the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from loopscope.measure.prepare import PlannedTask, QuestionEncoder
from loopscope.measure.worker import Tables, Worker
from loopscope.store.units import WorkUnit


class MeasuredUnit(NamedTuple):
    """A unit with its tables."""

    unit: WorkUnit
    tables: Tables


class Engine(Protocol):
    """Measures units, in any order."""

    def run(self, units: Sequence[WorkUnit]) -> Iterator[MeasuredUnit]:
        """Each unit once, as it is finished."""
        ...


class LocalEngine:
    """One model in this process, unit by unit."""

    def __init__(
        self,
        worker: Worker,
        encoder: QuestionEncoder,
        find: Callable[[WorkUnit], PlannedTask],
    ) -> None:
        self._worker, self._encoder, self._find = worker, encoder, find

    def run(self, units: Sequence[WorkUnit]) -> Iterator[MeasuredUnit]:
        """Each unit in order."""
        for unit in units:
            planned = self._find(unit)
            questions = self._encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
            yield MeasuredUnit(unit, self._worker.measure(questions))
