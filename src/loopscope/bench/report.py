"""What a benchmark ran on: hardware and versions.

A finished benchmark: as JSON for the file, as text for the terminal.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from loopscope._version import __version__
from loopscope.bench.row import Row, error_table, table
from loopscope.store.atomic import clear_write_errors, write_atomically


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
