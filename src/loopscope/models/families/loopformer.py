"""LoopFormer and TMLT: shared blocks whose gains and gates depend on the time of the step.

    H_0 = wte[ids] + wpe[positions],   H_{t+1} = blocks(H_t; c_t),   logits_t = wte · norm_f(H_t)
    (g_a, g_m, s_a, s_m) = Linear(silu(c)),   x ← x + g_a · attention(rms(x) · (1 + s_a)),   the same with g_m, s_m
    LoopFormer:  c_t = E_time(τ_t) + E_dt(δ_t),   τ_0 = 0,  τ_{t+1} = τ_t + δ_t
    TMLT:        c_t = E_time(t)

A step is another function at every depth, so it asks for `depth`. Depth has two meanings in LoopFormer. With the
default schedule, eight steps of 1/8, depth t is the state after the first t of them. `budget=M` is the schedule of M
steps of 1/M, `schedule=1/2+1/4+1/8+1/8` any other; depth t is then the state after t steps of that schedule. Beyond its
end a schedule goes on with its last step, which leaves the time that the model was trained for (`trained_clock`).

The time embedding of a number τ is [cos(τ f), sin(τ f)], f_j = 10000^(−j/128), through Linear, SiLU, Linear. Norms
of the blocks have no weight; every norm's eps is float32's own. Times are added in the model's dtype.

Shapes: B rows, S positions, D hidden width, H heads, P head width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.models.base import LoopedModule, needs_elementary_operations, select
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.config import ConfigFields
from loopscope.models.checkpoint.safetensors import TensorEntry
from loopscope.models.families.schedule import TRAINED_STEPS, Schedule
from loopscope.models.layers.attention import Surroundings, attend, positions_of, surroundings
from loopscope.models.layers.blocks import RMSNorm
from loopscope.models.layers.linear import Embedding, Linear, linear
from loopscope.models.protocol import BodyAndHead, Context

EPS = torch.finfo(torch.float32).eps
TIME_WIDTH = 256
PREFIX = "gpt."


@dataclass(frozen=True)
class LoopFormerConfig:
    """The sizes of one LoopFormer or TMLT checkpoint."""

    vocabulary_size: int
    hidden_size: int
    inner_size: int
    layers: int
    heads: int
    max_positions: int
    bias: bool
    schedule: Schedule
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, json: Mapping[str, Any], chosen: Mapping[str, str] | None = None) -> LoopFormerConfig:
        """Reads config.json and what was chosen; every unsupported or contradictory value is a `LoopscopeError`."""
        fields = ConfigFields(json, "TMLT" if json.get("model_type") == "tmlt" else "LoopFormer")
        hidden, heads, vocabulary = fields.size("n_embd"), fields.size("n_head"), fields.size("vocab_size")
        if hidden % heads:
            raise fields.fault(f"n_embd {hidden} does not divide into n_head {heads}")
        fields.only("tie_word_embeddings", True)
        return cls(
            vocabulary_size=vocabulary,
            hidden_size=hidden,
            inner_size=fields.size("intermediate_dim"),
            layers=fields.size("n_layer"),
            heads=heads,
            max_positions=fields.size("block_size"),
            bias=fields.flag("bias", False),
            schedule=Schedule.chosen(chosen or {}),
            eos_ids=fields.token_ids("eos_token_id", vocabulary),
        )


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
        embedded: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()])[None].to(weight.dtype))
        return embedded


class TimedAttention(nn.Module):
    """Causal attention whose queries, keys and values are one matrix; nothing is rotated."""

    def __init__(self, config: LoopFormerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.c_attn = Linear(config.hidden_size, 3 * config.hidden_size, bias=config.bias)
        self.c_proj = Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(self, x_BSD: Tensor, around: Surroundings) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        q, k, v = self.c_attn(x_BSD).unflatten(-1, (3, self.heads, -1)).unbind(2)
        projected: Tensor = self.c_proj(attend(q, k, v, around, 0))
        return projected


class TimedFeedForward(nn.Module):
    """c_proj(gelu(c_fc(x))), the exact gelu."""

    def __init__(self, config: LoopFormerConfig) -> None:
        super().__init__()
        self.c_fc = Linear(config.hidden_size, config.inner_size, bias=config.bias)
        self.c_proj = Linear(config.inner_size, config.hidden_size, bias=config.bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        result: Tensor = self.c_proj(functional.gelu(self.c_fc(x_BSD)))
        return result


class TimedBlock(nn.Module):
    """Attention and feed-forward, each with a gain on its input and a gate on its output."""

    def __init__(self, config: LoopFormerConfig) -> None:
        super().__init__()
        self.attn = TimedAttention(config)
        self.mlp = TimedFeedForward(config)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(config.hidden_size, 4 * config.hidden_size))

    def forward(self, x_BSD: Tensor, around: Surroundings, condition_1D: Tensor) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        gate_a, gate_m, scale_a, scale_m = self.adaLN_modulation(condition_1D).chunk(4, dim=-1)
        x_BSD = x_BSD + gate_a * self.attn(_normed(x_BSD) * (1 + scale_a), around)
        result: Tensor = x_BSD + gate_m * self.mlp(_normed(x_BSD) * (1 + scale_m))
        return result


def _normed(x: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), None, EPS)


class TimedStack(nn.Module):
    """Embeddings, blocks, last norm and time embedders, under the checkpoint's names."""

    def __init__(self, config: LoopFormerConfig, *, knows_step_size: bool) -> None:
        super().__init__()
        wide = config.hidden_size
        blocks = nn.ModuleList(TimedBlock(config) for _ in range(config.layers))
        self.transformer = nn.ModuleDict(
            {
                "wte": Embedding(config.vocabulary_size, wide),
                "wpe": Embedding(config.max_positions, wide),
                "h": nn.ModuleDict({"blocks": blocks}),
                "norm_f": RMSNorm(wide, EPS),
            }
        )
        self.lm_head = Linear(wide, config.vocabulary_size, bias=False)
        self.time_embedder = TimeEmbedder(wide)
        if knows_step_size:
            self.dt_embedder = TimeEmbedder(wide)


