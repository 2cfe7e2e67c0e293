"""A run measured again: a sample of its questions, or everything, compared bit for bit (`loopscope verify`).

A sample goes through `measure` into a scratch directory with the sources and settings of the run. Texts and tokens must
be equal, utilities and coefficients as far as the arithmetic lets them: the questions are in other batches, and device,
code and libraries may be others.

Everything is compared bit for bit, as the paper's appendices on transitions and on tokens do: every table, and for each
batch

- the **prefix**: the states of the first T loops, T being the exit gate's budget or the trained depth, as a pass that
  goes on beyond them has them, against one that ends there;
- the **selected states**: those that the exit policy reads out, picked from the whole trajectory, against a policy that
  decides after every loop from what it has seen so far; without a gate, the states at T.

Shapes: R sequences, S positions, D hidden width.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.measuring.batching import Question, collate, plan_batches
from loopscope.measuring.rerun import OTHER_SOURCES, Named, Sources, config_of, may_differ
from loopscope.measuring.run import run_config
from loopscope.models.exit_gate import ExitGate, exit_gate_of, state_at_exit
from loopscope.models.in_memory import borrowed
from loopscope.models.packing import Packing
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.store.manifest import Manifest, WorkUnit, differences
from loopscope.store.run import StoredRun
from loopscope.store.verification import Comparison, Finding, Replayed
from loopscope.tasks.encoding import LoadedTask

UTILITIES = "utilities at the stored depths"
_QUESTIONS = 4
"""Questions of each task in a sample, where batches are not larger."""
_EXACT = ("prompt", "reference", "options", "correct_option", "option", "token", "position", "token_id")
_NUMBERS = (
    "utility", "option_scores", "option_logliks", "utility_before", "utility_after", "gain", "slope", "quadratic",
    "grid_gain", "fp64_slope", "fp64_quadratic", "fp64_gain", "fp64_quarter_gain", "log_prob", "entropy", "state_norm",
    "step_norm",
)  # fmt: skip
"""What follows smoothly from the states; a bracket, a class or a rank may jump by a rounding error."""
_KEYS = ("task", "split", "row", "transition", "depth", "option", "token")
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-2}
"""By arithmetic, relative to 1 + |value|."""
_OF_ROWS = ("rows", "ids_sha256", "skipped")
"""What the manifest says of a task's rows; of a sample they are compared themselves."""


def measure_again(run: StoredRun, named: Named = Named(), *, everything: bool = False) -> Replayed:  # noqa: B008
    """Measure a sample of a sound run again, or everything.

    Args:
        run: the run.
        named: what the user names of its sources.
        everything: whether to compute everything again and compare it bit for bit.
    """
    try:
        with borrowed(named.model), tempfile.TemporaryDirectory() as scratch:
            return (_everything if everything else _sample)(run, named, scratch)
    except LoopscopeError as error:
        reason = str(error) if str(error).startswith(OTHER_SOURCES) else f"cannot be measured again: {error}"
        return Replayed((Finding("replay", str(run.path), reason),))


class Tally:
    """Pairs that should be the same bits, and how many are not."""

    def __init__(self, what: str, of: Literal["batches", "values"] = "values") -> None:
        self.what, self.of = what, of
        self.compared = self.differing = 0
        self.largest: float | None = 0.0
        self.first: str | None = None

    def add(self, compared: int, differing: int, largest: float | None, where: str) -> None:
        """More pairs, and the largest difference among them; None where they have other shapes or empty cells."""
        self.compared, self.differing = self.compared + compared, self.differing + differing
        self.largest = None if largest is None or self.largest is None else max(self.largest, largest)
        if differing and self.first is None:
            self.first = where

    def states(self, pairs: Sequence[tuple[Tensor, Tensor]], where: str) -> None:
        """The states of one batch, which counts once."""
        gaps = [float((new.double() - old.double()).abs().max()) for old, new in pairs if not _same_bits(old, new)]
        self.add(1, bool(gaps), max(gaps, default=0.0), where)

    def cells(self, old: pl.Series, new: pl.Series, where: str) -> None:
        """A column of a table, list elements one by one."""
        alike = True
        if old.dtype == pl.List:
            alike = old.is_null().equals(new.is_null())
            old, new = (each.drop_nulls().explode() for each in (old, new))
        count = max(len(old), len(new))
        if not alike or len(old) != len(new) or not old.is_null().equals(new.is_null()):
            self.add(count, count, None, where)
        elif old.dtype.is_float():
            one, other = (each.drop_nulls().to_numpy() for each in (old, new))
            bits = np.int64 if one.dtype.itemsize == 8 else np.int32
            differing = int(np.count_nonzero(one.view(bits) != other.view(bits)))
            gap = float(np.abs(other.astype(np.float64) - one).max()) if differing else 0.0
            self.add(count, differing, gap, where)
        else:
            self.add(count, count - int((old == new).sum()) - old.null_count(), 0.0, where)

    @property
    def comparison(self) -> Comparison:
        """The result."""
        return Comparison(
            what=self.what,
            of=self.of,
            compared=self.compared,
            differing=self.differing,
            largest=self.largest,
            first=self.first,
        )


