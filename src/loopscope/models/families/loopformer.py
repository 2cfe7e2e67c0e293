"""LoopFormer and TMLT: shared blocks whose gains and gates depend on the time of the step.

    H_0 = wte[ids] + wpe[positions],   H_{t+1} = blocks(H_t; c_t),   logits_t = wte · norm_f(H_t)
    (g_a, g_m, s_a, s_m) = Linear(silu(c)),   x ← x + g_a · attention(rms(x) · (1 + s_a)),   the same with g_m, s_m
    LoopFormer:  c_t = E_time(τ_t) + E_dt(δ_t),   τ_0 = 0,  τ_{t+1} = τ_t + δ_t
    TMLT:        c_t = E_time(t)

A step is another function at every depth. Depth has two meanings in LoopFormer. With the default schedule, eight steps
of 1/8, depth t is the state after the first t of them. `budget=M` is the schedule of M steps of 1/M,
`schedule=1/2+1/4+1/8+1/8` any other; depth t is then the state after t steps of that schedule. Beyond its end a
schedule goes on with its last step, which leaves the time that the model was trained for (`trained_clock`).

The time embedding of a number τ is [cos(τ f), sin(τ f)], f_j = 10000^(−j/128), through Linear, SiLU, Linear. Norms
of the blocks have no weight; every norm's eps is float32's own. Times are added in the model's dtype.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any, cast

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn
from torch.nn import functional

from loopscope.errors import shown
from loopscope.models.batch import Batch
from loopscope.models.checkpoint import TensorEntry
from loopscope.models.families import FamilyConfig, Layers, Size, TokenIds, family, only, option
from loopscope.models.families.decoder import LoopedDecoder, Readout
from loopscope.models.layers.attention import Attention
from loopscope.models.layers.blocks import Embedding, Linear, RMSNorm
from loopscope.models.layers.positions import AttentionContext, KeyValueCache, positions_of
from loopscope.models.protocol import Context

EPS = torch.finfo(torch.float32).eps
TIME_WIDTH = 256
TRAINED_STEPS = 8


class TmltConfig(FamilyConfig):
    """config.json of a TMLT checkpoint."""

    title = "TMLT (LoopFormer's baseline; no published weights known)"
    fixed = only(tie_word_embeddings=True)
    widths = ("n_embd", "n_head", "", "")
    vocab_size: Size
    n_embd: Size
    intermediate_dim: Size
    n_layer: Layers
    n_head: Size
    block_size: Size
    bias: bool = False
    eos_token_id: TokenIds = ()


class LoopFormerConfig(TmltConfig):
    """config.json of a LoopFormer checkpoint, and the sizes of its steps, which were trained to sum to 1."""

    title = "LoopFormer"
    budget: Layers | None = option(None, "M steps of 1/M instead of eight of 1/8")
    schedule: Annotated[str, BeforeValidator(str)] | None = option(None, "the steps, e.g. 1/2+1/4+1/8+1/8")

    @property
    def steps(self) -> tuple[float, ...]:
        """The sizes of the steps."""
        if self.schedule is None:
            count = self.budget or TRAINED_STEPS
            return (1 / count,) * count
        self.require(self.budget is None, "budget and schedule both name the steps: give one of them")
        try:
            sizes = tuple(float(Fraction(part)) for part in self.schedule.split("+"))
        except (ValueError, ZeroDivisionError):
            sizes = (0.0,)
        fits = all(0 < size <= 1 for size in sizes)
        self.require(fits, f"schedule {shown(self.schedule)}: write steps above 0 and up to 1, as in 1/2+1/4+1/8+1/8")
        return sizes


class TimeEmbedder(nn.Module):
    """A number as a vector: cosines, then sines, through two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(TIME_WIDTH, width), nn.SiLU(), Linear(width, width))

    def forward(self, time: Tensor) -> Tensor:
        """[] → [1, D]."""
        half = TIME_WIDTH // 2
        order = torch.arange(half, dtype=torch.float32, device=time.device)
        angles = time.to(torch.float32) * torch.exp(-math.log(10000.0) * order / half)
        weight = cast(Linear, self.mlp[0]).weight
        return cast(Tensor, self.mlp(torch.cat([angles.cos(), angles.sin()])[None].to(weight.dtype)))


