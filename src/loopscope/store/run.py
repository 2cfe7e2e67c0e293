"""An opened run directory: the manifest and the tables, read-only, of whatever has been committed so far."""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from loopscope.errors import LoopscopeError, setting, text
from loopscope.store.column_types import Table
from loopscope.store.events import Event, read_events
from loopscope.store.hashing import read_bounded
from loopscope.store.manifest import ASKED_BY, Manifest, ManifestDamageError, OtherVersionError, decode_manifest
from loopscope.store.records import (
    Completion,
    DamageError,
    NoRecordError,
    UnitRecord,
    check_shard,
    check_unit,
    repair_of,
    sound_records,
)
from loopscope.store.run_directory import STATES, RunLayout, WorkUnit
from loopscope.store.tables import SCHEMA_VERSION, TABLES
from loopscope.store.vocabulary import read_vocabulary

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa  # type: ignore[import-untyped]


_SHARDS_AT_A_TIME = 32
"""Shards that a lazy frame parses together: enough for polars' threads, little enough for a table beyond memory."""


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
        self.manifest = _read_manifest(self.layout)
        try:
            self.units = self.manifest.units()
        except LoopscopeError:
            self._require_own_manifest()
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
                        self._require_own_manifest()
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

    def completion(self) -> Completion:
        """What the seal of the run says, or would say, of the units that count."""
        present = [self.unit_records[unit.index] for unit in self.units if unit.index in self.unit_records]
        return Completion.of(self.manifest, present)

    @property
    def events(self) -> list[Event]:
        """What happened and when."""
        return read_events(self.layout.events)

    @cached_property
    def records(self) -> "pl.DataFrame":
        """The `questions` table: one row per example and transition."""
        return self.read("questions")

    @cached_property
    def depths(self) -> "pl.DataFrame":
        """The `depths` table: one row per example and depth."""
        return self.read("depths")

    @cached_property
    def examples(self) -> "pl.DataFrame":
        """The `examples` table: the texts."""
        return self.read("examples")

    @property
    def tokens(self) -> "pl.LazyFrame":
        """The `tokens` table, scanned lazily; only in a run measured with token rows."""
        return self.scan("tokens")

    @cached_property
    def vocabulary(self) -> list[str] | None:
        """What every token id reads as; only in a run measured with a lens and a tokenizer."""
        return read_vocabulary(self.path, self.manifest)

    @property
    def paths(self) -> "pl.LazyFrame":
        """The `paths` table, scanned lazily; only in a run measured with path samples."""
        return self.scan("paths")

    @property
    def trace(self) -> "pl.LazyFrame":
        """The `trace` table, scanned lazily: every reference position after every loop; with `trace` only."""
        return self.scan("trace")

    @property
    def trajectories(self) -> "pl.LazyFrame":
        """The `trajectories` table, scanned lazily: utilities after changed updates; with `trajectories` only."""
        return self.scan("trajectories")

    @cached_property
    def certificates(self) -> "pl.DataFrame | None":
        """The `certificates` table of this run, or of `loopscope certify` beside it; None where there is neither."""
        source = self.certified_run
        return None if source is None else source.read("certificates")

    @cached_property
    def certified_run(self) -> "StoredRun | None":
        """Where the certificates are: this run, the one in its folder `certified`, or nowhere.

        Raises:
            LoopscopeError: those beside it are about other weights, questions or updates.
        """
        if self.manifest.settings.get("certify"):
            return self
        if not (self.layout.certified / self.layout.manifest.name).exists():
            return None
        found = type(self)(self.layout.certified)
        own, other = (
            (run.model.weights, run.seeds, run.tasks, run.transitions, run.dtypes.states)
            for run in (self.manifest, found.manifest)
        )
        if own != other:
            raise LoopscopeError(
                f"{found.path} holds certificates of other weights, questions or updates: remove it and run"
                " `loopscope certify` again"
            )
        return found

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

    def states(self, unit: WorkUnit) -> Path:
        """The safetensors file with a unit's recurrent states; only in a run measured with `keep_states`."""
        if STATES not in self.manifest.shards:
            raise LoopscopeError(f"{self.path} keeps no states: measure it with {setting('keep_states', 4)}")
        self._require_sound()
        return self._shard(STATES, unit)

    def read_shard(self, table: str, unit: WorkUnit) -> "pa.Table":
        """The rows of one unit in one table."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        self._require(table)
        self._require_sound()
        return pq.ParquetFile(self._shard(table, unit)).read(use_threads=False)

    def scan(self, table: str) -> "pl.LazyFrame":
        """A table as a lazy frame over its shards; they are checked now and whenever the frame is collected."""
        from polars.io.plugins import register_io_source

        empty = _empty(self._require(table))
        if not self.shards(table):
            return empty.lazy()

        def rows(
            columns: list[str] | None, predicate: "pl.Expr | None", count: int | None, _: int | None
        ) -> Iterator["pl.DataFrame"]:
            paths = self.shards(table)
            for start in range(0, len(paths), _SHARDS_AT_A_TIME):
                lazy = _scan(paths[start : start + _SHARDS_AT_A_TIME])
                if columns is not None:
                    lazy = lazy.select(columns)
                if predicate is not None:
                    lazy = lazy.filter(predicate)
                if count is not None:
                    lazy = lazy.head(count)
                frame = lazy.collect()
                yield frame
                if count is not None:
                    count -= frame.height
                    if not count:
                        return

        return register_io_source(rows, schema=empty.schema)

    def read(self, table: str) -> "pl.DataFrame":
        """A whole table as a frame."""
        import polars as pl

        paths = self.shards(table)
        if not paths:
            return _empty(TABLES[table])
        try:
            return _scan(paths).collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise self._damaged(f"the {table} cannot be read ({error})") from error

    def _require_sound(self) -> None:
        if self._broken:
            more = f" (and {len(self._broken) - 1} more units)" if len(self._broken) > 1 else ""
            raise self._damaged(self._broken[0] + more)

    def _require_own_manifest(self) -> None:
        """Refuse a manifest that no sound record knows; asked once something is wrong."""
        digests = {record.manifest_sha256 for record in sound_records(self.layout)}
        if digests and self.manifest.digest not in digests:
            raise LoopscopeError(
                f"{self.layout.manifest} was altered: its records were measured under another one; {repair_of()}"
            )

    def _damaged(self, what: str) -> LoopscopeError:
        return LoopscopeError(f"{self.path} is damaged: {what}; {repair_of(self.manifest)}")

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
    if table == "interpolation":
        return f"{setting('level', 'grid')}, through a nonlinear readout and without {setting('every_scale', True)}"
    wanted = {"longer_steps": 2, "trajectories": "0.25,0.5", "as_in_paper": "paper"}.get(table, True)
    return setting(ASKED_BY.get(table, table), wanted)


def _read_seal(layout: RunLayout) -> bytes | None:
    try:
        return read_bounded(layout.complete)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LoopscopeError(f"cannot read {layout.complete} ({error.strerror}): mend that") from error


def _read_manifest(layout: RunLayout) -> Manifest:
    try:
        data = read_bounded(layout.manifest)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LoopscopeError(
            f"{layout.path} is no run: it holds no manifest.json; name a folder that `loopscope measure` wrote"
        ) from error
    except OSError as error:
        raise LoopscopeError(f"cannot read {layout.manifest} ({error.strerror}): mend that") from error
    try:
        return decode_manifest(data, str(layout.path))
    except ManifestDamageError as error:
        raise LoopscopeError(f"{layout.manifest} is damaged ({error}): {repair_of()}") from error
    except OtherVersionError as error:
        if any(record.schema_version == SCHEMA_VERSION for record in sound_records(layout)):
            raise LoopscopeError(
                f"{layout.manifest} is damaged (another schema version than its records have): {repair_of()}"
            ) from error
        raise


def _scan(paths: list[Path]) -> "pl.LazyFrame":
    import polars as pl

    # Without glob=False a bracket in the user's own folder name would be read as a pattern.
    return pl.scan_parquet(paths, glob=False, hive_partitioning=False)


def _empty(table: Table) -> "pl.DataFrame":
    import polars as pl

    from loopscope.store.shards import arrow_schema

    frame = pl.from_arrow(arrow_schema(table).empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame
