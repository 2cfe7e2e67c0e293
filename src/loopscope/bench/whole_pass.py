"""A whole pass over GSM8K with a model of Ouro-1.4B's size, level grid, against the bare forward passes of its batches.

Both take turns and are timed by this machine's clock until the device has finished: what measuring adds to running
the model, host and files included. Runs only where a tokenizer and the benchmark's data are given.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from loopscope._errors import LoopscopeError
from loopscope.bench.measured import Measured
from loopscope.bench.row import Reference, Row, at_most
from loopscope.bench.setting import Setting

if TYPE_CHECKING:
    from loopscope.bench.pass_run import PassRequest, PassSetup

BARE = "the bare forward passes"
NEEDED = ("pyarrow", "pydantic", "tokenizers", "safetensors")
CPU_QUESTIONS = 8


def unavailable(setting: Setting) -> str | None:
    """Why the row cannot run here, or None."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"a pass needs {', '.join(missing)}"
    if setting.sizes.judged and (setting.tokenizer is None or setting.data_dir is None):
        return "a pass needs --tokenizer (a folder with Ouro's) and --data-dir (a folder with GSM8K)"
    return None


def rows(setting: Setting) -> list[Row]:
    """One row."""
    reason = unavailable(setting)
    if reason is not None:
        raise LoopscopeError(f"the row pass cannot be measured: {reason}")
    from loopscope.bench.pass_run import set_up

    with tempfile.TemporaryDirectory() as scratch:
        return [measure(set_up(_request(setting), Path(scratch)), setting)]


def measure(setup: PassSetup, setting: Setting) -> Row:
    """Both in turns after a warm-up of each, then a pass whose parts are timed."""
    sizes, device = setting.sizes, setting.device
    seconds: dict[str, list[float]] = {"bare": [], "pass": []}
    for repeat in range(sizes.slow_repeats + 1):
        took = {"bare": _timed(setup.run_bare, device), "pass": _timed(setup.run_pass, device)}
        for name, value in took.items():
            if repeat:
                seconds[name].append(value)
    ours = Measured.of(seconds["pass"])
    bare = Reference(BARE, Measured.of(seconds["bare"]), floor=True)
    judged = sizes.judged and setting.on_gpu
    goal = at_most("at most 8% over the bare forward passes", 1.08, bare.ratio(ours), judged=judged, against=BARE)
    what = "A whole pass, update 4→5, level grid with diagnostics, everything stored"
    return Row("pass", what, setup.size, "s", ours, (bare,), (goal,), _figures(setup, device))


def _figures(setup: PassSetup, device: torch.device) -> dict[str, float]:
    """Where the time of one more pass goes, in seconds, and its peak of memory."""
    from loopscope.measure.parts import part_times

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with part_times() as times:
        whole = _timed(setup.run_pass, device)
    figures = {f"once_{name}": value for name, value in setup.once.items()} | {"with_parts_timed": whole}
    figures |= {f"device_{name}": value for name, value in times.device().items()}
    figures |= {f"host_{name}": value for name, value in times.host.items()}
    if device.type == "cuda":
        figures["peak_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return figures


def _timed(call: Callable[[], None], device: torch.device) -> float:
    from loopscope.bench.pass_run import synchronise

    synchronise(device)
    began = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - began


def _request(setting: Setting) -> PassRequest:
    from loopscope.bench.pass_run import OURO, SMALL, TINY, PassRequest
    from loopscope.models.registry import EMBEDDED

    device = str(setting.device)
    if not setting.sizes.judged:
        return PassRequest(TINY, device, str(EMBEDDED / "toy-ouro"), "arithmetic", None, limit=8, unit_size=4)
    assert setting.tokenizer is not None
    config, limit = (OURO, 1319) if setting.on_gpu else (SMALL, CPU_QUESTIONS)
    return PassRequest(config, device, setting.tokenizer, "gsm8k:test", setting.data_dir, limit)