def _same_bits(old: Tensor, new: Tensor) -> bool:
    return torch.equal(*(tensor.contiguous().view(-1).view(torch.uint8) for tensor in (old, new)))


def _sample(run: StoredRun, named: Named, scratch: str) -> Replayed:
    samples = _samples(run)
    rows = {key: frozenset(frame["source_row"]) for key, frame in samples.items()}
    config = config_of(run, named).model_copy(update={"sample": rows})
    given = {task.name for task in config.tasks if isinstance(task, LoadedTask)}  # from the run itself

    def check(wanted: Manifest) -> None:
        for entry in differences(run.manifest, wanted):
            kind, _, rest = entry.field.partition(".")
            of_rows = kind == "task" and (rest.endswith(_OF_ROWS) or rest.partition("/")[0] in given)
            if not of_rows and not entry.field.startswith((*may_differ(run.manifest), "batch.")):
                raise LoopscopeError(f"{OTHER_SOURCES}: {entry}")

    chosen = pl.concat(samples.values()).select("task", "split", "row")
    again = StoredRun(run_config(config, scratch, check=check))
    dtypes = run.manifest.dtypes
    tolerance = max(_TOLERANCES.get(dtype, 5e-2) for dtype in (dtypes.states, dtypes.readout))
    utilities = Tally(UTILITIES)
    findings: list[Finding] = []
    for table in run.manifest.tables():
        lazy = run.scan(table.name).join(chosen.lazy(), ["task", "split", "row"], "semi")
        keys = [name for name in _KEYS if name in table.names]
        stored, measured = lazy.collect().sort(keys), again.read(table.name).sort(keys)
        findings += _differences(table.name, stored, measured, tolerance)
        if table.name == "depths":
            utilities.cells(stored["utility"], measured["utility"], "depths.utility")
    return Replayed(tuple(findings), (utilities.comparison,), again.manifest.device)


