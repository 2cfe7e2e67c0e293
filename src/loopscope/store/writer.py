"""Writing a run: open or create, commit unit by unit; killed anywhere, the same calls continue.

A file is written under its name plus `.partial`, forced to disk and renamed, and its folder is forced to disk after
that: a reader, or a command after a kill or a power failure, sees the old file, the new one or none. What a crash
leaves behind are `.partial` files, which the next writer removes. Object stores mounted as folders do not rename
atomically: a run belongs on a real file system. Every failure is raised as one line with its remedy.

Shards stay as they were committed, one per unit and table; nothing is compacted at the end. So there is no moment at
which a finished measurement exists only half, a unit can be checked and redone alone, and the bytes of a finished run
depend neither on the order in which units were finished nor on how often it was interrupted.

Several processes of one launch may write together: process i of n commits the units whose index is i modulo n. Process
0 opens the directory first, and opens it for all others.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa  # type: ignore[import-untyped]

from loopscope.errors import LoopscopeError, setting
from loopscope.store.manifest import Manifest, WorkUnit, differences, sha256_bytes
from loopscope.store.run import (
    PARTIAL,
    NoRunError,
    RunLayout,
    Shard,
    StoredRun,
    UnitRecord,
    Vocabulary,
    event_line,
    read_manifest,
    read_records,
)
from loopscope.store.shards import TableData, decode, encode, table_problems, to_arrow

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space or raise the quota",
    errno.EFBIG: "raise the file-size limit (ulimit -f)",
    errno.ENOTDIR: "choose an {output} path whose parents are folders",
    errno.ENAMETOOLONG: "choose a shorter {output} path",
}
Status = Literal["new", "resumed", "finished"]
Arrow = dict[str, pa.Table]
"""The rows of a unit by table."""


@contextmanager
def clear_write_errors(path: Path) -> Iterator[None]:
    """Turn a failed file operation into one line that names the file, the cause and the remedy."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        remedy = _REMEDIES.get(error.errno or 0, "choose an {output} folder that can be written")
        raise LoopscopeError(
            f"cannot write {where}: {error.strerror or error}; {remedy.format(output=setting('output'))} and give the"
            " same command again: what was finished is kept"
        ) from error


def require_plain(path: Path) -> None:
    """Refuse to write where something other than a plain file is: a link, a device, a folder."""
    with clear_write_errors(path), suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise LoopscopeError(f"{path} is not a plain file: move it away or choose another {setting('output')}")


def write_atomically(path: Path, data: bytes) -> None:
    """Write one file so that it is whole or absent, and on disk when this returns."""
    require_plain(path)
    partial = path.with_name(path.name + PARTIAL)
    with clear_write_errors(path):
        try:
            partial.unlink(missing_ok=True)
            # O_EXCL after the unlink: a link left under this name must not lead the write elsewhere.
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(partial, path)
        except OSError:
            # On a full disk the half-written file would hold the very space that is missing.
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to disk, where its file system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """The right to write into one run directory; who holds it is named where it is taken.

    It is `flock` on a file that stays in place: the kernel drops it when its process ends, however that ends.
    """
    try:
        import fcntl
    except ImportError as error:  # pragma: no cover
        raise LoopscopeError("Windows can read runs, not write them: measure on Linux, macOS or WSL") from error
    require_plain(path)
    with clear_write_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with clear_write_errors(path):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "process unknown"
                raise LoopscopeError(
                    f"{path.parent} is being written by another command ({holder}):"
                    f" wait until it ends or choose another {setting('output')}"
                ) from error
        # The process id only serves the message above; on a full disk the manifest is what reports the failure.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def open_or_create(path: str | os.PathLike[str], manifest: Manifest, rank: int = 0, ranks: int = 1) -> RunWriter:
    """Begin a run in `path`, or carry on with the one that is there if it is the same.

    Every committed unit is read and checked against its hashes; what is torn, flipped, incomplete or left over is
    discarded and pending again.

    Args:
        path: the run directory.
        manifest: what would be measured.
        rank: of this process among those of one launch; others than 0 open the directory after 0 has.
        ranks: how many processes of one launch write together.

    Raises:
        LoopscopeError: the directory holds another run (the differences are named) or foreign files, another process
            is writing it, or it cannot be written.
    """
    layout = RunLayout(Path(path))
    _agreed_manifest(layout, manifest)
    with clear_write_errors(layout.path):
        layout.path.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        own = layout.lock if rank == 0 else layout.lock.with_name(f"{layout.lock.name}.{rank}")
        held.enter_context(run_lock(own))
        if rank:
            held.callback(own.unlink, missing_ok=True)
        writer = RunWriter(layout, _agreed_manifest(layout, manifest), rank, ranks)
        writer.enter_context(held.pop_all())
        return writer


