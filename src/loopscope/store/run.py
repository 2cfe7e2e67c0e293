"""An opened run directory: manifest, tables, log and vocabulary, read-only, of whatever has been committed so far."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting, text
from loopscope.regular_files import read_regular
from loopscope.store.atomic import write_atomically
from loopscope.store.hashing import SealedJson, Sha256
from loopscope.store.manifest import REQUESTED_BY, Manifest, WorkUnit
from loopscope.store.records import REPAIR, DamageError, RunLayout, read_manifest, read_records, read_shard_bytes
from loopscope.store.schema import TABLES, Table

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa  # type: ignore[import-untyped]


class StoredRun:
    """A run directory.

    Opening reads the manifest and the commit records and looks at the sizes of the shards; contents are read when asked
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

    def stored_rows(self, table: str) -> int:
        """How many rows of a table are stored, by the records of the units alone."""
        return sum(record.shard(table).rows for record in self.unit_records.values())

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened and when, oldest first; lines that are not JSON objects are left out."""
        try:
            lines = read_regular(self.layout.events).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LoopscopeError(f"cannot read {self.layout.events} ({error.strerror}): move it away") from error
        events = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                events.append(json.loads(line))
        return [event for event in events if isinstance(event, dict)]

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
        if self.manifest.schema_version == 1:
            return None
        try:
            stored = Vocabulary.decode(read_regular(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise LoopscopeError(f"{path} is damaged: remove it and give the same `measure` command again") from error
        return list(stored.texts) if stored.tokenizer_sha256 == self.manifest.tokenizer_sha256 else None

    def read_shard(self, table: str, unit: WorkUnit, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of one unit in one table, or some columns of them."""
        import pyarrow as pa

        from loopscope.store.shards import decode

        declared = self._require(table)
        try:
            record = self.unit_records[unit.index]
            data = decode(
                declared, read_shard_bytes(self.layout, unit, record, table), self.manifest.schema_version, columns
            )
            if len(data) != record.shard(table).rows:
                raise ValueError(f"it has {len(data)} rows instead of {record.shard(table).rows}")
            return data
        except DamageError as damage:
            raise self._damaged(str(damage)) from None
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(f"{table}/{unit.name}.parquet cannot be read ({error})") from error

    def scan(self, table: str) -> pl.LazyFrame:
        """A table as a lazy frame over its shards, which are read and checked when the frame is collected."""
        from polars.io.plugins import register_io_source

        def rows(
            columns: list[str] | None, predicate: pl.Expr | None, count: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            needed = columns if predicate is None else [*(columns or ()), *predicate.meta.root_names()]
            for unit in self.present_units:
                frame = _frame(self.read_shard(table, unit, None if columns is None else needed))
                if predicate is not None:
                    frame = frame.filter(predicate)
                frame = frame.select(columns or pl.all()).head(frame.height if count is None else count)
                yield frame
                if count is not None and (count := count - frame.height) == 0:
                    return

        import polars as pl

        return register_io_source(rows, schema=self._empty(table).schema)

    def read(self, table: str) -> pl.DataFrame:
        """A whole table as a frame."""
        import pyarrow as pa

        empty = self._empty(table)
        shards = [self.read_shard(table, unit) for unit in self.present_units]
        return _frame(pa.concat_tables(shards)) if shards else empty

    def _empty(self, table: str) -> pl.DataFrame:
        from loopscope.store.shards import arrow_schema

        return _frame(arrow_schema(self._require(table)).empty_table())

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


def _frame(data: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame


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