def _samples(run: StoredRun) -> dict[tuple[str, str], pl.DataFrame]:
    """Neighbouring questions of every task, the same for the same run; whole batches where these have a fixed size."""
    chance = random.Random(run.manifest.digest)
    size = run.manifest.batch.size or _QUESTIONS
    size *= -(-_QUESTIONS // size)
    samples = {}
    for task in run.manifest.tasks:
        examples = run.examples.filter(pl.col("task") == task.name, pl.col("split") == task.split).sort("row")
        start = chance.randrange(0, len(examples), size)
        samples[task.name, task.split] = examples[start : start + size]
    return samples


def _differences(table: str, stored: pl.DataFrame, measured: pl.DataFrame, tolerance: float) -> Iterator[Finding]:
    """One finding for each column whose cells do not agree."""
    if len(stored) != len(measured):
        yield Finding("replay", table, f"{len(measured)} rows instead of {len(stored)}")
        return
    for name in stored.columns:
        if name in _EXACT and not stored[name].equals(measured[name]):
            yield Finding("replay", f"{table}.{name}", "other values")
        if name not in _NUMBERS:
            continue
        old, new = (
            frame[name].explode() if frame[name].dtype == pl.List else frame[name] for frame in (stored, measured)
        )
        if len(old) != len(new) or not old.is_null().equals(new.is_null()):
            yield Finding("replay", f"{table}.{name}", "other cells are empty")
            continue
        gap = (new - old).abs().fill_null(0.0)
        worst = (gap / (1.0 + old.abs().fill_null(0.0))).arg_max()
        if worst is not None and not gap[worst] <= tolerance * (1.0 + abs(old[worst] or 0.0)):
            yield Finding("replay", f"{table}.{name}", f"{new[worst]!r} instead of {old[worst]!r}")


def _everything(run: StoredRun, named: Named, scratch: str) -> Replayed:
    sources = Sources.of(run, named)
    sources.check()
    walks = _Walks(sources)
    for unit in run.units:
        walks.unit(unit)
    again = StoredRun(run_config(sources.config, scratch))
    utilities = Tally(UTILITIES)
    tallies = [walks.prefix, walks.selected, utilities]
    for table in run.manifest.tables():
        tallies.append(Tally(f"the table {table.name}"))
        for unit in run.units:
            old, new = (pl.DataFrame(each.read_shard(table.name, unit)) for each in (run, again))
            for name in table.names:
                tallies[-1].cells(old[name], new[name], f"unit {unit.name}, {table.name}.{name}")
            if table.name == "depths":
                utilities.cells(old["utility"], new["utility"], f"unit {unit.name}")
    comparisons = tuple(tally.comparison for tally in tallies)
    other = "; ".join(map(str, sources.differences[:3]))
    why = f"; not as it was: {other}" if other else ""
    findings = tuple(Finding("replay", each.first or "", f"{each}{why}") for each in comparisons if each.differing)
    return Replayed(findings, comparisons, again.manifest.device, whole=True)


class _Walks:
    """States of the run's batches, computed in two ways."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._settings = sources, sources.config
        settings = self._settings
        self._encoder = sources.encoder(spans=False, share=settings.share_context)
        self._gate = gate = exit_gate_of(sources.model)
        self._loops = loops = sources.model.trained_depth if gate is None else gate.budget
        self._further = further = max(settings.deepest, loops + 1)
        selects = f"the states at depth {loops}" if gate is None else "the states that the exit gate selects"
        self.prefix = Tally(f"the first {loops} loops, alone and on the way to {further}", "batches")
        self.selected = Tally(selects, "batches")

    @torch.no_grad()
    def unit(self, unit: WorkUnit) -> None:
        """Compare a unit, in the batches of the run."""
        planned = self._sources.prepared.task_of(unit)
        questions = self._encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        for number, batch in enumerate(plan_batches(questions, self._settings.batch)):
            self._batch(batch, f"unit {unit.name}, batch {number}")

    def _batch(self, batch: Sequence[Question], where: str) -> None:
        model = self._sources.model
        packing = collate(batch, self._settings.batch).to(model.device)
        states = walked(model, packing, self._loops, self._further)
        alone = walked(model, packing, self._loops, self._loops)
        self.prefix.states(list(zip(states, alone, strict=True)), where)
        if self._gate is None:
            self.selected.states([(states[-1], alone[-1])], where)
            return
        limit = self._settings.exit_threshold
        limit = self._gate.threshold if limit is None else limit
        self.selected.states([(selected(self._gate, limit, states), acted(self._gate, limit, alone))], where)


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
    """The same by a policy that decides after every loop, without the later ones."""
    seen: list[Tensor] = []
    exit_RSD, left_RS = states[-1].clone(), torch.ones(states[0].shape[:2], dtype=torch.bool, device=states[0].device)
    for state in states[:-1]:
        seen.append(gate.logits(state, None))
        # What follows decides nothing here: the last entry stands for it.
        compared = gate.compared([*seen, seen[-1]])[..., len(seen) - 1]
        stops = left_RS & (compared >= threshold if gate.rule == "cdf" else compared > threshold)
        exit_RSD = torch.where(stops.unsqueeze(-1), state, exit_RSD)
        left_RS = left_RS & ~stops
    return exit_RSD
