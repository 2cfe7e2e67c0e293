"""IFM's looped models, Parts I and II: one kind of layer, several topologies, injections and initial states.

    Ouro type      H_0 = e = embedding,   H_{t+1} = layers(inj(H_t, e)),   logits_t = head(norm(rest(H_t)))
    middle type    e = prelude(embedding), normed where the file says so,   H_{t+1} = core(inj(H_t, e)), normed likewise
                   logits_t = head(norm(coda(H_t)));   H_0 = 0, e, or noise
    H/L            z_H = e, z_L = noise;  a step:  z_L ← M_L(inj(z_L + z_H, e))  (l_cycles times),
                   z_H ← M_H(inj(z_H + z_L, e));  logits_t = head(norm(coda(z_H)))
    layer:         x ← x + wo(attention(norm(x))),   x ← x + mlp(norm(x))

    diagonal       inj(s, e) = a s + v,   δ = softplus(dt_bias),   a = exp(−δ exp(A_log)),   v = δ · (W e)
    orthogonal     the same, with v's direction taken out of a s first
    linear         inj(s, e) = W [s; e] + b

Norm weights are stored as offsets, g = 1 + weight. With experts, every MLP is a sum of the chosen ones', weighted by
sigmoid scores that are divided by their sum. `shared_hl` has one core for both states, `split_hl` the first half of its
layers for z_H and the second for z_L.

The published noise is a hash of channel, position and, in the ordinary forward pass, of the row in the batch: the same
text gets another state next to other texts. Here it depends on no neighbour: by rule "question" on the source row, as
in Part II's evaluation (seed 42); by rule "official" it is that of a text alone in its batch. It is worked out on the
CPU, in float32 and in the published order, because the hash magnifies every rounding.

Part II's published generation has terminal keys and values: every recurrence attends to what earlier tokens left in
their last one (`terminal_keys`). A text in one piece is not affected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.models.batch import Batch
from loopscope.models.checkpoint import TensorEntry
from loopscope.models.families import family
from loopscope.models.families.decoder import DrawsState, InitialState, Readout
from loopscope.models.families.ifm_config import IfmLoopedConfig
from loopscope.models.layers import blocks
from loopscope.models.layers.attention import Attention
from loopscope.models.layers.blocks import (
    Block,
    Embedding,
    GatedMLP,
    Linear,
    Names,
    OffsetNorm,
    RMSNorm,
    WeightlessNorm,
)
from loopscope.models.layers.positions import AttentionContext, KeyValueCache, Rotary
from loopscope.models.protocol import Context


@dataclass(frozen=True)
class HashedState(InitialState):
    """The published noise, by rule "question" or "official"; the seed is that of Part II's evaluation."""

    seed: int = 42
    dtype: torch.dtype = torch.float32

    def draw(self, source_rows: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """H_0 for rows of the given lengths, [B, max(lengths), D] on the CPU; zero beyond a row's length."""
        state = torch.zeros(len(lengths), max(lengths), self.width)
        for index, (row, length) in enumerate(zip(source_rows, lengths, strict=True)):
            state[index, :length] = self.hashed(torch.arange(length), row)
        return state

    def hashed(self, positions: Tensor, row: int) -> Tensor:
        """The noise at positions [S] of a source row, [S, D]."""
        prime = 16777213
        key = (row % prime * 104729 + self.seed % prime * 130363) % prime
        term = 0.0 if self.rule == "official" else float(torch.tensor(float(key)) * (2 * math.pi / prime))
        x = torch.arange(self.width, dtype=torch.float32)[None] * 0.013579
        x = x + positions.to(torch.float32)[:, None] * 0.021713
        x = (x + term) + 0.123457
        x = torch.sin(x) * 43758.5453123
        x = (x - torch.floor(x)).clamp(1e-6, 1 - 1e-6)
        return torch.erfinv(2 * x - 1) * self.std


class Experts(nn.Module):
    """The chosen experts' down(silu(gate(x)) · up(x)), weighted."""

    def __init__(self, config: IfmLoopedConfig) -> None:
        super().__init__()
        hidden, inner, count = config.model_dim, config.expert_inter_dim, config.num_experts
        self.active = config.num_activated_experts
        self.norm = OffsetNorm(hidden, config.rmsnorm_eps)
        self.router = Linear(hidden, count, bias=False)
        self.experts = nn.Module()
        self.experts.weight1 = nn.Parameter(torch.zeros(count * inner, hidden))
        self.experts.weight3 = nn.Parameter(torch.zeros(count * inner, hidden))
        self.experts.weight2 = nn.Parameter(torch.zeros(count * hidden, inner))

    def forward(self, x_BSD: Tensor, plain: bool = False) -> Tensor:
        """[B, S, D] → [B, S, D]; no token's result depends on another's."""
        flat = x_BSD.reshape(-1, x_BSD.shape[-1])
        logits = self.router(flat)
        scores, chosen = torch.sigmoid(logits if logits.dtype == torch.float64 else logits.float()).topk(self.active)
        weights = (scores / scores.sum(-1, keepdim=True)).to(flat.dtype)
        gates, ups, downs = (w.chunk(self.router.out_features) for w in self.experts.parameters())
        out = torch.zeros_like(flat)
        for number, (gate, up, down) in enumerate(zip(gates, ups, downs, strict=True)):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if token.numel():
                x = flat[token]
                made = blocks.linear(blocks.gated_silu(blocks.linear(x, gate), blocks.linear(x, up), plain), down)
                out = out.index_add(0, token, made * weights[token, place][:, None])
        return out.reshape(x_BSD.shape)


class IfmLayer(Block):
    """Norms before each branch, which are stored with the branch."""

    attention_names = Names("attention")
    mlp_names = Names("nffn")

    def __init__(self, config: IfmLoopedConfig) -> None:
        hidden, eps = config.model_dim, config.rmsnorm_eps
        attention: Any = Attention(config.sizes, "wq wk wv wo")
        attention.norm = OffsetNorm(hidden, eps)
        mlp: Any = Experts(config) if config.num_experts else GatedMLP(hidden, config.ffn_hidden_dim, "fc1 fc3 fc2")
        mlp.norm = OffsetNorm(hidden, eps)
        self.mlp_names = Names("moe") if config.num_experts else IfmLayer.mlp_names  # type: ignore[misc]
        super().__init__(attention, mlp, lambda: OffsetNorm(hidden, eps))

    def input_norm(self, names: Names) -> RMSNorm | None:
        """The norm ahead of one of the two layers."""
        return cast(RMSNorm, self.get_submodule(f"{names.layer}.norm"))


class Injection(nn.Module):
    """The state alone."""

    def term(self, e: Tensor) -> Tensor:
        """What every loop reads of e."""
        return e

    def forward(self, s: Tensor, e: Tensor) -> Tensor:
        """What the core reads."""
        return s


class DiagonalInjection(Injection):
    """a s + v, or with the component of a s along v taken out."""

    def __init__(self, width: int, orthogonal_eps: float | None) -> None:
        super().__init__()
        self.input_adapter = Linear(width, width, bias=False)
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.orthogonal_eps = orthogonal_eps

    def term(self, e: Tensor) -> Tensor:
        """The term v = δ · (W e), the same in every loop."""
        return cast(Tensor, functional.softplus(self.dt_bias) * self.input_adapter(e))

    def forward(self, s: Tensor, v: Tensor) -> Tensor:
        """What the core reads."""
        kept = torch.exp(-functional.softplus(self.dt_bias) * torch.exp(self.A_log)) * s
        if self.orthogonal_eps is None:
            return kept + v
        r, w = (x if x.dtype == torch.float64 else x.float() for x in (kept, v))
        along = (r * w).sum(-1, keepdim=True) / ((w * w).sum(-1, keepdim=True) + self.orthogonal_eps)
        return kept - v * along.to(v.dtype) + v


class LinearInjection(Injection):
    """W [s; e] + b."""

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.adapter = Linear(2 * width, width, bias=bias)

    def forward(self, s: Tensor, e: Tensor) -> Tensor:
        """What the core reads."""
        return cast(Tensor, self.adapter(torch.cat([s, e], dim=-1)))


def _is_ifm(json: Mapping[str, Any], tensors: Collection[str] | None) -> bool:
    return "student" in json or (isinstance(json.get("model"), Mapping) and "arch" in json["model"])


@family("ifm-looped", IfmLoopedConfig, recognises=_is_ifm)
class IfmLooped(DrawsState):
    """One state; padding on the right where there is a coda."""

    boundary = "the state that goes into the next loop, before the layers that follow the loop"

    def __new__(cls, config: IfmLoopedConfig) -> Self:
        """The class for two states where the configuration has them."""
        return super().__new__(IfmHierarchical if config.hierarchical else cls)  # type: ignore[return-value]

    def __init__(self, config: IfmLoopedConfig) -> None:
        wide = config.model_dim
        super().__init__(config, wide, config.vocab_size, None, config.loops)
        # Which experts a token takes is asked of the device.
        self.alike = not config.num_experts
        self.rotary = Rotary(config.sizes.head_width, config.rope_base, "interleaved")
        self.embed_scale = math.sqrt(wide) if config.scale_emb else 1.0
        if config.arch == "huginn" and config.huginn_state_init == "normal":
            self.initial_state = HashedState(wide, math.sqrt(2 / wide), 1.0)
        self.draws = config.arch == "huginn" and config.huginn_state_init == "normal" and not config.hierarchical
        self.embedding = Embedding(config.vocab_size, wide)
        self.layers: Any = nn.ModuleList(IfmLayer(config) for _ in range(config.num_layers))
        self.looped = slice(config.prelude, config.prelude + config.core)
        self.output: Any = nn.Module()
        self.output.final_norm = OffsetNorm(wide, config.rmsnorm_eps)
        self.output.output = Linear(wide, config.vocab_size, bias=False)
        self.inject: Any = Injection()
        if config.injection == "linear":
            self.inject = LinearInjection(wide, bias=config.apply_bias_term)
        elif config.injection == "diagonal":
            eps = config.huginn_ortho_projection_eps if config.huginn_prelude_orthogonal else None
            self.inject = DiagonalInjection(wide, eps)
        if config.arch == "huginn" and config.huginn_prelude_norm == "rms":
            self.huginn_prelude_norm_module = OffsetNorm(wide, config.rmsnorm_eps)
        if config.arch == "huginn" and config.huginn_recurrent_exit_norm == "parameterless_rms":
            self.exit_norm = WeightlessNorm(wide, config.rmsnorm_eps)

    def arrange(self, tensors: Mapping[str, TensorEntry]) -> Mapping[str, TensorEntry]:
        """Names that would be those of methods, and the injection's two names."""
        renamed = {"embed.": "embedding.", "input_injection.": "inject.", "loop_input_injection_module.": "inject."}
        found = {}
        for name, entry in tensors.items():
            prefix = next((old for old in renamed if name.startswith(old)), "")
            found[renamed.get(prefix, "") + name[len(prefix) :]] = entry
        return found

    def entered(self, batch: Batch, cache: KeyValueCache | None) -> tuple[Batch, Tensor, AttentionContext]:
        """The batch, e, and what attention layers share."""
        batch, attention = self.enter(batch, cache)
        e = self.embedding(batch.input_ids)
        e = e if self.embed_scale == 1.0 else e * self.embed_scale
        norm = getattr(self, "huginn_prelude_norm_module", None)
        return batch, self.run(self.layers[: self.looped.start], e, attention, norm), attention

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """H_0: e, zero or noise; and the term of e that every step reads."""
        batch, e, attention = self.entered(batch, cache)
        config: IfmLoopedConfig = self.config
        first = "input" if config.arch == "transformer" else config.huginn_state_init
        firsts = {"input": lambda: e, "zero": lambda: torch.zeros_like(e), "normal": lambda: self.drawn(batch)}
        state = self.start(batch, firsts[first])
        return Context(state, batch, self.inject.term(e), attention)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The looped layers on the joined state; with terminal keys, every loop writes over the one before."""
        config: IfmLoopedConfig = self.config
        slot = config.prelude if config.terminal_keys else None
        joined, norm = self.inject(state, context.injection), getattr(self, "exit_norm", None)
        return self.run(self.layers[self.looped], joined, context.extra, norm, slot)

    def readout_layers(self) -> Readout:
        """The layers after the loop, the norm and the head."""
        return Readout(self.output.output, self.output.final_norm, self.layers[self.looped.stop :])


class IfmHierarchical(IfmLooped):
    """The states z_H, which is measured, and z_L, which is carried along; generated from whole prefixes."""

    def __init__(self, config: IfmLoopedConfig) -> None:
        super().__init__(config)
        self.boundary = f"{self.boundary} (z_H of an H cycle with {config.huginn_hierarchical_l_cycles} L updates)"
        self.split = config.core // 2 if config.huginn_hierarchical_state == "split_hl" else 0

    def embed(self, batch: Batch) -> Context:  # type: ignore[override]
        """z_H = e; z_L is noise."""
        batch, e, attention = self.entered(batch, None)
        return Context(self.start(batch, lambda: e), batch, self.inject.term(e), attention, carry=self.drawn(batch))

    def step(self, state: Tensor, context: Context, *, carry: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """One H cycle: z_H and z_L after it."""
        core, fast = self.layers[self.looped], carry
        for _ in range(self.config.huginn_hierarchical_l_cycles):
            fast = self.applied(core[self.split :], fast + state, context)
        return self.applied(core[: self.split or None], state + fast, context), fast

    def applied(self, layers: Any, x: Tensor, context: Context) -> Tensor:
        """M(inj(x, e)): one injection, then the layers, as often as the file says."""
        x = self.inject(x, context.injection)
        for _ in range(self.config.huginn_split_module_repeats):
            x = self.run(layers, x, context.extra)
        return x
