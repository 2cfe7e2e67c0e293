"""A whole pass over GSM8K with a model of Ouro-1.4B's size, level grid, against the bare forward passes of its batches.

*Bare* is embed and the steps up to the update's end of the very same batches, with nothing read. A pass is everything
from the opening of its run directory to the seal on it: states, readouts, numbers to the host, Parquet. Both take turns
and are timed by this machine's clock until the device has finished: what measuring adds to running the model, host and
files included. The row `trace` holds the same pass with a trace and a lens against the one without. Both rows need a
tokenizer and the benchmark's data.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from loopscope.bench.clock import Clock, Measured
from loopscope.bench.row import Reference, Row, Setting, at_most
from loopscope.bench.sizes import OURO_SHAPE
from loopscope.measuring.data_request import DataRequest
from loopscope.measuring.layout import Question, collate, plan_batches
from loopscope.measuring.model_request import ModelRequest
from loopscope.measuring.plan import QuestionEncoder, Request
from loopscope.measuring.progress import stage_times
from loopscope.measuring.run import Engine, Prepared, prepare, run_pending
from loopscope.measuring.settings import BatchPolicy, Settings
from loopscope.measuring.worker import LocalEngine
from loopscope.models.batch import Batch
from loopscope.models.protocol import LoopedModel
from loopscope.models.registry import EMBEDDED
from loopscope.models.walk import Walk
from loopscope.store.column_types import Level
from loopscope.store.writer import open_or_create

OURO: dict[str, Any] = OURO_SHAPE | {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "hidden_act": "silu",
    "max_position_embeddings": 65536,
    "torch_dtype": "bfloat16",
}
SMALL = OURO | {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
TINY = OURO | {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
TRANSITION = 4


@dataclass(frozen=True)
class PassRequest:
    """What to pass over: a model's configuration, its tokenizer, a task."""

    config: dict[str, Any]
    device: str
    tokenizer: str
    task: str
    data_dir: str | None
    limit: int
    unit_size: int = 64
    scalar_checks: int = 16
    lens: int = 0
    level: Level = Level.GRID
    share: bool = False
    transition: int = TRANSITION


@dataclass(frozen=True)
class PassSetup:
    """A loaded model, the plan of a pass, and its batches as the pass will make them.

    Attributes:
        bare: what the model runs of them.
        once: seconds of what comes once, loading and planning.
    """

    request: Request
    engine: LocalEngine
    prepared: Prepared
    settings: Settings
    batches: list[list[Question]]
    bare: list[Batch]
    once: dict[str, float]
    scratch: Path

    @property
    def model(self) -> LoopedModel:
        """The engine's."""
        return self.engine.model

    @property
    def size(self) -> dict[str, int]:
        """Tokens as they run, with padding, and those that are read."""
        questions = [question for batch in self.batches for question in batch]
        return {
            "tokens": sum(int(batch.attention_mask.sum()) for batch in self.bare),
            "padded_tokens": sum(batch.input_ids.numel() for batch in self.bare),
            "reference_tokens": sum(question.example.prediction_count for question in questions),
            "questions": len(questions),
            "batches": len(self.batches),
        }

    def run_bare(self) -> None:
        """The forward passes alone."""
        with torch.no_grad():
            for batch in self.bare:
                Walk.of(self.model, batch.to(self.model.device), self.settings.deepest).to(self.settings.deepest)

    def run_pass(self, engine: Engine | None = None) -> Path:
        """The pass into a run directory of its own."""
        folder = self._fresh_folder()
        with open_or_create(folder, self.prepared.manifest) as writer:
            run_pending(engine or self.engine, self.prepared, writer)
            writer.finish()
        return folder

    def _fresh_folder(self) -> Path:
        return next(path for index in count() if not (path := self.scratch / f"run-{index}").exists())


def set_up(wanted: PassRequest, scratch: Path) -> PassSetup:
    """Loads the model with random weights and plans the pass; `scratch` holds its configuration and its runs."""
    folder = model_folder(wanted.config, scratch)
    settings = Settings.of(
        [wanted.transition],
        [],
        wanted.level,
        batch=BatchPolicy.parse("auto"),
        unit_size=wanted.unit_size,
        scalar_checks=wanted.scalar_checks,
        trace=wanted.lens > 0,
        lens=wanted.lens,
        share_context=wanted.share,
        interpolate=True,
    )
    request = Request(
        ModelRequest(str(folder), wanted.device, "bfloat16", None, True, 0, wanted.tokenizer),
        DataRequest((wanted.task,), wanted.data_dir, None, wanted.limit),
        settings,
    )
    began = time.perf_counter()
    engine = LocalEngine(request)
    Clock(engine.model.device).synchronise()
    loaded = time.perf_counter()
    prepared = prepare(request, request.data.load(), engine.facts(), engine.tokenizer)
    once = {"load": loaded - began, "plan": time.perf_counter() - loaded}
    on_device = request.settings_for(engine.facts())
    encoder = QuestionEncoder(engine.tokenizer, engine.facts().max_positions, "error", share=wanted.share)
    batches: list[list[Question]] = []
    for unit in prepared.manifest.units():
        planned = prepared.task_of(unit)
        questions = encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        batches += plan_batches(questions, on_device.batch)
    bare = [collate(batch, on_device.batch).batch for batch in batches]
    return PassSetup(request, engine, prepared, on_device, batches, bare, once, scratch)


