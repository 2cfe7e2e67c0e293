"""One trip of a batch to the deepest loop: two states alive at a time, everything read on the way.

Depth by depth the utility is read, and for every requested update t → t+1 everything that its level asks for.

Shapes: R sequences, S positions, D hidden width, B questions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from loopscope._errors import LoopscopeError
from loopscope.measure.batches import Question, collate
from loopscope.measure.columns import Columns, array, stacked
from loopscope.measure.examples import identity_columns, length_columns
from loopscope.measure.fp64 import analyse
from loopscope.measure.gate import GateDecision, GateTrace, gate_trace
from loopscope.measure.layout import Layout
from loopscope.measure.paths import update_paths
from loopscope.measure.scalar_check import scalar_check_columns
from loopscope.measure.settings import Settings
from loopscope.measure.tokens import gate_columns, token_columns
from loopscope.measure.update import update_columns
from loopscope.measure.utility import Reading, read
from loopscope.models.protocol import LoopedModel
from loopscope.store.levels import Level

Tables = dict[str, Columns]


class Trip:
    """A batch on its way through the loops of a model."""

    def __init__(self, model: LoopedModel, settings: Settings, questions: Sequence[Question]) -> None:
        self._model, self._settings = model, settings
        self._dtype: torch.dtype = getattr(torch, settings.readout_dtype)
        self._packing = collate(questions).to(model.device)
        self._layout = Layout.of(questions, self._packing.sequences, model.device)

    @torch.no_grad()
    def run(self) -> Tables:
        """The rows of the batch in every table but `examples`."""
        settings, model, layout = self._settings, self._model, self._layout
        gate = self._gate()
        deepest = settings.deepest
        if settings.tokens and gate is not None:
            deepest = max(deepest, model.trained_depth)
        updates: dict[int, Tables] = {}
        depths: list[Columns] = []
        context = model.embed(self._packing.batch)
        state, before, running = context.state, None, context.state
        for depth in range(deepest + 1):
            running = running if depth == 0 else model.step(running, context)
            proposed = self._packing.separate(running)
            if depth - 1 in settings.transitions:
                assert before is not None, "both ends of a transition are among the depths"
                self._check_finite(proposed, depth)
                updates[depth - 1] = self._update(state, proposed, before)
            state = proposed
            if gate is not None:
                gate.see(depth, state)
            before = None
            if depth in settings.depths:
                self._check_finite(state, depth)
                before = read(model, state, layout, self._dtype)
                depths.append(self._depth(depth, before))
        decision = None if gate is None else gate.decide()
        for transition, tables in updates.items():
            self._finish_update(tables, transition, decision)
        names = ("questions", *(["tokens"] if settings.tokens else []), *(["paths"] if settings.paths else []))
        return {
            "depths": stacked(depths),
            **{name: stacked([tables[name] for tables in updates.values()]) for name in names},
        }

    def _gate(self) -> GateTrace | None:
        wanted = self._settings.tokens or (self._settings.level is not Level.QUICK and self._settings.transitions)
        return gate_trace(self._model, self._settings.exit_threshold) if wanted else None

    def _check_finite(self, state_RSD: Tensor, depth: int) -> None:
        """Name the question whose state overflowed, instead of letting a NaN travel on."""
        finite_RS = state_RSD.isfinite().all(2) | ~self._layout.batch.attention_mask
        if bool(finite_RS.all()):
            return
        row = int(torch.nonzero(~finite_RS.all(1))[0, 0])
        question = self._layout.questions[int(self._layout.question_R[row])]
        raise LoopscopeError(
            f"{self._model.name} has no finite state for question {question.example.id} at depth {depth}:"
            " try --dtype float32, fewer loops, or leave the question out"
        )

    def _update(self, h_RSD: Tensor, h_plus_RSD: Tensor, before: Reading) -> Tables:
        settings, model, layout = self._settings, self._model, self._layout
        paths = update_paths(model, h_RSD, h_plus_RSD, layout, self._dtype, before)
        questions: Columns = {
            **identity_columns(layout),
            **length_columns(layout),
            **update_columns(model, h_RSD, h_plus_RSD, layout, settings, paths, before),
        }
        tables: Tables = {"questions": questions}
        if settings.level is not Level.QUICK:
            checked = [question.row < settings.scalar_checks for question in layout.questions]
            questions.update(
                scalar_check_columns(model, h_RSD, h_plus_RSD, layout, self._dtype, questions["quadratic"], checked)
            )
        if settings.tokens:
            tables["tokens"] = token_columns(paths.tokens, layout, settings)
        if settings.level is Level.FULL:
            del paths
            analysis = analyse(model, h_RSD, h_plus_RSD, layout)
            questions.update(analysis.questions)
            if settings.paths:
                tables["paths"] = {"row": questions["row"], "example_id": questions["example_id"], **analysis.nodes}
        return tables

    def _finish_update(self, tables: Tables, transition: int, decision: GateDecision | None) -> None:
        """What is only known at the end of the trip: the transition's number and the gate's decision."""
        for columns in tables.values():
            columns["transition"] = np.full(len(columns["row"]), transition)
        if decision is None:
            return
        continuing_R = (decision.continues(transition) & self._layout.batch.attention_mask).sum(1)
        if self._settings.level is not Level.QUICK:
            counted = array(self._layout.question_sum(continuing_R.double()))
            tables["questions"]["gate_continuing"] = counted.astype(np.int32)
        if "tokens" in tables:
            tables["tokens"].update(gate_columns(decision, self._layout, transition))

    def _depth(self, depth: int, found: Reading) -> Columns:
        layout = self._layout
        columns = {
            **identity_columns(layout),
            "depth": np.full(len(layout.questions), depth),
            "utility": array(found.utility_B),
        }
        if layout.is_options:
            bounds = np.cumsum(array(layout.sequences_B))[:-1]
            scores = np.split(array(found.scores_R), bounds)
            columns["option_scores"] = [part.tolist() for part in scores]
            columns["option_logliks"] = [part.tolist() for part in np.split(array(found.sums_R), bounds)]
            columns["chosen_option"] = [int(part.argmax()) for part in scores]
        return columns
