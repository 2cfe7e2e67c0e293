"""One pass of a batch to the deepest loop: a few states alive at a time, everything read as they come.

Depth by depth the utility is read, and for every requested update the columns that its level asks for (`producers`).
Two states are alive at a time; of consecutive updates that are surveyed together, all of theirs; of a chord k → R, the
state k until R is there. A chord is an update like any other, analysed by itself.
`launch` asks the device for everything without waiting (searches of level full on the host aside); `finish` puts rows
together on the host when the numbers are there, by which time the next batch is running.

Shapes: R sequences, S positions, D hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batching import Question, collate
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.producers import MeasuredDepth, MeasuredUpdate, Tables, tables_of
from loopscope.measuring.readouts import Reading, readout_of
from loopscope.measuring.tokens_and_trace import ExitGateTrace, StateObserver, Trace
from loopscope.measuring.update import Columns, HostColumn, Layout, PendingColumns, Update, array, pinned, stacked
from loopscope.models.protocol import LoopedModel, exit_gate_of
from loopscope.models.walk import Walk, readout_asks_context
from loopscope.store.schema import CHORD, Level, ends_of


class BatchPass:
    """A batch that goes through the loops of a model.

    Attributes:
        readout: how its states were read.
    """

    def __init__(
        self, model: LoopedModel, settings: MeasureConfig, questions: Sequence[Question], *, careful: bool = False
    ) -> None:
        self._model, self._settings, self._careful = model, settings, careful
        self._questions = questions
        packing = pinned(collate(questions, settings.batch), model.device).to(model.device)
        self._packing, self._layout = packing, Layout.of(questions, packing.sequences, model.device)
        self.readout = readout_of(model, getattr(torch, settings.readout_dtype), careful=careful)
        self._finite: dict[int, Tensor] = {}
        self._pending: tuple[PendingColumns, list[str], PendingColumns] | None = None

    @torch.no_grad()
    def launch(self) -> BatchPass:
        """Ask the device for everything."""
        try:
            tables = self._tables()
        except LoopscopeError:
            # Whatever was refused, the user must first know of a state that is not finite.
            self._require_finite({}, *map(array, self._finite.values()))
            raise
        finite = HostColumn(self._require_finite, *self._finite.values())
        names = [name for each in tables for name in each]
        columns = PendingColumns([columns for each in tables for columns in each.values()])
        self._pending = PendingColumns([{"finite": finite}]), names, columns
        return self

    def finish(self) -> Tables | None:
        """The rows of the batch in every table but `examples`, when the numbers are here.

        None where kernels gave up tokens: measure the batch again, waiting for the device wherever that may happen.
        """
        assert self._pending is not None, "launched before"
        finite, names, pending = self._pending
        # First of all whether the states were finite at all: if not, no other calculation will help.
        finite.columns()
        if not self._careful and not pending.is_finite():
            return None
        tables: dict[str, list[Columns]] = {"questions": []}
        for name, columns in zip(names, pending.columns(), strict=True):
            tables.setdefault(name, []).append(columns)
        return {name: stacked(found) for name, found in tables.items()}

    def _tables(self) -> list[Tables]:
        settings, readout, model = self._settings, self.readout, self._model
        packing, layout = self._packing, self._layout
        observers: list[StateObserver] = []
        deepest = settings.deepest
        if settings.tokens and exit_gate_of(model) is not None:
            gate = ExitGateTrace(model, layout, settings.exit_threshold)
            observers, deepest = [gate], max(deepest, gate.budget)
        walk = Walk.of(model, packing.batch, deepest)
        if readout_asks_context(model):
            context = walk.context if packing.place_RS is None else model.embed(packing.sequences)
            layout = dataclasses.replace(layout, context=context)
        if settings.trace:
            observers.append(Trace(readout, layout, settings))
        readings: dict[int, Reading] = {}
        runs = settings.runs(1 if settings.level is Level.FULL else readout.most_consecutive)
        kept: dict[int, Tensor] = {}
        updates: dict[int, Tables] = {}
        for depth in range(deepest + 1):
            state = kept[depth] = packing.separate(walk.to(depth).state)
            if depth in settings.depths:
                self._finite[depth] = self._finite_sequences(state)
            for run in runs:
                if ends_of(run[-1])[1] == depth:
                    ends = [ends_of(transition) for transition in run]
                    together = [Update(layout, kept[start], kept[end]) for start, end in ends]
                    updates |= self._updates(run, together, readings, observers)
            runs = [run for run in runs if ends_of(run[-1])[1] > depth]
            needed = {end for run in runs for transition in run for end in ends_of(transition)}
            kept = {at: held for at, held in kept.items() if at in needed}
            for observer in observers:
                observer.see(depth, state)
            if depth in settings.depths and not {depth, depth - 1} & {*settings.transitions}:
                readings[depth] = readout.read(state, layout)
        others = [tables for observer in observers for tables in observer.finish(updates)]
        depths = (tables_of(MeasuredDepth(depth, readings[depth], layout)) for depth in sorted(readings))
        return [*updates.values(), *others, *depths]

    def _updates(
        self,
        run: Sequence[int],
        updates: Sequence[Update],
        found: dict[int, Reading],
        observers: Sequence[StateObserver],
    ) -> dict[int, Tables]:
        """The tables of updates that are surveyed together, by transition; the readings of their ends are noted."""
        settings, tables = self._settings, dict[int, Tables]()
        survey = self.readout.paths(updates, settings, found.get(run[0]) if run[0] < CHORD else None)
        for transition, update in zip(run, updates, strict=True):
            paths = survey.pop(0)
            if transition < CHORD:  # the readings of a chord's ends are those of other updates or of their own
                found[transition] = paths.before
                if paths.after is not None or transition + 1 not in settings.transitions:
                    found[transition + 1] = paths.reading_after(update.layout)
                for observer in observers:
                    observer.see_update(transition, paths)
            measured = MeasuredUpdate(update, self.readout, settings, paths)
            del paths
            tables[transition] = tables_of(measured)
            for columns in tables[transition].values():
                columns["transition"] = np.full(len(columns["row"]), transition)
        return tables

    def _finite_sequences(self, state_RSD: Tensor) -> Tensor:
        """Whether every valid position of a sequence is finite: its sum is, in an arithmetic that cannot overflow."""
        total_RS = state_RSD.sum(2, dtype=torch.float64)
        return (total_RS.isfinite() | ~self._layout.batch.attention_mask).all(1)

    def _require_finite(self, _: Columns, *finite_R: np.ndarray[Any, Any]) -> None:
        """Name the question whose state overflowed, instead of storing a NaN."""
        owner = [question for question in self._questions for _ in question.example.sequences]
        for depth, finite in zip(self._finite, finite_R, strict=True):
            if not finite.all():
                raise LoopscopeError(
                    f"{self._model.name} has no finite state for question {owner[int(finite.argmin())].example.id}"
                    f" at depth {depth}: try {setting('dtype', 'float32')}, fewer loops, or leave the question out"
                )
