"""Engines: who measures the pending units. The driver alone writes, so records do not depend on the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from loopscope.measure.batches import Question
from loopscope.measure.facts import ModelFacts, facts_of
from loopscope.measure.parts import part
from loopscope.measure.prepare import PlannedTask, QuestionEncoder
from loopscope.measure.request import Request
from loopscope.measure.threads import one_ahead
from loopscope.measure.trip import Tables
from loopscope.measure.worker import Measured, MeasuredBatch, Worker
from loopscope.store.units import WorkUnit
from loopscope.tasks.example import Row
from loopscope.tasks.loaded import LoadedTask

FindTask = Callable[[WorkUnit], PlannedTask]


class MeasuredUnit(NamedTuple):
    """A unit with its tables, and what there is to say about it."""

    unit: WorkUnit
    tables: Tables
    notices: list[str]


Step = MeasuredUnit | MeasuredBatch
"""What an engine tells: each batch of a unit, then the unit."""


class _Encoded(NamedTuple):
    unit: WorkUnit
    questions: list[Question]


class Engine(Protocol):
    """Holds the model, wherever that is, and measures units with it in any order."""

    def facts(self) -> ModelFacts:
        """What the driver must know of the model."""
        ...

    def run(self, units: Sequence[WorkUnit], find: FindTask) -> Iterator[Step]:
        """Each unit once, as it is finished, and its batches before it."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...


class LocalEngine:
    """One model in this process; the units follow each other without a pause."""

    def __init__(self, request: Request) -> None:
        model = request.model.load()
        settings = request.settings.on(model.device.type)
        self._facts = facts_of(model)
        self.model = model
        self._worker = Worker(model, settings)
        self._encoder = QuestionEncoder(
            request.model.load_tokenizer(),
            self._facts.max_positions,
            settings.long,
            spans=settings.tokens,
            share=settings.share_context,
        )

    def facts(self) -> ModelFacts:
        """Those of the model in this process."""
        return self._facts

    def run(self, units: Sequence[WorkUnit], find: FindTask) -> Iterator[Step]:
        """Each unit in order; the next one is encoded meanwhile."""

        def encoded(unit: WorkUnit) -> _Encoded:
            planned = find(unit)
            return self._encoded(unit, planned.task, planned.rows[unit.start : unit.stop])

        return map(_step, self._worker.run(one_ahead(partial(encoded, unit) for unit in units)))

    def measure(self, unit: WorkUnit, task: LoadedTask, rows: Sequence[Row]) -> Iterator[Step]:
        """One unit, whose rows are these."""
        for told in self._worker.run([self._encoded(unit, task, rows)]):
            yield _step(told)  # a generator: Ray sends values into what it iterates over

    def _encoded(self, unit: WorkUnit, task: LoadedTask, rows: Sequence[Row]) -> _Encoded:
        with part("encode"):
            return _Encoded(unit, self._encoder.questions(task, rows, unit.start))

    def close(self) -> None:
        """Nothing to give back."""


def _step(told: Measured[WorkUnit] | MeasuredBatch) -> Step:
    return told if isinstance(told, MeasuredBatch) else MeasuredUnit(told.name, told.tables, told.notices)
