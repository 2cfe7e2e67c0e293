"""One model replica that measures work units: rows in, columns of every table out.

The next unit is encoded in a thread of its own, and the next batch is launched before the last one is finished, so that
a GPU has something to do while the host puts rows together. Two batches are never alive at a time: what waits is a
launched batch's results, which are small. A batch that runs out of memory is halved.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batch_pass import BatchPass, PendingBatch
from loopscope.measuring.batching import Question, example_columns, padded_tokens, plan_batches, shrunk
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.host_copies import stacked
from loopscope.measuring.loading import load_configured_model, load_configured_tokenizer
from loopscope.measuring.model_check import checked
from loopscope.measuring.plan import ModelFacts, PlannedTask, QuestionEncoder, facts_of, settings_for
from loopscope.measuring.probes import before_a_pass
from loopscope.measuring.producers import Tables
from loopscope.models.load import card_of
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import forget_recorded_steps
from loopscope.readout.checks import is_out_of_memory
from loopscope.store.manifest import WorkUnit
from loopscope.tasks.encoding import LoadedTask, Row
from loopscope.user_code import user_code


def release() -> None:
    """Give back what a failed attempt left behind."""
    forget_recorded_steps()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


Name = TypeVar("Name")
_NOTHING: Mapping[Any, Set[int]] = {}
Result = TypeVar("Result")


class MeasuredBatch(NamedTuple):
    """Questions and token positions that are measured now; negative where a worker was lost with them."""

    questions: int
    positions: int
    begun: Measured[Any] | None = None
    """The unit, where it is measured in this process and more of its batches follow."""


@dataclass(frozen=True)
class Measured(Generic[Name]):
    """A measured unit.

    Attributes:
        unit: which one.
        batches: the columns of each batch by table, rows in any order.
        notices: what there is to say about it, one line each.
        backends_used: how φ was computed.
    """

    unit: Name
    batches: list[Tables] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    backends_used: set[str] = field(default_factory=set)

    @property
    def tables(self) -> Tables:
        """The columns of all batches."""
        return joined(self.batches)


def joined(batches: Sequence[Tables]) -> Tables:
    """The columns of several batches, by table."""
    return {name: stacked([tables[name] for tables in batches]) for name in batches[0]}


class _InFlight(NamedTuple):
    """A launched batch; None where memory did not suffice. The last one of its unit completes it."""

    unit: Measured[Any]
    batch: Sequence[Question]
    pending: PendingBatch | None
    last: bool


class Worker:
    """Measures the questions of units with one model.

    A batch that does not fit into memory is halved, and no later batch of this worker is larger than what is left. One
    whose tokens the kernels gave up was measured twice; the worker then takes care from the start, which changes no
    number.
    """

    def __init__(self, model: LoopedModel, settings: MeasureConfig) -> None:
        self._model, self._settings = model, settings
        self._ceiling: int | None = None
        self._careful = False
        self._said: set[str] = set()

    def run(
        self, units: Iterable[tuple[Name, Sequence[Question]]], done: Mapping[Name, Set[int]] = _NOTHING
    ) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Each unit in order, after its batches, as soon as the batch after its last one is launched.

        Batches are planned for all questions of a unit; those whose rows are `done` are then left out.
        """
        before: _InFlight | None = None
        for name, questions in units:
            unit, skipped = Measured(name), done.get(name, frozenset())
            planned = plan_batches(questions, self._settings.batch)
            left = ([question for question in batch if question.row not in skipped] for batch in planned)
            waiting = deque(batch for batch in left if batch)
            while waiting:
                waiting = deque(shrunk(waiting, self._ceiling))
                batch = waiting.popleft()
                with user_code(f"{self._model.name} on a batch of {len(batch)}"):
                    launched = _InFlight(unit, batch, self._launch(batch), last=not waiting)
                if before is not None:
                    yield from self._complete(before)
                before = launched
                if launched.pending is None:  # halved at once, so that the batches after it fit
                    yield from self._complete(launched)
                    before = None
        if before is not None:
            yield from self._complete(before)

    def _complete(self, flight: _InFlight) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Finish a batch, and its unit if it is the last one of it."""
        unit = flight.unit
        with user_code(f"{self._model.name} on a batch of {len(flight.batch)}"):
            unit.batches.extend(self._finish(unit, flight.batch, flight.pending))
        positions = sum(question.positions for question in flight.batch)
        yield MeasuredBatch(len(flight.batch), positions, None if flight.last else unit)
        if flight.last:
            yield unit

    def _launch(self, batch: Sequence[Question]) -> PendingBatch | None:
        """The batch on its way; None when it did not fit."""
        try:
            return BatchPass(self._model, self._settings, batch, careful=self._careful).launch()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: the traceback no longer keeps the tensors of the failed attempt alive.
        release()
        return None

    def _finish(self, unit: Measured[Name], batch: Sequence[Question], pending: PendingBatch | None) -> list[Tables]:
        """The tables of a launched batch, or those of its halves where it did not fit."""
        try:
            if pending is not None:
                tables = pending.finish()
                self._careful |= pending.repeated
                unit.backends_used.update(pending.backends_used())
                unit.notices.extend(sorted(pending.notes() - self._said))
                self._said |= pending.notes()
                return [{**tables, "examples": example_columns(batch)}]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._halve(unit, batch)
        found = []
        for part in shrunk([batch], self._ceiling):
            found += self._finish(unit, part, self._launch(part))
        return found

    def _halve(self, unit: Measured[Name], batch: Sequence[Question]) -> None:
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

    def __init__(self, config: MeasureConfig, model: LoopedModel | None = None) -> None:
        self.model = load_configured_model(config) if model is None else model
        self._facts = facts_of(self.model)
        settings = settings_for(config, self._facts)
        if card_of(self.model).is_own:
            checked(self.model, before_a_pass(settings.level, settings.readout_dtype)).require()
        self.tokenizer = load_configured_tokenizer(config, self.model)
        self._worker = Worker(self.model, settings)
        self.encoder = QuestionEncoder(
            self.tokenizer,
            self._facts.max_positions,
            settings.long,
            spans=settings.spans,
            share=settings.share_context,
        )

    def facts(self) -> ModelFacts:
        """Those of the model in this process."""
        return self._facts

    def run(
        self, units: Sequence[WorkUnit], find: FindTask, done: Mapping[WorkUnit, Set[int]] = _NOTHING
    ) -> Iterator[Step]:
        """Each unit in order without the rows that are `done`; the next one is encoded meanwhile."""
        planned = ((unit, find(unit)) for unit in units)
        return self.measure(((unit, of.task, of.rows[unit.start : unit.stop]) for unit, of in planned), done)

    def measure(self, given: Iterable[GivenUnit], done: Mapping[WorkUnit, Set[int]] = _NOTHING) -> Iterator[Step]:
        """The same with the rows of each unit at hand."""
        return self._worker.run(one_ahead(partial(self._encoded, *unit) for unit in given), done)

    def _encoded(self, unit: WorkUnit, task: LoadedTask, rows: Sequence[Row]) -> tuple[WorkUnit, list[Question]]:
        return unit, self.encoder.questions(task, rows, unit.start)

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
