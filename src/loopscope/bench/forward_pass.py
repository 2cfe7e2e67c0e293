"""The bare forward passes of a benchmark's batches: what runs beside its tokens, and how near that is to its products.

`forward` runs embed and the loops of published sizes, with random weights in BF16, over 64 questions whose lengths
spread as GSM8K's do, in the batches that a pass makes of them, initial states drawn beforehand. It is held against the
products of the tokens that run, at the rate of large BF16 products right after, and against the same questions in
padded rows. `padding` counts the tokens that the batches of whole tasks run, over those that the questions have.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.bench.clock import Call, Measured
from loopscope.bench.loop_speed import HUGINN, STEPS, TINY_HUGINN, TINY_OURO, build
from loopscope.bench.row import Reference, Row, Setting, at_most
from loopscope.bench.sizes import OURO_SHAPE
from loopscope.measuring.layout import Question, collate, padded_tokens, plan_batches, run_tokens
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.settings import BatchPolicy
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.families.huginn import Huginn, HuginnConfig
from loopscope.models.families.ouro import Ouro, OuroConfig
from loopscope.models.layers.varlen import runs_unpadded
from loopscope.models.registry import EMBEDDED
from loopscope.models.tokenizer import load_tokenizer
from loopscope.models.walk import Walk
from loopscope.tasks import encoding
from loopscope.tasks.load import load_task

PRODUCTS = "the products of these tokens, at the rate of large ones"
PADDED = "the same questions in padded rows"
OVER_PRODUCTS, OVER_TOKENS = 1.35, 1.1
QUESTIONS, QUICK_QUESTIONS = 64, 4
LOOPS = 5
SIDE, QUICK_SIDE = 8192, 64
"""Of the large product."""
IN_A_ROW = 100
"""Large products one after the other, so that a clock that sinks under load does so for them, too."""
TASKS, QUICK_TASKS = ("gsm8k:test", "hellaswag"), ("arithmetic", "arithmetic-mc")
UNIT = 64
VOCABULARY = 512
"""Of the drawn ids: the smallest model's."""


def rows(setting: Setting) -> list[Row]:
    """Of Huginn and of Ouro."""
    small = setting.quick or not setting.on_gpu
    huginn = build(Huginn, HuginnConfig.from_json(TINY_HUGINN if small else HUGINN), setting.device)
    parts = huginn.transformer
    assert isinstance(parts, nn.ModuleDict)
    products = _products([parts["prelude"]]) + STEPS * _products([parts["adapter"], parts["core_block"]])
    found = [_row(setting, "forward:huginn", "Huginn" if small else "Huginn-0125", huginn, STEPS, products)]
    del huginn, parts
    ouro = build(Ouro, OuroConfig.from_json(TINY_OURO if small else OURO_SHAPE), setting.device)
    name = "Ouro" if small else "Ouro-1.4B"
    return [*found, _row(setting, "forward:ouro", name, ouro, LOOPS, LOOPS * _products([ouro.model]))]


def _products(modules: Iterable[Any]) -> int:
    """Multiplications and additions of one token with the matrices of linear layers."""
    layers = (layer for module in modules for layer in module.modules())
    return sum(2 * layer.weight.numel() for layer in layers if isinstance(layer, nn.Linear) and layer.out_features > 1)


