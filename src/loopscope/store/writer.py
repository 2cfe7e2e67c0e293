"""Writing a run: open or create, commit unit by unit, finish; killed anywhere, the same calls carry on.

Shards stay as they were committed, one per unit and table; nothing is compacted at the end. So there is no moment at
which a finished measurement exists only half, a unit can be checked and redone alone, and the bytes of a finished run
depend neither on the order in which units were finished nor on how often it was interrupted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa  # type: ignore[import-untyped]

from loopscope.errors import LoopscopeError, setting
from loopscope.regular_files import read_regular
from loopscope.store.atomic import (
    RunLock,
    clear_write_errors,
    open_plain,
    partial_path,
    publish,
    remove,
    require_folder,
    sync_folder,
    write_atomically,
    write_partial,
)
from loopscope.store.hashing import sha256_bytes
from loopscope.store.manifest import Manifest, WorkUnit, differences
from loopscope.store.records import (
    Completion,
    DamageError,
    NoRunError,
    RunLayout,
    Shard,
    UnitRecord,
    check_unit,
    read_manifest,
    require_own_manifest,
)
from loopscope.store.run import StoredRun
from loopscope.store.shards import TableData, constants, encode, to_arrow, unit_problems

Status = Literal["new", "resumed", "finished"]


def open_or_create(path: str | os.PathLike[str], manifest: Manifest) -> RunWriter:
    """Begin a run in `path`, or carry on with the one that is there if it is the same.

    Every committed unit is read and checked against its hashes; what is torn, flipped, incomplete or left over is
    discarded and pending again.

    Raises:
        LoopscopeError: the directory holds another run (the differences are named) or foreign files, another process
            is writing it, or it cannot be written.
    """
    layout = RunLayout(Path(path))
    agreed_manifest(layout, manifest)
    with clear_write_errors(layout.path):
        layout.path.mkdir(parents=True, exist_ok=True)
    lock = RunLock(layout.lock)
    lock.acquire()
    try:
        return RunWriter(layout, manifest, lock)
    except BaseException:
        lock.release()
        raise


class RunWriter:
    """The one process that may write a run; made by `open_or_create`, used as a context manager."""

    def __init__(self, layout: RunLayout, manifest: Manifest, lock: RunLock) -> None:
        self._layout = layout
        self._lock = lock
        self._events = EventLog(layout.events)
        self.manifest = agreed_manifest(layout, manifest)
        self.units = self.manifest.units()
        self.discarded: tuple[str, ...] = ()
        """What was found damaged and will be measured again, one line each."""
        found = layout.manifest.exists()
        self._events.end_torn_line()
        self._settle_files()
        self._records = self._sound_records()
        self._clean()
        self.status: Status = "finished" if self._is_sealed() else "resumed" if found or self._records else "new"
        """Whether the run was begun here, carried on, or had nothing left to do."""
        self.log(
            self.status,
            pending=len(self.pending()),
            discarded=list(self.discarded),
            command_line=list(manifest.command_line),
        )

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._layout.path

    def pending(self, units: Iterable[WorkUnit] | None = None) -> list[WorkUnit]:
        """The units, of all or of `units`, that remain to be measured."""
        return [unit for unit in (self.units if units is None else units) if unit.index not in self._records]

    def commit(self, unit: WorkUnit, tables: Mapping[str, TableData]) -> UnitRecord:
        """Write the rows of a unit; when this returns they are on disk and count.

        Rows may come in any order. The columns `model`, `task`, `split` and `kind` are filled in when left out. A unit
        that is already committed stays as it is, so that a retried worker cannot duplicate a record.

        Raises:
            LoopscopeError: a number is not finite, or the disk refuses.
            ValueError: the rows are not those of the unit, or not of the schema.
        """
        if unit.index >= len(self.units) or self.units[unit.index] != unit:
            raise ValueError(f"{unit} is no unit of this run")
        if unit.index in self._records:
            return self._records[unit.index]
        shards, contents = self._encode(unit, self._checked(unit, tables))
        for path, data in contents.items():
            write_partial(path, data)
        publish(contents)
        record = UnitRecord(
            unit=unit.index,
            task=unit.task,
            split=unit.split,
            start=unit.start,
            stop=unit.stop,
            manifest_sha256=self.manifest.digest,
            shards=shards,
        )
        write_atomically(self._layout.record(unit), record.encode())
        self._records[unit.index] = record
        self.log("unit", unit=unit.index, bytes=sum(shard.bytes for shard in shards))
        return record

    def finish(self) -> StoredRun:
        """Seal the run once every unit is committed, and open it."""
        if self.pending():
            raise ValueError(f"{len(self.pending())} units are not committed")
        if not self._is_sealed():
            write_atomically(self._layout.complete, self._completion().encode())
            self.log("complete")
        return StoredRun(self.path)

    def log(self, event: str, **fields: Any) -> None:
        """Append to `events.jsonl`, which no other file depends on."""
        self._events.append(event, **fields)

    def close(self) -> None:
        """Give the directory free for the next writer."""
        self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle_files(self) -> None:
        """Put the manifest and the folders in place; the manifest first, for it makes the directory a run."""
        if not self._layout.manifest.exists():
            write_atomically(self._layout.manifest, self.manifest.encode())
        folders = (self._layout.units, *(self._layout.folder(name) for name in self.manifest.shards))
        with clear_write_errors(self.path):
            for folder in folders:
                with suppress(FileExistsError):
                    folder.mkdir()
                require_folder(folder)
            sync_folder(self.path)

    def _sound_records(self) -> dict[int, UnitRecord]:
        records: dict[int, UnitRecord] = {}
        discarded = []
        for unit in self.units:
            try:
                records[unit.index] = check_unit(self._layout, unit, self.manifest)
            except DamageError as damage:
                # A unit without a record was merely not finished; one with a record has lost something.
                if self._layout.record(unit).exists():
                    discarded.append(f"unit {unit.index}: {damage}")
        self.discarded = tuple(discarded)
        return records

    def _clean(self) -> None:
        """Remove what belongs to no committed unit: the seal, then records, then shards.

        In that order a kill in between leaves a unit that is pending, never a record without its shards.
        """
        layout = self._layout
        if self.pending() and layout.complete.exists():
            remove(layout.complete)
        kept = set()
        for unit in self.units:
            if unit.index in self._records:
                kept.add(layout.record(unit))
                kept.update(layout.shard(name, unit) for name in self.manifest.shards)
        leftovers = [path for path in layout.unit_files() if path not in kept]
        leftovers += [partial_path(path) for path in (layout.manifest, layout.complete)]
        for path in leftovers:
            if path.exists() or path.is_symlink():
                remove(path)

    def _checked(self, unit: WorkUnit, tables: Mapping[str, TableData]) -> dict[str, pa.Table]:
        declared = {table.name: table for table in self.manifest.tables()}
        if set(tables) != set(declared):
            raise ValueError(f"this run has the tables {sorted(declared)}, got {sorted(tables)}")
        fixed = constants(self.manifest, unit)
        arrow = {name: to_arrow(table, tables[name], fixed) for name, table in declared.items()}
        problems = unit_problems(self.manifest, unit, arrow)
        not_finite = [problem.message for problem in problems if problem.kind == "value"]
        if not_finite:
            raise LoopscopeError(
                f"{unit.task} ({unit.split}): {not_finite[0]}: the model overflows there,"
                f" try {setting('dtype', 'float32')} or leave the example out"
            )
        if problems:
            raise ValueError(f"unit {unit.index}: " + "; ".join(problem.message for problem in problems[:5]))
        return arrow

    def _encode(self, unit: WorkUnit, tables: Mapping[str, pa.Table]) -> tuple[tuple[Shard, ...], dict[Path, bytes]]:
        made = [
            (table.name, len(tables[table.name]), encode(table, tables[table.name])) for table in self.manifest.tables()
        ]
        shards = tuple(Shard(table=name, rows=n, bytes=len(data), sha256=sha256_bytes(data)) for name, n, data in made)
        return shards, {self._layout.shard(name, unit): data for name, _, data in made}

    def _completion(self) -> Completion:
        return Completion.of(self.manifest, [self._records[unit.index] for unit in self.units])

    def _is_sealed(self) -> bool:
        if self.pending():
            return False
        try:
            return read_regular(self._layout.complete) == self._completion().encode()
        except OSError:
            return False


class EventLog:
    """Appends one JSON line per event.

    A line that cannot be written (disk full) is dropped: it is a log, not a record, and the shard that is written next
    reports the same failure with its remedy.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, event: str, **fields: Any) -> None:
        """Append one event with the current time (UTC)."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        # Half a surrogate pair (from a file name that is not UTF-8) becomes the JSON escape of itself.
        self._write((json.dumps(entry, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))

    def end_torn_line(self) -> None:
        """End the line that a kill left without its end, so that the next event begins on its own."""
        with suppress(OSError):
            if not read_regular(self._path).endswith(b"\n"):
                self._write(b"\n")

    def _write(self, line: bytes) -> None:
        with suppress(OSError):
            descriptor = open_plain(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                if os.write(descriptor, line) < len(line):
                    os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)


_NAMED = 3
"""How many differences a refusal spells out."""


def agreed_manifest(layout: RunLayout, wanted: Manifest) -> Manifest:
    """The manifest under which `wanted` may be measured in this directory, without touching it.

    That is the stored one, which may differ in provenance, or `wanted` where nothing was measured yet.

    Raises:
        LoopscopeError: the directory holds another run, one whose manifest is lost, damaged or altered, or something
            that is not a run at all.
    """
    try:
        stored = read_manifest(layout)
    except NoRunError:
        layout.require_free()
        return wanted
    begun = require_own_manifest(layout, stored)
    named = _named(stored, wanted)
    if named:
        empty = "" if begun else f" or remove {layout.path}, which holds no sound unit"
        raise LoopscopeError(f"{layout.path} holds another run ({named}): choose another {setting('output')}{empty}")
    # Only now, so that a run with other settings is refused for those and not for the files that they bring.
    layout.require_no_strangers(stored.shards, stored.units())
    return stored


def _named(stored: Manifest, wanted: Manifest) -> str:
    found = differences(stored, wanted)
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return "; ".join(str(difference) for difference in found[:_NAMED]) + more
