"""A benchmark: the rows there are by name, run one after the other into a report with the machine they ran on.

A row that breaks does not take the others with it. The report is JSON for the file and text for the terminal.
"""

from __future__ import annotations

import difflib
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from loopscope._version import __version__
from loopscope.bench.row import Row, Setting, error_table, table
from loopscope.bench.sizes import sizes_for
from loopscope.errors import LoopscopeError
from loopscope.errors import setting as named
from loopscope.store.atomic import clear_write_errors, write_atomically


class Rows(NamedTuple):
    """Rows under one name.

    Attributes:
        module: of this package; it is imported when its rows are measured.
        function: makes them.
        libraries: what they need beyond torch and NumPy.
        inputs: what must be given at full size, and what that is.
        default: whether they run when no rows are named.
    """

    module: str
    function: str = "rows"
    libraries: tuple[str, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    default: bool = True

    def __call__(self, setting: Setting) -> list[Row]:
        """Measures them."""
        module = importlib.import_module(f"loopscope.bench.{self.module}")
        found: list[Row] = getattr(module, self.function)(setting)
        return found

    def unavailable(self, setting: Setting) -> str | None:
        """Why they cannot be measured here, or None."""
        missing = [name for name in self.libraries if importlib.util.find_spec(name) is None]
        if missing:
            return f"it needs {', '.join(missing)}"
        wanted = [f"{named(name)} ({what})" for name, what in self.inputs if getattr(setting, name) is None]
        return f"it needs {' and '.join(wanted)}" if wanted and not setting.quick else None


_PASS = ("pyarrow", "pydantic", "tokenizers", "safetensors")
_TOKENIZER = ("tokenizer", "a folder with Ouro's")
_GSM8K = ("data_dir", "a folder with GSM8K")
ROWS: dict[str, Rows] = {
    "geometry": Rows("affine_geometry"),
    "memory": Rows("affine_memory"),
    "accuracy": Rows("accuracy"),
    "fp64": Rows("fp64_path"),
    "huginn": Rows("huginn_readout"),
    "pass": Rows("whole_pass", libraries=_PASS, inputs=(_TOKENIZER, _GSM8K)),
    "trace": Rows(
        "whole_pass",
        "trace_rows",
        _PASS,
        (_TOKENIZER, _GSM8K),
        default=False,
    ),
    "full": Rows("level_full", libraries=_PASS, inputs=(_TOKENIZER, _GSM8K), default=False),
    "command": Rows("from_command", libraries=(*_PASS, "polars", "typer"), inputs=(_TOKENIZER, _GSM8K), default=False),
    "ray": Rows("ray_replicas", libraries=(*_PASS, "ray"), inputs=(_TOKENIZER, _GSM8K), default=False),
    "huginn-pass": Rows(
        "huginn_pass",
        libraries=(*_PASS, "polars"),
        inputs=(_TOKENIZER, ("data_dir", "a folder with GSM8K and HellaSwag")),
        default=False,
    ),
    "loops": Rows("loop_speed", default=False),
    "forward": Rows("forward_pass", libraries=_PASS, default=False),
    "padding": Rows(
        "forward_pass",
        "padding_rows",
        _PASS,
        (_TOKENIZER, ("data_dir", "a folder with the benchmarks")),
        default=False,
    ),
    "monitor": Rows("monitor_cost", libraries=_PASS, default=False),
    "mathematics": Rows("plain_loops", default=False),
    "bootstrap": Rows("study_times", "bootstrap_rows", ("scipy",), default=False),
    "studies": Rows("study_times", libraries=(*_PASS, "polars", "matplotlib"), default=False),
    "shared": Rows(
        "long_passes",
        "shared_rows",
        (*_PASS, "polars"),
        (_TOKENIZER, ("data_dir", "a folder with the benchmarks")),
        default=False,
    ),
    "questions": Rows(
        "long_passes",
        "questions_rows",
        (*_PASS, "polars"),
        (("data_dir", "a folder with HellaSwag"),),
        default=False,
    ),
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
    """Measures rows and writes the file after each of them.

    Args:
        device: auto, cpu, cuda or cuda:1.
        rows: names, comma separated; without names those that `ROWS` marks as default.
        quick: small sizes, a test of the benchmark rather than a benchmark.
        output: JSON file.
        tokenizer: folder with Ouro's tokenizer, for rows that measure a pass.
        data_dir: folder with the benchmarks, for rows that measure a pass.
        progress: say on stderr what is being measured.
    """
    names = chosen_rows(rows)
    place = chosen_device(device)
    for flag, folder in (("tokenizer", tokenizer), ("data_dir", data_dir)):
        if folder is not None and not os.path.isdir(folder):
            raise LoopscopeError(f"{named(flag, folder)} is not a folder; check the path")
    setting = Setting(place, sizes_for(place.type, quick=quick), tokenizer, data_dir)
    for name in list(names):  # said before minutes of other rows
        reason = ROWS[name].unavailable(setting)
        if reason is not None and rows:
            raise LoopscopeError(f"the row {name} cannot be measured: {reason}")
        if reason is not None:
            names.remove(name)
            _say(progress, f"{name}: left out, {reason}")
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
    """The names in the order of the table; those that run by default where none is given.

    >>> chosen_rows("memory,geometry")
    ['geometry', 'memory']
    """
    if not names:
        return [name for name, rows in ROWS.items() if rows.default]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise LoopscopeError(f"{named('rows', names)} names no row: choose from {', '.join(ROWS)}")
    for name in wanted:
        if name not in ROWS:
            close = difflib.get_close_matches(name, ROWS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(ROWS)}"
            raise LoopscopeError(f"there is no row {name!r} in the benchmark: {hint}")
    return [name for name in ROWS if name in wanted]


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


SCHEMA = 1


@dataclass
class Report:
    """Rows as they come in; `failed` holds the rows that broke, with what broke them."""

    machine: dict[str, str | int]
    quick: bool
    rows: list[Row] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "quick": self.quick,
            "rows": [row.as_json() for row in self.rows],
            "failed": self.failed,
        }

    def write(self, path: Path) -> None:
        """The JSON file; replaced as a whole."""
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        with clear_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())

    def text(self) -> str:
        """Machine, errors, table."""
        errors = [error_table(row) for row in self.rows if row.errors]
        broken = [f"{name} failed: {reason}" for name, reason in self.failed.items()]
        return "\n\n".join([in_words(self.machine), *errors, table(self.rows), *broken])


def machine(device: torch.device) -> dict[str, str | int]:
    """Names and versions, none of which is looked up anywhere but on this machine."""
    found: dict[str, str | int] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "triton": _version("triton"),
        "loopscope": __version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["memory_gib"] = round(torch.cuda.get_device_properties(device).total_memory / 2**30)
    kernels = os.environ.get("LOOPSCOPE_KERNELS")
    return found | ({} if kernels is None else {"kernels": kernels})


def in_words(found: dict[str, str | int]) -> str:
    """One or two lines."""
    versions = ", ".join(f"{name} {found[name]}" for name in ("python", "torch", "numpy", "triton") if name in found)
    where = f"{found['device']}, {found['cpu']}, {found['cores']} cores, {found['threads']} threads"
    cuda = f", CUDA {found['cuda']}, {found['memory_gib']} GiB" if "cuda" in found else ""
    return f"{where}{cuda}, {found['system']}\nloopscope {found['loopscope']}, {versions}, {found['date']}"


def _cpu() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
