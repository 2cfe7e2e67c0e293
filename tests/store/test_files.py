"""Files and the lock: whole or absent, one line for what the file system refuses, nothing written through a link."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import LoopscopeError
from loopscope.store import Manifest, StoredRun
from loopscope.store.manifest import WorkUnit
from loopscope.store.writer import open_or_create, run_lock, write_atomically

Contents = Callable[[Path], dict[str, bytes]]
Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Measure = Callable[..., StoredRun]
KINDS = ("link", "dangling", "fifo", "folder")


@contextmanager
def one_line(expected: str) -> Iterator[None]:
    with pytest.raises(LoopscopeError, match=expected) as caught:
        yield
    assert "\n" not in str(caught.value)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: os.write fails for real, in the middle of a shard."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    write_atomically(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_write_that_fails_midway_keeps_what_was_finished(
    tmp_path: Path, undisturbed: Path, make_manifest: Make, make_tables: Tables, contents: Contents
) -> None:
    path = tmp_path / "run"
    with open_or_create(path, make_manifest()) as writer:
        done, failing = writer.units[:2]
        writer.commit(done, make_tables(writer.manifest, done))
        with file_size_limit(30_000), one_line(r"paths/000001.parquet.*: File too large.* same command again"):
            writer.commit(failing, make_tables(writer.manifest, failing))
        assert failing in writer.pending()
        assert done not in writer.pending()
        assert not list(path.rglob("paths/*.partial"))
        for unit in writer.pending():  # there is room again
            writer.commit(unit, make_tables(writer.manifest, unit))
        writer.finish()
    assert contents(path) == contents(undisturbed)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "No space left on device; free some space and give the same command again"),
        (errno.EROFS, "Read-only file system; choose an output= folder that can be written"),
        (errno.EACCES, "Permission denied; choose an output= folder that can be written"),
    ],
)
@pytest.mark.parametrize("operation", ["write", "fsync", "replace"])
def test_a_refused_operation_is_one_line_and_the_run_goes_on(
    operation: str, number: int, expected: str, tmp_path: Path, undisturbed: Path, measure: Measure, contents: Contents
) -> None:
    real, count = getattr(os, operation), iter(range(10**6))

    def refusing(*arguments: Any) -> Any:
        if next(count) == 9:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, operation, refusing)
        with one_line(f"cannot write .*: {expected}"):
            measure(tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.partial"))
    measure(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(undisturbed)


def test_an_output_in_the_way_is_one_line(tmp_path: Path, make_manifest: Make) -> None:
    (tmp_path / "file").write_text("in the way")
    for path, expected in (
        (tmp_path / "file", "is a file: choose a folder"),
        (tmp_path / "file" / "run", "Not a directory; choose an output= path"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with one_line(expected):
            open_or_create(path, make_manifest())
    with one_line(r"cannot write .*gone/report.html.partial: No such file or directory"):
        write_atomically(tmp_path / "gone" / "report.html", b"x")
    assert (tmp_path / "file").read_text() == "in the way"


def put(kind: str, path: Path) -> Path:
    """Put something in the place of a file; what must not change by it is the answer."""
    precious = path.parents[1] / "precious"
    precious.write_text("years of work")
    path.unlink(missing_ok=True)
    match kind:
        case "link":
            path.symlink_to(precious)
        case "dangling":
            path.symlink_to(path.parents[1] / "not there")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    return precious


@pytest.mark.parametrize("name", [".loopscope.lock", "questions/000000.parquet", "report.html"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_in_place_of_what_is_no_plain_file(
    kind: str, name: str, tmp_path: Path, make_manifest: Make, make_tables: Tables
) -> None:
    path = tmp_path / "run"
    open_or_create(path, make_manifest()).close()
    precious = put(kind, path / name)
    mode = os.lstat(path / name).st_mode

    def write() -> None:
        if name == "report.html":
            return write_atomically(path / name, b"<p>")
        with open_or_create(path, make_manifest()) as writer:
            writer.commit(writer.units[0], make_tables(writer.manifest, writer.units[0]))

    if not (name.endswith("parquet") and kind != "folder"):  # a shard without a record is removed first, a link too
        with one_line(f"{name} is not a plain file: move it away|cannot write .*{name}: Is a directory"):
            write()
        assert stat.S_IFMT(os.lstat(path / name).st_mode) == stat.S_IFMT(mode)
        (path / name).rmdir() if kind == "folder" else (path / name).unlink()
    write()  # what the line advises works
    assert precious.read_text() == "years of work"
    assert not (tmp_path / "not there").exists()


def test_a_partial_file_that_is_a_link_does_not_lead_outside(
    tmp_path: Path, make_manifest: Make, make_tables: Tables
) -> None:
    (tmp_path / "precious").write_text("keep")
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        (tmp_path / "run" / "questions" / "000000.parquet.partial").symlink_to(tmp_path / "precious")
        writer.commit(writer.units[0], make_tables(writer.manifest, writer.units[0]))
    assert (tmp_path / "precious").read_text() == "keep"


HOLD = """
import sys
from pathlib import Path
from loopscope.store.writer import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        refused = one_line(rf"another command \(process {process.pid}\): wait until it ends")
        with refused, run_lock(tmp_path / "lock"):
            raise AssertionError("two hold it")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with run_lock(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text() == f"process {os.getpid()}\n"


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path, make_manifest: Make) -> None:
    with open_or_create(tmp_path / "run", make_manifest()), one_line("is being written"):
        open_or_create(tmp_path / "run", make_manifest())
    open_or_create(tmp_path / "run", make_manifest()).close()


def test_a_refused_command_leaves_the_lock_free(tmp_path: Path, make_manifest: Make) -> None:
    open_or_create(tmp_path / "run", make_manifest()).close()
    (tmp_path / "run" / "questions").rmdir()
    (tmp_path / "run" / "questions").touch()
    with one_line(r"cannot write .*questions: File exists"):
        open_or_create(tmp_path / "run", make_manifest())
    with run_lock(tmp_path / "run" / ".loopscope.lock"):
        pass


def test_a_process_of_another_launch_that_still_writes_is_respected(tmp_path: Path, make_manifest: Make) -> None:
    path, manifest = tmp_path / "run", make_manifest()
    first, second = open_or_create(path, manifest, 0, 2), open_or_create(path, manifest, 1, 2)
    assert [[unit.index for unit in writer.pending()] for writer in (first, second)] == [[0, 2, 4], [1, 3]]
    first.close()
    with one_line("is being written by another command"):
        open_or_create(path, manifest)
    second.close()
    open_or_create(path, manifest).close()
    assert not list(path.glob(".loopscope.lock.*"))
