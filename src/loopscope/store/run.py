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
from loopscope.store.hashing import ids_sha256, parse_json
from loopscope.store.manifest import ASKED_BY, Manifest, WorkUnit, step_order
from loopscope.store.records import (
    REPAIR,
    Completion,
    DamageError,
    NoRecordError,
    RunLayout,
    UnitRecord,
    check_shard,
    check_unit,
    read_manifest,
    require_own_manifest,
)
from loopscope.store.schema import TABLES, Table

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa  # type: ignore[import-untyped]


class StoredRun:
    """A run directory.

    Opening reads the manifest and the commit records and looks at the sizes of the shards; contents are read when asked
    for, and no shard is parsed before its bytes have matched the SHA-256 of its record (once per process and file). A
    unit that was not measured yet is missing, not an error: an unfinished run can be studied. A unit that was measured
    and is damaged is an error of everything that reads, for a mean over the rest would not say what it is a mean of.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.layout = RunLayout(Path(text("path", path)))
        # The seal before the records: it is written after them, so whoever has seen it finds them all.
        self._seal = _read_seal(self.layout)
        self.manifest = read_manifest(self.layout)
        try:
            self.units = self.manifest.units()
        except LoopscopeError:
            require_own_manifest(self.layout, self.manifest)
            raise
        self.unit_records: dict[int, UnitRecord] = {}
        self.damage: dict[int, str] = {}
        """Why each missing unit does not count."""
        self._broken: list[str] = []
        for unit in self.units:
            try:
                self.unit_records[unit.index] = check_unit(self.layout, unit, self.manifest, depth="size")
            except DamageError as damage:
                self.damage[unit.index] = str(damage)
                if self._seal is not None or not isinstance(damage, NoRecordError):
                    if not self._broken:
                        require_own_manifest(self.layout, self.manifest)
                    self._broken.append(f"unit {unit.name}: {damage}")

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.layout.path

    @property
    def missing_units(self) -> tuple[WorkUnit, ...]:
        """The units that remain to be measured."""
        return tuple(unit for unit in self.units if unit.index not in self.unit_records)

    @property
    def finished(self) -> bool:
        """Whether every unit counts and the run was sealed with exactly these records."""
        if self._seal is None:
            return False
        self._require_sound()
        if self._seal != self.completion().encode():
            raise self._damaged(f"{self.layout.complete.name} does not match the records")
        return True

    def stored_rows(self, table: str) -> int:
        """How many rows of a table are stored, by the records of the units alone."""
        shards = (shard for record in self.unit_records.values() for shard in record.shards)
        return sum(shard.rows for shard in shards if shard.table == table)

    @property
    def present_units(self) -> tuple[WorkUnit, ...]:
        """The units that count, in order."""
        return tuple(unit for unit in self.units if unit.index in self.unit_records)

    def completion(self) -> Completion:
        """What the seal of the run says, or would say, of the units that count."""
        present = [self.unit_records[unit.index] for unit in self.units if unit.index in self.unit_records]
        return Completion.of(self.manifest, present)

    @property
    def events(self) -> list[Event]:
        """What happened and when."""
        return read_events(self.layout.events)

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

    @cached_property
    def vocabulary(self) -> list[str] | None:
        """What every token id reads as; only in a run measured with a lens and a tokenizer."""
        return read_vocabulary(self.path, self.manifest)

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

    def shards(self, table: str) -> list[Path]:
        """The shards of a table that count, in unit order; their bytes are those that were committed.

        Raises:
            LoopscopeError: a unit or a shard of the table is damaged.
        """
        self._require(table)
        self._require_sound()
        return [self._shard(table, unit) for unit in self.units if unit.index in self.unit_records]

    def _shard(self, table: str, unit: WorkUnit) -> Path:
        try:
            return check_shard(self.layout, unit, self.unit_records[unit.index].shard(table))
        except DamageError as damage:
            raise self._damaged(str(damage)) from None

    def read_shard(self, table: str, unit: WorkUnit, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of one unit in one table, or some columns of them."""
        import pyarrow as pa

        from loopscope.store.shards import SchemaError, decode

        declared = self._require(table)
        self._require_sound()
        try:
            return decode(declared, self._shard(table, unit).read_bytes(), self.manifest.schema_version, columns)
        except (OSError, SchemaError, pa.ArrowException) as error:
            raise self._damaged(f"{table}/{unit.name}.parquet cannot be read ({error})") from error

    def scan(self, table: str) -> pl.LazyFrame:
        """A table as a lazy frame over its shards; they are checked now and whenever the frame is collected."""
        from polars.io.plugins import register_io_source

        empty = _empty(self._require(table))
        self.shards(table)

        def rows(
            columns: list[str] | None, predicate: pl.Expr | None, count: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            for unit in self.present_units:
                needed = (
                    None if columns is None else {*columns, *([] if predicate is None else predicate.meta.root_names())}
                )
                frame = _frame(self.read_shard(table, unit, None if needed is None else tuple(needed)))
                if predicate is not None:
                    frame = frame.filter(predicate)
                if columns is not None:
                    frame = frame.select(columns)
                if count is not None:
                    frame = frame.head(count)
                    count -= frame.height
                yield frame
                if count == 0:
                    return

        return register_io_source(rows, schema=empty.schema)

    def read(self, table: str) -> pl.DataFrame:
        """A whole table as a frame."""
        import pyarrow as pa

        empty = _empty(self._require(table))
        shards = [self.read_shard(table, unit) for unit in self.present_units]
        return _frame(pa.concat_tables(shards)) if shards else empty

    def _require_sound(self) -> None:
        if self._broken:
            more = f" (and {len(self._broken) - 1} more units)" if len(self._broken) > 1 else ""
            raise self._damaged(self._broken[0] + more)

    def _damaged(self, what: str) -> LoopscopeError:
        return LoopscopeError(f"{self.path} is damaged: {what}; {REPAIR}")

    def _require(self, table: str) -> Table:
        if not isinstance(table, str) or table not in TABLES:
            raise LoopscopeError(f"there is no table {table!r}: choose from {', '.join(TABLES)}")
        if TABLES[table] not in self.manifest.tables():
            raise LoopscopeError(f"{self.path} was measured without {table}: measure again with {_asking_for(table)}")
        return TABLES[table]

    def __repr__(self) -> str:
        tasks = ", ".join(f"{task.name} ({task.split})" for task in self.manifest.tasks)
        done = f"{len(self.unit_records)} of {len(self.units)} units"
        damaged = f", {len(self._broken)} damaged" if self._broken else ""
        return f"<Run {self.path}: {self.manifest.model.name} on {tasks}, level {self.manifest.level}, {done}{damaged}>"


def _asking_for(table: str) -> str:
    if TABLES[table].since > 1 and table not in ASKED_BY:
        return "this loopscope"
    if table == "interpolation":
        return f"{setting('level', 'grid')}, through a nonlinear readout and without {setting('every_scale', True)}"
    wanted = {"longer_steps": 2, "as_in_paper": "paper"}.get(table, True)
    return setting(ASKED_BY.get(table, table), wanted)


def _read_seal(layout: RunLayout) -> bytes | None:
    try:
        return read_regular(layout.complete)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LoopscopeError(f"cannot read {layout.complete} ({error.strerror}): mend that") from error


def _empty(table: Table) -> pl.DataFrame:
    from loopscope.store.shards import arrow_schema

    return _frame(arrow_schema(table).empty_table())


def _frame(data: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory."""
    return RunLayout(folder).manifest.is_file()


def runs_at(path: str | os.PathLike[str]) -> list[Path]:
    """A run directory as it is; of a folder that holds run directories, these in the order of their steps."""
    folder = Path(path)
    try:
        if is_run(folder) or not folder.is_dir():
            return [folder]
        inside = [entry for entry in folder.iterdir() if entry.is_dir() and is_run(entry)]
    except OSError as error:
        raise LoopscopeError(f"{folder} cannot be looked at: {error.strerror}") from None
    return sorted(inside, key=lambda entry: step_order(entry.name)) or [folder]


Event = dict[str, Any]


def read_events(path: Path) -> list[Event]:
    """All events of a log, oldest first, without the lines that are not JSON objects; an absent log has none."""
    try:
        lines = read_regular(path).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise LoopscopeError(f"cannot read {path} ({error.strerror}): move it away, no table depends on it") from error
    events = []
    for line in lines:
        with suppress(ValueError):
            entry = parse_json(line)
            if isinstance(entry, dict):
                entry.pop("sha256", None)  # earlier logs carry a digest in every line
                events.append(entry)
    return events


VOCABULARY = "vocabulary.json"
"""Its name in a run directory."""


def write_vocabulary(folder: Path, manifest: Manifest, texts: list[str]) -> None:
    """Write the text of every token id, from 0 on."""
    content = {"tokenizer_sha256": manifest.tokenizer_sha256, "texts": texts}
    content["sha256"] = ids_sha256([manifest.tokenizer_sha256 or "", *texts])
    # Bytes that are not a text of their own come as lone surrogates from some tokenizers; JSON escapes hold any.
    write_atomically(folder / VOCABULARY, (json.dumps(content) + "\n").encode())


def read_vocabulary(folder: Path, manifest: Manifest) -> list[str] | None:
    """The text of every token id; None where the run has none, or where it is another tokenizer's.

    Raises:
        LoopscopeError: the file is damaged.
    """
    path = folder / VOCABULARY
    try:
        content = parse_json(read_regular(path))
        texts, tokenizer = content["texts"], content["tokenizer_sha256"]
        digest = ids_sha256([tokenizer or "", *texts])
        # Earlier runs hold no digest.
        if content.get("sha256", digest) != digest or not all(isinstance(text, str) for text in texts):
            raise ValueError("it does not match its own digest")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoopscopeError(f"{path} is damaged: remove it and give the same `measure` command again") from error
    return list(texts) if tokenizer == manifest.tokenizer_sha256 else None
