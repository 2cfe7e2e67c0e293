"""Speed and accuracy on this machine: `python benchmarks/run.py [--rows geometry,pass] [--output FILE.json]`.

Every row is measured together with its references. Rows of a GPU are skipped where there is none.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import geometry
import loopscope as ls
from timing import OURS, Row

Rows = Callable[[torch.device, bool], list[Row]]


def _geometry(device: torch.device, quick: bool) -> list[Row]:
    return geometry.rows(device, (9, 32, 999), 4, 1) if quick else geometry.rows(device, (4096, 2048, 49_152), 1024, 20)


def _accuracy(device: torch.device, quick: bool) -> list[Row]:
    tokens = 997 if device.type == "cuda" else 61
    return geometry.accuracy_rows(device, (7, 32, 501) if quick else (tokens, 2048, 50_021))


def _of(module: str, function: str) -> Rows:
    """Rows of a module that is imported when they are asked for: the geometry needs less than whole passes."""

    def rows(device: torch.device, quick: bool) -> list[Row]:
        made: list[Row] = getattr(importlib.import_module(module), function)(device, quick)
        return made

    return rows


ROWS: dict[str, Rows] = {
    "geometry": _geometry,
    "accuracy": _accuracy,
    "pass": _of("passes", "ouro_rows"),
    "huginn-pass": _of("passes", "huginn_rows"),
    "full": _of("passes", "full_rows"),
    "layers": _of("passes", "layer_rows"),
    "cpu": lambda _, quick: _of("on_cpu", "rows")(torch.device("cpu"), quick),
}
ON_ANY_DEVICE = ("accuracy", "cpu")


def machine(device: torch.device) -> dict[str, str | int]:
    """Hardware and versions."""
    listing = Path("/proc/cpuinfo")
    models = [line for line in listing.read_text().splitlines() if "model name" in line] if listing.exists() else []
    cpu = models[0].partition(":")[2].strip() if models else platform.processor()
    found: dict[str, str | int] = {"device": f"{cpu}, {torch.get_num_threads()} threads"}
    if device.type == "cuda":
        found = {"device": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda), "cpu": cpu}
    found |= {"loopscope": ls.__version__, "python": platform.python_version(), "torch": torch.__version__}
    with suppress(importlib.metadata.PackageNotFoundError):
        found["triton"] = importlib.metadata.version("triton")
    return found | {"date": time.strftime("%Y-%m-%d")}


def table(report: dict[str, Any]) -> str:
    """The machine, a line for each reference of each row, and what the rows measure."""
    lines = [("row", "loopscope", "spread", "reference", "takes", "loopscope compared with it")]
    legend = []
    for row in report["rows"]:
        (ours, least, most), unit = row["values"][OURS], row["unit"]
        spread = f"{amount(least, unit)} – {amount(most, unit)}" if most > least else ""
        start = (row["name"], amount(ours, unit), spread)
        for name, ratio in row["ratios"].items():
            lines.append((*start, name, amount(row["values"][name][0], unit), compared(ratio, unit)))
            start = ("", "", "")
        size = ", ".join(f"{value:,} {name}" for name, value in row["size"].items())
        more = [f"{name.replace('_', ' ')} {value:.3g}" for name, value in row["figures"].items()]
        more += [f"{name} {error[1] / error[2]:.2g}" for name, error in row["errors"].items()]
        legend.append(f"{row['name']}: {row['what']} ({size}){': ' if more else ''}{', '.join(more)}")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    versions = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    return "\n".join([versions, "", *("  ".join(cells).rstrip() for cells in padded), "", *legend])


def amount(value: float, unit: str) -> str:
    """Three digits with a unit."""
    if unit != "s":
        return f"{value:.2e}"
    return f"{value * 1e3:.3g} ms" if value < 1.0 else f"{value:.3g} s"


def compared(ratio: float, unit: str) -> str:
    """The ratio in words."""
    if unit == "s" and ratio < 1.0:
        return f"{1.0 / ratio:.3g} times faster"
    return f"{ratio:.3g} times {'as long' if unit == 's' else 'the error'}"


def main() -> None:
    """Measure, print, and write the file after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    parser.add_argument("--output", type=Path, help="JSON file")
    parser.add_argument("--quick", action="store_true", help="tiny sizes on any device, to see that everything runs")
    options = parser.parse_args()
    names, device = options.rows.split(","), torch.device(options.device)
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"there is no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    report: dict[str, Any] = {"machine": machine(device), "rows": []}
    for name in names:
        if device.type != "cuda" and name not in ON_ANY_DEVICE and not options.quick:
            print(f"{name}: skipped, it needs a GPU", file=sys.stderr)
            continue
        began = time.perf_counter()
        with torch.no_grad():
            report["rows"] += [row.as_json() for row in ROWS[name](device, options.quick)]
        gc.collect()
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(report))


if __name__ == "__main__":
    main()
