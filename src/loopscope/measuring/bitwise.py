"""`loopscope verify --bitwise RUN`: everything computed again, batch by batch, and compared bit for bit.

As the paper's appendices on transitions and on tokens do, and for every number that a run holds:

- the **prefix**: the states of the first T loops, T being the exit gate's budget or the trained depth, as a pass that
  goes on beyond them has them, against a walk that ends there;
- the **selected states**: those that the exit policy reads out, picked from the whole trajectory, against a walk that
  decides at every loop from what it has seen so far; without a gate, the states at T;
- every **table** of the run, cell by cell.

Shapes: R sequences, S positions, D hidden width.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.measuring.layout import Question, collate, plan_batches
from loopscope.measuring.rerun import OTHER_SOURCES, Named, Sources
from loopscope.measuring.run import run_request
from loopscope.models.exit_gate import ExitGate, exit_gate_of, state_at_exit
from loopscope.models.in_memory import borrowed
from loopscope.models.packing import Packing
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.store.manifest import WorkUnit
from loopscope.store.run import StoredRun
from loopscope.store.schema import Column
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
    """A replay for `store.verify` that compares bits; `checks` then says what was compared."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self.checks: tuple[BitwiseCheck, ...] = ()

    def __call__(self, run: StoredRun) -> list[Finding]:
        """Findings of a run whose records are sound."""
        try:
            with borrowed(self._named.model):
                return list(self._compare(run))
        except LoopscopeError as error:
            return [Finding("bitwise", str(run.path), f"cannot be measured again: {error}")]

    def _compare(self, run: StoredRun) -> Iterator[Finding]:
        sources = Sources.of(run, self._named)
        if sources.refused:
            yield from (Finding("bitwise", str(run.path), f"{OTHER_SOURCES}: {entry}") for entry in sources.refused)
            return
        walks = _Walks(sources)
        for unit in run.units:
            walks.unit(unit)
        with tempfile.TemporaryDirectory() as scratch:
            again = StoredRun(run_request(sources.request, scratch))
            tables = [_same_table(run, again, table.name) for table in run.manifest.tables()]
        self.checks = tuple(tally.check for tally in (walks.prefix, walks.selected, *tables))
        other = "; ".join(map(str, sources.differences[:3]))
        for check in self.checks:
            if check.same < check.compared:
                missed = f"{check.compared - check.same:,} of {check.compared:,} {check.of} differ"
                why = f"; not as it was: {other}" if other else ""
                yield Finding("bitwise", check.first or "", f"{check.what}: {missed}, by up to {check.largest:g}{why}")


def _same_table(run: StoredRun, again: StoredRun, name: str) -> Tally:
    tally = Tally(f"the table {name}", "values")
    (table,) = (entry for entry in run.manifest.tables() if entry.name == name)
    for unit in run.units:
        old, new = run.read_shard(name, unit), again.read_shard(name, unit)
        for column in table.columns:
            found = _same_cells(column, old.column(column.name), new.column(column.name))
            tally.count(*found, f"unit {unit.name}, {name}.{column.name}")
    return tally


class _Walks:
    """States of the run's batches, computed in two ways."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._settings = sources, sources.request.settings
        settings = self._settings
        self._encoder = sources.encoder(spans=False, share=settings.share_context)
        gate = exit_gate_of(sources.model)
        loops = sources.model.trained_depth if gate is None else gate.budget
        further = max(settings.deepest, loops + 1)
        selects = f"the states at depth {loops}" if gate is None else "the states that the exit gate selects"
        self._gate, self._loops, self._further = gate, loops, further
        self.prefix = Tally(f"the first {loops} loops, alone and on the way to {further}", "batches")
        self.selected = Tally(selects, "batches")

    def unit(self, unit: WorkUnit) -> None:
        """Compare a unit, in the batches of the run."""
        planned = self._sources.prepared.task_of(unit)
        questions = self._encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        for number, batch in enumerate(plan_batches(questions, self._settings.batch)):
            self._walks(batch, f"unit {unit.name}, batch {number}")

    @torch.no_grad()
    def _walks(self, batch: Sequence[Question], where: str) -> None:
        model = self._sources.model
        packing = collate(batch, self._settings.batch).to(model.device)
        states = walked(model, packing, self._loops, self._further)
        alone = walked(model, packing, self._loops, self._loops)
        self.prefix.see(list(zip(states, alone, strict=True)), where)
        if self._gate is None:
            self.selected.see([(states[-1], alone[-1])], where)
            return
        limit = self._settings.exit_threshold
        limit = self._gate.threshold if limit is None else limit
        self.selected.see([(selected(self._gate, limit, states), acted(self._gate, limit, alone))], where)


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
