"""`loopscope verify`: does a run directory still hold, byte for byte and row for row, what its records say?"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from loopscope.errors import LoopscopeError
from loopscope.path import classify
from loopscope.store.hashing import ids_sha256
from loopscope.store.manifest import Manifest, WorkUnit
from loopscope.store.records import REPAIR, DamageError, UnitRecord, check_unit
from loopscope.store.run import VOCABULARY, StoredRun, read_events
from loopscope.store.schema import TABLES
from loopscope.store.shards import SchemaError, decode, unit_problems

_ROUNDING = 1e-6
"""How far a stored gain may be from the difference of the stored utilities, relative to them."""

_TRACE_ROUNDING = 1e-4
"""How far a log probability of the trace (float32) may be from the same one elsewhere, relative to 1 + its size."""

_REPAIRED_BY_MEASURING = frozenset({"missing", "damaged", "seal", "leftover"})
"""Kinds of findings that a writer sees too, and mends."""
_OF_ONE_UNIT = frozenset({"schema", "null", "value", "coverage", "consistency"})
"""Kinds about rows whose bytes are those of their record: a writer keeps them as long as the record stands."""


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    kind: str
    """`missing`, `damaged`, `schema`, `null`, `value`, `coverage`, `consistency`, `examples`, `seal`, `leftover`, or
    what a replay calls its own."""
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.message}"


class BitwiseCheck(NamedTuple):
    """What was computed again and compared bit for bit."""

    what: str
    of: str
    """What is counted: `batches` or `values`."""
    compared: int
    same: int
    largest: float
    """The largest difference of two numbers; 0 where all bits are the same."""
    first: str | None = None
    """Where the first difference is."""

    def __str__(self) -> str:
        counted = f"{self.same:,} of {self.compared:,} {self.of} the same bits"
        return f"{self.what}: {counted}, largest difference {self.largest:g}"


Replay = Callable[[StoredRun], Iterable[Finding]]
"""Measures a sample of a run again and reports what came out otherwise."""


@dataclass(frozen=True)
class Verification:
    """What was looked at and what was found."""

    findings: tuple[Finding, ...]
    units_checked: int
    units_planned: int
    rows: dict[str, int]
    """Rows read, by table."""
    replayed: bool
    bitwise: tuple[BitwiseCheck, ...] = ()
    """What was compared bit for bit, where that was asked for."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def advice(self) -> str:
        """What mends the findings, as the end of a sentence."""
        kinds = {finding.kind for finding in self.findings}
        if kinds <= _REPAIRED_BY_MEASURING:
            return REPAIR
        if kinds <= _REPAIRED_BY_MEASURING | _OF_ONE_UNIT:
            return "remove the records (units/NNNNNN.json) of the units named here, then " + REPAIR
        return "measure it again into another folder"

    def __repr__(self) -> str:
        found = "nothing wrong" if self.ok else f"{len(self.findings)} findings; {self.advice}"
        return f"<Verification: {self.units_checked} of {self.units_planned} units checked, {found}>"

    def _repr_html_(self) -> str:
        from loopscope.display import element, html_table

        said = element("p", repr(self).strip("<>"))
        if self.bitwise:
            heads = ["Compared bit for bit", "Of", "Compared", "Same", "Largest difference"]
            compared = [(c.what, c.of, c.compared, c.same, f"{c.largest:g}") for c in self.bitwise]
            said = element("div", said, html_table(heads, compared))
        lines = [(finding.kind, finding.where, finding.message) for finding in self.findings]
        return said if self.ok else element("div", said, html_table(["Finding", "Where", "What"], lines))


def verify(run: StoredRun | str | os.PathLike[str], replay: Replay | None = None) -> Verification:
    """Re-check hashes, counts, schema, missing and non-finite cells, coverage, example identity and the seal.

    Args:
        run: the run, or its directory.
        replay: called at the end if everything else holds; its findings are added.
    """
    if not isinstance(run, StoredRun):
        run = StoredRun(run)
    findings: list[Finding] = []
    rows = {table.name: 0 for table in run.manifest.tables()}
    ids: dict[tuple[str, str], list[str]] = {}
    checked = 0
    for unit in run.units:
        where = f"unit {unit.name}"
        try:
            record = check_unit(run.layout, unit, run.manifest)
        except DamageError as damage:
            kind = "damaged" if run.layout.record(unit).exists() else "missing"
            findings.append(Finding(kind, where, str(damage)))
            continue
        try:
            tables = {table: _read(run, unit, table) for table in rows}
        except (OSError, SchemaError, pa.ArrowException) as error:
            findings.append(Finding("schema", where, f"a shard cannot be read: {error}"))
            continue
        checked += 1
        findings += _contents(run.manifest, unit, record, tables)
        for table, data in tables.items():
            rows[table] += len(data)
        ids.setdefault((unit.task, unit.split), []).extend(tables["examples"].column("example_id").to_pylist())
    if checked == len(run.units):
        findings += _identity(run.manifest, ids)
        findings += _seal(run)
    findings += _side_files(run)
    findings += _leftovers(run)
    if replay is not None and not findings:
        findings += replay(run)
        return Verification(tuple(findings), checked, len(run.units), rows, replayed=True)
    return Verification(tuple(findings), checked, len(run.units), rows, replayed=False)


def _read(run: StoredRun, unit: WorkUnit, table: str) -> pa.Table:
    return decode(TABLES[table], run.layout.shard(table, unit).read_bytes(), run.manifest.schema_version)


