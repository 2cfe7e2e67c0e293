"""A run directory: where its files are, its commit records, and an opened run, read-only, of what was committed so far.

A unit counts if its record is there, matches its own digest and names this manifest. The record is written after the
unit's shards and holds their hashes. Nothing is parsed before its hash has matched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import ConfigDict, Field

from loopscope.errors import LoopscopeError, setting, text
from loopscope.limits import read_regular
from loopscope.store.manifest import (
    REQUESTED_BY,
    Manifest,
    SealedJson,
    Sha256,
    Stored,
    WorkUnit,
    decode_manifest,
    sha256_bytes,
    step_order,
)
from loopscope.store.schema import TABLES, Table
from loopscope.store.shards import arrow_schema, decode

PARTIAL = ".partial"
REPAIR = "the same `measure` command repairs it in place"
"""What mends damaged units, as the end of a message."""
SEALED_SINCE = 3
"""The schema version from which each line of the log, and the vocabulary, carry a hash; older ones are not read."""


class RunLayout:
    """The paths inside one run directory.

    Attributes:
        events: the log with times; no number depends on it.
        vocabulary: the text of every token id, for a run with a lens.
        verification: what `loopscope verify --bitwise` compared last.
        parts: what was saved of units that are being measured, so that a kill loses little of a long unit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "manifest.json"
        self.events = path / "events.jsonl"
        self.vocabulary = path / "vocabulary.json"
        self.verification = path / "verification.json"
        self.lock = path / ".loopscope.lock"
        self.parts = path / "partial"

    def record(self, unit: WorkUnit) -> Path:
        """The commit record of a unit."""
        return self.path / "units" / f"{unit.name}.json"

    def shard(self, table: str, unit: WorkUnit) -> Path:
        """The file of a unit in a table."""
        return self.path / table / f"{unit.name}.parquet"

    def part(self, unit: WorkUnit, manifest: Manifest, content: bytes) -> Path:
        """The file of some rows of a unit, whose name says that it is whole and of this run."""
        return self.parts / f"{unit.name}-{sha256_bytes(manifest.digest.encode() + content)}.zip"

    def unit_files(self) -> list[Path]:
        """Every record, then every shard, whatever unit they are of, partial ones included."""
        return [path for folder in ("units", *TABLES) for path in sorted((self.path / folder).glob("*.*"))]


Count = Annotated[int, Field(ge=0, le=2**50)]


class Shard(Stored):
    """One file of a unit: its rows of a table."""

    table: str
    rows: Count
    bytes: Count
    sha256: Sha256


class UnitRecord(SealedJson):
    """What was committed for one unit."""

    model_config = ConfigDict(extra="ignore")  # older records repeat the manifest

    unit: Count
    manifest_sha256: Sha256
    shards: tuple[Shard, ...]

    def shard(self, table: str) -> Shard:
        """The shard in one table."""
        return next(shard for shard in self.shards if shard.table == table)


class Vocabulary(SealedJson):
    """`vocabulary.json`: the text of every token id, from 0 on."""

    tokenizer_sha256: Sha256 | None
    texts: tuple[str, ...]


class DamageError(Exception):
    """Why a unit does not count; never shown as a traceback, for it is reported and mended."""


class NoRunError(LoopscopeError):
    """A folder without a manifest and without a record."""


def read_manifest(layout: RunLayout) -> Manifest:
    """The manifest of a run; one that is lost or damaged is named with its remedy."""
    try:
        return decode_manifest(read_regular(layout.manifest), str(layout.path))
    except (FileNotFoundError, NotADirectoryError) as error:
        if any((layout.path / "units").glob("*.json")):
            damage = "is gone"
        else:
            raise NoRunError(
                f"{layout.path} is not a run: it holds no manifest.json; name a folder that `loopscope measure` wrote"
            ) from error
    except (OSError, ValueError) as error:
        damage = f"is damaged ({error.strerror if isinstance(error, OSError) else error})"
    raise LoopscopeError(f"{layout.manifest} {damage}: put back a copy of it, or choose another {setting('output')}")


def read_records(
    layout: RunLayout, manifest: Manifest, *, contents: bool = False
) -> tuple[dict[int, UnitRecord], dict[int, str]]:
    """The records of the units that count, and why the other recorded units do not, by the number of the unit.

    Args:
        layout: of the run.
        manifest: of the run.
        contents: whether the hashes of all shards are checked, too.

    Raises:
        LoopscopeError: every sound record was measured under another manifest than this one.
    """
    recorded = {path.stem for path in (layout.path / "units").glob("*.json")}
    tables = [table.name for table in manifest.tables()]
    records: dict[int, UnitRecord] = {}
    damage: dict[int, str] = {}
    altered = False
    for unit in (unit for unit in manifest.units() if unit.name in recorded):
        try:
            record = UnitRecord.decode(read_regular(layout.record(unit)))
            if record.manifest_sha256 != manifest.digest:
                altered = True
                raise DamageError("the record belongs to another manifest")
            # An older run may hold tables that are gone since.
            if record.unit != unit.index or not {*tables} <= {shard.table for shard in record.shards}:
                raise DamageError("the record is of another unit or of other tables")
            for table in tables if contents else ():
                read_shard_bytes(layout, unit, record, table)
            records[unit.index] = record
        except DamageError as error:
            damage[unit.index] = str(error)
        except OSError as error:
            damage[unit.index] = f"the record cannot be read ({error.strerror})"
        except ValueError:
            damage[unit.index] = "the record does not match its own digest"
    if altered and not records:
        raise LoopscopeError(
            f"{layout.manifest} was altered (its records were measured under another one): put back a copy of it,"
            f" or choose another {setting('output')}"
        )
    return records, damage


def read_shard_bytes(layout: RunLayout, unit: WorkUnit, record: UnitRecord, table: str) -> bytes:
    """The bytes of a shard, which are those of its record; raises `DamageError` otherwise."""
    path = layout.shard(table, unit)
    try:
        data = read_regular(path, most=record.shard(table).bytes)
    except OSError as error:
        raise DamageError(f"{table}/{path.name} cannot be read ({error.strerror})") from error
    if sha256_bytes(data) != record.shard(table).sha256:
        raise DamageError(f"{table}/{path.name} does not match its hash")
    return data


_SEAL = b', "sha256": "'


def event_line(entry: Mapping[str, Any]) -> bytes:
    """A line of the log, which ends with the digest of the rest of it."""
    body = json.dumps(entry).encode()
    return body[:-1] + _SEAL + sha256_bytes(body).encode() + b'"}\n'


