"""The loops alone, nothing read: Ouro, Nanbeige and Parcae against a bare stack of the same matrices, and Huginn.

Weights are random, sizes the published ones: at 16 × 256 tokens in BF16, Ouro-1.4B runs 5 loops, Nanbeige4.2-3B 2 and
every size of Parcae 8, Parcae with larger batches besides. The bare stack is one function over the same fused matrices
(`bare_stacks`). loopscope runs twice, with its Triton kernels where the device takes them and with plain torch
operations alone; both agree with the bare stack to BF16 rounding. Huginn-0125 runs 20 steps, then a float32 readout of
the last position of every row, and the coda at all positions to compare with. On a CPU all have the sizes of a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from loopscope.bench.bare_stacks import BareNanbeige, BareOuro, BareParcae
from loopscope.bench.clock import MIB, Call, extra_on_gpu
from loopscope.bench.row import Goal, Reference, Row, Setting
from loopscope.bench.sizes import OURO_SHAPE
from loopscope.kernels.choice import implementation, takes_kernel
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.random_weights import fill_randomly
from loopscope.models.families.huginn import Huginn, HuginnConfig
from loopscope.models.families.nanbeige import Nanbeige, NanbeigeConfig
from loopscope.models.families.ouro import Ouro, OuroConfig
from loopscope.models.families.parcae import Parcae, ParcaeConfig
from loopscope.models.layers.attention import counted_surroundings
from loopscope.models.registry import find_published
from loopscope.models.walk import Walk

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
TINY_OURO = OURO_SHAPE | {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
TINY_OURO |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
TINY_NANBEIGE = {"vocab_size": 512, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}
TINY_NANBEIGE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
TINY_PARCAE = {"n_embd": 128, "recurrent_embedding_dimension": 128, "intermediate_size": 256, "vocab_size": 512}
TINY_PARCAE |= {"recurrent_intermediation_embedding_dimension": 256, "padded_vocab_size": 512}
TINY_PARCAE |= {"num_attention_heads": 4, "num_key_value_heads": 4}
TINY_HUGINN = HUGINN | {"vocab_size": 512, "n_embd": 96, "n_heads": 4, "head_dim": 24, "intermediate_size": 128}
LOOPS, STEPS = 5, 20
ROWS, WIDTH = 16, 256
# The small sizes also with batches large enough that the device, not the launching of its work, decides.
PARCAE = (
    ("parcae-140m", (ROWS, 128)),
    ("parcae-370m", (ROWS, 128)),
    ("parcae-770m", (ROWS, 64)),
    ("parcae-1.3b", (ROWS, 64)),
)
BARE = "a bare eager stack of the same matrices"
PLAIN = "loopscope with plain torch operations"
LEAST = 0.9
"""Of the bare stack's speed."""


def rows(setting: Setting) -> list[Row]:
    """The loops of each family, and Huginn's readout."""
    small = setting.quick or not setting.on_gpu
    ouro = build(Ouro, OuroConfig.from_json(TINY_OURO if small else OURO_SHAPE), setting.device)
    found = [_raced(setting, "loops", "Ouro" if small else "Ouro-1.4B", ouro, BareOuro, LOOPS)]
    del ouro
    config = published("nanbeige4.2-3b") | (TINY_NANBEIGE if small else {})
    nanbeige = build(Nanbeige, NanbeigeConfig.from_json(config), setting.device)
    name = "Nanbeige" if small else "Nanbeige4.2-3B"
    found.append(_raced(setting, "loops:nanbeige", name, nanbeige, BareNanbeige, nanbeige.trained_depth))
    del nanbeige
    for size, counts in PARCAE[:1] if small else PARCAE:
        config = published(size) | (TINY_PARCAE if small else {})
        parcae = build(Parcae, ParcaeConfig.from_json(config), setting.device)
        name = "Parcae" if small else size.capitalize()
        for count in counts[:1] if small else counts:
            row_name = "loops:parcae" if small else f"loops:{size}" + (f"-{count}-rows" if count != ROWS else "")
            found.append(_raced(setting, row_name, name, parcae, BareParcae, parcae.trained_depth, count))
        del parcae
    return [*found, *_huginn(setting)]


def published(name: str) -> dict[str, Any]:
    """The configuration of a published model."""
    entry = find_published(name)
    assert entry is not None
    return dict(entry.config)


