"""Whole passes with a model of Huginn's size, update 19→20: levels grid and quick, options, and memory of a full batch.

Each is held against the bare forward passes of its own batches, and the goals against those forward passes as they were
before batches ran without padding (`BEFORE`), so that a faster forward pass does not make a ratio worse. Random weights
come to rest as trained ones do (`random_weights.CALM`); the figures say how large updates are. With updates as large as
the states φ would be evaluated at every scale. A quarter of the 256 questions that the goals are about is measured, and
a quarter of their scalar checks with them.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from loopscope.bench.clock import Clock, Measured
from loopscope.bench.row import Reference, Row, Setting, at_most
from loopscope.bench.whole_pass import BARE, EARLIER, PassRequest, PassSetup, pass_figures, set_up
from loopscope.measuring.depth_pass import Trip
from loopscope.measuring.layout import Question, padded_tokens
from loopscope.models.families.huginn import Huginn
from loopscope.models.published_configs import huginn
from loopscope.models.registry import EMBEDDED
from loopscope.store import StoredRun
from loopscope.store.column_types import Level

TRANSITION, QUICK_TRANSITION = 19, 2
MEMORY_TRANSITION = 6
"""Memory does not depend on the depth."""
BEFORE = {"gsm8k:test": 0.1882, "hellaswag": 0.2094}
"""Seconds for 1,000 tokens, on one H200: 9.2 for the 48,887 of 256 questions, 2.35 for the 11,223 of 64."""
QUESTIONS = {"gsm8k:test": 64, "hellaswag": 64}
SCALAR_CHECKS = {"gsm8k:test": 4, "hellaswag": 16}
QUICK_TASKS = {"gsm8k:test": "arithmetic", "hellaswag": "arithmetic-mc"}
MEMORY_QUESTIONS = 256
QUICK_QUESTIONS = 3
MOST_GIB = 40.0
TINY: dict[str, Any] = {
    "vocab_size": 1024,
    "padded_vocab_size": 1024,
    "n_embd": 48,
    "n_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


class Wanted(NamedTuple):
    """A row: its name, the task, the level, and how many times the earlier forward passes it may take."""

    name: str
    task: str
    level: Level
    goal: float


WANTED = (
    Wanted("huginn-pass", "gsm8k:test", Level.GRID, 2.2),
    Wanted("huginn-pass:quick", "gsm8k:test", Level.QUICK, 1.45),
    Wanted("huginn-pass:hellaswag", "hellaswag", Level.GRID, 2.2),
)


def rows(setting: Setting) -> list[Row]:
    """Three passes and, on a GPU, the memory of one batch."""
    found = [_row(wanted, setting) for wanted in WANTED]
    return [*found, _memory(setting)] if setting.on_gpu else found


def _row(wanted: Wanted, setting: Setting) -> Row:
    clock, judged = Clock(setting.device, host=True), setting.sizes.judged and setting.on_gpu
    with tempfile.TemporaryDirectory() as scratch:
        request = _request(wanted.task, setting, wanted.level)
        setup = set_up(request, Path(scratch))
        for call in (setup.run_bare, setup.run_pass):  # kernels are compiled for the widths that come
            call()
        bare = Reference(BARE, Measured.of([clock.once(setup.run_bare)]), floor=True)
        figures = pass_figures(setup, clock)
        ours = Measured.of([figures.pop("with_parts_timed")])
        before = BEFORE[wanted.task] * setup.size["tokens"] / 1000
        earlier = Reference(EARLIER, Measured.of([before]), floor=True)
        text = f"at most {wanted.goal} times {EARLIER}"
        goal = at_most(text, wanted.goal, earlier.ratio(ours), judged=judged, against=EARLIER)
        if wanted.level is not Level.QUICK:
            figures |= _interpolated(setup)
        references = (bare, earlier) if judged else (bare,)
        first = request.transition
        what = f"A whole pass with Huginn's size, update {first}→{first + 1}, level {wanted.level}"
        return Row(wanted.name, what, setup.size, "s", ours, references, (goal,), figures)


def _memory(setting: Setting) -> Row:
    """Of one batch that fills the budget."""
    device = setting.device
    with tempfile.TemporaryDirectory() as scratch:
        request = dataclasses.replace(_request("gsm8k:test", setting), transition=MEMORY_TRANSITION)
        setup = set_up(dataclasses.replace(request, limit=MEMORY_QUESTIONS), Path(scratch))
        budget, full = setup.settings.batch.budget, list[Question]()
        assert budget is not None
        for question in (question for batch in setup.batches for question in batch):
            if padded_tokens([*full, question]) <= budget:
                full.append(question)
        torch.cuda.reset_peak_memory_stats(device)
        Trip(setup.model, dataclasses.replace(setup.settings, scalar_checks=0), full).run()
        peak = torch.cuda.max_memory_allocated(device) / 2**30
        weights = sum(weight.numel() * weight.element_size() for weight in cast(Huginn, setup.model).parameters())
        return Row(
            "huginn-pass:memory",
            "Peak of memory of one batch with Huginn's size at level grid, weights included",
            {"padded_tokens": padded_tokens(full), "questions": len(full)},
            "GiB",
            Measured.of([peak]),
            goals=(at_most(f"at most {MOST_GIB:g} GiB", MOST_GIB, peak, judged=setting.sizes.judged),),
            figures={"gib_of_the_weights": weights / 2**30},
        )


def _interpolated(setup: PassSetup) -> dict[str, float]:
    """How many questions were evaluated at every scale, by what, and how large the updates were."""
    run = StoredRun(setup.scratch / "run-0")
    grids, questions = run.read("interpolation"), run.read("questions")
    return {
        "evaluated_questions": float(grids["evaluated"].sum()),
        "largest_truncation": cast(float, grids["truncation"].max()),
        "largest_residual": cast(float, grids["residual"].max()),
        "least_allowed": cast(float, grids["allowed"].min()),
        "mean_relative_change": cast(float, questions["relative_change"].mean()),
        "mean_absolute_gain": cast(float, questions["gain"].abs().mean()),
    }


def _request(task: str, setting: Setting, level: Level = Level.GRID) -> PassRequest:
    device = str(setting.device)
    if setting.quick or not setting.on_gpu:
        tokenizer = str(EMBEDDED / "toy-ouro")
        config, transition = huginn() | TINY, QUICK_TRANSITION
        return PassRequest(
            config, device, tokenizer, QUICK_TASKS[task], None, QUICK_QUESTIONS, level=level, transition=transition
        )
    assert setting.tokenizer is not None
    return PassRequest(
        huginn(),
        device,
        setting.tokenizer,
        task,
        setting.data_dir,
        QUESTIONS[task],
        scalar_checks=SCALAR_CHECKS[task],
        level=level,
        transition=TRANSITION,
    )
