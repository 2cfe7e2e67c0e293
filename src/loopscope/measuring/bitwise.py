"""`loopscope verify --bitwise RUN`: everything computed again, batch by batch, and compared bit for bit.

As the paper's appendices on transitions and on tokens do, and for every number that a run holds:

- the **prefix**: the states of the first T loops, T being the exit gate's budget or the trained depth, as a pass that
  goes on beyond them has them, against a walk that ends there;
- the **selected states**: those that the exit policy reads out, picked from the whole trajectory, against a walk that
  decides at every loop from what it has seen so far; without a gate, the states at T;
- the **kept states** and what goes with them, where the run has some (`keep_states=`);
- every **table** of the run, cell by cell.

Shapes: R sequences, S positions, D hidden width.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.measuring.depth_pass import Trip
from loopscope.measuring.layout import Question, collate, example_columns, plan_batches
from loopscope.measuring.own_answers import own_answers
from loopscope.measuring.replay import STRANGE, Sources, request_of, stored_rows
from loopscope.measuring.stored_states import Midway, StoredStates
from loopscope.measuring.transfer import length
from loopscope.models.exit_gate import ExitGate, exit_gate_of, state_at_exit
from loopscope.models.in_memory import ModelSpec, borrowed
from loopscope.models.packing import Packing
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.store.column_types import Column
from loopscope.store.run import StoredRun
from loopscope.store.run_directory import STATES, WorkUnit
from loopscope.store.shards import constants, to_arrow
from loopscope.store.verification import BitwiseCheck, Finding


class Tally:
    """Pairs that should be the same bits, and how many are."""

    def __init__(self, what: str, of: str) -> None:
        self.what, self.of = what, of
        self.compared = self.same = 0
        self.largest = 0.0
        self.first: str | None = None

    def see(self, pairs: Sequence[tuple[Tensor, Tensor]], where: str) -> None:
        """Tensors of one batch, which counts once."""
        gaps = [_gap(old, new) for old, new in pairs if not _same_bits(old, new)]
        self.count(1, int(not gaps), max(gaps, default=0.0), where)

    def count(self, compared: int, same: int, largest: float, where: str) -> None:
        """So many more."""
        self.compared, self.same = self.compared + compared, self.same + same
        self.largest = max(self.largest, largest)
        if same < compared and self.first is None:
            self.first = where

    @property
    def check(self) -> BitwiseCheck:
        """What was found."""
        return BitwiseCheck(self.what, self.of, self.compared, self.same, self.largest, self.first)


def _same_bits(old: Tensor, new: Tensor) -> bool:
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    return torch.equal(*(tensor.contiguous().view(-1).view(torch.uint8) for tensor in (old, new)))


def _gap(old: Tensor, new: Tensor) -> float:
    if old.shape != new.shape:
        return float("inf")
    return float((new.double() - old.double()).abs().max()) if old.numel() else 0.0


class Bitwise:
    """A replay for `store.verify` that compares bits; `checks` then tells what was compared.

    Args are those of `replay`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        device: str | None = None,
        model: ModelSpec | None = None,
        tokenizer: Any = None,
    ) -> None:
        self._sources = (data_dir, device, model, tokenizer)
        self.checks: tuple[BitwiseCheck, ...] = ()

    def __call__(self, run: StoredRun) -> list[Finding]:
        """Findings of a run whose records are sound."""
        try:
            with borrowed(self._sources[2]):
                return list(self._compare(run))
        except LoopscopeError as error:
            return [Finding("bitwise", str(run.path), f"cannot be measured again: {error}")]

    def _compare(self, run: StoredRun) -> Iterator[Finding]:
        sources = Sources.of(run, request_of(run, *self._sources))
        if sources.refused:
            yield from (Finding("bitwise", str(run.path), f"{STRANGE}: {entry}") for entry in sources.refused)
            return
        comparison = _Comparison(run, sources)
        for unit in run.units:
            comparison.unit(unit)
        self.checks = tuple(tally.check for tally in comparison.tallies)
        other = "; ".join(map(str, sources.differences[:3]))
        for check in self.checks:
            if check.same < check.compared:
                missed = f"{check.compared - check.same:,} of {check.compared:,} {check.of} differ"
                why = f"; not as it was: {other}" if other else ""
                yield Finding("bitwise", check.first or "", f"{check.what}: {missed}, by up to {check.largest:g}{why}")


