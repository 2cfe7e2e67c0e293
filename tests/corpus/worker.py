"""Runs cases one after the other in one process and reports on stdout what came of each; `test_corpus` watches it.

    python worker.py SHARED SCRATCH FIRST STEP

A line of JSON at each end, so that the watcher knows which case hangs or ends the process.
"""

from __future__ import annotations

import faulthandler
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
from harness import Outcome, Place

HANG = 300
"""Seconds after which a case ends the process, whatever else the machine does."""
ADDRESS_SPACE = 6 << 30
"""What a case may ask of the address space beyond what the process has: an allocation without bounds fails at once."""


def main(shared: Path, scratch: Path, first: int, step: int) -> None:
    report = os.fdopen(os.dup(1), "w", buffering=1)
    warm_up()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + ADDRESS_SPACE, hard))
    environment = dict(os.environ)
    gc.freeze()
    report.write(json.dumps({"ready": len(CASES)}) + "\n")
    for number in range(first, len(CASES), step):
        here = scratch / f"{number:04d}"
        here.mkdir(parents=True)
        os.chdir(here)
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory counts from now
        before, began = memory("VmRSS"), time.process_time()
        faulthandler.dump_traceback_later(HANG, exit=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcome = CASES[number].act(Place(here, shared))
            except Exception as error:
                outcome = Outcome("broken case", repr(error)[:300])
        faulthandler.cancel_dump_traceback_later()
        if (here / "ran").exists():
            outcome = Outcome("hostile code ran", outcome.text)
        # Seconds of this process's own work: what else the machine does is not the case's.
        facts = {"seconds": time.process_time() - began, "bytes": memory("VmHWM") - before}
        for handled in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(handled, signal.SIG_DFL if handled is not signal.SIGINT else signal.default_int_handler)
        os.chdir(scratch)
        os.environ.clear()
        os.environ.update(environment)
        shutil.rmtree(here, ignore_errors=True)
        report.write(json.dumps({"end": number, "kind": outcome.kind, "text": outcome.text, **facts}) + "\n")


def warm_up() -> None:
    """Libraries that are imported by the first case that needs them would count as its time and memory."""
    import matplotlib.pyplot  # noqa: F401
    import polars  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import transformers  # noqa: F401

    import loopscope.api
    import loopscope.report  # noqa: F401

    torch.zeros(2, 2) @ torch.zeros(2, 2)


def memory(field: str) -> int:
    """A field of the process's status in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