def _row(setting: Setting, row: str, name: str, model: LoopedModule, loops: int, products: int) -> Row:
    questions = drawn_questions(*((QUICK_QUESTIONS, 16) if setting.quick else (QUESTIONS, 1)))
    padding = BatchPolicy.parse("auto").on(setting.device.type)
    policy = BatchPolicy.parse("auto").on(setting.device.type, unpadded=runs_unpadded(model))
    batches, in_rows = (plan_batches(questions, how) for how in (policy, padding))
    ours, padded = (
        [_begun(model, collate(batch, how).batch) for batch in made]
        for made, how in ((batches, policy), (in_rows, padding))
    )
    side = QUICK_SIDE if setting.quick else SIDE
    large = torch.randn(2, side, side, device=setting.device, dtype=torch.bfloat16)

    def forward(given: Sequence[Batch]) -> None:
        for batch in given:
            Walk.of(model, batch, loops).to(loops)

    calls: dict[str, Call] = {
        "ours": lambda: forward(ours),
        PADDED: lambda: forward(padded),
    }
    raced = setting.clock.race(calls, setting.sizes.slow_repeats, warm_ups=2)
    product = {PRODUCTS: lambda: functional.linear(large[0], large[1])}
    raced |= setting.clock.race(product, setting.sizes.slow_repeats, in_a_row=1 if setting.quick else IN_A_ROW)
    tokens = sum(run_tokens(batch, policy) for batch in batches)
    floor = Reference(PRODUCTS, raced[PRODUCTS].times(tokens * products / (2 * side**3)), floor=True)
    goal = at_most(
        f"at most {OVER_PRODUCTS} times the products of the tokens that run",
        OVER_PRODUCTS,
        floor.ratio(raced["ours"]),
        judged=setting.sizes.judged and setting.on_gpu and row == "forward:huginn",
        against=PRODUCTS,
    )
    valid = sum(question.group.tokens for question in questions)
    size = {"tokens": valid, "run_tokens": tokens, "questions": len(questions), "batches": len(batches)}
    size |= {"padded_tokens": sum(map(padded_tokens, in_rows)), "loops": loops}
    figures = {
        "ms_per_1000_tokens": raced["ours"].value * 1e6 / valid,
        "tflops_of_large_products": 2e-12 * side**3 / raced[PRODUCTS].value,
        "relative_difference_to_padded": _difference(model, batches[0], policy, loops),
    }
    what = f"Embed and {loops} loops of {name} in BF16 over {len(questions)} questions, random weights"
    return Row(row, what, size, "s", raced["ours"], (floor, Reference(PADDED, raced[PADDED])), (goal,), figures)


def drawn_questions(count: int, shorter: int = 1) -> list[Question]:
    """As long as GSM8K's with Ouro's tokenizer (195 on average, nine in ten between 105 and 322), or shorter."""
    chance = random.Random(0)
    found = []
    for row in range(count):
        length = max(2, round(chance.lognormvariate(5.21, 0.35) / shorter))
        ids = [chance.randrange(VOCABULARY) for _ in range(length)]
        scored = encoding.Sequence(tuple(ids), (length - 2,), (ids[-1],))
        example = encoding.Example(f"q{row}", row, "", (scored,))
        found.append(Question(row, example, encoding.Row(f"q{row}", row, "", ("",))))
    return found


def _begun(model: LoopedModule, batch: Batch) -> Batch:
    """On the device, with its initial state, whose drawing takes the host's time."""
    batch = batch.to(model.device)
    return dataclasses.replace(batch, initial_state=model.embed(batch).state)


def _difference(model: LoopedModule, batch: Sequence[Question], policy: BatchPolicy, loops: int) -> float:
    """Of the valid states after all loops, ours to those in padded rows."""
    packings = [collate(batch, how).to(model.device) for how in (policy, None)]
    one, other = (packing.separate(Walk.of(model, packing.batch, loops).to(loops).state) for packing in packings)
    valid: Tensor = packings[0].sequences.attention_mask
    return float((one.double() - other.double())[valid].norm() / other.double()[valid].norm())


def padding_rows(setting: Setting) -> list[Row]:
    """A row for each task, as a pass on a GPU would run it."""
    return [_padding(task, setting) for task in (QUICK_TASKS if setting.quick else TASKS)]


def _padding(task: str, setting: Setting) -> Row:
    tokenizer = load_tokenizer(setting.tokenizer or str(EMBEDDED / "toy-ouro"))
    loaded = load_task(task, data_dir=setting.data_dir, limit=UNIT if setting.quick else None)
    questions = QuestionEncoder(tokenizer, None, "error").questions(loaded.without_rows(), loaded.rows, 0)
    policy = BatchPolicy.parse("auto").on("cuda", unpadded=True)
    units = [questions[start : start + UNIT] for start in range(0, len(questions), UNIT)]
    batches, in_rows = (
        [batch for unit in units for batch in plan_batches(unit, how)] for how in (policy, policy.on("cuda"))
    )
    valid = sum(question.positions for question in questions)
    ran, padded = sum(run_tokens(batch, policy) for batch in batches), sum(map(padded_tokens, in_rows))
    goal = at_most(f"at most {OVER_TOKENS} tokens run for each", OVER_TOKENS, ran / valid, judged=not setting.quick)
    return Row(
        f"padding:{loaded.name}",
        "Tokens that a pass runs over those of its questions",
        {"tokens": valid, "questions": len(questions), "batches": len(batches)},
        "",
        Measured.of([ran / valid]),
        (Reference(PADDED, Measured.of([padded / valid])),),
        (goal,),
    )