class RunWriter(ExitStack):
    """The one process that may write a run, or one of a launch; `close` gives the directory free for the next.

    Attributes:
        path: the run directory.
        share: the units that this process measures: all of them, or every n-th.
        discarded: what was damaged and will be measured again, one line each.
        status: whether the run was begun here, carried on, or had nothing left to do.
    """

    def __init__(self, layout: RunLayout, manifest: Manifest, rank: int, ranks: int) -> None:
        super().__init__()
        self._layout, self.manifest, self.path, self.units = layout, manifest, layout.path, manifest.units()
        self._tables, self.share = manifest.tables(), self.units[rank::ranks]
        self._kinds = {(task.name, task.split): task.kind for task in manifest.tasks}
        begun = layout.manifest.exists()
        self._records, damage = read_records(layout, manifest, contents=True)
        self.discarded = tuple(f"unit {index}: {reason}" for index, reason in sorted(damage.items()))
        if rank == 0:
            self._settle()
        # The sound parts of pending units; one that is torn or of another run is measured again.
        self._parts: dict[int, list[Arrow]] = {}
        for unit in self.pending():
            for path in sorted(layout.parts.glob(f"{unit.name}-*.zip")):
                part = path.read_bytes() if path.is_file() else b""
                if path == layout.part(unit, manifest, part):
                    archive = zipfile.ZipFile(BytesIO(part))
                    rows = {table.name: decode(table, archive.read(table.name)) for table in self._tables}
                    self._parts.setdefault(unit.index, []).append(rows)
        self.status: Status = "finished" if not self.pending() else "resumed" if begun else "new"
        self.log(self.status, pending=len(self.pending()), discarded=list(self.discarded))

    def pending(self) -> list[WorkUnit]:
        """The units of this process that remain to be measured."""
        return [unit for unit in self.share if unit.index not in self._records]

    def stored(self) -> tuple[int, int]:
        """Questions of this process's share that are stored, and all of them."""
        total, left = (sum(unit.stop - unit.start for unit in units) for units in (self.share, self.pending()))
        return total - left, total

    def commit(self, unit: WorkUnit, tables: Mapping[str, TableData]) -> UnitRecord:
        """Write the rows of a unit; when this returns they are on disk and count.

        Rows may come in any order. The columns `task`, `split` and `kind` are filled in when left out. A unit that is
        already committed stays as it is, so that a retried worker cannot duplicate a record.

        Raises:
            LoopscopeError: a number is not finite, or the disk refuses.
            ValueError: the rows are not those of the unit, or not of the schema.
        """
        if unit.index in self._records:
            return self._records[unit.index]
        arrow = self._arrow(unit, tables)
        if unit.index in self._parts:  # rows that were saved before and are not among these
            rows = _rows(arrow)
            parts = [*(part for part in self._parts.pop(unit.index) if not _rows(part) & rows), arrow]
            whole = {table.name: pa.concat_tables([part[table.name] for part in parts]) for table in self._tables}
            arrow = self._arrow(unit, whole)
        shards = []
        for table in self._tables:
            for problem in table_problems(self.manifest, unit, table, arrow[table.name]):
                if problem.kind == "value":
                    raise LoopscopeError(
                        f"{unit.task} ({unit.split}): {problem.message}: the model overflows there,"
                        f" try {setting('dtype', 'float32')} or leave the example out"
                    )
                raise ValueError(f"unit {unit.index}: {problem.message}")
        for table in self._tables:  # shards, then their record
            content, count = encode(table, arrow[table.name]), len(arrow[table.name])
            write_atomically(self._layout.shard(table.name, unit), content)
            shards.append(Shard(table=table.name, rows=count, bytes=len(content), sha256=sha256_bytes(content)))
        record = UnitRecord(unit=unit.index, manifest_sha256=self.manifest.digest, shards=tuple(shards))
        write_atomically(self._layout.record(unit), record.encode())
        self._records[unit.index] = record
        for path in self._layout.parts.glob(f"{unit.name}-*"):
            path.unlink(missing_ok=True)
        self.log("unit", unit=unit.index, bytes=sum(shard.bytes for shard in record.shards))
        return record

    def save(self, unit: WorkUnit, tables: Mapping[str, TableData]) -> None:
        """Keep some rows of a unit that is being measured, so that a kill does not lose them."""
        arrow, content = self._arrow(unit, tables), BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for table in self._tables:
                archive.writestr(table.name, encode(table, arrow[table.name]))
        with clear_write_errors(self._layout.parts):
            self._layout.parts.mkdir(exist_ok=True)
        part = content.getvalue()
        write_atomically(self._layout.part(unit, self.manifest, part), part)
        self._parts.setdefault(unit.index, []).append(arrow)

    def saved(self) -> dict[WorkUnit, frozenset[int]]:
        """The rows of pending units that are saved and need not be measured again."""
        return {self.units[index]: rows for index, parts in self._parts.items() if (rows := _rows(*parts))}

    def finish(self) -> StoredRun:
        """Open the run, whose units are all committed."""
        shutil.rmtree(self._layout.parts, ignore_errors=True)
        return StoredRun(self.path)

    def log(self, event: str, **fields: Any) -> None:
        """Append a line with the current time (UTC) to `events.jsonl`, which no number depends on.

        A line that cannot be written (disk full) is dropped: the shard that is written next reports the same failure.
        """
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        with suppress(OSError), self._layout.events.open("ab", buffering=0) as file:
            file.write(event_line(entry))

    def _settle(self) -> None:
        """Put the manifest and the folders in place, the manifest first, for it makes the directory a run.

        Files of units that do not count are removed: records first, so that none is without its shards.
        """
        for other in self.path.glob(f"{self._layout.lock.name}.*"):  # left by another launch, or still held by it
            with run_lock(other):
                other.unlink()
        require_plain(self._layout.events)
        if not self._layout.manifest.exists():
            write_atomically(self._layout.manifest, self.manifest.encode())
        names = {unit.name for unit in self.units if unit.index not in self._records}
        with clear_write_errors(self.path):
            for name in ("units", *(table.name for table in self._tables)):
                (self.path / name).mkdir(exist_ok=True)
            sync_folder(self.path)
            if self._layout.events.exists():  # without what a kill left of its last line
                with self._layout.events.open("rb+") as file:
                    file.truncate(file.read().rfind(b"\n") + 1)
            for path in [*self._layout.unit_files(), *self.path.glob(f"*{PARTIAL}")]:
                if path.name.split(".")[0] in names or path.name.endswith(PARTIAL):
                    path.unlink(missing_ok=True)
            sync_folder(self.path / "units")

    def _arrow(self, unit: WorkUnit, tables: Mapping[str, TableData]) -> Arrow:
        fixed = {"task": unit.task, "split": unit.split, "kind": self._kinds[unit.task, unit.split]}
        return {table.name: to_arrow(table, tables[table.name], fixed) for table in self._tables}


