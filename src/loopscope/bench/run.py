"""Rows by name, run one after the other; a row that breaks does not take the others with it."""

from __future__ import annotations

import difflib
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from loopscope.bench import accuracy, fp64_path, geometry, geometry_memory, huginn_readout, whole_pass
from loopscope.bench.report import Report, in_words, machine
from loopscope.bench.row import Row, Setting
from loopscope.bench.sizes import sizes_for
from loopscope.errors import LoopscopeError
from loopscope.errors import setting as in_the_callers_words

ROWS: dict[str, Callable[[Setting], list[Row]]] = {
    "geometry": geometry.rows,
    "memory": geometry_memory.rows,
    "accuracy": accuracy.rows,
    "fp64": fp64_path.rows,
    "huginn": huginn_readout.rows,
    "pass": whole_pass.rows,
}


def run_bench(
    device: str = "auto",
    rows: str = "",
    *,
    quick: bool = False,
    output: str | None = None,
    tokenizer: str | None = None,
    data_dir: str | None = None,
    progress: bool = True,
) -> Report:
    """Measures rows, all by default, and writes the file after each of them.

    Args:
        device: auto, cpu, cuda or cuda:1.
        rows: names, comma separated.
        quick: small sizes, a test of the benchmark rather than a benchmark.
        output: JSON file.
        tokenizer: folder with Ouro's tokenizer, for the row `pass`.
        data_dir: folder with the benchmarks, for the row `pass`.
        progress: say on stderr what is being measured.
    """
    names = chosen_rows(rows)
    place = chosen_device(device)
    for flag, folder in (("tokenizer", tokenizer), ("data_dir", data_dir)):
        if folder is not None and not os.path.isdir(folder):  # said before minutes of other rows
            raise LoopscopeError(f"{in_the_callers_words(flag, folder)} is not a folder; check the path")
    setting = Setting(place, sizes_for(place.type, quick=quick), tokenizer, data_dir)
    reason = whole_pass.unavailable(setting)
    if not rows and reason is not None:
        names.remove("pass")
        _say(progress, f"pass: left out, {reason}")
    report = Report(machine(place), quick)
    if output is not None:
        report.write(Path(output))
    _say(progress, in_words(report.machine))
    with torch.no_grad():
        for name in names:
            start = time.perf_counter()
            try:
                report.rows += ROWS[name](setting)
            except LoopscopeError:
                raise
            except Exception as error:
                report.failed[name] = f"{type(error).__name__}: {error}"
                traceback.print_exc()
            gc.collect()
            if setting.on_gpu:
                torch.cuda.empty_cache()
            if output is not None:
                report.write(Path(output))
            _say(progress, f"{name}: {time.perf_counter() - start:.1f} s")
    return report


def chosen_rows(names: str) -> list[str]:
    """The names in the order of the table; all where none is given.

    >>> chosen_rows("memory,geometry")
    ['geometry', 'memory']
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in ROWS:
            close = difflib.get_close_matches(name, ROWS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(ROWS)}"
            raise LoopscopeError(f"there is no row {name!r} in the benchmark: {hint}")
    return [name for name in ROWS if not wanted or name in wanted]


def chosen_device(name: str) -> torch.device:
    """A device there is; `auto` is CUDA's where it has one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise LoopscopeError(f"there is no device {name!r}: choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise LoopscopeError(f"the benchmark does not run on {name}: choose auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise LoopscopeError("there is no CUDA device here: choose --device cpu")
    return device


def _say(progress: bool, text: str) -> None:
    if progress:
        print(text, file=sys.stderr, flush=True)
