"""Where everything is in a run directory, its commit records, and what makes a unit count.

A unit counts if its record is there, matches its own digest, names this manifest, and its files match their hashes.
The record is written after the unit's shards. Nothing is parsed before its hash has matched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from loopscope.errors import LoopscopeError, setting
from loopscope.regular_files import read_regular
from loopscope.store.hashing import SealedJson, Sha256, Stored, sha256_bytes
from loopscope.store.manifest import Manifest, WorkUnit, decode_manifest
from loopscope.store.schema import SCHEMA_VERSION, TABLES

REPAIR = "the same `measure` command repairs it in place"
"""What mends damaged units, as the end of a message."""


class RunLayout:
    """The paths inside one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "manifest.json"
        self.events = path / "events.jsonl"
        """The log with times; no number depends on it."""
        self.vocabulary = path / "vocabulary.json"
        """The text of every token id, for a run with a lens."""
        self.verification = path / "verification.json"
        """What `loopscope verify --bitwise` compared last."""
        self.lock = path / ".loopscope.lock"
        self.parts = path / "partial"
        """Parts of units that are being measured: what was saved so that a kill loses little of a long unit."""

    def record(self, unit: WorkUnit, part: int | None = None) -> Path:
        """The commit record of a unit, or of a part of one."""
        return self._of("units", unit, part, "json")

    def shard(self, table: str, unit: WorkUnit, part: int | None = None) -> Path:
        """The file of a unit, or of a part of one, in a table."""
        return self._of(table, unit, part, "parquet")

    def _of(self, folder: str, unit: WorkUnit, part: int | None, suffix: str) -> Path:
        if part is None:
            return self.path / folder / f"{unit.name}.{suffix}"
        return self.parts / folder / f"{unit.name}-{part:04d}.{suffix}"

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

    def shard(self, table: str) -> Shard:
        """The shard in one table."""
        return next(shard for shard in self.shards if shard.table == table)

    def check(self, unit: WorkUnit, manifest: Manifest) -> None:
        """Raises `DamageError` unless this is the record of that unit of that run."""
        if self.manifest_sha256 != manifest.digest:
            raise OtherManifestError("the record belongs to another manifest")
        if WorkUnit(self.unit, self.task, self.split, self.start, self.stop) != unit:
            raise DamageError("the record is of another unit")
        # An older run may hold tables that are gone since.
        if not {table.name for table in manifest.tables()} <= {shard.table for shard in self.shards}:
            raise DamageError("the record names other tables than the run has")


class DamageError(Exception):
    """Why a unit does not count; never shown as a traceback, for it is reported and mended."""


class OtherManifestError(DamageError):
    """A sound record that was measured under another manifest."""


def read_record(layout: RunLayout, unit: WorkUnit, manifest: Manifest, part: int | None = None) -> UnitRecord:
    """The sound record of a unit, or of a part of one, under this manifest, whose files have the right sizes.

    Raises:
        DamageError: why the unit does not count.
    """
    try:
        record = UnitRecord.decode(read_regular(layout.record(unit, part)))
    except OSError as error:
        raise DamageError(f"the record cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DamageError("the record does not match its own digest") from error
    record.check(unit, manifest)
    for table in manifest.tables():
        path, bytes_ = layout.shard(table.name, unit, part), record.shard(table.name).bytes
        try:
            found = path.stat().st_size
        except OSError:
            raise DamageError(f"{table.name}/{path.name} is gone") from None
        if found != bytes_:
            raise DamageError(f"{table.name}/{path.name} has {found} bytes instead of {bytes_}")
    return record


def read_shard_bytes(
    layout: RunLayout, unit: WorkUnit, record: UnitRecord, table: str, part: int | None = None
) -> bytes:
    """The bytes of a shard, which are those of its record; raises `DamageError` otherwise."""
    path = layout.shard(table, unit, part)
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


def read_records(layout: RunLayout, manifest: Manifest) -> tuple[dict[int, UnitRecord], dict[int, str]]:
    """The records of the units that count, and why the other recorded units do not, by the number of the unit.

    Raises:
        LoopscopeError: every sound record was measured under another manifest than this one.
    """
    recorded = layout.recorded()
    records: dict[int, UnitRecord] = {}
    damage: dict[int, DamageError] = {}
    for unit in manifest.units():
        if unit.name in recorded:
            try:
                records[unit.index] = read_record(layout, unit, manifest)
            except DamageError as error:
                damage[unit.index] = error
    if not records and any(isinstance(error, OtherManifestError) for error in damage.values()):
        raise LoopscopeError(
            f"{layout.manifest} was altered (its records were measured under another one): put back a copy of it,"
            f" or choose another {setting('output')}"
        )
    return records, {index: str(error) for index, error in damage.items()}
