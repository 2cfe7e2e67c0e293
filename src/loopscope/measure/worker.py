"""One model replica that measures work units: rows of text in, columns of every table out.

A batch makes one trip of the model to the deepest loop; only two states are alive at a time. Depth by depth the
utility is read, and for every requested update t → t+1 everything that its level asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from loopscope.measure.batches import Question, collate, plan_batches
from loopscope.measure.columns import Columns, array, stacked
from loopscope.measure.fp64 import analyse
from loopscope.measure.gate import GateDecision, gate_trace
from loopscope.measure.layout import Layout
from loopscope.measure.memory import halving
from loopscope.measure.paths import sequence_path
from loopscope.measure.scalar_check import agrees, scalar_quadratic
from loopscope.measure.settings import Settings
from loopscope.measure.tokens import gate_columns, token_columns
from loopscope.measure.update import update_columns
from loopscope.measure.utility import utilities
from loopscope.models.protocol import LoopedModel
from loopscope.store.levels import Level

Tables = dict[str, Columns]


class Worker:
    """Measures the questions of a unit with one model."""

    def __init__(self, model: LoopedModel, settings: Settings, notice: Callable[[str], None]) -> None:
        self._model, self._settings, self._notice = model, settings, notice
        self._dtype = getattr(torch, settings.readout_dtype)

    def measure(self, questions: Sequence[Question]) -> Tables:
        """The tables of one unit; the order of their rows does not matter."""
        parts: list[Tables] = []
        for batch in plan_batches(questions, self._settings.batch):
            for tables in halving(self._measure_batch, batch, self._notice):
                number = np.full(len(tables["questions"].get("row", ())), len(parts))
                if len(number):
                    tables["questions"]["batch"] = number
                parts.append(tables)
        joined = {name: stacked([part[name] for part in parts]) for name in parts[0]}
        joined["examples"] = _examples(questions)
        return joined

    @torch.no_grad()
    def _measure_batch(self, questions: Sequence[Question]) -> Tables:
        settings, model = self._settings, self._model
        layout = Layout.of(questions, collate(questions), model.device)
        gate = gate_trace(model, settings.exit_threshold)
        deepest = settings.deepest
        if settings.tokens and gate is not None:
            deepest = max(deepest, model.trained_depth)
        updates: dict[int, Tables] = {}
        depths: list[Columns] = []
        context = model.embed(layout.batch)
        state = context.state
        for depth in range(deepest + 1):
            if depth > 0:
                proposed = model.step(state, context)
                if depth - 1 in settings.transitions:
                    updates[depth - 1] = self._update(state, proposed, layout)
                state = proposed
            if gate is not None:
                gate.see(depth, state)
            if depth in settings.depths:
                depths.append(self._depth(depth, state, layout))
        decision = None if gate is None else gate.decide()
        for transition, tables in updates.items():
            self._finish_update(tables, transition, layout, decision)
        found = {name: stacked([update[name] for update in updates.values()]) for name in self._update_tables()}
        return {"depths": stacked(depths), **found}

    def _update_tables(self) -> tuple[str, ...]:
        return (
            "questions",
            *(("tokens",) if self._settings.tokens else ()),
            *(("paths",) if self._settings.paths else ()),
        )

    def _update(self, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout) -> Tables:
        settings, model = self._settings, self._model
        questions = {
            **_identity(layout),
            **_lengths(layout),
            **update_columns(model, h_RSD, h_plus_RSD, layout, settings),
        }
        tables: Tables = {"questions": questions}
        if settings.level is not Level.QUICK:
            questions.update(self._scalar_checks(h_RSD, h_plus_RSD, layout, questions["quadratic"]))
        if settings.level is Level.FULL:
            analysis = analyse(model, h_RSD, h_plus_RSD, layout, nodes=settings.paths)
            questions.update(analysis.questions)
            if settings.paths:
                tables["paths"] = {"row": questions["row"], "example_id": questions["example_id"], **analysis.nodes}
        if settings.tokens:
            path = sequence_path(model, h_RSD, h_plus_RSD, layout, self._dtype)
            tables["tokens"] = token_columns(path, layout, settings)
        return tables

    def _scalar_checks(
        self, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, quadratic: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> Columns:
        scalars: list[float | None] = []
        passed: list[bool | None] = []
        for index, question in enumerate(layout.questions):
            if question.row >= self._settings.scalar_checks:
                scalars.append(None)
                passed.append(None)
                continue
            scalar = scalar_quadratic(self._model, h_RSD, h_plus_RSD, layout, index, self._dtype)
            scalars.append(scalar)
            passed.append(agrees(float(quadratic[index]), scalar))
        return {"scalar_quadratic": scalars, "scalar_check_passed": passed}

    def _finish_update(self, tables: Tables, transition: int, layout: Layout, decision: GateDecision | None) -> None:
        """What is only known at the end of the trip: the transition's number and the gate's decision."""
        for columns in tables.values():
            columns["transition"] = np.full(len(columns["row"]), transition)
        if decision is None:
            return
        continuing_R = (decision.continues(transition) & layout.batch.attention_mask).sum(1)
        if self._settings.level is not Level.QUICK:
            tables["questions"]["gate_continuing"] = array(layout.question_sum(continuing_R))
        if "tokens" in tables:
            tables["tokens"].update(gate_columns(decision, layout, transition))

    def _depth(self, depth: int, state_RSD: Tensor, layout: Layout) -> Columns:
        found = utilities(self._model, state_RSD, layout, self._dtype)
        columns = {
            **_identity(layout),
            "depth": np.full(len(layout.questions), depth),
            "utility": array(found.utility_B),
        }
        if layout.is_options:
            owner = array(layout.question_R)
            bounds = np.searchsorted(owner, np.arange(1, len(layout.questions)))
            scores = np.split(array(found.scores_R), bounds)
            columns["option_scores"] = [part.tolist() for part in scores]
            columns["option_logliks"] = [part.tolist() for part in np.split(array(found.sums_R), bounds)]
            columns["chosen_option"] = [int(part.argmax()) for part in scores]
        return columns


def _identity(layout: Layout) -> Columns:
    return {
        "row": np.asarray([q.row for q in layout.questions]),
        "example_id": [q.example.id for q in layout.questions],
        "source_row": np.asarray([q.example.source_row for q in layout.questions]),
    }


def _lengths(layout: Layout) -> Columns:
    examples = [q.example for q in layout.questions]
    columns: Columns = {
        "n_tokens": [example.prediction_count for example in examples],
        "n_positions": [sum(len(s.token_ids) for s in example.sequences) for example in examples],
        "batch_width": [layout.width] * len(examples),
        "difficulty": [_difficulty(question) for question in layout.questions],
    }
    if layout.is_options:
        columns["n_options"] = [len(example.sequences) for example in examples]
        columns["correct_option"] = [example.answer for example in examples]
    return columns


def _difficulty(question: Question) -> str | None:
    found = question.example.metadata.get("difficulty")
    return None if found is None else str(found)


def _examples(questions: Sequence[Question]) -> Columns:
    """The table of texts: what was asked, so that a run can be read without its data set."""
    rows = []
    for question in questions:
        example, text = question.example, question.text
        is_options = example.answer is not None
        metadata = {key: value for key, value in example.metadata.items() if key != "difficulty"}
        rows.append(
            {
                "row": question.row,
                "example_id": example.id,
                "source_row": example.source_row,
                "prompt": text.context,
                "reference": None if is_options else text.continuations[0],
                "options": list(text.continuations) if is_options else None,
                "correct_option": example.answer,
                "n_tokens": example.prediction_count,
                "n_positions": sum(len(s.token_ids) for s in example.sequences),
                "option_tokens": [len(s.positions) for s in example.sequences] if is_options else None,
                "difficulty": _difficulty(question),
                "metadata": json.dumps(metadata, sort_keys=True) if metadata else None,
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}
