"""A, Q and φ''' through Huginn's readout: what Taylor mode costs beside one forward and beside the paper's way.

    python benchmarks/huginn_readout.py --output FILE [--repeats 10] [--products] [--profile] [--tiny]

Random BF16 weights of Huginn's size (coda of two blocks, norms, head of 65,536 entries), float32 arithmetic with TF32
off, four sequences of 256 positions with 250 reference positions each. Every row is measured in the same run: the
median time by the device's own events, the memory that stays held for it (a float32 copy of the weights, where one is
made) and the most it needs beyond that. Errors are relative to a float64 run of the same readout, root mean square over
the sequences and, where a row gives them, over the tokens. `--products` times the matrix products alone, in every way
there is.
"""

import argparse
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.bench.clock import MIB, Clock, extra_on_gpu
from loopscope.bench.huginn_readout import HuginnUpdate
from loopscope.bench.report import in_words, machine
from loopscope.bench.sizes import CUDA, QUICK
from loopscope.kernels.choice import implementation
from loopscope.kernels.split_product import accumulated, split
from loopscope.readout.general.path import NonlinearPath

FORWARD = "forward, float32"
PAPER = "A, Q by Hessian–vector product, float32"


class Row(NamedTuple):
    """One thing that is timed: the call, how the kernels are chosen, and what it finds of each sequence and token."""

    name: str
    choice: str
    call: Callable[[], Any]
    path: Callable[[], NonlinearPath] | None = None
    order: int = 0


def rows_of(update: HuginnUpdate, cuda: bool) -> list[Row]:
    def taylor(order: int, impl: str = "taylor") -> tuple[Callable[[], Any], Callable[[], NonlinearPath], int]:
        return (lambda: update.path(impl).derivatives(0.0, order).stack), lambda: update.path(impl), order

    def paper_way() -> Tensor:
        return torch.stack(list(update.hessian_vector()))

    rows = [
        Row(FORWARD, "reference", update.forward),
        Row("forward, split products", "auto", update.forward),
        Row(PAPER, "reference", paper_way),
        Row("A, Q by Taylor mode, float32", "reference", *taylor(2)),
        Row("A, Q, φ''' by Taylor mode, float32", "reference", *taylor(3)),
        Row("A, Q by Taylor mode, split products", "auto", *taylor(2)),
        Row("A, Q, φ''' by Taylor mode, split products", "auto", *taylor(3)),
    ]
    if cuda and importlib.util.find_spec("triton") is not None:
        rows.append(Row("A, Q, φ''' by Taylor mode, split products in Triton", "triton", *taylor(3)))
    rows.append(Row("A, Q, φ''' by nested forward mode, float32", "reference", *taylor(3, "nested")))
    return rows


def held(device: torch.device) -> int:
    """Bytes in use now."""
    gc.collect()
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def exact_values(update: HuginnUpdate) -> tuple[Tensor, Tensor]:
    """φ and its derivatives at 0 of sequences and tokens, by a float64 run."""
    with implementation("reference"):
        path = update.path(dtype=torch.float64)
        tokens = path.per_token().derivatives(0.0, 3).stack
        sequences = path.derivatives(0.0, 3).stack
    return sequences, tokens


def measure(row: Row, update: HuginnUpdate, exact: tuple[Tensor, Tensor], clock: Clock, repeats: int) -> dict[str, Any]:
    update.model.prepare()  # forgets copies of the weights
    base = held(clock.device)
    names = ("A", "Q", "third")
    with implementation(row.choice), torch.no_grad():  # type: ignore[arg-type]
        start = time.perf_counter()
        found = row.call()
        first_call = time.perf_counter() - start
        errors: dict[str, float] = {}
        if row.name == PAPER:
            errors = {f"{name} of sequences": relative(found[k], exact[0][k]) for k, name in ((1, "A"), (2, "Q"))}
        del found
        if row.path is not None:
            path = row.path()
            for level, stack in (("sequences", path), ("tokens", path.per_token())):
                values = stack.derivatives(0.0, row.order).stack
                side = exact[0] if level == "sequences" else exact[1]
                errors |= {f"{names[k - 1]} of {level}": relative(values[k], side[k]) for k in range(1, row.order + 1)}
            del path, stack, values
        kept = held(clock.device) - base
        peak = extra_on_gpu(row.call, clock.device) if clock.device.type == "cuda" else 0.0
        seconds = [clock.once(row.call) for _ in range(repeats)]
    return {
        "row": row.name,
        "kernels": row.choice,
        "ms": 1000 * statistics.median(seconds),
        "ms_per_1000_positions": 1e6 * statistics.median(seconds) / update.tokens,
        "held_mib": kept / MIB,
        "peak_mib": peak,
        "first_call_seconds": first_call,
        "errors": errors,
        "seconds": seconds,
    }


