"""Nothing is written through a link or in place of one, nor of a device, a FIFO or a folder."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import LoopscopeError
from loopscope.store import Manifest, StoredRun, WorkUnit, open_or_create
from loopscope.store.atomic import write_atomically

Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
KINDS = ("link", "dangling", "fifo", "folder", "device")


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


def put(kind: str, path: Path) -> Path:
    """Put something in the place of a file; what must not change by it is the answer."""
    precious = path.parents[1] / "precious"
    precious.write_text("years of work")
    if path.is_dir():
        shutil.rmtree(path)
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
        case "device":
            path.symlink_to("/dev/null")
    return precious


@pytest.mark.parametrize("name", [".loopscope.lock", "events.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_refuses_what_is_no_plain_file(kind: str, name: str, copy: Path, make_manifest: Make) -> None:
    precious = put(kind, copy / name)
    mode = os.lstat(copy / name).st_mode

    def write() -> None:
        with open_or_create(copy, make_manifest()) as writer:
            writer.finish()

    with pytest.raises(LoopscopeError, match=f"{name} is not a plain file: move it away") as caught:
        write()
    assert "\n" not in str(caught.value)
    assert precious.read_text() == "years of work"
    assert not (copy.parent / "not there").exists()
    assert stat.S_IFMT(os.lstat(copy / name).st_mode) == stat.S_IFMT(mode)
    # And what the line advises works.
    (copy / name).rmdir() if kind == "folder" else (copy / name).unlink()
    write()
    assert StoredRun(copy).finished


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_is_not_written_in_place_of_something_else(
    kind: str, tmp_path: Path, make_manifest: Make, make_tables: Tables
) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        unit = writer.pending()[0]
        shard = tmp_path / "run" / "questions" / "000000.parquet"
        precious = put(kind, shard)
        with pytest.raises(LoopscopeError, match="not a plain file"):
            writer.commit(unit, make_tables(writer.manifest, unit))
        assert unit in writer.pending()
        assert precious.read_text() == "years of work"
        shard.rmdir() if kind == "folder" else shard.unlink()
        writer.commit(unit, make_tables(writer.manifest, unit))


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_is_not_written_in_place_of_something_else(kind: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "report.html"
    precious = put(kind, target)
    with pytest.raises(LoopscopeError, match=r"report\.html is not a plain file: move it away"):
        write_atomically(target, b"<p>")
    assert precious.read_text() == "years of work"
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_device_is_refused(tmp_path: Path) -> None:
    # Its own node for the null device: a failure here must not cost the machine its /dev/null.
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making a device node needs the rights of root")
    with pytest.raises(LoopscopeError, match="null is not a plain file: move it away"):
        write_atomically(device, b"x")
    assert stat.S_ISCHR(os.lstat(device).st_mode)
