"""Runs cases one after the other, each in a fork of this process, and reports on stdout what came of each.

    python worker.py SHARED SCRATCH STEP

A line of JSON for each of the cases 0, STEP, 2·STEP, …: `kind`, `text`, the processor's `seconds` and the `bytes` that
it took beyond what this process has.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from cases import CASES
from harness import Case, Outcome, Place

HANG = 300
"""Seconds after which a case is ended, whatever else the machine does."""
ADDRESS_SPACE = 6 << 30
"""What a case may ask of the address space beyond what the process has: an allocation without bounds fails at once."""
LIBRARIES = ("matplotlib.pyplot", "polars", "pyarrow.parquet", "scipy.stats", "torch._dynamo", "transformers")


def main(shared: Path, scratch: Path, step: int) -> None:
    report = os.fdopen(os.dup(1), "w", buffering=1)
    warm_up()
    gc.freeze()
    for number in range(0, len(CASES), step):
        here = scratch / f"{number:04d}"
        here.mkdir(parents=True)
        report.write(json.dumps(run(CASES[number], Place(here, shared))) + "\n")


def run(case: Case, place: Place) -> dict[str, Any]:
    """What came of a case in a process of its own."""
    reader, writer = os.pipe()
    before = memory("VmRSS")
    pid = os.fork()
    if pid == 0:
        outcome = Outcome("broken case")
        try:
            outcome = inside(case, place)
        finally:
            os.write(writer, json.dumps({"kind": outcome.kind, "text": outcome.text[:2000]}).encode())
            os._exit(0)
    os.close(writer)
    if not select.select([reader], [], [], HANG)[0]:
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status, used = os.wait4(pid, 0)
    found = json.loads(said) if said else {"kind": f"ended the process ({status})", "text": ""}
    # Seconds of the case's own work: what else the machine does is not the case's.
    return {**found, "seconds": used.ru_utime + used.ru_stime, "bytes": used.ru_maxrss * 1024 - before}


def inside(case: Case, place: Place) -> Outcome:
    """What came of a case in this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + ADDRESS_SPACE, hard))
    os.chdir(place.here)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = case.act(place)
        except Exception as error:
            return Outcome("broken case", repr(error)[:300])
    return Outcome("hostile code ran", outcome.text) if (place.here / "ran").exists() else outcome


def warm_up() -> None:
    """What cases import is imported before the forks, so that it counts as nobody's time and memory."""
    import torch

    import loopscope
    from loopscope.cli.app import COMMANDS, _command

    torch.set_num_threads(1)
    torch.zeros(2, 2) @ torch.zeros(2, 2)
    for library in LIBRARIES:
        import_module(library)
    for module in pkgutil.walk_packages(loopscope.__path__, "loopscope."):
        if not module.name.endswith("__main__") and "lm_eval" not in module.name:
            import_module(module.name)
    for commands in COMMANDS.values():
        for name, (where, _) in commands.items():
            _command(where, name)


def memory(field: str) -> int:
    """A field of the process's status in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
