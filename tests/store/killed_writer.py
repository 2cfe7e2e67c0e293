"""A measuring process that kills itself (SIGKILL) at its n-th file operation, in the middle of it if it is a write.

Usage: killed_writer.py RUN N. With N = 0 it lives to the end and prints how many operations there were.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

OPERATIONS = ("open", "write", "pwrite", "ftruncate", "fsync", "replace", "unlink", "mkdir", "close")


class Countdown:
    def __init__(self, fatal: int) -> None:
        self.done = 0
        self.fatal = fatal

    def wrap(self, name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def operation(*arguments: Any, **options: Any) -> Any:
            self.done += 1
            if self.done == self.fatal:
                if name == "write":
                    descriptor, data = arguments
                    real(descriptor, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        setattr(os, name, operation)


def main(path: str, fatal: int) -> None:
    import synthetic

    from loopscope.store.writer import open_or_create

    countdown = Countdown(fatal)
    for name in OPERATIONS:
        countdown.wrap(name)
    with open_or_create(path, synthetic.make_manifest()) as writer:
        for unit in writer.pending():
            tables = synthetic.make_tables(writer.manifest, unit)
            if unit.index == 1:  # in parts: what is saved already is not given again
                for row in sorted(set(range(unit.start, unit.stop - 1)) - writer.saved().get(unit, frozenset())):
                    writer.save(unit, synthetic.rows_of(tables, {row}))
                tables = synthetic.rows_of(tables, {unit.stop - 1})
            writer.commit(unit, tables)
        writer.finish()
    print(countdown.done)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