class _Comparison:
    """The tallies of a run."""

    def __init__(self, run: StoredRun, sources: Sources) -> None:
        self._run, self._sources, self._settings = run, sources, sources.request.settings
        settings = self._settings
        self._encoder = sources.encoder(spans=settings.spans, share=settings.share_context)
        self._answers = own_answers(sources.model, sources.tokenizer, settings)
        gate = exit_gate_of(sources.model)
        loops = sources.model.trained_depth if gate is None else gate.budget
        further = max(settings.deepest, loops + 1)
        selects = f"the states at depth {loops}" if gate is None else "the states that the exit gate selects"
        self._gate, self._loops, self._further = gate, loops, further
        self._prefix = Tally(f"the first {loops} loops, alone and on the way to {further}", "batches")
        self._selected = Tally(selects, "batches")
        keeps = STATES in run.manifest.shards
        self._kept = Tally(f"the kept states at depth {settings.keep_states}", "batches") if keeps else None
        self._tables = {table.name: Tally(f"the table {table.name}", "values") for table in run.manifest.tables()}

    @property
    def tallies(self) -> list[Tally]:
        kept = [] if self._kept is None else [self._kept]
        return [self._prefix, self._selected, *kept, *self._tables.values()]

    def unit(self, unit: WorkUnit) -> None:
        """Compare a unit, in the batches of the run."""
        planned = self._sources.prepared.task_of(unit)
        questions = self._encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        questions = questions if self._answers is None else self._answers(questions)
        stored = None if self._kept is None else StoredStates(self._run.states(unit))
        batches = plan_batches(questions, self._settings.batch) if stored is None else stored.batches(questions)
        for number, batch in enumerate(batches):
            where = f"unit {unit.name}, batch {number}"
            self._walks(batch, where)
            trip = Trip(self._sources.model, self._settings, batch).launch()
            tables = {**trip.finish(), "examples": example_columns(batch)}
            if self._settings.transitions:
                tables["questions"]["batch"] = [number] * length(tables["questions"])
            if self._kept is not None and stored is not None and trip.kept is not None:
                self._kept.see(_pairs(stored.midway(batch), trip.kept), where)
            self._cells(unit, batch, tables, where)

    @torch.no_grad()
    def _walks(self, batch: Sequence[Question], where: str) -> None:
        model = self._sources.model
        packing = collate(batch, self._settings.batch).to(model.device)
        states = walked(model, packing, self._loops, self._further)
        alone = walked(model, packing, self._loops, self._loops)
        self._prefix.see(list(zip(states, alone, strict=True)), where)
        if self._gate is None:
            self._selected.see([(states[-1], alone[-1])], where)
            return
        limit = self._settings.exit_threshold
        limit = self._gate.threshold if limit is None else limit
        self._selected.see([(selected(self._gate, limit, states), acted(self._gate, limit, alone))], where)

    def _cells(self, unit: WorkUnit, batch: Sequence[Question], tables: dict[str, Any], where: str) -> None:
        rows = sorted(question.row for question in batch)
        fixed = constants(self._run.manifest, unit)
        for table in self._run.manifest.tables():
            old, new = stored_rows(self._run, unit, table.name, rows), to_arrow(table, tables[table.name], fixed)
            for column in table.columns:
                found = _same_cells(column, old.column(column.name), new.column(column.name))
                self._tables[table.name].count(*found, f"{where}, {table.name}.{column.name}")


def walked(model: LoopedModel, packing: Packing, loops: int, further: int) -> list[Tensor]:
    """The states of the first loops, one sequence to a row, looked at after the walk has gone further."""
    walk = Walk.of(model, packing.batch)
    states = [walk.advance() for _ in range(loops)]
    walk.to(further)
    return [packing.separate(state) for state in states]


def selected(gate: ExitGate, threshold: float, states: Sequence[Tensor]) -> Tensor:
    """The states that the policy reads out, once the whole trajectory is there."""
    compared = gate.compared([gate.logits(state, None) for state in states])
    return state_at_exit(states, gate.exit_depth(compared, threshold))


def acted(gate: ExitGate, threshold: float, states: Sequence[Tensor]) -> Tensor:
    """The same by a policy that decides after every loop, knowing nothing of the later ones."""
    seen: list[Tensor] = []
    found_RSD, left_RS = states[-1].clone(), torch.ones(states[0].shape[:2], dtype=torch.bool, device=states[0].device)
    for state in states[:-1]:
        seen.append(gate.logits(state, None))
        # What follows decides nothing here: the last entry stands for it.
        compared = gate.compared([*seen, seen[-1]])[..., len(seen) - 1]
        stops = left_RS & (compared >= threshold if gate.rule == "cdf" else compared > threshold)
        found_RSD = torch.where(stops.unsqueeze(-1), state, found_RSD)
        left_RS = left_RS & ~stops
    return found_RSD


def _pairs(stored: Midway | None, made: Midway) -> list[tuple[Tensor, Tensor]]:
    """Tensors by name; one that is missing differs."""
    if made.sent is not None:
        made.sent.synchronize()
    old, new = {} if stored is None else stored.tensors, made.tensors
    none = torch.zeros(0)
    return [(old.get(name, none), new.get(name, none)) for name in sorted({*old, *new})]


def _same_cells(column: Column, stored: Any, measured: Any) -> tuple[int, int, float]:
    """How many values a column has, how many of them are the same bits, and the largest difference of numbers."""
    old, new = (pc.list_flatten(values) if column.type.is_list else values for values in (stored, measured))
    count = max(len(old), len(new))
    if len(old) != len(new) or not pc.is_null(old).equals(pc.is_null(new)):
        return count, 0, float("inf")
    if not column.type.is_float:
        same = sum(one == other for one, other in zip(old.to_pylist(), new.to_pylist(), strict=True))
        return count, same, 0.0
    one, other = (np.ascontiguousarray(values.drop_null().to_numpy()) for values in (old, new))
    bits = np.int64 if one.dtype.itemsize == 8 else np.int32
    different = int(np.count_nonzero(one.view(bits) != other.view(bits)))
    gap = float(np.abs(other.astype(np.float64) - one).max()) if different else 0.0
    return count, count - different, gap
