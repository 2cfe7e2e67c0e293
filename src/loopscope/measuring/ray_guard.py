"""Ends a Ray that was started for one pass when the pass has ended, however it ended.

A driver that is killed cannot end what it started, and Ray's agents live on for a minute. So a small process of its own
waits for the driver's end (its standard input closes), kills what is left of the Ray and removes its files. The Ray has
a folder of its own for them: whatever names it in its command belongs to it, and so do those that call themselves
`ray::…` and have a file in it open. Runs as a script, with the standard library alone. Needs /proc, and kills nothing
without.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def start_guard() -> tuple[str, subprocess.Popen[bytes]]:
    """A folder for the files of a Ray, and its guard, which acts when its input is closed."""
    folder = tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR", "/tmp"))  # a short name: it holds sockets
    # A session of its own: what ends the driver's whole process group must not end the guard.
    command = [sys.executable, "-I", "-S", __file__, folder]
    return folder, subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def processes_of(folder: str) -> Iterator[int]:
    """The processes of the Ray with this folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            command = (entry / "cmdline").read_bytes()
            if (entry.name != str(os.getpid()) and os.fsencode(folder) in command) or (
                command.startswith(b"ray::")
                and any(os.readlink(file).startswith(folder) for file in (entry / "fd").iterdir())
            ):
                yield int(entry.name)


def sweep(folder: str) -> None:
    """Kill all of them, and those that they start meanwhile."""
    deadline = time.monotonic() + 10.0
    while (found := list(processes_of(folder))) and time.monotonic() < deadline:
        for process in found:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    sweep(sys.argv[1])
