"""A server that forks loopscope commands, some of which kill themselves (SIGKILL) at a chosen file operation.

Each line of input is JSON: `words` of the command, the folder where it runs, and `fatal`, the number of the audited
operation (opening for writing, renaming, removing, making a folder) inside that folder before which it dies; 0 for
none. Each line of output is JSON: its exit `status`, negative for a signal, and how many `operations` it made.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from importlib import import_module

EVENTS = {"os.rename": 1, "os.remove": 0, "os.mkdir": 0, "os.rmdir": 0, "os.truncate": 0}
"""Audited operations besides `open`, and which argument is the path that changes."""

IMPORTED_ONCE = (
    *("loopscope.api", "loopscope.control.heads", "loopscope.reproduction", "loopscope.studies", "torch._dynamo"),
    *("matplotlib.pyplot", "matplotlib.backends.backend_pdf", "polars", "transformers"),
)
"""What the commands import: before the forks, so that each of them need not."""


def count_operations(folder: str, fatal: int) -> list[int]:
    """Counts what changes files in a folder from now on; the process dies before operation `fatal`."""
    done = [0]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not changes and not (isinstance(mode, str) and set(mode) & set("wax+")):
                return
        elif event in EVENTS:
            path = arguments[EVENTS[event]]
        else:
            return
        if isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(folder):
            done[0] += 1
            if done[0] == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return done


def child(words: list[str], folder: str, fatal: int, pipe: int) -> int:
    """The command in this process, after a fork."""
    import torch

    from loopscope.cli.app import exit_code

    # torch makes its thread pool anew in a forked process; two threads that ask first at once may get none.
    torch.set_num_threads(1)
    os.chdir(folder)
    done = count_operations(folder, fatal)
    with open(os.devnull, "w") as nothing:
        sys.stdout = nothing
        status = exit_code(words)
    os.write(pipe, str(done[0]).encode())
    return status


def serve() -> None:
    """Answers every line of stdin."""
    import torch

    for module in IMPORTED_ONCE:
        import_module(module)
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = child(asked["words"], asked["folder"], asked["fatal"], writer)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, state = os.waitpid(pid, 0)
        os.close(writer)
        operations = int(os.read(reader, 32).decode() or 0)
        os.close(reader)
        print(json.dumps({"status": os.waitstatus_to_exitcode(state), "operations": operations}), flush=True)


if __name__ == "__main__":
    serve()
