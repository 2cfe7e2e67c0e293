"""How far a run's numbers move with the batch layout: the same questions, put into batches in several ways.

A matrix product or an attention may add up in another order for another shape, and a looped model amplifies the last
bit from loop to loop. What that amounts to depends on the model, the states' dtype and the device, so it is measured.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.layout import Question
from loopscope.measuring.own_answers import own_answers
from loopscope.measuring.plan import PlannedTask
from loopscope.measuring.replay import Sources, request_of
from loopscope.measuring.settings import BatchPolicy, Settings
from loopscope.measuring.transfer import Columns
from loopscope.measuring.worker import Measured, Worker
from loopscope.models.in_memory import ModelSpec, borrowed
from loopscope.path import GRID, grid_optimum
from loopscope.store import TABLES
from loopscope.store.column_types import Level
from loopscope.store.run import StoredRun

QUESTIONS = 64
"""How many questions of every task are measured: the first ones."""
UNIT = 8
QUANTITIES = {
    "U": "utility_before",
    "A": "slope",
    "Q": "quadratic",
    "ΔU": "gain",
    "α̂": "quadratic_scale",
    "α*": "optimum",
}
"""What is compared, by the columns of the questions; α* is that of the 21 scales, where there is a grid."""

_KEYS = {name: TABLES[name].key for name in ("questions", "tokens")}
_Columns = dict[str, NDArray[Any]]


class LayoutChoice(NamedTuple):
    """A way to put the first questions of a task into batches, `unit` of them at a time."""

    name: str
    batch: BatchPolicy
    unit: int = QUESTIONS
    questions: int = QUESTIONS
    share: bool = False


@dataclass(frozen=True)
class Movement:
    """What another layout makes of the updates of a task.

    Attributes:
        task: name and split.
        table: "questions", or "tokens" for the updates of single tokens.
        layout: the other layout, in words.
        moved: for every quantity the absolute difference of every update.
        flipped: updates with another outcome.
    """

    task: str
    table: str
    layout: str
    moved: dict[str, NDArray[np.float64]]
    flipped: int

    @property
    def updates(self) -> int:
        """Updates that were compared."""
        return len(self.moved["U"])


def layout_movement(
    run: StoredRun,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: str | None = None,
    model: ModelSpec | None = None,
    tokenizer: Any = None,
) -> Iterator[Movement]:
    """Measure the first questions of every task in the run's own layout and in others.

    Args:
        run: whose model, tasks, updates, dtypes and batches are taken.
        data_dir: where the benchmarks are; left out, where they were.
        device: where to measure; left out, where the run was measured.
        model: where the model is; left out, where it was. A run of a model in memory needs the object.
        tokenizer: the tokenizer, where the run was given one as an object.

    Raises:
        LoopscopeError: the run has no updates, or its sources are not there.
    """
    if not run.manifest.transitions:
        raise LoopscopeError(f"{run.path} has no updates to compare: measure it with {setting('transitions')}")
    with borrowed(model):
        yield from _movements(run, Sources.of(run, request_of(run, data_dir, device, model, tokenizer)))


def _movements(run: StoredRun, sources: Sources) -> Iterator[Movement]:
    sources.check()
    given = sources.request.settings
    settings = Settings.of(
        given.transitions,
        (),
        Level.QUICK if given.level is Level.QUICK else Level.GRID,
        # Through a nonlinear readout every token's own step would need a readout of its own.
        tokens=given.tokens or run.manifest.model.affine_readout,
        batch=given.batch,
        readout_dtype=given.readout_dtype,
        scalar_checks=0,
        interpolate=given.interpolate,
    )
    encoders = {share: sources.encoder(spans=settings.tokens, share=share) for share in (False, True)}
    answers = own_answers(sources.model, sources.tokenizer, given)
    for planned in sources.prepared.tasks:

        def measured(choice: LayoutChoice, planned: PlannedTask = planned) -> dict[str, _Columns]:
            questions = encoders[choice.share].questions(planned.task, planned.rows[:QUESTIONS], 0)
            # In the run's own layout, so that all layouts are asked about the same answers.
            questions = questions if answers is None else answers(questions)
            return _measured(sources, settings, questions[: choice.questions], choice)

        task = f"{planned.task.name} {planned.task.split}"
        by_position = sources.facts.initial_state in (None, "question")
        shares = planned.task.kind == "options" and sources.facts.shares_context and by_position
        own, *others = _choices(given, min(QUESTIONS, len(planned.rows)), shares=shares)
        base = measured(own)
        for choice in others:
            for table, columns in measured(choice).items():
                yield _compared((task, table, choice.name), base[table], columns)


def _choices(given: Settings, questions: int, *, shares: bool) -> Iterator[LayoutChoice]:
    """The run's own layout first."""
    batch, shared = given.batch, given.share_context
    own = LayoutChoice("as in the run", batch, given.unit_size, share=shared)
    yield own
    for size, name in ((1, "one question at a time"), (2, "two questions, source order")):
        if batch.size != size:
            yield own._replace(name=name, batch=BatchPolicy("questions", size, padding=batch.padding))
    if batch.size is None:
        yield own._replace(name=f"units of {UNIT} questions", unit=UNIT)
    if questions > 1:
        yield own._replace(name="the first half of the questions", questions=(questions + 1) // 2)
    if batch.padding == "none":
        yield own._replace(name="padded rows", batch=dataclasses.replace(batch, padding="right"))
    if shares and batch.name != "paper":
        yield own._replace(name="each option its own context" if shared else "shared context", share=not shared)


def _measured(
    sources: Sources, settings: Settings, questions: Sequence[Question], choice: LayoutChoice
) -> dict[str, _Columns]:
    """The columns of the updates of questions and tokens, in the order of their keys."""
    worker = Worker(sources.model, dataclasses.replace(settings, batch=choice.batch))
    units = [questions[start : start + choice.unit] for start in range(0, len(questions), choice.unit)]
    found = [unit.tables for unit in worker.run(enumerate(units)) if isinstance(unit, Measured)]
    return {name: _ordered([tables[name] for tables in found], key) for name, key in _KEYS.items() if name in found[0]}


def _ordered(units: Sequence[Columns], key: Sequence[str]) -> _Columns:
    names = [*key, "outcome", *(name for name in QUANTITIES.values() if name in units[0])]
    columns: _Columns = {name: np.concatenate([np.asarray(unit[name]) for unit in units]) for name in names}
    if "grid_gain" in units[0]:
        gains = np.concatenate([np.asarray(unit["grid_gain"], dtype=np.float64) for unit in units])
        columns["optimum"] = np.asarray(grid_optimum(np.array(GRID), gains).alpha)
    order = np.lexsort([columns[name] for name in reversed(key)])
    return {name: values[order] for name, values in columns.items()}


def _compared(names: tuple[str, str, str], base: _Columns, other: _Columns) -> Movement:
    kept = np.isin(base["row"], other["row"])
    moved = {symbol: np.abs(other[name] - base[name][kept]) for symbol, name in QUANTITIES.items() if name in base}
    return Movement(*names, moved, int((other["outcome"] != base["outcome"][kept]).sum()))
