"""`loopscope measure` on GSM8K from the command to its end: a process of its own with everything that comes once.

Imports, the model, tokens, compilation, the pass, the store. On a GPU it runs three times: with nothing at hand; with
Python's bytecode, which pip leaves behind when it installs, but without a compiled kernel; with both. The second is
judged. Figures say how long after the command its run directory was opened, its first questions were stored, its last
kernel was compiled and all was stored; the rest is the process's end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from loopscope.bench.clock import Measured
from loopscope.bench.row import Reference, Row, Setting, at_most
from loopscope.bench.whole_pass import TRANSITION, PassRequest, model_folder, request_of
from loopscope.store import StoredRun

SECONDS = 14.0
WARM = "the same with compiled kernels at hand"
BARE = "the same without Python's bytecode"
_START = "from loopscope.cli import main; main()"


def rows(setting: Setting) -> list[Row]:
    """One row."""
    wanted = request_of(setting)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        model = model_folder(wanted.config, scratch)
        references: tuple[Reference, ...] = ()
        if setting.on_gpu:
            kept = _keeping(scratch)
            elsewhere = {"TRITON_CACHE_DIR": str(scratch / "other kernels")}
            bare = _ran(wanted, model, scratch / "bare", kept | elsewhere)
            first, second = (_ran(wanted, model, scratch / name, kept) for name in ("first", "second"))
            references = (
                Reference(WARM, Measured.of([second.seconds]), floor=True),
                Reference(BARE, Measured.of([bare.seconds])),
            )
            figures = first.figures() | {f"{name}_with_kernels": after for name, after in second.figures().items()}
        else:
            first = _ran(wanted, model, scratch / "first", {})
            figures = first.figures()
    judged = setting.sizes.judged and setting.on_gpu
    goal = at_most(f"at most {SECONDS:g} s with compilation", SECONDS, first.seconds, judged=judged)
    what = "`loopscope measure` from the command to its end, update 4→5, level grid, nothing compiled before"
    measured = Measured.of([first.seconds])
    return [Row("command", what, {"questions": wanted.limit}, "s", measured, references, (goal,), figures)]


def _keeping(scratch: Path) -> dict[str, str]:
    """The environment of a process that keeps what Python and Triton compile, and finds there nothing else."""
    return {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"),
        "TRITON_CACHE_DIR": str(scratch / "kernels"),
    }


class _Ran(NamedTuple):
    """A command that has ended.

    Attributes:
        seconds: from its beginning to its end.
        opened: seconds after the beginning, likewise the following: when the pass began.
        first_unit: when its first questions were stored.
        stored: when all was stored.
        last_kernel: when the last kernel was compiled; None where none was.
    """

    seconds: float
    opened: float
    first_unit: float
    stored: float
    last_kernel: float | None

    def figures(self) -> dict[str, float]:
        """The same by name."""
        return {name: after for name, after in self._asdict().items() if name != "seconds" and after is not None}


def _ran(wanted: PassRequest, model: Path, output: Path, environment: dict[str, str]) -> _Ran:
    flags = {
        "model": model,
        "tasks": wanted.task,
        "tokenizer": wanted.tokenizer,
        "transitions": TRANSITION,
        "limit": wanted.limit,
        "unit-size": wanted.unit_size,
        "device": wanted.device,
        "dtype": "bfloat16",
        "progress": "none",
        "output": output,
    }
    if wanted.data_dir is not None:
        flags["data-dir"] = wanted.data_dir
    command = [sys.executable, "-c", _START, "measure", "--random-weights"]
    command += [f"--{flag}={value}" for flag, value in flags.items()]
    began, started = time.time(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"loopscope measure failed:\n{done.stderr}")
    after = {"call": 0.0, "unit": 0.0, "complete": 0.0}
    for event in reversed(StoredRun(output).events):  # of the units, the first
        after[event["event"]] = datetime.fromisoformat(event["time"]).timestamp() - began
    cache = environment.get("TRITON_CACHE_DIR")
    compiled = [] if cache is None else [file.stat().st_mtime - began for file in Path(cache).rglob("*.cubin")]
    last = max((kernel for kernel in compiled if kernel > 0.0), default=None)
    return _Ran(seconds, after["call"], after["unit"], after["complete"], last)