def model_folder(config: dict[str, Any], scratch: Path) -> Path:
    """A checkpoint's folder without its weights."""
    folder = scratch / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


BARE = "the bare forward passes"
EARLIER = "the bare forward passes with padding, as they were"
BEFORE = 7.48
"""Seconds of those on one H200: a faster forward pass does not make the goal's ratio worse."""
UNTRACED = "the pass without a trace"
CPU_QUESTIONS = 8
TRACED_QUESTIONS = 320
LENS = 5


def rows(setting: Setting) -> list[Row]:
    """One row."""
    with tempfile.TemporaryDirectory() as scratch:
        return [measure(set_up(request_of(setting), Path(scratch)), setting)]


def measure(setup: PassSetup, setting: Setting) -> Row:
    """Both in turns after a warm-up of each, then a pass whose stages are timed."""
    sizes, clock = setting.sizes, Clock(setting.device, host=True)
    raced = clock.race({"bare": setup.run_bare, "pass": setup.run_pass}, sizes.slow_repeats)
    ours, bare = raced["pass"], Reference(BARE, raced["bare"], floor=True)
    earlier = Reference(EARLIER, Measured.of([BEFORE]), floor=True)
    judged = sizes.judged and setting.on_gpu
    goal = at_most(
        f"at most 1.05 times {EARLIER}", 1.05, earlier.ratio(ours), judged=judged, against=EARLIER if judged else ""
    )
    what = "A whole pass, update 4→5, level grid with diagnostics, everything stored"
    references = (bare, earlier) if judged else (bare,)
    return Row("pass", what, setup.size, "s", ours, references, (goal,), pass_figures(setup, clock))


def trace_rows(setting: Setting) -> list[Row]:
    """One row: a pass with a trace and a lens of five tokens against the same pass without."""
    wanted, sizes, clock = request_of(setting), setting.sizes, Clock(setting.device, host=True)
    wanted = dataclasses.replace(wanted, limit=min(wanted.limit, TRACED_QUESTIONS))
    with tempfile.TemporaryDirectory() as scratch:
        plain = set_up(wanted, Path(scratch) / "plain")
        traced = set_up(dataclasses.replace(wanted, lens=LENS), Path(scratch) / "traced")
        raced = clock.race({"plain": plain.run_pass, "traced": traced.run_pass}, sizes.slow_repeats)
        ours, without = raced["traced"], Reference(UNTRACED, raced["plain"], floor=True)
        judged = sizes.judged and setting.on_gpu
        goal = at_most(
            "at most 10% over the same pass without a trace",
            1.10,
            without.ratio(ours),
            judged=judged,
            against=UNTRACED,
        )
        size = traced.size | {"depths": TRANSITION + 1}
        what = "The same pass with a trace of every loop and a lens of five tokens"
        return [Row("trace", what, size, "s", ours, (without,), (goal,), pass_figures(traced, clock))]


def pass_figures(setup: PassSetup, clock: Clock) -> dict[str, float]:
    """Where the time of one more pass goes, in seconds, and its peak of memory."""
    on_gpu = clock.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(clock.device)
    with stage_times() as times:
        whole = clock.once(setup.run_pass)
    figures = {f"once_{name}": value for name, value in setup.once.items()} | {"with_parts_timed": whole}
    figures |= {f"device_{name}": value for name, value in times.device().items()}
    figures |= {f"host_{name}": value for name, value in times.host.items()}
    if on_gpu:
        figures["peak_gib"] = torch.cuda.max_memory_allocated(clock.device) / 2**30
    return figures


def request_of(setting: Setting) -> PassRequest:
    """GSM8K with a model of Ouro-1.4B's size on a GPU; something small elsewhere."""
    device = str(setting.device)
    if setting.quick:
        return PassRequest(TINY, device, str(EMBEDDED / "toy-ouro"), "arithmetic", None, limit=8, unit_size=4)
    assert setting.tokenizer is not None
    config, limit = (OURO, 1319) if setting.on_gpu else (SMALL, CPU_QUESTIONS)
    return PassRequest(config, device, setting.tokenizer, "gsm8k:test", setting.data_dir, limit)
