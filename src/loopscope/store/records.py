"""Commit records: a unit counts if its record is there, is sound, belongs to this manifest, and its files match.

The record of a unit is written after its shards. It holds their sizes and hashes, the hash of the manifest that they
were measured under, and its own digest, so that no torn, flipped or borrowed file passes for a measurement.
"""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loopscope.store.hashing import sha256_bytes, sha256_file
from loopscope.store.layout import RunLayout
from loopscope.store.manifest import Manifest, Sha256, json_bytes
from loopscope.store.schema import SCHEMA_VERSION
from loopscope.store.units import WorkUnit

Count = Annotated[int, Field(ge=0)]


class _Sealed(BaseModel):
    """JSON that carries the digest of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def encode(self) -> bytes:
        """The one form in which this is written, digest last."""
        payload = self.model_dump(mode="json")
        return json_bytes({**payload, "sha256": sha256_bytes(json_bytes(payload))})


class Shard(BaseModel):
    """One Parquet file of a unit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    rows: Count
    bytes: Count
    sha256: Sha256


class UnitRecord(_Sealed):
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


class Completion(_Sealed):
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


def decode_record(data: bytes) -> UnitRecord:
    """Read a record; raises `DamageError` unless it is byte for byte what `encode` would write."""
    try:
        payload = json.loads(data)
        payload.pop("sha256")
        record = UnitRecord.model_validate(payload)
    except (ValueError, KeyError, AttributeError, TypeError, ValidationError) as error:
        raise DamageError("the record is not readable") from error
    if record.encode() != data:
        raise DamageError("the record does not match its own digest")
    return record


def load_record(layout: RunLayout, unit: WorkUnit) -> UnitRecord:
    """The sound record of a unit, whatever manifest it was written under."""
    try:
        record = decode_record(layout.record(unit).read_bytes())
    except FileNotFoundError:
        raise DamageError("no record") from None
    except OSError as error:
        raise DamageError(f"the record cannot be read ({error.strerror})") from error
    if not record.belongs_to(unit):
        raise DamageError("the record is of another unit")
    return record


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
    if [shard.table for shard in record.shards] != [table.name for table in manifest.tables()]:
        raise DamageError("the record names other tables than the run has")
    for shard in record.shards:
        path = layout.shard(shard.table, unit)
        where = path.relative_to(layout.path).as_posix()
        try:
            size = path.stat().st_size
            if size != shard.bytes:
                raise DamageError(f"{where} has {size} bytes instead of {shard.bytes}")
            if depth == "sha256" and sha256_file(path) != shard.sha256:
                raise DamageError(f"{where} does not match its hash")
        except FileNotFoundError:
            raise DamageError(f"{where} is gone") from None
        except OSError as error:
            raise DamageError(f"{where} cannot be read ({error.strerror})") from error
    return record
