"""Memory for the geometry of an update: never a matrix of tokens × vocabulary, however many tokens there are.

On a CPU a process of its own makes an update, asks for its geometry once, and prints how far its memory rose:
`python -m loopscope.bench.affine_memory survey 1024 2048 49152`.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import torch

from loopscope.bench.affine_geometry import PaperWay, survey
from loopscope.bench.clock import MIB, Measured, extra_on_gpu, in_fresh_process, peak_mib
from loopscope.bench.row import Reference, Row, Setting, at_most
from loopscope.bench.sizes import random_update

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
    chunk = random_update(min(few, sizes.chunk), *shape)
    paper = PaperWay(chunk, sizes.chunk)
    differentiated = extra_on_gpu(paper.differentiated, setting.device)
    del update, chunk, paper
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
    at_few, at_many = (probe("survey", tokens, *shape) for tokens in (few, many))
    differentiated = probe("paper", few, *shape)
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


def probe(what: str, tokens: int, hidden: int, vocabulary: int) -> float:
    """MiB that a fresh process needs on top of its states and head for `survey` or `paper`."""
    return in_fresh_process("affine_memory", what, tokens, hidden, vocabulary)["extra_mib"]


def main() -> int:
    """What, tokens, width and vocabulary on the command line; one JSON object on stdout."""
    what, *numbers = sys.argv[1:]
    tokens, hidden, vocabulary = map(int, numbers)
    update = random_update(tokens, hidden, vocabulary, torch.device("cpu"))
    held = peak_mib()
    if what == "survey":
        survey(update)
    else:
        paper = PaperWay(update, tokens)
        held = max(held, peak_mib())  # the converted head counts as held
        paper.differentiated()
    print(json.dumps({"held_mib": held, "extra_mib": peak_mib() - held}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
