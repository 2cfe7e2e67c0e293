"""A server that forks measuring processes, which kill themselves (SIGKILL) at a chosen file operation.

Each line of input is JSON: the run directory and the number of the operation; 0 for none. A write is killed in its
middle. Each line of output is JSON: the exit status, negative for a signal, and how many operations there were.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from loopscope.store.writer import open_or_create

OPERATIONS = ("open", "write", "pwrite", "ftruncate", "fsync", "replace", "unlink", "mkdir", "close")


def count_operations(fatal: int) -> list[int]:
    """Counts the operations of this process from now on; it dies at number `fatal`."""
    done = [0]

    def wrap(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def operation(*arguments: Any, **options: Any) -> Any:
            done[0] += 1
            if done[0] == fatal:
                if name == "write":
                    descriptor, data = arguments
                    real(descriptor, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        setattr(os, name, operation)

    for name in OPERATIONS:
        wrap(name)
    return done


def measure(path: str) -> None:
    import synthetic  # beside this script

    with open_or_create(path, synthetic.make_manifest()) as writer:
        for unit in writer.pending():
            tables = synthetic.make_tables(writer.manifest, unit)
            if unit.index == 1:  # in parts: what is saved already is not given again
                for row in sorted(set(range(unit.start, unit.stop - 1)) - writer.saved().get(unit, frozenset())):
                    writer.save(unit, synthetic.rows_of(tables, {row}))
                tables = synthetic.rows_of(tables, {unit.stop - 1})
            writer.commit(unit, tables)
        writer.finish()


def main() -> None:
    import synthetic  # before the forks

    assert synthetic
    for line in sys.stdin:
        path, fatal = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                tell, done = os.write, count_operations(fatal)
                measure(path)
                tell(writer, str(done[0]).encode())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, state = os.waitpid(pid, 0)
        os.close(writer)
        operations = int(os.read(reader, 32).decode() or 0)
        os.close(reader)
        print(json.dumps([os.waitstatus_to_exitcode(state), operations]), flush=True)


if __name__ == "__main__":
    main()
