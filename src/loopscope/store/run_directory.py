"""Where everything lies in a run directory, what in it is not loopscope's, and the work units that name its files.

A run is cut into work units, the same for every engine and after every interruption.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loopscope.errors import LoopscopeError, setting
from loopscope.store.atomic import PARTIAL, partial_path
from loopscope.store.column_types import Table
from loopscope.store.tables import TABLES

_IGNORED = frozenset({".DS_Store"})
STATES = "states"
"""The folder of recurrent states, which are no table: a safetensors file a unit."""


@dataclass(frozen=True)
class RunLayout:
    """The paths inside one run directory."""

    path: Path

    @property
    def manifest(self) -> Path:
        """What was measured, with what, and how."""
        return self.path / "manifest.json"

    @property
    def certified(self) -> Path:
        """Certificates that were made after the run: a run of its own."""
        return self.path / "certified"

    @property
    def complete(self) -> Path:
        """The seal of a finished run."""
        return self.path / "complete.json"

    @property
    def events(self) -> Path:
        """The log with times."""
        return self.path / "events.jsonl"

    @property
    def lock(self) -> Path:
        """The file that a writer locks."""
        return self.path / ".loopscope.lock"

    @property
    def units(self) -> Path:
        """The folder of commit records."""
        return self.path / "units"

    def record(self, unit: WorkUnit) -> Path:
        """The commit record of a unit."""
        return self.units / f"{unit.name}.json"

    def folder(self, table: Table | str) -> Path:
        """The folder of a table's shards."""
        return self.path / (table if isinstance(table, str) else table.name)

    def shard(self, table: Table | str, unit: WorkUnit) -> Path:
        """The shard of a unit in a table, or its recurrent states."""
        return self.folder(table) / f"{unit.name}.{'safetensors' if table == STATES else 'parquet'}"

    def folders(self) -> tuple[Path, ...]:
        """All folders that a run may hold."""
        return (self.units, *(self.folder(name) for name in (*TABLES, STATES)))

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
            ours |= {path.name + PARTIAL for path in (self.manifest, self.events)}
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


MAX_UNITS = 1_000_000
"""Work units of a run, at most: their files are numbered with six digits."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A range of consecutive examples of one task; it is measured and committed as a whole."""

    index: int
    """Number of the unit in the run, from 0; it names the unit's files."""
    task: str
    split: str
    start: int
    """First `row` of the unit."""
    stop: int
    """One past its last `row`."""

    @property
    def name(self) -> str:
        """The stem of the unit's files."""
        return f"{self.index:06d}"

    @property
    def size(self) -> int:
        """How many examples the unit holds."""
        return self.stop - self.start


class TaskRows(NamedTuple):
    """A task of a run and how many of its examples are measured."""

    task: str
    split: str
    rows: int


def plan_units(tasks: Iterable[TaskRows], unit_size: int) -> tuple[WorkUnit, ...]:
    """Cut every task, in order, into ranges of `unit_size` examples, the last one shorter.

    >>> units = plan_units([TaskRows("a", "test", 3), TaskRows("b", "test", 1)], 2)
    >>> [(unit.name, unit.task, unit.start, unit.stop) for unit in units]
    [('000000', 'a', 0, 2), ('000001', 'a', 2, 3), ('000002', 'b', 0, 1)]
    """
    tasks = tuple(tasks)
    count = sum(-(-rows // unit_size) for _, _, rows in tasks)
    if count > MAX_UNITS:
        larger = f"choose a larger {setting('unit_size')}"
        raise LoopscopeError(f"a run has at most {MAX_UNITS} work units, not {count}: {larger}")
    units: list[WorkUnit] = []
    for task, split, rows in tasks:
        for start in range(0, rows, unit_size):
            units.append(WorkUnit(len(units), task, split, start, min(start + unit_size, rows)))
    return tuple(units)
