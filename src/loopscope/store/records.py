"""Where everything is in a run directory, its commit records, and what makes a unit count.

A unit counts if its record is there, matches its own digest and names this manifest. The record is written after the
unit's shards and holds their hashes. Nothing is parsed before its hash has matched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from loopscope.errors import LoopscopeError, setting
from loopscope.limits import read_regular
from loopscope.store.hashing import SealedJson, Sha256, Stored, sha256_bytes
from loopscope.store.manifest import Manifest, WorkUnit, decode_manifest
from loopscope.store.schema import SCHEMA_VERSION, TABLES

REPAIR = "the same `measure` command repairs it in place"
"""What mends damaged units, as the end of a message."""


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

    def recorded(self) -> set[str]:
        """The names of the units that have a record, sound or not."""
        return {path.stem for path in (self.path / "units").glob("*.json")}


Count = Annotated[int, Field(ge=0, le=2**50)]


class Shard(Stored):
    """One file of a unit: its rows of a table."""

    table: str
    rows: Count
    bytes: Count
    sha256: Sha256


class UnitRecord(SealedJson):
    """What was committed for one unit."""

    schema_version: Count = SCHEMA_VERSION
    unit: Count
    task: str
    split: str
    start: Count
    stop: Count
    manifest_sha256: Sha256
    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, unit: WorkUnit, manifest: Manifest, shards: Sequence[Shard]) -> UnitRecord:
        """The record of a unit that was measured under a manifest."""
        return cls(
            unit=unit.index,
            task=unit.task,
            split=unit.split,
            start=unit.start,
            stop=unit.stop,
            manifest_sha256=manifest.digest,
            shards=tuple(shards),
        )

    def shard(self, table: str) -> Shard:
        """The shard in one table."""
        return next(shard for shard in self.shards if shard.table == table)


class DamageError(Exception):
    """Why a unit does not count; never shown as a traceback, for it is reported and mended."""


class OtherManifestError(DamageError):
    """A sound record that was measured under another manifest."""


def read_record(layout: RunLayout, unit: WorkUnit, manifest: Manifest) -> UnitRecord:
    """The sound record of a unit under this manifest.

    Raises:
        DamageError: why the unit does not count.
    """
    try:
        record = UnitRecord.decode(read_regular(layout.record(unit)))
    except OSError as error:
        raise DamageError(f"the record cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DamageError("the record does not match its own digest") from error
    if record.manifest_sha256 != manifest.digest:
        raise OtherManifestError("the record belongs to another manifest")
    # An older run may hold tables that are gone since.
    missing = {table.name for table in manifest.tables()} - {shard.table for shard in record.shards}
    if missing or record.unit != unit.index:
        raise DamageError("the record is of another unit or of other tables")
    return record


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


class NoRunError(LoopscopeError):
    """A folder without a manifest and without a record."""


def read_manifest(layout: RunLayout) -> Manifest:
    """The manifest of a run; one that is lost or damaged is named with its remedy."""
    remedy = f"put back a copy of it, or choose another {setting('output')}"
    try:
        return decode_manifest(read_regular(layout.manifest), str(layout.path))
    except (FileNotFoundError, NotADirectoryError) as error:
        if layout.recorded():
            raise LoopscopeError(f"{layout.manifest} is gone: {remedy}") from error
        raise NoRunError(
            f"{layout.path} is not a run: it holds no manifest.json; name a folder that `loopscope measure` wrote"
        ) from error
    except OSError as error:
        raise LoopscopeError(f"cannot read {layout.manifest} ({error.strerror}): {remedy}") from error
    except ValueError as error:
        raise LoopscopeError(f"{layout.manifest} is damaged ({error}): {remedy}") from error


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
    recorded, records, damage = layout.recorded(), {}, {}
    altered = False
    for unit in manifest.units():
        if unit.name in recorded:
            try:
                record = read_record(layout, unit, manifest)
                for table in manifest.tables() if contents else ():
                    read_shard_bytes(layout, unit, record, table.name)
                records[unit.index] = record
            except DamageError as error:
                damage[unit.index] = str(error)
                altered |= isinstance(error, OtherManifestError)
    if altered and not records:
        raise LoopscopeError(
            f"{layout.manifest} was altered (its records were measured under another one): put back a copy of it,"
            f" or choose another {setting('output')}"
        )
    return records, damage


_SEAL = b', "sha256": "'


def event_line(entry: Mapping[str, Any]) -> bytes:
    """A line of the log, which ends with the digest of the rest of it."""
    body = json.dumps(entry).encode()
    return body[:-1] + _SEAL + sha256_bytes(body).encode() + b'"}\n'


def read_events(layout: RunLayout) -> list[dict[str, Any]]:
    """What happened and when, oldest first; what a kill left of a last line is left out.

    Raises:
        LoopscopeError: the log cannot be read, or a line does not match its digest.
    """
    path, events = layout.events, []
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LoopscopeError(f"cannot read {path} ({error.strerror}): move it away") from error
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        body, _, digest = line.rpartition(_SEAL)
        if digest == sha256_bytes(body + b"}").encode() + b'"}':
            events.append(json.loads(body + b"}"))
        elif _SEAL in data:
            raise LoopscopeError(f"{path} is damaged in line {number}: remove that line, no number depends on it")
        else:  # of schema version 1 or 2
            with suppress(ValueError, RecursionError):
                events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict)]
