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
import importlib.metadata
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.models.huginn import Huginn, HuginnConfig
from loopscope.models.random_weights import fill_randomly
from loopscope.readout.autograd import autograd_coefficients
from loopscope.readout.nonlinear import NonlinearPath, nonlinear_path_from_states
from loopscope.split_product.accumulate import accumulated
from loopscope.split_product.parts import split
from loopscope.triton_kernels.choice import implementation

HUGINN = {
    "vocab_size": 65536,
    "n_embd": 5280,
    "n_heads": 55,
    "head_dim": 96,
    "intermediate_size": 17920,
    "n_layers_in_prelude": 0,
    "n_layers_in_recurrent_block": 1,
    "n_layers_in_coda": 2,
    "rope_base": 50000,
    "mean_recurrence": 32,
}
TINY = HUGINN | {"vocab_size": 211, "n_embd": 48, "n_heads": 4, "head_dim": 12, "intermediate_size": 96}
FORWARD = "forward, float32"
PAPER = "A, Q by Hessian–vector product, float32"


class Problem(NamedTuple):
    """One update of a batch, and where it is read."""

    model: Huginn
    h_BSD: Tensor
    h_plus_BSD: Tensor
    positions_T2: Tensor
    targets_T: Tensor


class Row(NamedTuple):
    """One thing that is timed: the call, how the kernels are chosen, and what it finds of each sequence and token."""

    name: str
    choice: str
    call: Callable[[], Any]
    path: Callable[[], NonlinearPath] | None = None
    order: int = 0