class TimedLoop(LoopedModule):
    """What LoopFormer and TMLT share; a family says what a step is conditioned on."""

    boundary = "the residual stream after the shared blocks, before the last norm"
    shares_context = True
    unpadded = True
    knows_step_size: bool

    def __init__(self, config: LoopFormerConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = config.hidden_size
        self.vocabulary_size = config.vocabulary_size
        self.max_positions = config.max_positions
        self.eos_ids = config.eos_ids
        self.trained_depth = self.trained_clock = TRAINED_STEPS
        self.gpt = TimedStack(config, knows_step_size=self.knows_step_size)
        self.tie()

    def tied_tensors(self) -> dict[str, str]:
        """The head is the embedding."""
        return {"gpt.lm_head.weight": "gpt.transformer.wte.weight"}

    def arrange(self, tensors: Mapping[str, TensorEntry]) -> Mapping[str, TensorEntry]:
        """Training checkpoints lack the prefix of the published files."""
        if any(name.startswith(PREFIX) for name in tensors):
            return tensors
        return {PREFIX + name: entry for name, entry in tensors.items()}

    def condition(self, depth: int) -> Tensor:
        """What the step after `depth` others is conditioned on, c, [1, D]."""
        raise NotImplementedError

    def embed(self, batch: Batch) -> Context:
        """H_0 is the sum of the embeddings of token and position."""
        self.check_batch(batch)
        batch = batch.to(self.device)
        around = surroundings(batch, None, self.dtype)
        if batch.initial_state is not None:
            return Context(batch.initial_state.to(self.dtype), batch, extra=around)
        parts = self.gpt.transformer
        state: Tensor = parts["wte"](batch.input_ids) + parts["wpe"](positions_of(batch))
        return Context(state, batch, extra=around)

    def step(self, state: Tensor, context: Context, *, depth: int) -> Tensor:
        """All blocks, conditioned on the time of the step."""
        condition = self.condition(depth)
        for block in self._blocks():
            state = block(state, context.extra, condition)
        return state

    def _blocks(self) -> Iterable[nn.Module]:
        return cast(nn.ModuleDict, self.gpt.transformer["h"])["blocks"].children()

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The last norm, then the head, which is the embedding."""
        return self.body_and_head(dtype)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead:
        """The readout as the last norm, and the head."""
        live = nn.ModuleDict({"norm_f": self.gpt.transformer["norm_f"], "head": self.gpt.lm_head})
        modules = self.in_dtype(live, dtype, mixes=True)
        assert isinstance(modules, nn.ModuleDict)
        norm, head = cast(RMSNorm, modules["norm_f"]), cast(Linear, modules["head"])

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            chosen = select(state, positions)
            normed: Tensor = norm(chosen if dtype is None else chosen.to(dtype), needs_elementary_operations(state))
            return normed

        return BodyAndHead(body, lambda hidden: linear(hidden, head.weight), self.vocabulary_size, lambda: head.weight)


class LoopFormer(TimedLoop):
    """LoopFormer at any size; padding on either side."""

    family = "loopformer"
    name = "loopformer"
    knows_step_size = True

    def __init__(self, config: LoopFormerConfig) -> None:
        super().__init__(config)
        self.trained_depth, self.trained_clock = len(config.schedule.sizes), config.schedule.within

    def condition(self, depth: int) -> Tensor:
        """E_time(time before the step) + E_dt(its size)."""
        sizes = [torch.tensor(self.config.schedule.size(t), dtype=self.dtype) for t in range(depth + 1)]
        time = torch.zeros((), dtype=self.dtype)
        for done in sizes[:-1]:
            time = time + done
        before, size = self.gpt.time_embedder(time.to(self.device)), self.gpt.dt_embedder(sizes[-1].to(self.device))
        both: Tensor = before + size
        return both


class Tmlt(TimedLoop):
    """TMLT as in LoopFormer's repository, at any size; padding on either side."""

    family = "tmlt"
    name = "tmlt"
    knows_step_size = False

    def condition(self, depth: int) -> Tensor:
        """E_time(number of the step), which counts from 0."""
        embedded: Tensor = self.gpt.time_embedder(torch.tensor(float(depth), device=self.device))
        return embedded
