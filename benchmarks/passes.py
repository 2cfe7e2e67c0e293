"""Whole passes of `loopscope.measure` against the forward passes of the same batches, with nothing read.

Models have published sizes and random weights in BF16. Questions are random token ids, as long as GSM8K's with Ouro's
tokenizer (195 tokens on average, two thirds of them the solution). A pass is everything from the loaded model to the
finished run directory; on a GPU both sides run unpadded. `full:fp64` is the FP64 analysis of level full by itself.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import loopscope as ls
from geometry import random_update
from loopscope.measuring.batching import collate, encode_task, plan_batches
from loopscope.measuring.config import BatchPolicy, MeasureConfig
from loopscope.measuring.run import prepare, run_pending, tasks_first
from loopscope.measuring.worker import LocalEngine
from loopscope.models.batch import Batch
from loopscope.models.layers.attention import runs_unpadded
from loopscope.models.layers.blocks import add_branch, gated_silu_joined
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk
from loopscope.readout import affine_path_from_states
from loopscope.store.writer import open_or_create
from loopscope.tasks.load import load_task
from timing import OURS, Call, Row, race

BARE = "the forward passes alone"
FP64_PRODUCTS = "the two FP64 products alone"
UNIT = 64
"""Questions measured and stored at a time, the default of `measure`."""


def drawn_task(questions: int, vocabulary: int, mean: float) -> ls.Task:
    """Random ids, with the spread of GSM8K's lengths around a mean."""
    chance = random.Random(0)
    prompts, solutions = [], []
    for _ in range(questions):
        length = max(3, round(mean / 195 * chance.lognormvariate(5.21, 0.35)))
        ids = [chance.randrange(vocabulary) for _ in range(length)]
        prompts.append(ids[: length // 3])
        solutions.append(ids[length // 3 :])
    return ls.Task.from_ids(prompts, solutions, name="drawn")


def batches_of(model: LoopedModel, task: ls.Task) -> list[Batch]:
    """The batches of a pass over a task."""
    questions = encode_task(load_task(task), None, None, "error").questions
    policy = BatchPolicy.parse("auto").on(model.device.type, unpadded=runs_unpadded(model))
    units = [questions[start : start + UNIT] for start in range(0, len(questions), UNIT)]
    return [collate(batch, policy).batch for unit in units for batch in plan_batches(unit, policy)]


def against_forward(
    name: str, model: LoopedModel, task: ls.Task, transition: int, level: str, repeats: int, checks: int = 16
) -> Row:
    """One pass and its forward passes, in turns."""
    batches = batches_of(model, task)

    def forward() -> None:
        with torch.no_grad():
            for batch in batches:
                Walk.of(model, batch.to(model.device), transition + 1).to(transition + 1)

    asked = MeasureConfig(
        model=model, tasks=[task], transitions=[transition], level=level, unit_size=UNIT, scalar_checks=checks
    )
    config, loaded = tasks_first(asked)
    engine = LocalEngine(config, model)
    prepared = prepare(config, loaded, engine.facts, engine.tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        folders = (str(Path(scratch) / str(number)) for number in count())

        def measure() -> None:
            with open_or_create(next(folders), prepared.manifest) as writer:
                run_pending(engine, prepared, writer, "none", notify=lambda _: None)
                writer.finish()

        values = race(model.device, {OURS: measure, BARE: forward}, repeats)
    tokens = sum(int(batch.attention_mask.sum()) for batch in batches)
    size = {"tokens": tokens, "questions": len(task), "batches": len(batches)}
    rate = {"questions_per_second": len(task) / values[OURS][0]}
    what = f"A whole pass over drawn questions with {model.name}, update {transition}→{transition + 1}, level {level}"
    return Row(name, what, size, values, figures=rate)


def ouro_rows(device: torch.device, quick: bool) -> list[Row]:
    """Ouro-1.4B's size: 1,319 questions at level grid."""
    return [_ouro("pass", device, quick, 1319, "grid")]


def full_rows(device: torch.device, quick: bool) -> list[Row]:
    """Ouro-1.4B's size: 256 questions at level full, with the FP64 analysis by itself."""
    return [_ouro("full", device, quick, 256, "full"), fp64_row(device, quick)]


def _ouro(name: str, device: torch.device, quick: bool, questions: int, level: str) -> Row:
    model = random_model("toy-ouro" if quick else "ouro-1.4b", device)
    task = drawn_task(*((4, model.vocabulary_size, 20.0) if quick else (questions, model.vocabulary_size, 195.0)))
    return against_forward(name, model, task, 4, level, 1 if quick else 3)


def layer_rows(device: torch.device, quick: bool) -> list[Row]:
    """Forward passes of Ouro-1.4B's size with every kernel of the layers, and with one of them left to torch."""
    model = random_model("toy-ouro" if quick else "ouro-1.4b", device)
    task = drawn_task(*((4, model.vocabulary_size, 20.0) if quick else (192, model.vocabulary_size, 195.0)))
    batches = [batch.to(model.device) for batch in batches_of(model, task)]

    def forward() -> None:
        with torch.no_grad():
            for batch in batches:
                Walk.of(model, batch, 5).to(5)

    def without(name: str, plain: Callable[..., Any]) -> Call:
        def call() -> None:
            with patch(f"loopscope.models.layers.{name}", plain):
                forward()

        return call

    parts = {
        "norms and sums": without("blocks.add_branch", partial(add_branch, impl="reference")),
        "gated activations": without("blocks.gated_silu_joined", partial(gated_silu_joined, impl="reference")),
        "rotations": without("positions.takes_kernel", lambda *_: False),
    }
    calls = {OURS: forward} | {f"without that of {what}": call for what, call in parts.items()}
    size = {"questions": len(task), "batches": len(batches)}
    return [Row("layers", f"Forward passes of {model.name}", size, race(device, calls, 1 if quick else 3))]


def huginn_rows(device: torch.device, quick: bool) -> list[Row]:
    """Huginn-0125's size: 64 questions at levels grid and quick, a sixteenth of them with scalar checks."""
    model = random_model("toy-huginn" if quick else "huginn-0125", device)
    task = drawn_task(*((4, model.vocabulary_size, 20.0) if quick else (64, model.vocabulary_size, 195.0)))
    transition = 2 if quick else 19
    return [
        against_forward(name, model, task, transition, level, 1, checks=len(task) // 16)
        for name, level in (("huginn-pass", "grid"), ("huginn-pass:quick", "quick"))
    ]


def random_model(name: str, device: torch.device) -> LoopedModel:
    """Random weights in BF16."""
    return ls.load_model(name, device=str(device), dtype="bfloat16", model_args={"random_weights": True})


def fp64_row(device: torch.device, quick: bool) -> Row:
    """φ and three derivatives at 257 nodes."""
    update, cells = random_update((3, 32, 999) if quick else (1024, 2048, 49_152), device), 256
    nodes = [k / cells for k in range(cells + 1)]

    weight_DV, states = update.weight_VD.double().T, [h_TD.double() for h_TD in update[:2]]

    def fp64_path() -> None:
        path = affine_path_from_states(*update[:3], None, update.targets_T, dtype=torch.float64)
        path.per_token().derivatives(nodes, 3)

    def products() -> None:
        for h_TD in states:
            h_TD @ weight_DV

    values = race(device, {OURS: fp64_path, FP64_PRODUCTS: products}, 3)
    size = update.size | {"nodes": len(nodes)}
    return Row("full:fp64", f"φ, φ', φ'' and φ''' in FP64 at {len(nodes)} scales under an affine head", size, values)
