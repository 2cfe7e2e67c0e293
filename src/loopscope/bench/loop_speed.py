"""The loops alone, nothing read: Ouro-1.4B against a bare stack of the same matrices, and Huginn-0125; random weights.

Ouro runs 5 loops in BF16 at 16 × 256 tokens. The bare stack is one function over the same fused matrices, written for
speed in eager torch: no modules, norms fused with their weights, one rounding fewer in the rotation. loopscope runs
twice, with its Triton kernels where the device takes them and with plain torch operations alone; both agree with the
bare stack to BF16 rounding. Huginn runs 20 steps in BF16, then a float32 readout of the last position of every row,
and the coda at all positions to compare with. On a CPU both have the sizes of a test.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.bench.clock import MIB, Call, extra_on_gpu
from loopscope.bench.row import Reference, Row, Setting
from loopscope.bench.sizes import OURO_SHAPE
from loopscope.kernels.choice import implementation, takes_kernel
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.random_weights import fill_randomly
from loopscope.models.families.huginn import Huginn, HuginnConfig
from loopscope.models.families.ouro import Ouro, OuroConfig
from loopscope.models.layers.attention import counted_surroundings
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
TINY_HUGINN = HUGINN | {"vocab_size": 512, "n_embd": 96, "n_heads": 4, "head_dim": 24, "intermediate_size": 128}
LOOPS, STEPS = 5, 20
BARE = "a bare eager stack of the same matrices"
PLAIN = "loopscope with plain torch operations"


def rows(setting: Setting) -> list[Row]:
    """Ouro's loops, Huginn's steps, and Huginn's readout."""
    return [_ouro(setting), *_huginn(setting)]


def _ouro(setting: Setting) -> Row:
    small = setting.quick or not setting.on_gpu
    model = _build(Ouro, OuroConfig.from_json(TINY_OURO if small else OURO_SHAPE), setting.device)
    assert isinstance(model, Ouro)
    ids = _ids(model, small)
    context = model.embed(Batch.of(ids))
    bare = BareStack(model, ids.shape[1])

    def looped() -> Tensor:
        return Walk(model, context).to(LOOPS).state

    def plain() -> Tensor:
        with implementation("reference"):
            return looped()

    def bare_loops() -> Tensor:
        state = context.state
        for _ in range(LOOPS):
            state = bare.step(state)
        return state

    calls: dict[str, Call] = {"ours": looped, PLAIN: plain, BARE: bare_loops}
    raced = setting.clock.race(calls, setting.sizes.repeats, warm_ups=2)
    figures = {
        "relative_difference_one_loop": _relative(Walk(model, context).advance(), bare.step(context.state)),
        f"relative_difference_{LOOPS}_loops": _relative(looped(), bare_loops()),
        "kernels": float(takes_kernel(context.state)),
        "ms_per_1000_tokens_per_loop": raced["ours"].value * 1e6 / (LOOPS * ids.numel()),
    }
    what = f"{LOOPS} loops of Ouro{'' if small else '-1.4B'} in BF16, random weights"
    size = {"tokens": ids.numel(), "rows": ids.shape[0], "loops": LOOPS}
    references = tuple(Reference(name, raced[name]) for name in (BARE, PLAIN))
    return Row("loops", what, size, "s", raced["ours"], references, figures=figures)


class BareStack:
    """Ouro's loop as one function over the model's own fused matrices."""

    def __init__(self, model: Ouro, width: int) -> None:
        config = model.config
        self.heads, self.head_width, self.eps = config.heads, config.head_width, config.norm_eps
        self.inner, self.shape = config.inner_size, (config.hidden_size,)
        self.final = model.model.norm.weight
        layers: Any = model.model.layers
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
            for layer in layers
        ]
        tables = config.rotary.tables(torch.arange(width, device=model.device)[None], model.dtype)
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


def _huginn(setting: Setting) -> list[Row]:
    small = setting.quick or not setting.on_gpu
    model = _build(Huginn, HuginnConfig.from_json(TINY_HUGINN if small else HUGINN), setting.device)
    assert isinstance(model, Huginn)
    ids = _ids(model, small)
    count, width = ids.shape
    context = model.embed(Batch(ids, torch.ones_like(ids), source_rows=list(range(count))))
    last_R2 = torch.tensor([[row, width - 1] for row in range(count)])

    def steps() -> Tensor:
        return Walk(model, context).to(STEPS).state

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


def _build(model_class: type[LoopedModule], config: Any, device: torch.device) -> LoopedModule:
    with torch.device("meta"):
        model = model_class(config)  # type: ignore[call-arg]
    fill_randomly(model, device, torch.bfloat16, seed=0)
    model.prepare()
    return model


def _ids(model: LoopedModule, small: bool) -> Tensor:
    shape = (2, 16) if small else (16, 256)
    return torch.randint(0, model.vocabulary_size, shape, generator=torch.Generator().manual_seed(0))


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())