def bench_products(update: HuginnUpdate, streams: int, clock: Clock, repeats: int) -> list[dict[str, Any]]:
    """Every way to multiply all streams by the three largest matrices of the readout."""
    block = next(iter(update.model.transformer["coda"].children()))
    matrices = {
        "gate and up": block.mlp.fc.weight,
        "down": block.mlp.proj.weight,
        "head": update.model.lm_head.weight,
    }
    count = streams * update.tokens
    found = []
    for name, weight in matrices.items():
        outputs, inputs = weight.shape
        x = torch.randn(count, inputs, device=weight.device)
        terms, wide = split(x), weight.float()
        # A few rows of the product in float64 say how far each way is from the exact one.
        exact = x[:64].double() @ weight.double().T
        ways: dict[str, Callable[[], Tensor]] = {
            "float32": lambda x=x, wide=wide: x @ wide.T,
            "split alone": lambda x=x: split(x),
        }
        for block in (1 << 20, 1792, 896, 448):
            label = "whole" if block > inputs else str(block)
            ways[f"library, blocks {label}"] = lambda terms=terms, w=weight, b=block: accumulated(terms, w, b)
        if clock.device.type == "cuda":
            ways["library, BF16 term alone"] = lambda terms=terms, w=weight: torch.mm(
                terms[2], w.T, out_dtype=torch.float32
            )
            ways |= triton_ways(terms, weight)
        for way, call in ways.items():
            try:
                result = call()
                times = [clock.once(call) for _ in range(repeats)]
            except Exception as error:
                found.append({"matrix": name, "way": way, "failed": f"{type(error).__name__}: {error}"[:300]})
                continue
            seconds = statistics.median(times)
            comparable = result.dtype == torch.float32 and "alone" not in way
            found.append(
                {
                    "matrix": name,
                    "way": way,
                    "ms": 1000 * seconds,
                    "effective_tflops": 2e-12 * count * inputs * outputs / seconds,
                    "error": relative(result[:64], exact) if comparable else None,
                }
            )
            del result
    return found


def triton_ways(terms: Tensor, weight: Tensor) -> dict[str, Callable[[], Tensor]]:
    from loopscope.kernels.split_product_kernels import Tile, fused

    tiles = [
        Tile(),
        Tile(stages=2),
        Tile(stages=4, inputs=32),
        Tile(warps=4),
        Tile(group=16),
        Tile(rows=64, outputs=256),
        Tile(rows=128, outputs=256, stages=2),
        Tile(rows=256, outputs=128, stages=2),
        Tile(rows=64, outputs=128, warps=4),
    ]
    return {f"Triton {tuple(tile)}": lambda terms=terms, w=weight, tile=tile: fused(terms, w, tile) for tile in tiles}


def profile(update: HuginnUpdate, device: torch.device) -> str:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record_of

    cuda = device.type == "cuda"
    with record_of(activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])) as record:
        update.taylor()
        if cuda:
            torch.cuda.synchronize(device)
    sort = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    return str(record.key_averages().table(sort_by=sort, row_limit=40, max_name_column_width=90))


def table(report: dict[str, Any]) -> str:
    forward = report["rows"][0]["ms"]
    lines = [
        in_words(report["machine"]),
        "",
        f"| {report['name']}, {report['positions']} positions | ms | forwards | held MiB | peak MiB | errors |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in report["rows"]:
        if "failed" in row:
            lines.append(f"| {row['row']} | {row['failed']} | | | | |")
            continue
        errors = ", ".join(f"{name} {value:.1e}" for name, value in row["errors"].items())
        lines.append(
            f"| {row['row']} | {row['ms']:.1f} | {row['ms'] / forward:.2f} | {row['held_mib']:.0f} "
            f"| {row['peak_mib']:.0f} | {errors} |"
        )
    for product in report.get("products", []):
        where = f"{product['matrix']}, {product['way']}"
        if "failed" in product:
            lines.append(f"{where}: {product['failed']}")
        else:
            error = "" if product["error"] is None else f", error {product['error']:.2e}"
            lines.append(f"{where}: {product['ms']:.2f} ms, {product['effective_tflops']:.1f} TFLOP/s{error}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a smoke test")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--output", type=Path, help="where the numbers go as JSON")
    parser.add_argument("--products", action="store_true", help="time the matrix products alone as well")
    parser.add_argument("--profile", action="store_true", help="print the kernels of one evaluation as well")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device(options.device)
    clock = Clock(device)
    update = HuginnUpdate((QUICK if options.tiny else CUDA).huginn, device)
    report: dict[str, Any] = {
        "machine": machine(device),
        "name": "tiny Huginn readout" if options.tiny else "Huginn readout (random weights)",
        "positions": update.tokens,
        "rows": [],
    }
    exact = exact_values(update)
    for row in rows_of(update, device.type == "cuda"):
        try:
            report["rows"].append(measure(row, update, exact, clock, 2 if options.tiny else options.repeats))
        except torch.OutOfMemoryError as error:
            report["rows"].append({"row": row.name, "failed": str(error).splitlines()[0]})
    update.model.prepare()
    if options.products:
        with torch.no_grad():
            report["products"] = bench_products(update, 4, clock, max(2, options.repeats // 2))
    print(table(report), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    if options.profile:
        print(profile(update, device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
