"""An opened run directory: the manifest and the tables, read-only, of whatever has been committed so far."""

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from loopscope._errors import LoopscopeError, setting
from loopscope.store.columns import Table
from loopscope.store.events import Event, read_events
from loopscope.store.layout import RunLayout
from loopscope.store.manifest import Manifest, ManifestDamageError, decode_manifest
from loopscope.store.records import Completion, DamageError, UnitRecord, check_unit
from loopscope.store.schema import TABLES
from loopscope.store.units import WorkUnit

if TYPE_CHECKING:
    import polars as pl


class Run:
    """A run directory.

    Opening reads the manifest and the commit records and looks at the sizes of the shards; contents are read when asked
    for, hashes by `verify`. A unit that does not count is missing, not an error: an unfinished run can be studied.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.layout = RunLayout(Path(path))
        self.manifest = _read_manifest(self.layout)
        self.units = self.manifest.units()
        self.unit_records: dict[int, UnitRecord] = {}
        self.damage: dict[int, str] = {}
        """Why each missing unit does not count."""
        for unit in self.units:
            try:
                self.unit_records[unit.index] = check_unit(self.layout, unit, self.manifest, depth="size")
            except DamageError as damage:
                self.damage[unit.index] = str(damage)

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
        if self.missing_units or not self.layout.complete.exists():
            return False
        return self.layout.complete.read_bytes() == self.completion().encode()

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

    @property
    def paths(self) -> "pl.LazyFrame":
        """The `paths` table, scanned lazily; only in a run measured with path samples."""
        return self.scan("paths")

    def shards(self, table: str) -> list[Path]:
        """The shards of a table that count, in unit order."""
        return [self.layout.shard(table, unit) for unit in self.units if unit.index in self.unit_records]

    def scan(self, table: str) -> "pl.LazyFrame":
        """A table as a lazy frame over its shards."""
        import polars as pl

        declared = self._require(table)
        shards = self.shards(table)
        if not shards:
            return _empty(declared).lazy()
        # Without glob=False a bracket in the user's own folder name would be read as a pattern.
        return pl.scan_parquet(shards, glob=False, hive_partitioning=False)

    def read(self, table: str) -> "pl.DataFrame":
        """A whole table as a frame."""
        import polars as pl

        lazy = self.scan(table)
        try:
            return lazy.collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise LoopscopeError(
                f"cannot read the {table} of {self.path}: `loopscope verify {self.path}` names the damaged shard,"
                " and the measuring command given again mends it"
            ) from error

    def _require(self, table: str) -> Table:
        if table not in TABLES:
            raise LoopscopeError(f"there is no table {table!r}: choose from {', '.join(TABLES)}")
        if TABLES[table] not in self.manifest.tables():
            raise LoopscopeError(f"{self.path} was measured without {table}: measure again with {setting(table, True)}")
        return TABLES[table]

    def __repr__(self) -> str:
        tasks = ", ".join(f"{task.name} ({task.split})" for task in self.manifest.tasks)
        done = f"{len(self.unit_records)} of {len(self.units)} units"
        return f"<Run {self.path}: {self.manifest.model.name} on {tasks}, level {self.manifest.level}, {done}>"


def _read_manifest(layout: RunLayout) -> Manifest:
    try:
        data = layout.manifest.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LoopscopeError(
            f"{layout.path} is no run: it holds no manifest.json; name a folder that `loopscope measure` wrote"
        ) from error
    except OSError as error:
        raise LoopscopeError(f"cannot read {layout.manifest} ({error.strerror}): mend its permissions") from error
    try:
        return decode_manifest(data, str(layout.path))
    except ManifestDamageError as error:
        raise LoopscopeError(
            f"{layout.manifest} is damaged ({error}): the measuring command given again restores it"
        ) from error


def _empty(table: Table) -> "pl.DataFrame":
    import polars as pl

    from loopscope.store.arrow import arrow_schema

    frame = pl.from_arrow(arrow_schema(table).empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame
