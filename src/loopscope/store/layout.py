"""Where everything lies in a run directory, and what in it is not ours."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from loopscope._errors import LoopscopeError, setting
from loopscope.store.atomic import PARTIAL, partial_path
from loopscope.store.columns import Table
from loopscope.store.schema import TABLES
from loopscope.store.units import WorkUnit

_IGNORED = frozenset({".DS_Store"})


@dataclass(frozen=True)
class RunLayout:
    """The paths inside one run directory."""

    path: Path

    @property
    def manifest(self) -> Path:
        """What was measured, with what, and how."""
        return self.path / "manifest.json"

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
        """The shard of a unit in a table."""
        return self.folder(table) / f"{unit.name}.parquet"

    def folders(self) -> tuple[Path, ...]:
        """All folders that a run may hold."""
        return (self.units, *(self.folder(name) for name in TABLES))

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

    def require_no_strangers(self, tables: Iterable[Table], units: Iterable[WorkUnit]) -> None:
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
