"""Times Ouro-1.4B against a bare stack of the same matrices, and Huginn at full size; both with random weights.

    python benchmarks/models_bench.py --output models_bench.json

Ouro: 5 loops in BF16 at 16 × 256 tokens. The bare stack is one function over the same fused matrices, written for
speed in eager torch: no modules, norms fused with their weights, one rounding fewer in the rotation. loopscope runs
twice, with its Triton kernels where the device takes them and with plain torch operations alone. They take turns in
the same run and must agree to BF16 rounding. Huginn: 20 steps in BF16, then a float32 readout of the last position
of every row, and the coda at all positions to compare with, with the peak of the memory. `--tiny` is a smoke test
of the script on any machine.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.kernels.choice import implementation, takes_kernel
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.random_weights import fill_randomly
from loopscope.models.families.huginn import Huginn, HuginnConfig
from loopscope.models.families.ouro import Ouro, OuroConfig
from loopscope.models.layers.attention import counted_surroundings

OURO = {
    "vocab_size": 49152,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "total_ut_steps": 4,
}
HUGINN = {
    "vocab_size": 65536,
    "n_embd": 5280,
    "n_heads": 55,
    "head_dim": 96,
    "intermediate_size": 17920,
    "n_layers_in_prelude": 2,
    "n_layers_in_recurrent_block": 4,
    "n_layers_in_coda": 2,
    "rope_base": 50000,
    "mean_recurrence": 32,
}
TINY_OURO = OURO | {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
TINY_OURO |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
TINY_HUGINN = HUGINN | {"vocab_size": 512, "n_embd": 96, "n_heads": 4, "head_dim": 24, "intermediate_size": 128}

LOOPS, STEPS = 5, 20


class Clock:
    """Seconds of a call, on the device's own clock where it has one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], Any]) -> float:
        """How long the call takes."""
        self.synchronise()
        if self.device.type != "cuda":
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        self.synchronise()
        return begin.elapsed_time(end) / 1000

    def peak_gib(self) -> float | None:
        """The most memory held since the last reset."""
        return torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None

    def reset_peak(self) -> None:
        """Starts a new peak from what is held now."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)


def build(model_class: type[LoopedModule], config: Any, device: torch.device, dtype: torch.dtype) -> LoopedModule:
    with torch.device("meta"):
        model = model_class(config)  # type: ignore[call-arg]
    fill_randomly(model, device, dtype, seed=0)
    model.prepare()
    return model


class BareStack:
    """Ouro's loop as one function over the model's own fused matrices."""

    def __init__(self, model: Ouro, width: int) -> None:
        config = model.config
        self.heads, self.head_width, self.eps = config.heads, config.head_width, config.norm_eps
        self.inner, self.shape = config.inner_size, (config.hidden_size,)
        self.final = model.model.norm.weight
        self.layers = [
            (
                layer.input_layernorm.weight,
                layer.self_attn.joined[0],
                layer.self_attn.o_proj.weight,
                layer.input_layernorm_2.weight,
                layer.post_attention_layernorm.weight,
                layer.mlp.joined[0],
                layer.mlp.down_proj.weight,
                layer.post_attention_layernorm_2.weight,
            )
            for layer in model.model.layers
        ]
        positions = torch.arange(width, device=model.device)[None]
        tables = config.rotary.tables(positions, model.dtype)
        half = self.head_width // 2
        self.cos, self.sin = tables.cos[..., :half].contiguous(), tables.sin[..., :half].contiguous()

    def step(self, x: Tensor) -> Tensor:
        """One loop."""
        rows, width, _ = x.shape
        heads, half = self.heads, self.head_width // 2
        for norm_in, qkv, out, norm_out, norm_mlp, gate_up, down, norm_down in self.layers:
            y = functional.linear(functional.rms_norm(x, self.shape, norm_in, self.eps), qkv)
            y = y.view(rows, width, 3 * heads, self.head_width)
            qk, v = y[:, :, : 2 * heads], y[:, :, 2 * heads :]
            first, second = qk[..., :half], qk[..., half:]
            turned = torch.empty(rows, width, 2 * heads, self.head_width, dtype=x.dtype, device=x.device)
            torch.mul(first, self.cos, out=turned[..., :half])
            turned[..., :half].addcmul_(second, self.sin, value=-1)
            torch.mul(second, self.cos, out=turned[..., half:])
            turned[..., half:].addcmul_(first, self.sin)
            q, k = turned[:, :, :heads].transpose(1, 2), turned[:, :, heads:].transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
            mixed = functional.linear(mixed.transpose(1, 2).reshape(rows, width, -1), out)
            x = x + functional.rms_norm(mixed, self.shape, norm_out, self.eps)
            y = functional.linear(functional.rms_norm(x, self.shape, norm_mlp, self.eps), gate_up)
            y = functional.silu(y[..., : self.inner]).mul_(y[..., self.inner :])
            x = x + functional.rms_norm(functional.linear(y, down), self.shape, norm_down, self.eps)
        return functional.rms_norm(x, self.shape, self.final, self.eps)


def bench_ouro(config: dict[str, Any], rows: int, width: int, repeats: int, place: Clock, dtype: torch.dtype) -> dict:
    model = build(Ouro, OuroConfig.from_json(config), place.device, dtype)
    assert isinstance(model, Ouro)
    ids = torch.randint(0, model.vocabulary_size, (rows, width), generator=torch.Generator().manual_seed(0))
    context = model.embed(Batch.of(ids))
    bare = BareStack(model, width)

    def run_ours() -> Tensor:
        state = context.state
        for _ in range(LOOPS):
            state = model.step(state, context)
        return state

    def run_plain() -> Tensor:
        with implementation("reference"):
            return run_ours()

    def run_bare() -> Tensor:
        state = context.state
        for _ in range(LOOPS):
            state = bare.step(state)
        return state

    one, other = run_ours().double(), run_bare().double()
    difference = float((one - other).norm() / other.norm())
    single = float((model.step(context.state, context).double() - bare.step(context.state).double()).norm())
    single /= float(bare.step(context.state).double().norm())
    runs = {"loopscope": run_ours, "loopscope, plain torch": run_plain, "bare": run_bare}
    for _ in range(2):
        for run in runs.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            seconds[name].append(place.seconds(run))
    tokens = rows * width
    ms = {name: statistics.median(times) * 1e6 / (LOOPS * tokens) for name, times in seconds.items()}
    return {
        "rows": rows,
        "width": width,
        "loops": LOOPS,
        "repeats": repeats,
        "kernels": takes_kernel(context.state),
        "ms_per_1000_tokens_per_loop": ms,
        "tokens_per_second_per_loop": {name: 1e6 / value for name, value in ms.items()},
        "speed_of_bare": ms["bare"] / ms["loopscope"],
        "relative_difference_one_loop": single,
        "relative_difference": difference,
        "seconds": seconds,
    }


def bench_huginn(config: dict[str, Any], rows: int, width: int, repeats: int, place: Clock, dtype: torch.dtype) -> dict:
    place.reset_peak()
    model = build(Huginn, HuginnConfig.from_json(config), place.device, dtype)
    assert isinstance(model, Huginn)
    place.synchronise()
    weights = place.peak_gib()
    ids = torch.randint(0, model.vocabulary_size, (rows, width), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, torch.ones_like(ids), source_rows=list(range(rows)))
    draw = time.perf_counter()
    context = model.embed(batch)
    place.synchronise()
    draw = time.perf_counter() - draw
    last = torch.tensor([[row, width - 1] for row in range(rows)])

    def run() -> Tensor:
        state = context.state
        for _ in range(STEPS):
            state = model.step(state, context)
        return state

    place.reset_peak()
    state = run()
    steps_peak = place.peak_gib()
    times = [place.seconds(run) for _ in range(repeats)]
    logits = model.readout(state, last, torch.float32)
    readout = [place.seconds(lambda: model.readout(state, last, torch.float32)) for _ in range(repeats)]
    peak = place.peak_gib()

    def read_everything() -> Tensor:
        # The same logits by way of the whole coda at all positions.
        around = counted_surroundings(width, place.device, model.config.rotary, torch.float32, plain=False)
        return model.head_hidden(state, torch.float32, around)

    everything = [place.seconds(read_everything) for _ in range(repeats)]
    return {
        "rows": rows,
        "width": width,
        "steps": STEPS,
        "repeats": repeats,
        "embed_seconds": draw,
        "steps_seconds": statistics.median(times),
        "ms_per_1000_tokens_per_step": statistics.median(times) * 1e6 / (STEPS * rows * width),
        "readout_seconds": statistics.median(readout),
        "readout_all_positions_seconds": statistics.median(everything),
        "finite": bool(logits.isfinite().all() and state.isfinite().all()),
        "gib_weights": weights,
        "gib_peak_steps": steps_peak,
        "gib_peak_with_float32_readout": peak,
    }


def profile_ouro(config: dict[str, Any], rows: int, width: int, place: Clock, dtype: torch.dtype) -> str:
    from torch.profiler import ProfilerActivity, profile

    model = build(Ouro, OuroConfig.from_json(config), place.device, dtype)
    assert isinstance(model, Ouro)
    context = model.embed(Batch.of(torch.zeros(rows, width, dtype=torch.int64)))
    bare, tables = BareStack(model, width), []
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if place.device.type == "cuda" else [])
    sort = "self_cuda_time_total" if place.device.type == "cuda" else "self_cpu_time_total"
    for name, call in (
        ("loopscope", lambda: model.step(context.state, context)),
        ("bare", lambda: bare.step(context.state)),
    ):
        call()
        with profile(activities=activities) as record:
            call()
            place.synchronise()
        tables.append(f"{name}\n{record.key_averages().table(sort_by=sort, row_limit=20)}")
    return "\n".join(tables)


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
    host, ouro, huginn = report["machine"], report["ouro"], report["huginn"]
    lines = [
        f"{host['device']}, torch {host['torch']} (CUDA {host['cuda']}), Triton {host['triton']}"
        f"{'' if ouro['kernels'] else ' (not used)'}, Python {host['python']}, {host['date']}",
        "",
        f"| {report['ouro_name']}, {ouro['loops']} loops, {report['dtype']}, {ouro['rows']} × {ouro['width']} "
        "| ms / 1000 tokens / loop | tokens / s / loop |",
        "|---|---:|---:|",
    ]
    for name, value in ouro["ms_per_1000_tokens_per_loop"].items():
        lines.append(f"| {name} | {value:.3f} | {ouro['tokens_per_second_per_loop'][name]:,.0f} |")
    lines += [
        f"| loopscope / bare | {ouro['speed_of_bare']:.1%} of the speed | "
        f"difference after 1 / {ouro['loops']} loops {ouro['relative_difference_one_loop']:.1e} / "
        f"{ouro['relative_difference']:.1e} |",
        "",
        f"| {report['huginn_name']}, {huginn['steps']} steps, {report['dtype']}, "
        f"{huginn['rows']} × {huginn['width']} | |",
        "|---|---:|",
        f"| embed and draw the initial states | {huginn['embed_seconds']:.3f} s |",
        f"| {huginn['steps']} steps | {huginn['steps_seconds']:.3f} s |",
        f"| ms / 1000 tokens / step | {huginn['ms_per_1000_tokens_per_step']:.3f} |",
        f"| float32 readout, one position a row | {huginn['readout_seconds']:.3f} s |",
        f"| float32 coda at all positions, no head | {huginn['readout_all_positions_seconds']:.3f} s |",
    ]
    for key, label in (
        ("gib_weights", "weights"),
        ("gib_peak_steps", "peak over the steps"),
        ("gib_peak_with_float32_readout", "peak with the float32 readout"),
    ):
        if huginn[key] is not None:
            lines.append(f"| {label} | {huginn[key]:.1f} GiB |")
    return "\n".join(lines)


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a smoke test")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--profile", action="store_true", help="print the kernels of one loop of either side as well")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    place, dtype = Clock(torch.device(options.device)), torch.bfloat16
    rows, width = (2, 16) if options.tiny else (16, 256)
    repeats = 2 if options.tiny else options.repeats
    ouro, huginn = (TINY_OURO, TINY_HUGINN) if options.tiny else (OURO, HUGINN)
    report = {
        "machine": machine(place.device),
        "dtype": str(dtype).removeprefix("torch."),
        "ouro_name": "tiny Ouro" if options.tiny else "Ouro-1.4B (random weights)",
        "huginn_name": "tiny Huginn" if options.tiny else "Huginn-0125 (random weights)",
        "ouro": bench_ouro(ouro, rows, width, repeats, place, dtype),
        "huginn": bench_huginn(huginn, rows, width, max(2, repeats // 3), place, dtype),
    }
    print(table(report))
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    if options.profile:
        print(profile_ouro(ouro, rows, width, place, dtype))
    return 0


if __name__ == "__main__":
    sys.exit(main())
