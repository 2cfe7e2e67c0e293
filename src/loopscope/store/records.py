"""Commit records: a unit counts if its record is there, is sound, belongs to this manifest, and its files match.

The record of a unit is written after its shards. It holds their sizes and hashes, the hash of the manifest that they
were measured under, and its own digest, so that no torn, flipped or borrowed file passes for a measurement.
"""

import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from loopscope.store.hashing import (
    SealedJson,
    Sha256,
    parse_json,
    read_bounded,
    sha256_bytes,
    sha256_file,
    sha256_once,
)
from loopscope.store.manifest import Manifest
from loopscope.store.run_directory import RunLayout, WorkUnit
from loopscope.store.tables import SCHEMA_VERSION

Count = Annotated[int, Field(ge=0)]


class Shard(BaseModel):
    """One file of a unit: the rows of a table, or the states of so many questions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    rows: Count
    bytes: Count
    sha256: Sha256


class UnitRecord(SealedJson):
    """What was committed for one unit."""

    schema_version: int = SCHEMA_VERSION
    unit: Count
    task: str
    split: str
    start: Count
    stop: Count
    manifest_sha256: Sha256
    shards: tuple[Shard, ...]

    def belongs_to(self, unit: WorkUnit) -> bool:
        """Whether this is the record of `unit`."""
        return WorkUnit(self.unit, self.task, self.split, self.start, self.stop) == unit

    def shard(self, table: str) -> Shard:
        """The shard in one table."""
        return next(shard for shard in self.shards if shard.table == table)


class Completion(SealedJson):
    """The seal of a finished run: what all records together say."""

    schema_version: int = SCHEMA_VERSION
    manifest_sha256: Sha256
    units: Count
    rows: dict[str, Count]
    records_sha256: Sha256
    """Digest of the encoded records in unit order."""

    @classmethod
    def of(cls, manifest: Manifest, records: list[UnitRecord]) -> "Completion":
        """The seal of a run with these records."""
        return cls(
            manifest_sha256=manifest.digest,
            units=len(records),
            rows={table.name: sum(record.shard(table.name).rows for record in records) for table in manifest.tables()},
            records_sha256=sha256_bytes(b"".join(record.encode() for record in records)),
        )


class DamageError(Exception):
    """Why a unit does not count; never shown as a traceback, for it is found and mended."""


class NoRecordError(DamageError):
    """A unit without a record: not measured yet, unless the run was sealed."""

    def __init__(self) -> None:
        super().__init__("no record")


def repair_of(manifest: Manifest | None = None) -> str:
    """What mends a damaged run, as the end of a message."""
    typed = f" ({shlex.join(manifest.command_line)})" if manifest is not None and manifest.command_line else ""
    return f"the same `measure` command repairs it in place{typed}"


def decode_record(data: bytes) -> UnitRecord:
    """Read a record; raises `DamageError` unless it is byte for byte what `encode` would write."""
    try:
        payload = parse_json(data)
        payload.pop("sha256")
        record = UnitRecord.model_validate(payload)
        encoded = record.encode()
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamageError("the record is not readable") from error
    if encoded != data:
        raise DamageError("the record does not match its own digest")
    return record


def load_record(layout: RunLayout, unit: WorkUnit) -> UnitRecord:
    """The sound record of a unit, whatever manifest it was written under."""
    record = _load(layout.record(unit))
    if not record.belongs_to(unit):
        raise DamageError("the record is of another unit")
    return record


def sound_records(layout: RunLayout) -> Iterator[UnitRecord]:
    """Every sound record of the directory, whatever manifest and unit it is of."""
    for path in sorted(layout.units.glob("*.json")) if layout.units.is_dir() else ():
        try:
            yield _load(path)
        except DamageError:
            continue


def _load(path: Path) -> UnitRecord:
    try:
        return decode_record(read_bounded(path))
    except FileNotFoundError:
        raise NoRecordError from None
    except OSError as error:
        raise DamageError(f"the record cannot be read ({error.strerror})") from error


def check_unit(
    layout: RunLayout, unit: WorkUnit, manifest: Manifest, *, depth: Literal["size", "sha256"] = "sha256"
) -> UnitRecord:
    """The record of a unit that counts; raises `DamageError` otherwise.

    Args:
        layout: the run directory.
        unit: the unit.
        manifest: the manifest that the unit must have been measured under.
        depth: `size` looks only at what the file system says of the shards, `sha256` reads them.
    """
    record = load_record(layout, unit)
    if record.manifest_sha256 != manifest.digest:
        raise DamageError("the record belongs to another manifest")
    if [shard.table for shard in record.shards] != list(manifest.shards):
        raise DamageError("the record names other tables than the run has")
    for shard in record.shards:
        check_shard(layout, unit, shard, depth=depth)
    return record


def check_shard(
    layout: RunLayout, unit: WorkUnit, shard: Shard, *, depth: Literal["size", "once", "sha256"] = "once"
) -> Path:
    """The path of a shard whose bytes are those of its record; raises `DamageError` otherwise.

    Args:
        layout: the run directory.
        unit: the unit.
        shard: what the unit's record says of it.
        depth: `once` reads a file that has not changed since only the first time in a process, `sha256` always.
    """
    path = layout.shard(shard.table, unit)
    where = path.relative_to(layout.path).as_posix()
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DamageError(f"{where} is no plain file")
        if status.st_size != shard.bytes:
            raise DamageError(f"{where} has {status.st_size} bytes instead of {shard.bytes}")
        if depth != "size" and (sha256_once if depth == "once" else sha256_file)(path) != shard.sha256:
            raise DamageError(f"{where} does not match its hash")
    except FileNotFoundError:
        raise DamageError(f"{where} is gone") from None
    except OSError as error:
        raise DamageError(f"{where} cannot be read ({error.strerror})") from error
    return path
