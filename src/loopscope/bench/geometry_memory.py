"""Memory for the geometry of an update: never a matrix of tokens × vocabulary, however many tokens there are."""

from __future__ import annotations

from functools import partial

from loopscope.bench.geometry import survey
from loopscope.bench.measured import Measured
from loopscope.bench.memory import MIB, extra_in_fresh_process, extra_on_gpu
from loopscope.bench.paper_way import PaperWay
from loopscope.bench.row import Reference, Row, at_most
from loopscope.bench.setting import Setting
from loopscope.bench.updates import random_update

HVP = "Hessian–vector product"
GROWTH_MIB = 16.0
"""What the results themselves and the allocator may add between the two numbers of tokens."""


def rows(setting: Setting) -> list[Row]:
    """One row: on a GPU the peak at many tokens, on a CPU the growth from few to many."""
    return [_on_gpu(setting) if setting.on_gpu else _on_cpu(setting)]


def _on_gpu(setting: Setting) -> Row:
    sizes = setting.sizes
    few, many = sizes.memory_tokens
    shape = (sizes.hidden, sizes.vocabulary, setting.device)
    update = random_update(few, *shape)
    survey(update)  # compiles, and lets libraries take what they keep
    at_few = extra_on_gpu(partial(survey, update), setting.device)
    part = random_update(min(few, sizes.chunk), *shape)
    paper = PaperWay(part, sizes.chunk)
    differentiated = extra_on_gpu(paper.differentiated, setting.device)
    del update, part, paper
    update = random_update(many, *shape)
    extra = extra_on_gpu(partial(survey, update), setting.device)
    return Row(
        "memory",
        "Memory beyond states and head for everything in the geometry row",
        update.size,
        "MiB",
        Measured.of([extra]),
        (Reference(f"{HVP}, {min(few, sizes.chunk)} tokens at a time", Measured.of([differentiated])),),
        (at_most(f"at most 256 MiB at {many:,} tokens", 256.0, extra, judged=sizes.judged),),
        {f"mib_at_{few}_tokens": at_few, "mib_of_one_matrix_of_fp32_logits": many * sizes.vocabulary * 4 / MIB},
    )


def _on_cpu(setting: Setting) -> Row:
    sizes = setting.sizes
    few, many = sizes.memory_tokens
    shape = (sizes.hidden, sizes.vocabulary)
    at_few, at_many = (extra_in_fresh_process("survey", tokens, *shape) for tokens in (few, many))
    differentiated = extra_in_fresh_process("paper", few, *shape)
    logits = (many - few) * sizes.vocabulary * 4 / MIB
    growth = at_many - at_few
    text = f"at most {GROWTH_MIB:g} MiB more at {many:,} tokens than at {few} (their logits alone: {logits:.0f} MiB)"
    return Row(
        "memory",
        "Memory beyond states and head for everything in the geometry row",
        {"tokens": many, "hidden": sizes.hidden, "vocabulary": sizes.vocabulary},
        "MiB",
        Measured.of([at_many]),
        (Reference(f"{HVP}, {few} tokens", Measured.of([differentiated])),),
        (at_most(text, GROWTH_MIB, growth, judged=sizes.judged),),
        {f"mib_at_{few}_tokens": at_few, "growth_mib": growth},
    )