class GeluMLP(nn.Module):
    """c_proj(gelu(c_fc(x))), the exact gelu."""

    def __init__(self, hidden: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.c_fc = Linear(hidden, inner, bias=bias)
        self.c_proj = Linear(inner, hidden, bias=bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        return cast(Tensor, self.c_proj(functional.gelu(self.c_fc(x_BSD))))


class TimedBlock(nn.Module):
    """Attention and MLP, each with a gain on its input and a gate on its output."""

    def __init__(self, config: TmltConfig) -> None:
        super().__init__()
        hidden, bias = config.n_embd, config.bias
        self.attn = Attention(config.sizes, "c_attn c_proj", bias=bias, output_bias=bias)
        self.mlp = GeluMLP(hidden, config.intermediate_dim, bias=bias)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(hidden, 4 * hidden))

    def forward(self, x_BSD: Tensor, attention: AttentionContext, slot: int, condition_1D: Tensor) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        gate_a, gate_m, scale_a, scale_m = self.adaLN_modulation(condition_1D).chunk(4, dim=-1)
        x_BSD = x_BSD + gate_a * self.attn(_normed(x_BSD) * (1 + scale_a), attention, slot)
        return cast(Tensor, x_BSD + gate_m * self.mlp(_normed(x_BSD) * (1 + scale_m)))


def _normed(x: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), None, EPS)


@family("tmlt", TmltConfig, "tmlt")
class Tmlt(LoopedDecoder):
    """TMLT as in LoopFormer's repository, at any size; padding on either side."""

    boundary = "the residual stream after the shared blocks, before the last norm"
    alike = False

    def __init__(self, config: TmltConfig) -> None:
        hidden, vocabulary = config.n_embd, config.vocab_size
        super().__init__(config, hidden, vocabulary, config.block_size, TRAINED_STEPS)
        self.trained_clock = TRAINED_STEPS
        blocks = nn.ModuleList(TimedBlock(config) for _ in range(config.n_layer))
        parts: dict[str, nn.Module] = {
            "wte": Embedding(vocabulary, hidden),
            "wpe": Embedding(config.block_size, hidden),
        }
        parts |= {"h": nn.ModuleDict({"blocks": blocks}), "norm_f": RMSNorm(hidden, EPS)}
        head, time = Linear(hidden, vocabulary, bias=False), TimeEmbedder(hidden)
        self.gpt: Any = nn.ModuleDict({"transformer": nn.ModuleDict(parts), "lm_head": head, "time_embedder": time})
        self.tie_head(True, "gpt.transformer.wte.weight", "gpt.lm_head.weight")

    def arrange(self, tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:  # type: ignore[override]
        """Training checkpoints lack the prefix of the published files."""
        if any(name.startswith("gpt.") for name in tensors):
            return tensors
        return {"gpt." + name: entry for name, entry in tensors.items()}

    def condition(self, depth: int) -> Tensor:
        """E_time(number of the step), which counts from 0, [1, D]."""
        return cast(Tensor, self.gpt.time_embedder(torch.tensor(float(depth), device=self.device)))

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """H_0 is the sum of the embeddings of token and position."""
        batch, attention = self.enter(batch, cache)
        parts = self.gpt.transformer
        state = self.start(batch, lambda: parts["wte"](batch.input_ids) + parts["wpe"](positions_of(batch)))
        return Context(state, batch, extra=attention)

    def step(self, state: Tensor, context: Context, *, depth: int) -> Tensor:
        """All blocks, conditioned on the time of the step."""
        condition = self.condition(depth)
        for block in self.gpt.transformer["h"]["blocks"]:
            state = block(state, context.extra, next(context.extra.slots), condition)
        return state

    def readout_layers(self) -> Readout:
        """The last norm, then the head, which is the embedding."""
        return Readout(self.gpt.lm_head, self.gpt.transformer["norm_f"])


@family("loopformer", LoopFormerConfig, "LoopFormerGPTForCausalLM", "loopformer")
class LoopFormer(Tmlt):
    """LoopFormer at any size; padding on either side."""

    def __init__(self, config: LoopFormerConfig) -> None:
        super().__init__(config)
        self.steps = config.steps
        self.gpt.dt_embedder = TimeEmbedder(config.n_embd)
        self.trained_depth = len(self.steps)
        ends = [sum(self.steps[: count + 1]) for count in range(len(self.steps))]
        self.trained_clock = sum(end <= 1 + 1e-6 for end in ends)

    def condition(self, depth: int) -> Tensor:
        """E_time(time before the step) + E_dt(its size)."""
        sizes = [torch.tensor(self.steps[min(t, len(self.steps) - 1)], dtype=self.dtype) for t in range(depth + 1)]
        time = torch.zeros((), dtype=self.dtype)
        for done in sizes[:-1]:
            time = time + done
        both: Tensor = self.gpt.time_embedder(time.to(self.device)) + self.gpt.dt_embedder(sizes[-1].to(self.device))
        return both
