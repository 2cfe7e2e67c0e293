"""A whole pass against the bare forward passes of the same batches: what measuring adds to running the model.

    python benchmarks/pass_bench.py --tokenizer FOLDER --data-dir FOLDER --output pass_bench.json

Ouro-1.4B with random BF16 weights on GSM8K, update 4 → 5, level grid: A, Q, ΔU, the 21-point grid, diagnostics,
rounded interventions, scalar checks, everything stored. *Bare* is embed and five steps of the very same batches with
nothing read. Both take turns, a warm-up of each goes before, and the median of the repeats counts. A pass is timed
from the opening of its run directory to the seal on it; loading the model and planning the batches come once and are
given apart. The parts of a pass are timed in a run of their own, by the device's clock where there is one. `--tiny` is
a smoke test of the script on any machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from loopscope.bench.report import in_words, machine
from loopscope.bench.whole_pass import OURO, TINY, TRANSITION, PassRequest, PassSetup, set_up, synchronise
from loopscope.measuring.timing import part_times
from loopscope.measuring.trip import Trip
from loopscope.models.registry import EMBEDDED


def timed(call: Callable[[], Any], device: torch.device) -> float:
    synchronise(device)
    began = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - began


def compare(made: PassSetup, repeats: int) -> dict[str, Any]:
    device = made.model.device
    seconds: dict[str, list[float]] = {"bare": [], "pass": []}
    for repeat in range(repeats + 1):
        took = {"bare": timed(made.run_bare, device), "pass": timed(made.run_pass, device)}
        if repeat:
            for name, value in took.items():
                seconds[name].append(value)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with part_times() as times:
        whole = timed(made.run_pass, device)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        **made.size,
        "repeats": repeats,
        "seconds": seconds,
        "median": median,
        "overhead_percent": 100.0 * (median["pass"] / median["bare"] - 1.0),
        "parts": {
            "seconds": whole,
            "device": times.device(),
            "host": times.host,
            "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        },
    }


def profile(made: PassSetup) -> str:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if made.model.device.type == "cuda" else [])
    Trip(made.model, made.settings, made.batches[-1]).run()
    with recorded(activities=activities) as record:
        Trip(made.model, made.settings, made.batches[-1]).run()
        synchronise(made.model.device)
    sort = "self_cuda_time_total" if made.model.device.type == "cuda" else "self_cpu_time_total"
    return str(record.key_averages().table(sort_by=sort, row_limit=40, max_name_column_width=60))


def table(report: dict[str, Any]) -> str:
    found = report["pass"]
    parts, bare = found["parts"], found["median"]["bare"]
    lines = [
        in_words(report["machine"]),
        "",
        f"{report['model']}, {report['task']}, {TRANSITION}→{TRANSITION + 1}, level grid:"
        f" {found['questions']} questions in {found['batches']} batches,"
        f" {found['tokens']} tokens ({found['padded_tokens']} with padding),"
        f" {found['reference_tokens']} reference tokens",
        "",
        "| | seconds | of bare |",
        "|---|---:|---:|",
        f"| bare forward passes | {bare:.3f} | |",
        f"| whole pass | {found['median']['pass']:.3f} | +{found['overhead_percent']:.2f}% |",
    ]
    for place in ("device", "host"):
        for name, seconds in sorted(parts[place].items(), key=lambda entry: -entry[1]):
            lines.append(f"| {place}: {name} | {seconds:.3f} | {100 * seconds / bare:.2f}% |")
    lines += ["", *(f"{name}: {seconds:.2f} s, once" for name, seconds in report["once"].items())]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes and the embedded task, for a smoke test")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokenizer", default=None, help="folder with the model's tokenizer")
    parser.add_argument("--data-dir", default=None, help="folder with local copies of the benchmarks")
    parser.add_argument("--task", default="gsm8k:test")
    parser.add_argument("--limit", type=int, default=1319)
    parser.add_argument("--unit-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scalar-checks", type=int, default=16)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--profile", action="store_true", help="print the kernels of one batch as well")
    options = parser.parse_args()
    if options.tiny:
        options.tokenizer, options.task = str(EMBEDDED / "toy-ouro"), "arithmetic"
        options.limit, options.unit_size, options.repeats = min(options.limit, 8), 4, 2
    elif options.tokenizer is None:
        parser.error("--tokenizer is needed: Ouro's own, so that the batches are those of a real pass")
    request = PassRequest(
        TINY if options.tiny else OURO,
        options.device,
        options.tokenizer,
        options.task,
        options.data_dir,
        options.limit,
        options.unit_size,
        options.scalar_checks,
    )
    with tempfile.TemporaryDirectory() as scratch:
        made = set_up(request, Path(scratch))
        report = {
            "machine": machine(made.model.device),
            "model": "tiny Ouro" if options.tiny else "Ouro-1.4B (random weights), bfloat16",
            "task": options.task,
            "once": made.once,
            "pass": compare(made, options.repeats),
        }
        print(table(report))
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        if options.profile:
            print(profile(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