def build(config: dict[str, Any], device: torch.device, rows: int, width: int) -> Problem:
    with torch.device("meta"):
        model = Huginn(HuginnConfig.from_json(config))
    fill_randomly(model, device, torch.bfloat16, seed=0)
    with torch.no_grad():
        model.lm_head.weight.mul_(4.0)  # logits spread as a trained model's are, not nearly flat
    model.prepare()
    generator = torch.Generator(device).manual_seed(1)
    shape = (rows, width, model.hidden_size)
    h = torch.randn(shape, generator=generator, device=device)
    h_plus = h + 0.3 * torch.randn(shape, generator=generator, device=device)
    first = max(1, width // 42)
    positions = torch.cartesian_prod(torch.arange(rows), torch.arange(first, width))
    targets = torch.randint(0, model.vocabulary_size, (len(positions),), generator=generator, device=device)
    return Problem(model, h.bfloat16(), h_plus.bfloat16(), positions.to(device), targets)


def path_of(problem: Problem, dtype: torch.dtype, impl: str = "taylor") -> NonlinearPath:
    return nonlinear_path_from_states(
        problem.model.body_and_head(dtype),
        problem.h_BSD,
        problem.h_plus_BSD,
        problem.targets_T,
        problem.positions_T2,
        examples=problem.positions_T2[:, 0],
        dtype=dtype,
        impl=impl,
    )


def paper_way(problem: Problem) -> Tensor:
    """U(H), A and φ''(0) of every sequence, [3, B]: a gradient and a Hessian–vector product, float32 throughout."""
    state = problem.h_BSD.float()
    displacement = problem.h_plus_BSD.float() - state
    rows = state.shape[0]
    row_T = problem.positions_T2[:, 0]
    counts = torch.bincount(row_T, minlength=rows)

    def utility(h: Tensor) -> Tensor:
        logits = problem.model.readout(h, problem.positions_T2, torch.float32)
        log_p = torch.log_softmax(logits, -1).gather(1, problem.targets_T[:, None])[:, 0]
        return torch.zeros(rows, device=h.device).index_add(0, row_T, log_p) / counts

    owner = torch.arange(rows, device=state.device)
    return torch.stack(list(autograd_coefficients(utility, state, displacement, owner, rows)))


def rows_of(problem: Problem, cuda: bool) -> list[Row]:
    def forward() -> Tensor:
        with torch.no_grad():
            return problem.model.readout(problem.h_BSD.float(), problem.positions_T2, torch.float32)

    def taylor(order: int, impl: str = "taylor") -> tuple[Callable[[], Any], Callable[[], NonlinearPath], int]:
        def make() -> NonlinearPath:
            return path_of(problem, torch.float32, impl)

        return (lambda: make().derivatives(0.0, order).stack), make, order

    rows = [
        Row(FORWARD, "reference", forward),
        Row("forward, split products", "auto", forward),
        Row(PAPER, "reference", lambda: paper_way(problem)),
        Row("A, Q by Taylor mode, float32", "reference", *taylor(2)),
        Row("A, Q, φ''' by Taylor mode, float32", "reference", *taylor(3)),
        Row("A, Q by Taylor mode, split products", "auto", *taylor(2)),
        Row("A, Q, φ''' by Taylor mode, split products", "auto", *taylor(3)),
    ]
    if cuda and importlib.util.find_spec("triton") is not None:
        rows.append(Row("A, Q, φ''' by Taylor mode, split products in Triton", "triton", *taylor(3)))
    rows.append(Row("A, Q, φ''' by nested forward mode, float32", "reference", *taylor(3, "nested")))
    return rows


class Clock:
    """Seconds and bytes of a call."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], Any]) -> float:
        """How long the call takes."""
        self.synchronise()
        if not self.cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        self.synchronise()
        return begin.elapsed_time(end) / 1000

    def held(self) -> int:
        """Bytes in use now."""
        gc.collect()
        self.synchronise()
        return torch.cuda.memory_allocated(self.device) if self.cuda else 0

    def peak(self, call: Callable[[], Any]) -> int:
        """The most memory that the call adds to what is held."""
        if not self.cuda:
            return 0
        before = self.held()
        torch.cuda.reset_peak_memory_stats(self.device)
        call()
        self.synchronise()
        return torch.cuda.max_memory_allocated(self.device) - before


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def exact_values(problem: Problem) -> tuple[Tensor, Tensor]:
    """φ and its derivatives at 0 of sequences and tokens, by a float64 run."""
    with implementation("reference"):
        path = path_of(problem, torch.float64)
        tokens = path.per_token().derivatives(0.0, 3).stack
    sequences = path.derivatives(0.0, 3).stack
    problem.model._casts.clear()
    return sequences, tokens


def measure(row: Row, problem: Problem, exact: tuple[Tensor, Tensor], clock: Clock, repeats: int) -> dict[str, Any]:
    problem.model._casts.clear()
    base = clock.held()
    names = ("A", "Q", "third")
    with implementation(row.choice):  # type: ignore[arg-type]
        start = time.perf_counter()
        found = row.call()
        clock.synchronise()
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
        held = clock.held() - base
        peak = clock.peak(row.call)
        seconds = [clock.seconds(row.call) for _ in range(repeats)]
    return {
        "row": row.name,
        "kernels": row.choice,
        "ms": 1000 * statistics.median(seconds),
        "ms_per_1000_positions": 1e6 * statistics.median(seconds) / len(problem.targets_T),
        "held_mib": held / 2**20,
        "peak_mib": peak / 2**20,
        "first_call_seconds": first_call,
        "errors": errors,
        "seconds": seconds,
    }


def bench_products(problem: Problem, streams: int, clock: Clock, repeats: int) -> list[dict[str, Any]]:
    """Every way to multiply all streams by the three largest matrices of the readout."""
    block = next(iter(problem.model.transformer["coda"].children()))
    matrices = {
        "gate and up": block.mlp.fc.weight,
        "down": block.mlp.proj.weight,
        "head": problem.model.lm_head.weight,
    }
    count = streams * len(problem.targets_T)
    found = []
    for name, weight in matrices.items():
        outputs, inputs = weight.shape
        x = torch.randn(count, inputs, device=weight.device)
        parts, wide = split(x), weight.float()
        # A few rows of the product in float64 say how far each way is from the exact one.
        exact = x[:64].double() @ weight.double().T
        ways: dict[str, Callable[[], Tensor]] = {
            "float32": lambda x=x, wide=wide: x @ wide.T,
            "split alone": lambda x=x: split(x),
        }
        for stretch in (1 << 20, 1792, 896, 448):
            label = "whole" if stretch > inputs else str(stretch)
            ways[f"library, stretches {label}"] = lambda parts=parts, w=weight, s=stretch: accumulated(parts, w, s)
        if clock.cuda:
            ways["library, BF16 part alone"] = lambda parts=parts, w=weight: torch.mm(
                parts[2], w.T, out_dtype=torch.float32
            )
            ways |= triton_ways(parts, weight)
        for way, call in ways.items():
            try:
                result = call()
                times = [clock.seconds(call) for _ in range(repeats)]
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


def triton_ways(parts: Tensor, weight: Tensor) -> dict[str, Callable[[], Tensor]]:
    from loopscope.split_product.product_kernel import Tile, fused

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
    return {f"Triton {tuple(tile)}": lambda parts=parts, w=weight, tile=tile: fused(parts, w, tile) for tile in tiles}


def profile(problem: Problem, clock: Clock) -> str:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record_of

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if clock.cuda else [])
    with record_of(activities=activities) as record:
        path_of(problem, torch.float32).derivatives(0.0, 3)
        clock.synchronise()
    sort = "self_cuda_time_total" if clock.cuda else "self_cpu_time_total"
    return str(record.key_averages().table(sort_by=sort, row_limit=40, max_name_column_width=90))


def machine(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    return {
        "device": name,
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton") if importlib.util.find_spec("triton") else "none",
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(report: dict[str, Any]) -> str:
    host, forward = report["machine"], report["rows"][0]["ms"]
    lines = [
        f"{host['device']}, torch {host['torch']} (CUDA {host['cuda']}), Triton {host['triton']}, "
        f"Python {host['python']}, {host['date']}",
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
    clock = Clock(torch.device(options.device))
    rows, width = (2, 9) if options.tiny else (4, 256)
    problem = build(TINY if options.tiny else HUGINN, clock.device, rows, width)
    report: dict[str, Any] = {
        "machine": machine(clock.device),
        "name": "tiny Huginn readout" if options.tiny else "Huginn readout (random weights)",
        "positions": len(problem.targets_T),
        "rows": [],
    }
    exact = exact_values(problem)
    for row in rows_of(problem, clock.cuda):
        try:
            report["rows"].append(measure(row, problem, exact, clock, 2 if options.tiny else options.repeats))
        except torch.OutOfMemoryError as error:
            report["rows"].append({"row": row.name, "failed": str(error).splitlines()[0]})
    problem.model._casts.clear()
    if options.products:
        with torch.no_grad():
            report["products"] = bench_products(problem, 4, clock, max(2, options.repeats // 2))
    print(table(report), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    if options.profile:
        print(profile(problem, clock))
    return 0


if __name__ == "__main__":
    sys.exit(main())
