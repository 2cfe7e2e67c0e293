"""What a monitor costs in the training of the embedded models: one call, its share of the training, what it keeps.

The call is that of `Monitor` as it is by default. It is held against a forward pass of the same questions through the
trained depth, in the same batches, with logits at every position. A training step is the recipe's own: on a CPU with
smaller batches, as `train-toy` takes them there; on a GPU under autocast. The blocks are not compiled, which would take
minutes: the share of the training time is that of a training that does not compile either.
"""

from __future__ import annotations

import gc
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from loopscope.bench.row import Reference, Row, Setting, at_most
from loopscope.measuring.layout import collate, plan_batches
from loopscope.models.registry import EMBEDDED
from loopscope.models.walk import Walk
from loopscope.monitor.watch import EVERY, QUESTIONS, Monitor
from loopscope.toys.data import Place, stream
from loopscope.toys.recipe import get_recipe
from loopscope.toys.train import CPU_BATCH_TOKENS, Trainer

MODELS = ("toy-ouro", "toy-huginn")
FORWARD = "one forward pass of its questions"
CALLS = 3
"""Between two looks at what is kept."""


def rows(setting: Setting) -> list[Row]:
    """A row per model."""
    return [_row(setting, name) for name in MODELS]


def _row(setting: Setting, name: str) -> Row:
    quick, on_gpu, judged = setting.quick, setting.on_gpu, setting.sizes.judged
    recipe = get_recipe(name)
    if not on_gpu or quick:
        recipe = recipe.in_batches_of(256 if quick else CPU_BATCH_TOKENS)
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        tokenizer = _tokenizer(name)
        trainer = Trainer(
            recipe,
            Path(folder),
            seed=0,
            device=setting.device,
            workers=0,
            compiled=False,
            report=lambda line: None,
            tokenizer=tokenizer,
        )
        batch, place = next(stream(tokenizer.to_str(), recipe.mixture, 0, Place()))
        autocast = "bfloat16" if on_gpu else None
        limit = 2 if quick else QUESTIONS
        monitor = Monitor(trainer.model, "stories", limit=limit, tokenizer=tokenizer, autocast=autocast)
        batches = [collate(group).batch for group in plan_batches(monitor.questions, monitor.settings.batch)]

        @torch.no_grad()
        def forward() -> None:
            with trainer.arithmetic():
                for group in batches:
                    Walk.of(trainer.model, group.to(setting.device)).to(trainer.model.trained_depth).read()

        def step() -> None:
            trainer.train_step(batch, place, 0.1)

        calls: dict[str, Any] = {"call": lambda: monitor.measure(0), FORWARD: forward, "step": step}
        raced = setting.clock.race(calls, 1 if quick else setting.sizes.slow_repeats, warm_ups=0 if quick else 1)
        kept = _kept_bytes(monitor)
    ours, reference = raced["call"], Reference(FORWARD, raced[FORWARD], floor=True)
    share = ours.value / (EVERY * raced["step"].value)
    goals = (
        at_most("at most 3 times a forward pass", 3.0, reference.ratio(ours), judged=judged, against=FORWARD),
        at_most("share of the training time at the default interval", 0.02, share, judged=judged),
        at_most("bytes that further calls keep", 0.0, kept, judged=judged),
    )
    size = {
        "questions": len(monitor.questions),
        "positions": sum(question.positions for question in monitor.questions),
        "tokens": sum(question.example.prediction_count for question in monitor.questions),
        "tokens of a training step": int(batch.tokens.size),
    }
    figures = {"seconds_of_a_training_step": raced["step"].value, "share_of_training_time": share}
    what = f"A call of the monitor in the training of {name}"
    return Row(f"monitor:{name}", what, size, "s", ours, (reference,), goals, figures)


def _kept_bytes(monitor: Monitor) -> float:
    """By how many bytes the tensors alive grow over some calls."""
    monitor.measure(0)
    before = _tensor_bytes()
    for _ in range(CALLS):
        monitor.measure(0)
    return float(_tensor_bytes() - before)


def _tensor_bytes() -> int:
    """Bytes of all tensors alive; those that only stand for others, as torch's compiler keeps them, have none."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of objects that are deprecated, not of tensors
        alive = [held for held in gc.get_objects() if type(held) in (Tensor, Parameter)]
    found: dict[int, int] = {}
    for held in alive:
        with suppress(RuntimeError):
            found[held.data_ptr()] = held.nbytes
    return sum(found.values())


def _tokenizer(name: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(EMBEDDED / name / "tokenizer.json"))
