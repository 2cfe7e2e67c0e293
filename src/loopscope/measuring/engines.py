"""What the host does beside the device: the next unit is encoded, and the last one stored, in threads of their own.

Engines: who measures the pending units. The driver alone writes, so records do not depend on the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from loopscope.measuring.batches import Question
from loopscope.measuring.plan import ModelFacts, PlannedTask, QuestionEncoder, Request, facts_of
from loopscope.measuring.timing import part
from loopscope.measuring.trip import Tables
from loopscope.measuring.worker import Measured, MeasuredBatch, Worker
from loopscope.store.layout import WorkUnit
from loopscope.tasks.encoding import Row
from loopscope.tasks.load import LoadedTask

Result = TypeVar("Result")


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


class OneBehind:
    """Calls in a thread, one after the other in the order in which they were handed over, one at a time.

    `do` waits for the call before, so that no more than one is on its way, and raises what that one raised. Leaving
    the block waits for the last; what was handed over is always completed.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "loopscope-behind")
        self._last: Future[Any] | None = None

    def do(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Hand a call over."""
        self.wait()
        self._last = self._pool.submit(call, *arguments)

    def wait(self) -> None:
        """Until the last call is done; raises what it raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        if error is None:
            self.wait()


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
