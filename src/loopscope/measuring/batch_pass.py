"""One pass of a batch to the deepest loop: a few states alive at a time, everything read as they come.

Depth by depth the utility is read, and for every requested update the columns that its level asks for (`producers`).
Two states are alive at a time; of consecutive updates that are surveyed together, all of theirs; of a chord k → R, the
state k until R is there. A chord is an update like any other, analysed by itself.
`launch` asks the device for everything without waiting (searches of level full on the host aside); what it returns is
finished on the host when the numbers are there, by which time the next batch is running.

Shapes: R sequences, S positions, D hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batching import Layout, Question, collate
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.host_copies import Columns, HostColumn, PendingColumns, array, pinned, stacked
from loopscope.measuring.producers import MeasuredDepth, MeasuredUpdate, Tables, columns_of_depth, tables_of_update
from loopscope.measuring.readouts import Readings, Surveyed, readout_of
from loopscope.measuring.tokens_and_trace import ExitGateTrace, StateObserver, Trace
from loopscope.measuring.update import Update
from loopscope.models.exit_gate import exit_gate_of
from loopscope.models.packing import Packing
from loopscope.models.protocol import Context, LoopedModel
from loopscope.models.walk import Walk, readout_asks_context
from loopscope.store.schema import CHORD, ends_of


class BatchPass:
    """A batch that goes through the loops of a model."""

    def __init__(
        self, model: LoopedModel, settings: MeasureConfig, questions: Sequence[Question], *, careful: bool = False
    ) -> None:
        self._model, self._settings, self._careful = model, settings, careful
        self._packing = _on_device(collate(questions, settings.batch), model.device)
        self._layout = Layout.of(questions, self._packing.sequences, model.device)
        self._readout = readout_of(model, getattr(torch, settings.readout_dtype), careful=careful)
        self._backends_of_repetition: set[str] = set()
        self._finite: dict[int, Tensor] = {}

    def run(self) -> Tables:
        """The rows of the batch in every table but `examples`."""
        return self.launch().finish()

    @torch.no_grad()
    def launch(self) -> PendingBatch:
        """Ask the device for everything."""
        try:
            return self._launched()
        except LoopscopeError:
            # Whatever was refused, the user must first know of a state that is not finite.
            self._require_finite({}, *map(array, self._finite.values()))
            raise

    def backends_used(self) -> set[str]:
        """How φ was computed in this pass, and in its repetition."""
        return self._readout.backends_used | self._backends_of_repetition

    def notes(self) -> set[str]:
        """What there is to say about how φ was computed, one line each."""
        return self._readout.notes

    def _launched(self) -> PendingBatch:
        settings, readout = self._settings, self._readout
        gate = self._gate()
        deepest = settings.deepest if gate is None else max(settings.deepest, gate.budget)
        depths = DepthIterator(self._model, self._packing, deepest)
        self._layout = layout = self._layout.given(depths.context)
        observers: list[StateObserver] = [] if gate is None else [gate]
        if settings.trace:
            observers.append(Trace(readout, layout, settings))
        readings = Readings(readout, layout)
        updates: dict[int, Tables] = {}
        waiting: dict[int, Update] = {}
        last = {run[-1] for run in settings.runs(readout.consecutive_updates(settings))}
        before = None
        chords = [(transition, *ends_of(transition)) for transition in settings.transitions if transition >= CHORD]
        kept: dict[int, Tensor] = {}
        for depth, state in depths:
            if depth in settings.depths:
                self._finite[depth] = self._finite_sequences(state)
            if depth - 1 in settings.transitions:
                assert before is not None, "a transition starts at depth 0 or later"
                waiting[depth - 1] = Update(layout, before, state)
                if depth - 1 in last:
                    surveys = readout.surveys(list(waiting.values()), settings)
                    for (transition, update), survey in zip(waiting.items(), surveys, strict=True):
                        updates[transition] = self._update(transition, update, survey, readings, observers)
                    waiting = {}
            for transition, start, end in chords:
                if depth == start:
                    kept[start] = state
                elif depth == end:
                    update = Update(layout, kept[start], state)
                    (survey,) = readout.surveys([update], settings)
                    updates[transition] = self._update(transition, update, survey, readings, observers)
            kept = {start: held for start, held in kept.items() if any(s == start and depth < e for _, s, e in chords)}
            for observer in observers:
                observer.see(depth, state)
            if depth in settings.depths and not {depth, depth - 1} & {*settings.transitions}:
                readings.read(depth, state)
            before = state
        readings.finish()
        others = [tables for observer in observers for tables in observer.finish(updates)]
        for depth, reading in sorted(readings.found.items()):
            others.append({"depths": columns_of_depth(MeasuredDepth(depth, reading, layout))})
        finite = HostColumn(self._require_finite, *self._finite.values())
        return PendingBatch(self, finite, [*updates.values(), *others], None if self._careful else self._repeated)

    def _gate(self) -> ExitGateTrace | None:
        if not self._settings.tokens or exit_gate_of(self._model) is None:
            return None
        return ExitGateTrace(self._model, self._layout, self._settings.exit_threshold)

    def _update(
        self,
        transition: int,
        update: Update,
        surveyed: Surveyed | None,
        readings: Readings,
        observers: Sequence[StateObserver],
    ) -> Tables:
        """The tables of an update; the readings of its ends are noted."""
        settings, found = self._settings, readings.found
        paths = self._readout.paths(update, settings, found.get(transition), surveyed)
        if transition < CHORD:  # the readings of a chord's ends are those of other updates or of their own
            found[transition] = paths.before
            if paths.after is not None or transition + 1 not in settings.transitions:
                found[transition + 1] = paths.reading_after(self._layout)
            for observer in observers:
                observer.see_update(transition, paths)
        measured = MeasuredUpdate(update, self._readout, settings, paths)
        del paths
        tables = tables_of_update(measured)
        for columns in tables.values():
            columns["transition"] = np.full(len(columns["row"]), transition)
        return tables

    def _repeated(self) -> Tables:
        """The same pass again, waiting for the device wherever its kernels may give up a token."""
        again = BatchPass(self._model, self._settings, self._layout.questions, careful=True)
        tables = again.run()
        self._backends_of_repetition = again.backends_used()
        return tables

    def _finite_sequences(self, state_RSD: Tensor) -> Tensor:
        """Whether every valid position of a sequence is finite: its sum is, in an arithmetic that cannot overflow."""
        total_RS = state_RSD.sum(2, dtype=torch.float64)
        return (total_RS.isfinite() | ~self._layout.batch.attention_mask).all(1)

    def _require_finite(self, _: Columns, *finite_R: np.ndarray[Any, Any]) -> None:
        """Name the question whose state overflowed, instead of storing a NaN."""
        owner = [question for question in self._layout.questions for _ in range(question.sequences)]
        for depth, finite in zip(self._finite, finite_R, strict=True):
            if not finite.all():
                raise LoopscopeError(
                    f"{self._model.name} has no finite state for question {owner[int(finite.argmin())].example.id}"
                    f" at depth {depth}: try {setting('dtype', 'float32')}, fewer loops, or leave the question out"
                )


class DepthIterator:
    """The states of a batch at depths 0, 1, …, the deepest, its sequences in rows of their own."""

    def __init__(self, model: LoopedModel, packing: Packing, deepest: int) -> None:
        self._packing, self._deepest = packing, deepest
        self._walk = Walk.of(model, packing.batch, deepest)
        self.context: Context | None = None
        """What a readout may ask for: the context of the sequences in rows of their own."""
        if readout_asks_context(model):
            self.context = self._walk.context if packing.place_RS is None else model.embed(packing.sequences)

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        for depth in range(self._deepest + 1):
            self._walk.to(depth)
            yield depth, self._packing.separate(self._walk.state)


def _on_device(packing: Packing, device: torch.device) -> Packing:
    """On its way to the device from pinned memory, which does not wait for it."""
    batch = pinned(packing.batch, device)
    sequences = batch if packing.sequences is packing.batch else pinned(packing.sequences, device)
    place_RS = packing.place_RS
    if place_RS is not None and device.type == "cuda":
        place_RS = place_RS.pin_memory()
    return Packing(batch, sequences, place_RS).to(device)


class PendingBatch:
    """A batch whose numbers are being copied to the host.

    Attributes:
        repeated: after `finish`, whether the batch had to be measured again.
        backends_used: after `finish`, returns how φ was computed.
        notes: and what there is to say about it.
    """

    def __init__(
        self, batch_pass: BatchPass, finite: HostColumn, tables: Sequence[Tables], again: Callable[[], Tables] | None
    ) -> None:
        self._again, self.repeated = again, False
        self.backends_used, self.notes = batch_pass.backends_used, batch_pass.notes
        self._names = [name for each in tables for name in each]
        self._finite = PendingColumns([{"finite": finite}])
        self._columns = PendingColumns([columns for each in tables for columns in each.values()])

    def finish(self) -> Tables:
        """The rows of the batch in every table but `examples`, when the numbers are here."""
        # First of all whether the states were finite at all: if not, no other calculation will help.
        self._finite.columns()
        if self._again is not None and not self._columns.is_finite():
            self.repeated = True
            return self._again()
        tables: dict[str, list[Columns]] = {"questions": []}
        for name, columns in zip(self._names, self._columns.columns(), strict=True):
            tables.setdefault(name, []).append(columns)
        return {name: stacked(found) for name, found in tables.items()}