def _rows(*parts: Arrow) -> frozenset[int]:
    return frozenset(row for part in parts for row in part["examples"].column("row").to_pylist())


def write_vocabulary(folder: Path, manifest: Manifest, texts: Sequence[str]) -> None:
    """Write the text of every token id, from 0 on."""
    # Bytes that are not a text of their own come as lone surrogates from some tokenizers, which no page can show.
    whole = tuple(text.encode("utf-8", "replace").decode() for text in texts)
    vocabulary = Vocabulary(tokenizer_sha256=manifest.tokenizer_sha256, texts=whole)
    write_atomically(RunLayout(folder).vocabulary, vocabulary.encode())


def _agreed_manifest(layout: RunLayout, wanted: Manifest) -> Manifest:
    """The stored manifest, or `wanted` where there is no run yet.

    Raises:
        LoopscopeError: the directory holds another run, one whose manifest is lost, damaged or altered, or something
            that is not a run at all.
    """
    try:
        stored = read_manifest(layout)
    except NoRunError:
        if layout.path.exists() and not layout.path.is_dir():
            raise LoopscopeError(f"{layout.path} is a file: choose a folder for {setting('output')}") from None
        # What a writer killed at its first steps would leave.
        ours = (layout.lock.name, layout.events.name, layout.manifest.name + PARTIAL, ".DS_Store")
        others = [path.name for path in sorted(layout.path.glob("*")) if not path.name.startswith(ours)]
        if others:
            raise LoopscopeError(
                f"{layout.path} holds files that are not of a run ({others[0]}):"
                f" move them away or choose another {setting('output')}"
            ) from None
        return wanted
    different = differences(stored, wanted)
    if different:
        read_records(layout, stored)  # an altered manifest is refused as such
        names = "; ".join(map(str, different[:3]))
        more = f"; and {len(different) - 3} more" if len(different) > 3 else ""
        raise LoopscopeError(
            f"{layout.path} holds another run ({names}{more}): choose another {setting('output')}, or add"
            f" {setting('overwrite', True)} to measure again"
        )
    return stored
