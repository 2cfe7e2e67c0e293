"""One pass of a batch to the deepest loop: a few states alive at a time, everything read on the way.

Depth by depth the utility is read, and for every requested update t → t+1 everything that its level asks for. Two
states are alive at a time; where updates that follow one another are surveyed together (`most_together`), all of
theirs.
`launch` asks the device for all of it without waiting once (level full, whose searches are the host's, aside); what
it returns is finished on the host when the numbers are there, by which time the next batch can be on its way.

Shapes: R sequences, S positions, D hidden width, B questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.as_in_paper import paper_columns
from loopscope.measuring.certificates import certificate_columns
from loopscope.measuring.fp64 import analyse
from loopscope.measuring.layout import Layout, Question, collate, identity_columns
from loopscope.measuring.longer_steps import longer_step_columns
from loopscope.measuring.reading import Reading, Surveyed, readout_of
from loopscope.measuring.scalar_check import scalar_check_columns
from loopscope.measuring.settings import Settings
from loopscope.measuring.tokens import GateTrace, TokenDecisions, gate_columns, gate_trace, token_columns
from loopscope.measuring.trace import Trace
from loopscope.measuring.transfer import Arrival, Columns, Later, array, pinned, stacked
from loopscope.measuring.update import Update, update_columns
from loopscope.models.packing import Packing
from loopscope.models.protocol import Context, LoopedModel
from loopscope.models.walk import Walk, readout_asks_context
from loopscope.store.schema import Level

Tables = dict[str, Columns]


class Trip:
    """A batch on its way through the loops of a model."""

    def __init__(
        self,
        model: LoopedModel,
        settings: Settings,
        questions: Sequence[Question],
        *,
        careful: bool = False,
    ) -> None:
        self._model, self._settings, self._careful = model, settings, careful
        packing, device = collate(questions, settings.batch), model.device
        own = packing.sequences is packing.batch
        batch = pinned(packing.batch, device)
        sequences = batch if own else pinned(packing.sequences, device)
        place_RS = packing.place_RS
        if place_RS is not None and device.type == "cuda":
            place_RS = place_RS.pin_memory()
        self._packing = Packing(batch, sequences, place_RS).to(device)
        self._layout = Layout.of(questions, self._packing.sequences, device)
        self._readout = readout_of(model, getattr(torch, settings.readout_dtype), careful=careful)
        self._ways_again: set[str] = set()
        self._finite: dict[int, Tensor] = {}

    def run(self) -> Tables:
        """The rows of the batch in every table but `examples`."""
        return self.launch().finish()

    @torch.no_grad()
    def launch(self) -> PendingTrip:
        """Ask the device for everything."""
        try:
            return self._launched()
        except LoopscopeError:
            # Whatever was refused, a state that is not finite is what the user must hear of.
            self._require_finite({}, *map(array, self._finite.values()))
            raise

    def _launched(self) -> PendingTrip:
        settings, model = self._settings, self._model
        gate = self._gate()
        deepest = settings.deepest
        if settings.tokens and gate is not None:
            deepest = max(deepest, gate.gate.budget)
        updates: dict[int, Tables] = {}
        waiting: dict[int, Update] = {}
        last = {run[-1] for run in settings.runs(self._readout.most_together(settings))}
        walk = Walk.of(model, self._packing.batch, deepest)
        self._layout = self._layout.given(self._context(walk))
        self._readings = readings = self._readout.readings(self._layout)
        self._trace = trace = Trace(self._readout, self._layout, settings) if settings.trace else None
        state = before = None
        for depth in range(deepest + 1):
            walk.to(depth)
            state, before = self._packing.separate(walk.state), state
            if depth in settings.depths:
                self._finite[depth] = self._finite_sequences(state)
            if depth - 1 in settings.transitions:
                assert before is not None, "a transition starts at depth 0 or later"
                waiting[depth - 1] = Update(self._readout, self._layout, before, state)
                if depth - 1 in last:
                    updates |= self._updates(waiting)
                    waiting = {}
            if trace is not None and depth <= settings.deepest:
                trace.see(depth, state)
            if gate is not None and depth > 0:
                gate.see(depth, state)
            if depth in settings.depths and not self._is_surveyed(depth):
                readings.read(depth, state)
        readings.settle()
        decision = None if gate is None else gate.decide()
        for transition, tables in updates.items():
            self._decided(tables, transition, decision)
        depths = [self._depth(depth, reading) for depth, reading in sorted(readings.found.items())]
        rows = list(updates.values())
        if trace is not None:
            rows += [{"trace": columns} for columns in trace.settle()]
        finite = Later(self._require_finite, *self._finite.values())
        again = None if self._careful else self._carefully
        return PendingTrip(finite, depths, rows, self.ways_taken, self.notes, again)

    def _context(self, walk: Walk) -> Context | None:
        """What a readout may ask for: the context of the sequences in rows of their own."""
        if not readout_asks_context(self._model):
            return None
        return walk.context if self._packing.place_RS is None else self._model.embed(self._packing.sequences)

    def ways_taken(self) -> set[str]:
        """How φ was computed on this trip, and on the one that repeated it."""
        return self._readout.ways_taken | self._ways_again

    def notes(self) -> set[str]:
        """What there is to say about how φ was computed, one line each."""
        return self._readout.notes

    def _carefully(self) -> Tables:
        """The same trip again, waiting for the device wherever its kernels may give up a token."""
        trip = Trip(self._model, self._settings, self._layout.questions, careful=True)
        tables = trip.run()
        self._ways_again = trip.ways_taken()
        return tables

    def _is_surveyed(self, depth: int) -> bool:
        """Whether an update that starts or ends at a depth says what would be read there."""
        transitions = self._settings.transitions
        return depth in transitions or depth - 1 in transitions

    def _gate(self) -> GateTrace | None:
        settings = self._settings
        if not settings.tokens:
            return None
        return gate_trace(self._model, settings.exit_threshold, self._layout.positions_N2)

    def _finite_sequences(self, state_RSD: Tensor) -> Tensor:
        """Whether every valid position of a sequence is finite: its sum is, in an arithmetic that cannot overflow."""
        total_RS = state_RSD.sum(2, dtype=torch.float64)
        return (total_RS.isfinite() | ~self._layout.batch.attention_mask).all(1)

    def _require_finite(self, _: Columns, *finite_R: np.ndarray[Any, Any]) -> None:
        """Name the question whose state overflowed, instead of letting a NaN travel on."""
        owner = [question for question in self._layout.questions for _ in range(question.sequences)]
        for depth, finite in zip(self._finite, finite_R, strict=True):
            if not finite.all():
                raise LoopscopeError(
                    f"{self._model.name} has no finite state for question {owner[int(finite.argmin())].example.id}"
                    f" at depth {depth}: try {setting('dtype', 'float32')}, fewer loops, or leave the question out"
                )

    def _updates(self, updates: dict[int, Update]) -> dict[int, Tables]:
        """The tables of updates that follow one another, by transition."""
        surveys = self._readout.surveys(list(updates.values()), self._settings)
        return {
            transition: self._update(transition, update, survey)
            for (transition, update), survey in zip(updates.items(), surveys, strict=True)
        }

    def _update(self, transition: int, update: Update, survey: Surveyed | None) -> Tables:
        settings, layout, found = self._settings, self._layout, self._readings.found
        paths = self._readout.paths(update, settings, found.get(transition), survey)
        found[transition] = paths.before
        if paths.after is not None:
            found[transition + 1] = paths.after
        elif transition + 1 not in settings.transitions:
            found[transition + 1] = Reading.of(paths.log_p_after(), layout)
        questions: Columns = {
            **identity_columns(layout),
            "source_row": np.asarray([question.example.source_row for question in layout.questions]),
            **update_columns(update, paths, settings),
        }
        tables: Tables = {"questions": questions}
        identity = {"row": questions["row"]}
        if paths.interpolation is not None:
            questions.update(paths.interpolation)
        if self._trace is not None and settings.level is not Level.QUICK:
            self._trace.gained(transition + 1, paths.tokens)
        if settings.level is not Level.QUICK:
            checked = [question.row < settings.scalar_checks for question in layout.questions]
            questions.update(scalar_check_columns(update, checked))
        if settings.tokens:
            tables["tokens"] = token_columns(paths.tokens, layout, settings)
        if settings.certify:
            tables["certificates"] = {**identity, **certificate_columns(update)}
        if settings.scales_to is not None:
            longer = longer_step_columns(paths, settings.scales_to, is_affine=self._readout.is_affine)
            tables["longer_steps"] = {**identity, **longer}
        bracket = settings.paper_bracket
        if bracket is not None:
            ends = questions["utility_before"], questions["utility_after"]
            questions.update(paper_columns(update, *ends))
        if settings.level is Level.FULL:
            del paths
            analysis = analyse(update, bracket)
            questions.update(analysis.questions)
            if settings.paths:
                tables["paths"] = {**identity, **analysis.nodes}
        return tables

    def _decided(self, tables: Tables, transition: int, decision: TokenDecisions | None) -> None:
        """What is only known at the end of the trip: the transition's number and the gate's decision."""
        for columns in tables.values():
            columns["transition"] = np.full(len(columns["row"]), transition)
        if decision is not None:
            tables["tokens"].update(gate_columns(decision, transition))

    def _depth(self, depth: int, found: Reading) -> Columns:
        layout = self._layout
        columns: Columns = {
            **identity_columns(layout),
            "depth": np.full(len(layout.questions), depth),
            "utility": found.utility_B,
        }
        if layout.is_options:
            bounds = np.cumsum([question.sequences for question in layout.questions])[:-1]

            def by_question(_: Columns, values_R: np.ndarray[Any, Any]) -> list[list[float]]:
                return [share.tolist() for share in np.split(values_R, bounds)]

            columns["option_scores"] = Later(by_question, found.scores_R)
            columns["option_logliks"] = Later(by_question, found.sums_R)
            columns["chosen_option"] = Later(_chosen_options)
        return columns


def _chosen_options(columns: Columns) -> list[int]:
    return [int(np.argmax(scores)) for scores in columns["option_scores"]]


class PendingTrip:
    """A batch whose numbers are on their way to the host.

    Attributes:
        repeated: after `finish`, whether the batch had to be measured again.
        ways_taken: after `finish`, tells how φ was computed.
        notes: and what there is to say about it.
    """

    def __init__(
        self,
        finite: Later,
        depths: Sequence[Columns],
        updates: Sequence[Tables],
        ways_taken: Callable[[], set[str]],
        notes: Callable[[], set[str]],
        again: Callable[[], Tables] | None = None,
    ) -> None:
        self._again, self.repeated, self.ways_taken, self.notes = again, False, ways_taken, notes
        self._depths = len(depths)
        self._names = [list(tables) for tables in updates]
        self._finite = Arrival([{"finite": finite}])
        self._arrival = Arrival([*depths, *(columns for tables in updates for columns in tables.values())])

    def finish(self) -> Tables:
        """The rows of the batch in every table but `examples`, as soon as they are here."""
        # First of all whether the states were finite at all: if not, no other calculation will help.
        self._finite.columns()
        if self._again is not None and not self._arrival.is_finite():
            self.repeated = True
            return self._again()
        landed = self._arrival.columns()
        tables: dict[str, list[Columns]] = {"depths": landed[: self._depths], "questions": []}
        columns = iter(landed[self._depths :])
        for names in self._names:
            for name in names:
                tables.setdefault(name, []).append(next(columns))
        return {name: stacked(found) for name, found in tables.items()}