def _contents(manifest: Manifest, unit: WorkUnit, record: UnitRecord, tables: dict[str, pa.Table]) -> list[Finding]:
    where = f"unit {unit.name}"
    found = [Finding(problem.kind, where, problem.message) for problem in unit_problems(manifest, unit, tables)]
    found += [
        Finding("coverage", where, f"{name} has {len(data)} rows, its record says {record.shard(name).rows}")
        for name, data in tables.items()
        if len(data) != record.shard(name).rows
    ]
    if found:
        return found
    found += _gains(where, tables["questions"])
    for name in ("questions", "tokens"):
        if name in tables:
            found += _outcomes(where, name, tables[name])
    if "trace" in tables:
        found += _trace(where, tables["trace"], tables["depths"], manifest.lens)
    return found


def _trace(where: str, trace: pa.Table, depths: pa.Table, lens: int) -> list[Finding]:
    """Log probabilities must add up to those of `depths`; ids, ranks and probabilities must fit each other."""
    found = []
    summed = trace.group_by(["row", "depth", "option"], use_threads=False).aggregate(
        [("log_prob", "sum"), ("log_prob", "count")]
    )
    keys = zip(*(summed.column(name).to_pylist() for name in ("row", "depth", "option")), strict=True)
    values = zip(summed.column("log_prob_sum").to_pylist(), summed.column("log_prob_count").to_pylist(), strict=True)
    by_key = dict(zip(keys, values, strict=True))
    wrong = 0
    for stored in depths.select(["row", "depth", "utility", "option_logliks"]).to_pylist():
        for option, log_likelihood in enumerate(stored["option_logliks"] or [None]):
            total, count = by_key.get((stored["row"], stored["depth"], option), (None, 0))
            if total is not None:  # depth 0 has no row in the trace
                expected = stored["utility"] * count if log_likelihood is None else log_likelihood
                wrong += abs(total - expected) > _TRACE_ROUNDING * (count + abs(expected))
    if wrong:
        found.append(Finding("consistency", where, f"trace.log_prob does not add up to depths in {wrong} sequences"))
    tops, top = trace.column("top_id").to_numpy(), trace.column("top_prob").to_numpy()
    if lens:
        ids = pc.list_flatten(trace.column("lens_ids")).to_numpy().reshape(-1, lens)
        probabilities = pc.list_flatten(trace.column("lens_probs")).to_numpy().reshape(-1, lens)
        first = (ids[:, 0] == tops) & (probabilities[:, 0] == top)
        ordered = (np.diff(probabilities, axis=1) <= 0).all(axis=1)
        rank, reference = trace.column("rank").to_numpy(), trace.column("token_id").to_numpy()
        listed = (ids == reference[:, None]).any(axis=1)
        bad = int(np.count_nonzero(~(first & ordered & (rank >= 1) & ((rank <= lens) | ~listed))))
        if bad:
            found.append(Finding("consistency", where, f"trace.lens_ids, lens_probs and rank differ in {bad} rows"))
    likelier = trace.column("log_prob").to_numpy() > np.log(top.astype(np.float64)) + _TRACE_ROUNDING
    if likelier.any():
        message = f"trace.log_prob is above that of the likeliest token in {int(likelier.sum())} rows"
        found.append(Finding("consistency", where, message))
    return found


def _outcomes(where: str, name: str, data: pa.Table) -> list[Finding]:
    """The stored class must be the one that the definition gives."""
    expected = classify(data.column("slope").to_numpy(), data.column("gain").to_numpy())
    wrong = int(np.count_nonzero(expected != data.column("outcome").to_numpy()))
    message = f"{name}.outcome is not the class of slope and gain in {wrong} rows"
    return [Finding("consistency", where, message)] if wrong else []


def _gains(where: str, questions: pa.Table) -> list[Finding]:
    """The gain must be the difference of the utilities, up to the rounding of the readout."""
    before, after, gain = (questions.column(name) for name in ("utility_before", "utility_after", "gain"))
    error = pc.abs(pc.subtract(pc.subtract(after, before), gain))
    allowed = pc.multiply(pc.add(pc.add(pc.abs(before), pc.abs(after)), 1.0), _ROUNDING)
    wrong = pc.sum(pc.greater(error, allowed)).as_py() or 0
    if wrong:
        return [Finding("consistency", where, f"gain is not utility_after − utility_before in {wrong} rows")]
    return []


def _identity(manifest: Manifest, ids: dict[tuple[str, str], list[str]]) -> list[Finding]:
    return [
        Finding("examples", f"{task.name} ({task.split})", "the example identifiers are not those of the manifest")
        for task in manifest.tasks
        if ids_sha256(ids.get((task.name, task.split), [])) != task.ids_sha256
    ]


def _seal(run: StoredRun) -> list[Finding]:
    # Opened anew: a run object may be older than what is on disk.
    try:
        if StoredRun(run.path).finished:
            return []
        state = "is not there"
    except LoopscopeError:
        state = "does not match the records"
    return [Finding("seal", "complete.json", f"{state}; the measuring command given again writes it")]


def _side_files(run: StoredRun) -> list[Finding]:
    findings = []
    for path, read in ((run.layout.events, read_events), (run.path / VOCABULARY, lambda _: run.vocabulary)):
        try:
            read(path)
        except LoopscopeError as error:
            findings.append(Finding("damaged", path.name, str(error)))
    return findings


def _leftovers(run: StoredRun) -> list[Finding]:
    found = [
        Finding(
            "leftover",
            path.relative_to(run.path).as_posix(),
            "an unfinished write; the next command removes it",
        )
        for path in run.layout.unit_files()
        if path.name.endswith(".partial")
    ]
    try:
        run.layout.require_no_strangers(run.manifest.shards, run.units)
    except LoopscopeError as error:
        found.append(Finding("leftover", str(run.path), str(error)))
    return found
