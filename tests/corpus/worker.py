"""Runs cases one after the other in one process and says on stdout what came of each; `test_corpus` watches it.

    python worker.py SHARED SCRATCH FIRST STEP

A line of JSON at each start and each end, so that the watcher knows which case hangs or ends the process.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

from cases import CASES
from place import Place

ADDRESS_SPACE = 3 << 30
"""What a case may ask of the address space beyond what the process has: an allocation without bounds fails at once."""


def main(shared: Path, scratch: Path, first: int, step: int) -> None:
    say = os.fdopen(os.dup(1), "w", buffering=1)
    warm_up()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + ADDRESS_SPACE, hard))
    environment = dict(os.environ)
    gc.freeze()
    for number in range(first, len(CASES), step):
        case = CASES[number]
        here = scratch / f"{number:04d}"
        here.mkdir(parents=True)
        os.chdir(here)
        say.write(json.dumps({"start": number}) + "\n")
        reset_peak()
        before, began = memory("VmRSS"), time.monotonic() - waited()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = case.act(Place(here, shared))
        took, grown = time.monotonic() - waited() - began, memory("VmHWM") - before
        for handled in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(handled, signal.SIG_DFL if handled is not signal.SIGINT else signal.default_int_handler)
        os.chdir(scratch)
        os.environ.clear()
        os.environ.update(environment)
        shutil.rmtree(here, ignore_errors=True)
        found = {"end": number, "kind": outcome.kind, "text": outcome.text, "seconds": took, "bytes": grown}
        say.write(json.dumps(found) + "\n")


def waited() -> float:
    """Seconds in which this process was ready and other work had the processor: they are not the case's."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def warm_up() -> None:
    """Libraries that are imported by the first case that needs them would count as its time and memory."""
    import matplotlib.pyplot  # noqa: F401
    import polars  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    import loopscope.api
    import loopscope.report  # noqa: F401

    torch.zeros(2, 2) @ torch.zeros(2, 2)


def memory(field: str) -> int:
    """A field of the process's status in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


def reset_peak() -> None:
    """The peak of resident memory counts from now."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