class StoredRun:
    """A run directory.

    Opening reads the manifest and the commit records; contents are read, and compared with their hashes, when asked
    for. A unit that was not measured yet is missing, not an error: an unfinished run can be studied. A unit that was
    measured and is damaged is an error of everything that reads, for a mean over the rest would be one of other rows.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(text("path", path))
        self.layout = RunLayout(self.path)
        self.manifest = read_manifest(self.layout)
        self.units = self.manifest.units()
        self.unit_records, self.damage = read_records(self.layout, self.manifest)

    @property
    def missing_units(self) -> tuple[WorkUnit, ...]:
        """The units that remain to be measured."""
        return tuple(unit for unit in self.units if unit.index not in self.unit_records)

    @property
    def present_units(self) -> tuple[WorkUnit, ...]:
        """The units that count, in order."""
        return tuple(unit for unit in self.units if unit.index in self.unit_records)

    @property
    def finished(self) -> bool:
        """Whether every unit counts."""
        self._require_sound()
        return len(self.unit_records) == len(self.units)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened and when, oldest first; what a kill left of a last line is left out.

        Raises:
            LoopscopeError: the log cannot be read, or a line does not match its digest.
        """
        path, events = self.layout.events, []
        if self.manifest.schema_version < SEALED_SINCE or not os.path.lexists(path):
            return []
        try:
            lines = read_regular(path).split(b"\n")[:-1]
        except OSError as error:
            raise LoopscopeError(f"cannot read {path} ({error.strerror}): move it away") from error
        for number, line in enumerate(lines, 1):
            body, _, digest = line.rpartition(_SEAL)
            if digest != sha256_bytes(body + b"}").encode() + b'"}':
                raise LoopscopeError(f"{path} is damaged in line {number}: remove that line, no number depends on it")
            events.append(json.loads(body + b"}"))
        return events

    @cached_property
    def records(self) -> pl.DataFrame:
        """The `questions` table: one row per example and transition."""
        return self.read("questions")

    @cached_property
    def depths(self) -> pl.DataFrame:
        """The `depths` table: one row per example and depth."""
        return self.read("depths")

    @cached_property
    def examples(self) -> pl.DataFrame:
        """The `examples` table: the texts."""
        return self.read("examples")

    @property
    def tokens(self) -> pl.LazyFrame:
        """The `tokens` table, scanned lazily; only in a run measured with token rows."""
        return self.scan("tokens")

    @property
    def paths(self) -> pl.LazyFrame:
        """The `paths` table, scanned lazily; only in a run measured with path samples."""
        return self.scan("paths")

    @property
    def trace(self) -> pl.LazyFrame:
        """The `trace` table, scanned lazily: every reference position after every loop; with `trace` only."""
        return self.scan("trace")

    @cached_property
    def certificates(self) -> pl.DataFrame | None:
        """The `certificates` table; None in a run that was measured without `certify`."""
        return self.read("certificates") if self.manifest.settings.get("certify") else None

    @cached_property
    def vocabulary(self) -> list[str] | None:
        """The text of every token id; None where the run has none, or none that carries its hash.

        Raises:
            LoopscopeError: the file is damaged.
        """
        path = self.layout.vocabulary
        if self.manifest.schema_version < SEALED_SINCE or not os.path.lexists(path):
            return None
        try:
            stored = Vocabulary.decode(read_regular(path))
        except (OSError, ValueError) as error:
            raise LoopscopeError(f"{path} is damaged: remove it and give the same `measure` command again") from error
        return list(stored.texts) if stored.tokenizer_sha256 == self.manifest.tokenizer_sha256 else None

    def read_shard(self, table: str, unit: WorkUnit) -> pa.Table:
        """The rows of one unit in one table."""
        declared = self._require(table)
        try:
            record = self.unit_records[unit.index]
            data = decode(declared, read_shard_bytes(self.layout, unit, record, table), self.manifest.schema_version)
            if len(data) != record.shard(table).rows:
                raise ValueError(f"it has {len(data)} rows instead of {record.shard(table).rows}")
            return data
        except DamageError as damage:
            raise self._damaged(str(damage)) from None
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(f"{table}/{unit.name}.parquet cannot be read ({error})") from error

    def scan(self, table: str) -> pl.LazyFrame:
        """A table as a lazy frame over its shards, which are read and checked when the frame is collected."""
        empty = pl.DataFrame(arrow_schema(self._require(table)).empty_table())

        def rows_of(unit: WorkUnit) -> pl.DataFrame:
            return pl.DataFrame(self.read_shard(table, unit))

        frames = [pl.defer(partial(rows_of, unit), schema=empty.schema) for unit in self.present_units]
        return pl.concat([empty.lazy(), *frames])

    def read(self, table: str) -> pl.DataFrame:
        """A whole table as a frame."""
        empty = arrow_schema(self._require(table)).empty_table()
        return pl.DataFrame(pa.concat_tables([empty, *(self.read_shard(table, unit) for unit in self.present_units)]))

    def _require_sound(self) -> None:
        if self.damage:
            (index, reason), *rest = self.damage.items()
            more = f" (and {len(rest)} more units)" if rest else ""
            raise self._damaged(f"unit {index:06d}: {reason}{more}")

    def _damaged(self, what: str) -> LoopscopeError:
        return LoopscopeError(f"{self.path} is damaged: {what}; {REPAIR}")

    def _require(self, table: str) -> Table:
        """The declaration of a table that this run has, and that can be read."""
        if not isinstance(table, str) or table not in TABLES:
            raise LoopscopeError(f"there is no table {table!r}: choose from {', '.join(TABLES)}")
        declared = TABLES[table]
        if declared not in self.manifest.tables():
            asked = setting(REQUESTED_BY.get(table, table), 2 if table == "longer_steps" else True)
            how = "this loopscope" if declared.since > self.manifest.schema_version else asked
            raise LoopscopeError(f"{self.path} was measured without {table}: measure again with {how}")
        self._require_sound()
        return declared

    def __repr__(self) -> str:
        tasks = ", ".join(f"{task.name} ({task.split})" for task in self.manifest.tasks)
        done = f"{len(self.unit_records)} of {len(self.units)} units"
        damaged = f", {len(self.damage)} damaged" if self.damage else ""
        return f"<Run {self.path}: {self.manifest.model.name} on {tasks}, level {self.manifest.level}, {done}{damaged}>"


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory."""
    return os.path.isfile(RunLayout(folder).manifest)  # also of a name that is too long


def runs_at(path: str | os.PathLike[str]) -> list[Path]:
    """A run directory as it is; of a folder that holds run directories, these in the order of their steps."""
    folder = Path(path)
    try:
        if is_run(folder) or not folder.is_dir():
            return [folder]
        inside = [entry for entry in folder.iterdir() if entry.is_dir() and is_run(entry)]
    except OSError as error:
        raise LoopscopeError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted(inside, key=lambda entry: step_order(entry.name)) or [folder]
