"""`loopscope measure` on GSM8K from the command to its end: a process of its own with everything that comes once.

Imports, the model, tokens, compilation, the pass, the store. On a GPU it runs three times: with nothing at hand; with
Python's bytecode, which pip leaves behind when it installs, but without a compiled kernel; with both. The second is
judged.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loopscope.bench.clock import Measured
from loopscope.bench.row import Reference, Row, Setting, at_most
from loopscope.bench.whole_pass import TRANSITION, PassRequest, model_folder, request_of

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
            bare = _seconds(wanted, model, scratch / "bare", kept | elsewhere)
            first, second = (_seconds(wanted, model, scratch / name, kept) for name in ("first", "second"))
            references = (
                Reference(WARM, Measured.of([second]), floor=True),
                Reference(BARE, Measured.of([bare])),
            )
        else:
            first = _seconds(wanted, model, scratch / "first", {})
    judged = setting.sizes.judged and setting.on_gpu
    goal = at_most(f"at most {SECONDS:g} s with compilation", SECONDS, first, judged=judged)
    what = "`loopscope measure` from the command to its end, update 4→5, level grid, nothing compiled before"
    return [Row("command", what, {"questions": wanted.limit}, "s", Measured.of([first]), references, (goal,))]


def _keeping(scratch: Path) -> dict[str, str]:
    """The environment of a process that keeps what Python and Triton compile, and finds there nothing else."""
    return {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"),
        "TRITON_CACHE_DIR": str(scratch / "kernels"),
    }


def _seconds(wanted: PassRequest, model: Path, output: Path, environment: dict[str, str]) -> float:
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
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise RuntimeError(f"loopscope measure failed:\n{done.stderr}")
    return seconds
