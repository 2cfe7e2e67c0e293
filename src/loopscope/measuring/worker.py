"""One model replica that measures work units: questions in, columns of every table out.

The next batch is launched before the last one is finished, so that a GPU has something to do while the host puts rows
together. Two batches are never alive at a time: what waits is a launched batch's results, which are small. A batch that
runs out of memory is halved.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batch_pass import BatchPass
from loopscope.measuring.batching import Question, example_columns, padded_tokens, plan_batches, shrunk
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.host_copies import stacked
from loopscope.measuring.loading import ModelFacts, facts_of, load_configured_model, load_configured_tokenizer
from loopscope.measuring.model_check import before_a_pass, checked
from loopscope.measuring.producers import Tables
from loopscope.models.load import card_of
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import forget_recorded_steps
from loopscope.readout.checks import is_out_of_memory
from loopscope.store.manifest import WorkUnit
from loopscope.user_code import user_code

Name = TypeVar("Name")
_NOTHING: Mapping[Any, Set[int]] = {}


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

    def tables(self, first: int = 0) -> Tables:
        """The columns of all batches, or of those from `first` on."""
        batches = self.batches[first:]
        return {name: stacked([tables[name] for tables in batches]) for name in batches[0]}


class _InFlight(NamedTuple):
    """A launched batch; without a pass where memory did not suffice. The last one of its unit completes it."""

    unit: Measured[Any]
    batch: Sequence[Question]
    launched: BatchPass | None
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
        self._noted: set[str] = set()

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
                    now = _InFlight(unit, batch, self._launch(batch), last=not waiting)
                # A batch that did not fit is halved at once, so that the batches after it fit.
                for flight in (before, now if now.launched is None else None):
                    if flight is not None:
                        yield from self._complete(flight)
                before = now if now.launched is not None else None
        if before is not None:
            yield from self._complete(before)

    def _complete(self, flight: _InFlight) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Finish a batch, and its unit if it is the last one of it."""
        unit, batch = flight.unit, flight.batch
        with user_code(f"{self._model.name} on a batch of {len(batch)}"):
            unit.batches.extend(self._finish(unit, batch, flight.launched))
        positions = sum(question.positions for question in batch)
        yield MeasuredBatch(len(batch), positions, None if flight.last else unit)
        if flight.last:
            yield unit

    def _launch(self, batch: Sequence[Question]) -> BatchPass | None:
        """The batch on its way; None when it did not fit."""
        try:
            return BatchPass(self._model, self._settings, batch, careful=self._careful).launch()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: the traceback no longer keeps the tensors of the failed attempt alive.
        release()
        return None

    def _finish(self, unit: Measured[Name], batch: Sequence[Question], launched: BatchPass | None) -> list[Tables]:
        """The tables of a launched batch, or those of its halves where it did not fit."""
        try:
            if launched is not None:
                tables = launched.finish()
                self._careful |= launched.repeated
                unit.backends_used.update(launched.backends_used)
                unit.notices.extend(sorted(launched.notes - self._noted))
                self._noted |= launched.notes
                return [{**tables, "examples": example_columns(batch)}]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
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
        halves = shrunk([batch], self._ceiling)
        return [tables for part in halves for tables in self._finish(unit, part, self._launch(part))]


def release() -> None:
    """Give back what a failed attempt left behind."""
    forget_recorded_steps()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


GivenUnit = tuple[WorkUnit, Sequence[Question]]
Step = Measured[WorkUnit] | MeasuredBatch
"""What an engine yields: each batch of a unit, then the unit."""


class LocalEngine:
    """One model in this process, loaded unless it is given."""

    def __init__(self, config: MeasureConfig, model: LoopedModel | None = None) -> None:
        self.model = load_configured_model(config) if model is None else model
        self.facts: ModelFacts = facts_of(self.model)
        settings = self.facts.settled(config)
        if card_of(self.model).is_own:
            checked(self.model, before_a_pass(settings.level, settings.readout_dtype)).require()
        self.tokenizer = load_configured_tokenizer(config, self.model)
        self._worker = Worker(self.model, settings)

    def run(self, units: Iterable[GivenUnit], done: Mapping[WorkUnit, Set[int]] = _NOTHING) -> Iterator[Step]:
        """Each unit in order without the rows that are `done`, and its batches before it."""
        return self._worker.run(units, done)

    def close(self) -> None:
        """Nothing to give back."""
