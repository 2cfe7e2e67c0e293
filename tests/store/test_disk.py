"""Real refusals of the file system: full, limited, read-only, in the way. One line each, nothing lost."""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import LoopscopeError
from loopscope.store import Manifest, StoredRun, WorkUnit, open_or_create

Contents = Callable[[Path], dict[str, bytes]]
Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Measure = Callable[..., StoredRun]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: os.write fails for real, in the middle of a shard."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    try:
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small disk needs the rights of root")
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    finally:
        folder.rmdir()


def one_line(error: LoopscopeError) -> str:
    message = str(error)
    assert "\n" not in message
    return message


def test_a_write_that_fails_midway_keeps_what_was_finished(
    tmp_path: Path, undisturbed: Path, make_manifest: Make, make_tables: Tables, measure: Measure, contents: Contents
) -> None:
    path = tmp_path / "run"
    with open_or_create(path, make_manifest()) as writer:
        done, failing = writer.units[:2]
        writer.commit(done, make_tables(writer.manifest, done))
        with file_size_limit(30_000), pytest.raises(LoopscopeError) as caught:
            writer.commit(failing, make_tables(writer.manifest, failing))
        message = one_line(caught.value)
        assert "paths/000001.parquet: File too large" in message
        assert "same command again" in message
        assert failing in writer.pending()
        assert done not in writer.pending()
        assert not list(path.rglob("paths/*.partial"))
    run = measure(path)
    assert run.finished
    assert contents(path) == contents(undisturbed)


def test_the_same_writer_carries_on_when_there_is_room_again(
    tmp_path: Path, undisturbed: Path, make_manifest: Make, make_tables: Tables, contents: Contents
) -> None:
    path = tmp_path / "run"
    with open_or_create(path, make_manifest()) as writer:
        unit = writer.units[0]
        with file_size_limit(30_000), pytest.raises(LoopscopeError):
            writer.commit(unit, make_tables(writer.manifest, unit))
        for unit in writer.pending():
            writer.commit(unit, make_tables(writer.manifest, unit))
        writer.finish()
    assert contents(path) == contents(undisturbed)


def test_a_full_disk_is_one_line_and_resumable(
    undisturbed: Path, make_manifest: Make, make_tables: Tables, measure: Measure, contents: Contents
) -> None:
    with small_disk("300k") as disk:
        with open_or_create(disk / "run", make_manifest()) as writer:

            def fill_the_disk() -> None:
                for unit in writer.pending():
                    writer.commit(unit, make_tables(writer.manifest, unit))

            with pytest.raises(LoopscopeError, match="No space left on device; free some space") as caught:
                fill_the_disk()
            one_line(caught.value)
            assert 0 < len(writer.pending()) < 5
        kept = {unit.index for unit in StoredRun(disk / "run").missing_units}
        assert kept == {unit.index for unit in writer.pending()}
        subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
        assert measure(disk / "run").finished
        assert contents(disk / "run") == contents(undisturbed)


def test_a_disk_full_from_the_start_is_one_line(make_manifest: Make) -> None:
    with small_disk("4k") as disk:
        (disk / "filler").write_bytes(b"x" * 4096)
        with pytest.raises(LoopscopeError, match="No space left on device"):
            open_or_create(disk / "run", make_manifest())


def test_a_read_only_disk_is_one_line(undisturbed: Path, make_manifest: Make) -> None:
    with small_disk("2m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(LoopscopeError, match="Read-only file system; choose an output= folder") as caught:
            open_or_create(disk / "run", make_manifest())
        one_line(caught.value)


def test_a_finished_run_on_a_read_only_disk_can_be_read(undisturbed: Path) -> None:
    with small_disk("2m") as disk:
        shutil.copytree(undisturbed, disk / "run")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert StoredRun(disk / "run").finished
        assert len(StoredRun(disk / "run").records) == 24


def test_a_folder_without_write_permission_is_one_line(make_manifest: Make) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        me = os.geteuid()
        try:
            if me == 0:
                os.seteuid(65534)
            with pytest.raises(LoopscopeError, match="Permission denied; choose an output= folder") as caught:
                open_or_create(folder / "run", make_manifest())
        finally:
            if me == 0:
                os.seteuid(0)
            folder.chmod(0o755)
        assert str(folder) in one_line(caught.value)


def test_a_folder_that_may_not_even_be_looked_into_is_one_line(make_manifest: Make) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o000)
        me = os.geteuid()
        try:
            if me == 0:
                os.seteuid(65534)
            with pytest.raises(LoopscopeError, match="Permission denied"):
                open_or_create(folder / "run", make_manifest())
            with pytest.raises(LoopscopeError, match="Permission denied"):
                StoredRun(folder / "run")
        finally:
            if me == 0:
                os.seteuid(0)
            folder.chmod(0o755)


def test_an_output_below_a_file_is_one_line(tmp_path: Path, make_manifest: Make) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LoopscopeError, match="Not a directory; choose an output= path") as caught:
        open_or_create(tmp_path / "file" / "run", make_manifest())
    one_line(caught.value)
    assert (tmp_path / "file").read_text() == "in the way"


def test_an_output_that_is_a_file_is_one_line(tmp_path: Path, make_manifest: Make) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(LoopscopeError, match="is a file: choose a folder"):
        open_or_create(tmp_path / "run", make_manifest())
    assert (tmp_path / "run").read_text() == "in the way"


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path, make_manifest: Make) -> None:
    with pytest.raises(LoopscopeError, match="File name too long"):
        open_or_create(tmp_path / ("x" * 300), make_manifest())
