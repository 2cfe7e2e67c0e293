"""Ends a Ray that was started for one pass when the pass has ended, however it ended.

A driver that is killed cannot end what it started, and Ray's agents live on for a minute. So a small process of its own
waits for the driver's end (its standard input closes) and then kills every process that carries the pass's mark in its
environment, which Ray's processes inherit from each other. Runs as a script, with the standard library alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "LOOPSCOPE_RAY_GUARD"
_PROCESSES = Path("/proc")
_SECONDS_TO_SWEEP = 10.0


class RayGuard:
    """The process that waits. Does nothing where there is no /proc, which tells the environment of a process."""

    def __init__(self, mark: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if (_PROCESSES / "self" / "environ").exists():
            # A session of its own: what ends the driver's whole process group must not end the guard.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, mark], stdin=subprocess.PIPE, start_new_session=True
            )

    def close(self) -> None:
        """End whatever carries the mark, now."""
        if self._process is not None:
            self._process.communicate()


@contextmanager
def guarded() -> Iterator[RayGuard]:
    """Every process that is started within this block is ended with this one, or when the guard is closed."""
    mark = uuid.uuid4().hex
    guard = RayGuard(mark)
    os.environ[MARK] = mark
    try:
        yield guard
    except BaseException:
        guard.close()
        raise
    finally:
        del os.environ[MARK]


def marked(mark: str) -> list[int]:
    """The processes that were started with the mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in _PROCESSES.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # another user's, or gone meanwhile
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def sweep(mark: str) -> None:
    """Kill all of them, and those that they start meanwhile."""
    deadline = time.monotonic() + _SECONDS_TO_SWEEP
    while (found := marked(mark)) and time.monotonic() < deadline:
        for process in found:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    sweep(sys.argv[1])