def _raced(
    setting: Setting,
    row: str,
    title: str,
    model: LoopedModule,
    bare_class: Callable[..., Any],
    loops: int,
    count: int = ROWS,
) -> Row:
    small = setting.quick or not setting.on_gpu
    ids = _ids(model, small, count)
    context = model.embed(Batch(ids, torch.ones_like(ids), source_rows=list(range(len(ids)))))
    bare = bare_class(model, context)

    def looped() -> Tensor:
        return Walk(model, context, loops).to(loops).state

    def plain() -> Tensor:
        with implementation("reference"):
            return looped()

    def bare_loops() -> Tensor:
        state = context.state
        for _ in range(loops):
            state = bare.step(state)
        return state

    calls: dict[str, Call] = {"ours": looped, PLAIN: plain, BARE: bare_loops}
    raced = setting.clock.race(calls, setting.sizes.repeats, warm_ups=2)
    figures = {
        "relative_difference_one_loop": _relative(Walk(model, context).advance(), bare.step(context.state)),
        f"relative_difference_{loops}_loops": _relative(looped(), bare_loops()),
        "kernels": float(takes_kernel(context.state)),
        "ms_per_1000_tokens_per_loop": raced["ours"].value * 1e6 / (loops * ids.numel()),
    }
    size = {"tokens": ids.numel(), "rows": ids.shape[0], "loops": loops}
    references = tuple(Reference(name, raced[name]) for name in (BARE, PLAIN))
    goal = Goal(
        f"at least {LEAST} of the speed of {BARE}",
        LEAST,
        at_most=False,
        measured=references[0].ratio(raced["ours"]),
        against=BARE,
        judged=not small,
    )
    what = f"{loops} loops of {title} in BF16, {ids.shape[0]} × {ids.shape[1]} tokens, random weights"
    return Row(row, what, size, "s", raced["ours"], references, (goal,), figures=figures)


def _huginn(setting: Setting) -> list[Row]:
    small = setting.quick or not setting.on_gpu
    model = build(Huginn, HuginnConfig.from_json(TINY_HUGINN if small else HUGINN), setting.device)
    assert isinstance(model, Huginn)
    ids = _ids(model, small)
    count, width = ids.shape
    context = model.embed(Batch(ids, torch.ones_like(ids), source_rows=list(range(count))))
    last_R2 = torch.tensor([[row, width - 1] for row in range(count)])

    def steps() -> Tensor:
        return Walk(model, context, STEPS).to(STEPS).state

    def coda_everywhere() -> Tensor:
        around = counted_surroundings(width, setting.device, model.config.rotary, torch.float32, plain=False)
        return model.head_hidden(state, torch.float32, around)

    state = steps()
    everywhere = "the coda at all positions, no head"
    calls: dict[str, Call] = {
        "steps": steps,
        "readout": lambda: model.readout(state, last_R2, torch.float32),
        everywhere: coda_everywhere,
    }
    raced = setting.clock.race(calls, setting.sizes.slow_repeats)
    name = f"Huginn{'' if small else '-0125'}"
    size = {"tokens": ids.numel(), "rows": count}
    finite = bool(state.isfinite().all() and model.readout(state, last_R2, torch.float32).isfinite().all())
    figures = {"finite": float(finite)}
    if setting.on_gpu:
        figures["mib_of_weights"] = sum(p.numel() * p.element_size() for p in model.parameters()) / MIB
        figures["mib_beyond_weights_steps"] = extra_on_gpu(steps, setting.device)
    return [
        Row(
            "loops:huginn",
            f"{STEPS} steps of {name} in BF16, random weights",
            size | {"steps": STEPS},
            "s",
            raced["steps"],
            figures=figures,
        ),
        Row(
            "loops:huginn-readout",
            f"{name}'s float32 readout of one position in each row",
            size,
            "s",
            raced["readout"],
            (Reference(everywhere, raced[everywhere]),),
        ),
    ]


def build(model_class: type[LoopedModule], config: Any, device: torch.device) -> LoopedModule:
    """A model with random weights in BF16, ready."""
    with torch.device("meta"):
        model = model_class(config)  # type: ignore[call-arg]
    fill_randomly(model, device, torch.bfloat16, seed=0)
    model.prepare()
    return model


def _ids(model: LoopedModule, small: bool, count: int = ROWS) -> Tensor:
    shape = (2, 16) if small else (count, WIDTH)
    return torch.randint(0, model.vocabulary_size, shape, generator=torch.Generator().manual_seed(0))


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())
