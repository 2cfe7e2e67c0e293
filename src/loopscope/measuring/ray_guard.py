"""Ends a Ray that was started for one pass when the pass has ended, however it ended.

A driver that is killed cannot end what it started, and Ray's agents live on for a minute. So a small process of its own
waits for the driver's end (its standard input closes) and then kills what is left of the Ray: the processes that carry
the pass's mark in their environment, which they inherit from each other, and those that call themselves `ray::…`, which
wipes the environment that others see, and have a file of the Ray's session open. Runs as a script, with the standard
library alone. Needs /proc, and does nothing without.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "LOOPSCOPE_RAY_GUARD"
_SECONDS_TO_SWEEP = 10.0


class RayGuard:
    """Ends the Ray that `start` starts, and whose session's folder it returns, with this process or when closed."""

    def __init__(self, start: Callable[[], str]) -> None:
        mark = uuid.uuid4().hex
        # A session of its own: what ends the driver's whole process group must not end the guard.
        command = [sys.executable, "-I", "-S", __file__, mark]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        os.environ[MARK] = mark
        try:
            session = os.fsencode(start())
        except BaseException:
            self.close()
            raise
        finally:
            del os.environ[MARK]
        assert self._process.stdin is not None
        self._process.stdin.write(session)
        self._process.stdin.flush()

    def close(self) -> None:
        """End whatever is left, now."""
        self._process.communicate()


def of_session(mark: str, session: str) -> list[int]:
    """The processes of a Ray that was started under this mark, with this folder; "" where it is not known."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0") or (
                session
                and (entry / "cmdline").read_bytes().startswith(b"ray::")
                and any(os.readlink(file).startswith(session + "/") for file in (entry / "fd").iterdir())
            ):
                found.append(int(entry.name))
    return found


def sweep(mark: str, session: str) -> None:
    """Kill all of them, and those that they start meanwhile."""
    deadline = time.monotonic() + _SECONDS_TO_SWEEP
    while (found := of_session(mark, session)) and time.monotonic() < deadline:
        for process in found:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    sweep(sys.argv[1], os.fsdecode(sys.stdin.buffer.read()))
