"""A server that forks measuring processes, some of which kill themselves (SIGKILL) in the middle of a file operation.

Each line of input is `FOLDER OPERATION`: the child measures into FOLDER; with OPERATION > 0 it dies at its n-th file
operation, halfway through it if it is a write. Each line of output is `STATUS OPERATIONS`.
"""

import os
import signal
import sys
import traceback

import torch

from loopscope.api import measure_with as measure
from loopscope.models.load import load_model

OPERATIONS = ("open", "write", "pwrite", "ftruncate", "fsync", "replace", "unlink", "mkdir", "close")


def arm(fatal: int) -> list[int]:
    done = [0]
    for name in OPERATIONS:
        real = getattr(os, name)

        def operation(*arguments, _name=name, _real=real, **options):
            done[0] += 1
            if done[0] == fatal:
                if _name == "write":
                    descriptor, data = arguments
                    _real(descriptor, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return _real(*arguments, **options)

        setattr(os, name, operation)
    return done


def child(folder: str, fatal: int, pipe: int) -> None:
    report = os.write
    done = arm(fatal)
    measure(
        "toy-ouro",
        ["arithmetic"],
        output=folder,
        transitions=[1],
        level="quick",
        limit=6,
        unit_size=2,
        lens=2,
        device="cpu",
        dtype="float32",
    )
    report(pipe, str(done[0]).encode())


def serve() -> None:
    torch.set_num_threads(1)
    load_model("toy-ouro")
    for line in sys.stdin:
        folder, fatal = line.split()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                # torch makes its thread pool anew in a forked process; two threads that ask first at once may get none.
                torch.set_num_threads(1)
                child(folder, int(fatal), writer)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, state = os.waitpid(pid, 0)
        os.close(writer)
        done = os.read(reader, 32).decode() or "0"
        os.close(reader)
        print(os.waitstatus_to_exitcode(state), done, flush=True)


if __name__ == "__main__":
    serve()
