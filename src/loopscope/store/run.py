"""An opened run directory: manifest, tables, log and vocabulary, read-only, of whatever has been committed so far."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]

from loopscope.errors import LoopscopeError, setting, text
from loopscope.limits import read_regular
from loopscope.store.atomic import write_atomically
from loopscope.store.hashing import SealedJson, Sha256
from loopscope.store.manifest import REQUESTED_BY, Manifest, WorkUnit
from loopscope.store.records import (
    REPAIR,
    DamageError,
    RunLayout,
    read_events,
    read_manifest,
    read_records,
    read_shard_bytes,
)
from loopscope.store.schema import TABLES, Table
from loopscope.store.shards import arrow_schema, decode


class StoredRun:
    """A run directory.

    Opening reads the manifest and the commit records; contents are read, and compared with their hashes, when asked
    for. A unit that was not measured yet is missing, not an error: an unfinished run can be studied. A unit that was
    measured and is damaged is an error of everything that reads, for a mean over the rest would be one of other rows.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.layout = RunLayout(Path(text("path", path)))
        self.manifest = read_manifest(self.layout)
        self.units = self.manifest.units()
        self.unit_records, self.damage = read_records(self.layout, self.manifest)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.layout.path

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
        """What happened and when, oldest first.

        Raises:
            LoopscopeError: the log is damaged.
        """
        return read_events(self.layout)

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
        """The text of every token id; None where the run has none, or none that carries its hash (schema version 1).

        Raises:
            LoopscopeError: the file is damaged.
        """
        path = self.layout.vocabulary
        if self.manifest.schema_version == 1 or not path.exists():
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


class Vocabulary(SealedJson):
    """`vocabulary.json`: the text of every token id, from 0 on."""

    tokenizer_sha256: Sha256 | None
    texts: tuple[str, ...]


def write_vocabulary(folder: Path, manifest: Manifest, texts: Sequence[str]) -> None:
    """Write the text of every token id, from 0 on."""
    # Bytes that are not a text of their own come as lone surrogates from some tokenizers, which no page can show.
    whole = tuple(text.encode("utf-8", "replace").decode() for text in texts)
    vocabulary = Vocabulary(tokenizer_sha256=manifest.tokenizer_sha256, texts=whole)
    write_atomically(RunLayout(folder).vocabulary, vocabulary.encode())
