"""Where everything lies in a run directory, and its commit records.

A unit counts if its record is there, is sound, belongs to this manifest, and its files match.

The record of a unit is written after its shards. It holds their sizes and hashes, the hash of the manifest that they
were measured under, and its own digest, so that no torn, flipped or borrowed file passes for a measurement.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from loopscope.errors import LoopscopeError, setting
from loopscope.regular_files import read_regular
from loopscope.store.atomic import PARTIAL, partial_path
from loopscope.store.hashing import SealedJson, Sha256, sha256_bytes, sha256_file, sha256_once, unsealed
from loopscope.store.manifest import Manifest, ManifestDamageError, WorkUnit, decode_manifest
from loopscope.store.schema import SCHEMA_VERSION, TABLES, Table

_IGNORED = frozenset({".DS_Store"})


class RunLayout:
    """The paths inside one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "manifest.json"
        self.complete = path / "complete.json"
        """The seal of a finished run."""
        self.events = path / "events.jsonl"
        """The log with times."""
        self.lock = path / ".loopscope.lock"
        """The file that a writer locks."""
        self.units = path / "units"
        """The folder of commit records."""

    def record(self, unit: WorkUnit) -> Path:
        """The commit record of a unit."""
        return self.units / f"{unit.name}.json"

    def folder(self, table: Table | str) -> Path:
        """The folder of a table's shards."""
        return self.path / (table if isinstance(table, str) else table.name)

    def shard(self, table: Table | str, unit: WorkUnit) -> Path:
        """The shard of a unit in a table."""
        return self.folder(table) / f"{unit.name}.parquet"

    def folders(self) -> tuple[Path, ...]:
        """All folders that a run may hold."""
        return (self.units, *map(self.folder, TABLES))

    def unit_files(self) -> list[Path]:
        """Every file inside those folders, partial ones included, in order."""
        return [
            path
            for folder in self.folders()
            if folder.is_dir()
            for path in sorted(folder.iterdir())
            if path.name not in _IGNORED
        ]

    def require_free(self) -> None:
        """Refuse a directory that holds anything but what a writer killed at its first steps would leave."""
        if self.path.exists() and not self.path.is_dir():
            raise LoopscopeError(f"{self.path} is a file: choose a folder for {setting('output')}")
        if self.path.is_dir():
            ours = {self.lock.name, self.events.name, *_IGNORED}
            ours.add(self.manifest.name + PARTIAL)
            self._refuse(path for path in sorted(self.path.iterdir()) if path.name not in ours)

    def require_no_strangers(self, tables: Iterable[str], units: Iterable[WorkUnit]) -> None:
        """Refuse a run whose folders hold a file that no unit of it has, since readers take every shard there.

        Other files may lie beside the run's own in the directory itself; they are left alone.
        """
        units = tuple(units)
        ours = {self.record(unit) for unit in units}
        ours |= {self.shard(table, unit) for table in tables for unit in units}
        ours |= {partial_path(path) for path in ours}
        self._refuse(path for path in self.unit_files() if path not in ours)

    def _refuse(self, foreign: Iterable[Path]) -> None:
        names = [str(path.relative_to(self.path)) for path in foreign]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise LoopscopeError(
                f"{self.path} holds files that are not of this run ({names[0]}{more}):"
                f" move them away or choose another {setting('output')}"
            )


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
    def of(cls, manifest: Manifest, records: list[UnitRecord]) -> Completion:
        """The seal of a run with these records."""
        return cls(
            schema_version=manifest.schema_version,
            manifest_sha256=manifest.digest,
            units=len(records),
            rows={
                first.table: sum(record.shard(first.table).rows for record in records)
                for first in (records[0].shards if records else ())
            },
            records_sha256=sha256_bytes(b"".join(record.encode() for record in records)),
        )


class DamageError(Exception):
    """Why a unit does not count; never shown as a traceback, for it is found and mended."""


class NoRecordError(DamageError):
    """A unit without a record: not measured yet, unless the run was sealed."""

    def __init__(self) -> None:
        super().__init__("no record")


REPAIR = "the same `measure` command repairs it in place"
"""What mends damaged units and seals, as the end of a message."""


def decode_record(data: bytes) -> UnitRecord:
    """Read a record; raises `DamageError` unless it is one and matches its own digest."""
    try:
        return UnitRecord.model_validate(unsealed(data))
    except (ValueError, RecursionError) as error:
        raise DamageError("the record does not match its own digest") from error


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
        return decode_record(read_regular(path))
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
    named = [shard.table for shard in record.shards]
    if manifest.schema_version < SCHEMA_VERSION:
        # Tables that are gone since stay where they are.
        named = [name for name in named if name in TABLES]
    if named != list(manifest.shards):
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
            raise DamageError(f"{where} is not a regular file")
        if status.st_size != shard.bytes:
            raise DamageError(f"{where} has {status.st_size} bytes instead of {shard.bytes}")
        if depth != "size" and (sha256_once if depth == "once" else sha256_file)(path) != shard.sha256:
            raise DamageError(f"{where} does not match its hash")
    except FileNotFoundError:
        raise DamageError(f"{where} is gone") from None
    except OSError as error:
        raise DamageError(f"{where} cannot be read ({error.strerror})") from error
    return path


class NoRunError(LoopscopeError):
    """A folder without a manifest and without a record."""


def read_manifest(layout: RunLayout) -> Manifest:
    """The manifest of a run; one that is lost or damaged is named with its remedy."""
    try:
        return decode_manifest(read_regular(layout.manifest), str(layout.path))
    except (FileNotFoundError, NotADirectoryError) as error:
        if next(sound_records(layout), None) is not None:
            raise LoopscopeError(f"{layout.manifest} is gone: {_put_back()}") from error
        remedy = "name a folder that `loopscope measure` wrote"
        raise NoRunError(f"{layout.path} is no run: it holds no manifest.json; {remedy}") from error
    except OSError as error:
        raise LoopscopeError(f"cannot read {layout.manifest} ({error.strerror}): {_put_back()}") from error
    except ManifestDamageError as error:
        raise LoopscopeError(f"{layout.manifest} is damaged ({error}): {_put_back()}") from error


def require_own_manifest(layout: RunLayout, manifest: Manifest) -> bool:
    """Refuse a manifest that no sound record was measured under; whether there is a record."""
    digests = {record.manifest_sha256 for record in sound_records(layout)}
    if digests and manifest.digest not in digests:
        raise LoopscopeError(
            f"{layout.manifest} was altered (its records were measured under another one): {_put_back()}"
        )
    return bool(digests)


def _put_back() -> str:
    return f"put back a copy of it, or choose another {setting('output')}"
