import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopscope.errors import LoopscopeError
from loopscope.store import Manifest, open_or_create
from loopscope.store.atomic import RunLock

HOLD = """
import sys, time
from pathlib import Path
from loopscope.store.atomic import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
{more}
print("held", flush=True)
time.sleep(60)
"""
FORK = """
import os
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
os.read(sys.stdin.fileno(), 1)
"""


def hold(path: Path, more: str = "") -> "subprocess.Popen[str]":
    script = HOLD.format(more=more)
    command = [sys.executable, "-c", script, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.close()
    process.stdin.close()


def test_a_second_writer_is_refused_and_the_first_named(tmp_path: Path) -> None:
    process = hold(tmp_path / "lock")
    try:
        assert read_line(process) == "held"
        with pytest.raises(LoopscopeError, match=rf"another command \(process {process.pid}\): wait until it ends"):
            RunLock(tmp_path / "lock").acquire()
    finally:
        end(process)


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    process = hold(tmp_path / "lock")
    assert read_line(process) == "held"
    end(process)
    assert process.returncode == -signal.SIGKILL
    with RunLock(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text() == f"process {os.getpid()}\n"


def test_a_forked_worker_that_survives_does_not_keep_the_lock(tmp_path: Path) -> None:
    process = hold(tmp_path / "lock", FORK)
    worker = int(read_line(process))
    try:
        end(process)
        os.kill(worker, 0)
        RunLock(tmp_path / "lock").acquire()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> None:
    with open_or_create(tmp_path / "run", make_manifest()), pytest.raises(LoopscopeError, match="is being written"):
        open_or_create(tmp_path / "run", make_manifest())
    open_or_create(tmp_path / "run", make_manifest()).close()


def test_a_refused_command_leaves_the_lock_free(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> None:
    open_or_create(tmp_path / "run", make_manifest()).close()
    (tmp_path / "run" / "questions").rmdir()
    (tmp_path / "run" / "questions").touch()
    with pytest.raises(LoopscopeError, match=r"cannot write .*questions: File exists"):
        open_or_create(tmp_path / "run", make_manifest())
    RunLock(tmp_path / "run" / ".loopscope.lock").acquire()


def test_a_process_of_another_launch_that_still_writes_is_respected(
    tmp_path: Path, make_manifest: Callable[..., Manifest]
) -> None:
    path, manifest = tmp_path / "run", make_manifest()
    first, second = open_or_create(path, manifest, 0, 2), open_or_create(path, manifest, 1, 2)
    assert [[unit.index for unit in writer.pending()] for writer in (first, second)] == [[0, 2, 4], [1, 3]]
    first.close()
    with pytest.raises(LoopscopeError, match="is being written by another command"):
        open_or_create(path, manifest)
    second.close()
    open_or_create(path, manifest).close()
    assert not list(path.glob(".loopscope.lock.*"))
