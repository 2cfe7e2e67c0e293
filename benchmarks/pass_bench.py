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
from typing import Any, NamedTuple

import torch

from loopscope.bench.machine import in_words, machine
from loopscope.measure.batches import Question, collate, plan_batches
from loopscope.measure.engines import LocalEngine
from loopscope.measure.parts import part_times
from loopscope.measure.prepare import QuestionEncoder
from loopscope.measure.request import DataRequest, ModelRequest, Request
from loopscope.measure.run import Prepared, prepare, run_pending
from loopscope.measure.settings import BatchPolicy, Settings
from loopscope.measure.trip import Trip
from loopscope.models.batch import Batch
from loopscope.models.protocol import LoopedModel
from loopscope.models.registry import EMBEDDED
from loopscope.store.levels import Level
from loopscope.store.writer import open_or_create

OURO = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "vocab_size": 49152,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "hidden_act": "silu",
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 65536,
    "total_ut_steps": 4,
    "torch_dtype": "bfloat16",
}
TINY = OURO | {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
TRANSITION = 4


class Setup(NamedTuple):
    """A loaded model, the plan of a pass, and its batches as the pass will make them."""

    engine: LocalEngine
    prepared: Prepared
    settings: Settings
    batches: list[list[Question]]

    @property
    def model(self) -> LoopedModel:
        """The engine's."""
        return self.engine.model


def setup(request: Request) -> tuple[Setup, dict[str, float]]:
    seconds = {}
    began = time.perf_counter()
    engine = LocalEngine(request)
    synchronise(engine.model.device)
    seconds["load"] = time.perf_counter() - began
    began = time.perf_counter()
    prepared = prepare(request, request.data.load(), engine.facts())
    seconds["plan"] = time.perf_counter() - began
    settings = request.settings.on(engine.facts().device_type)
    encoder = QuestionEncoder(request.model.load_tokenizer(), engine.facts().max_positions, "error")
    batches = []
    for unit in prepared.manifest.units():
        planned = prepared.task_of(unit)
        questions = encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        batches += plan_batches(questions, settings.batch)
    return Setup(engine, prepared, settings, batches), seconds


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(call: Callable[[], Any], device: torch.device) -> float:
    synchronise(device)
    began = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - began


@torch.no_grad()
def run_bare(model: LoopedModel, batches: list[Batch]) -> None:
    for batch in batches:
        context = model.embed(batch.to(model.device))
        state = context.state
        for _ in range(TRANSITION + 1):
            state = model.step(state, context)


def run_pass(made: Setup, folder: Path) -> None:
    with open_or_create(folder, made.prepared.manifest) as writer:
        run_pending(made.engine, made.prepared, writer)
        writer.finish()


def compare(made: Setup, repeats: int, scratch: Path) -> dict[str, Any]:
    device = made.model.device
    bare = [collate(batch).batch for batch in made.batches]
    folders = (scratch / f"run-{index}" for index in range(10**6))
    seconds: dict[str, list[float]] = {"bare": [], "pass": []}
    for repeat in range(repeats + 1):
        took = {
            "bare": timed(lambda: run_bare(made.model, bare), device),
            "pass": timed(lambda: run_pass(made, next(folders)), device),
        }
        if repeat:
            for name, value in took.items():
                seconds[name].append(value)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with part_times() as times:
        whole = timed(lambda: run_pass(made, next(folders)), device)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    questions = [question for batch in made.batches for question in batch]
    return {
        "questions": len(questions),
        "batches": len(made.batches),
        "padded_tokens": sum(batch.input_ids.numel() for batch in bare),
        "tokens": sum(int(batch.attention_mask.sum()) for batch in bare),
        "reference_tokens": sum(question.example.prediction_count for question in questions),
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


def profile(made: Setup) -> str:
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
    settings = Settings.of(
        [TRANSITION],
        [],
        Level.GRID,
        batch=BatchPolicy.parse("auto"),
        unit_size=options.unit_size,
        scalar_checks=options.scalar_checks,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(TINY if options.tiny else OURO))
        request = Request(
            ModelRequest(str(folder), options.device, "bfloat16", None, True, 0, options.tokenizer),
            DataRequest((options.task,), options.data_dir, None, options.limit),
            settings,
        )
        made, once = setup(request)
        report = {
            "machine": machine(made.model.device),
            "model": "tiny Ouro" if options.tiny else "Ouro-1.4B (random weights), bfloat16",
            "task": options.task,
            "once": once,
            "pass": compare(made, options.repeats, Path(scratch)),
        }
        print(table(report))
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        if options.profile:
            print(profile(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
