"""What a benchmark ran on: hardware and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

import torch

from loopscope._version import __version__


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
