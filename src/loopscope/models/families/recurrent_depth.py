"""The prelude / core / coda skeleton that Huginn and the retrofitted models share.

    e = prelude(scale · wte[ids]),   s_0 drawn,   s_{t+1} = core(adapter([s_t ; e])),   logits_t = readout(s_t)

The raw output of the core is the state boundary. The readout runs the coda, which is nonlinear and attends, so
it takes the states of all positions; the last block's queries, its feed-forward and the head are limited to the
positions asked for (`queries`). Positions are counted from 0 and rows padded on the right, because a readout gets
nothing but the state; the states of packed rows are separated before it (`packing`).

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.config import ConfigFields
from loopscope.models.initial_state import InitialState
from loopscope.models.layers.attention import (
    KeyValueCache,
    Queries,
    Surroundings,
    attend,
    cached_surroundings,
    surroundings,
)
from loopscope.models.layers.blocks import RMSNorm, gated_silu_joined, read_blocks, readout_surroundings, run_blocks
from loopscope.models.layers.linear import Embedding, Linear, linear
from loopscope.models.layers.rope import Positions, Rotary, RotaryTables, rotate_own
from loopscope.models.protocol import BodyAndHead, Context


@dataclass(frozen=True)
class RecurrentDepthConfig:
    """The sizes of one prelude / core / coda checkpoint."""

    vocabulary_size: int
    hidden_size: int
    inner_size: int
    heads: int
    key_value_heads: int
    head_width: int
    prelude_layers: int
    core_layers: int
    coda_layers: int
    norm_eps: float
    rotary: Rotary
    max_positions: int
    trained_depth: int
    state_std: float
    embed_scale: float
    qk_bias: bool
    tied: bool
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class StackSizes:
    """The fields whose meaning Huginn and the retrofits share."""

    hidden: int
    heads: int
    head_width: int
    prelude: int
    core: int
    coda: int
    vocabulary: int


def read_stack_sizes(fields: ConfigFields) -> StackSizes:
    """Reads and cross-checks them; refuses the variants of the recipe that no published checkpoint uses."""
    hidden, heads = fields.size("n_embd"), fields.size("n_heads")
    prelude = fields.count("n_layers_in_prelude")
    core = fields.size("n_layers_in_recurrent_block")
    coda = fields.count("n_layers_in_coda")
    total = fields.size("n_layers", prelude + core + coda)
    if total != prelude + core + coda:
        raise fields.fault(f"n_layers {total} is not {prelude} + {core} + {coda} (prelude, core, coda)")
    vocabulary = fields.size("vocab_size")
    padded = fields.size("padded_vocab_size", vocabulary)
    if padded < vocabulary:
        raise fields.fault(f"padded_vocab_size {padded} is smaller than vocab_size {vocabulary}")
    fields.only("bias", False)
    fields.only("injection_type", "linear")
    fields.only("state_init", "like-init")
    fields.only("nonlin_name", "SiLU")
    fields.only("mlp_class_name", "GatedMLP")
    fields.only("test_time_noise", 0)
    return StackSizes(hidden, heads, fields.head_width(hidden, heads), prelude, core, coda, padded)


class JointAttention(nn.Module):
    """Grouped-query attention whose queries, keys and values are one matrix.

    `qk_bias` adds a bias to queries and keys before the rotation; `flat_norm` norms the whole flat query and
    the whole flat key before they are split into heads.
    """

    def __init__(self, config: RecurrentDepthConfig, *, flat_norm: bool) -> None:
        super().__init__()
        self.heads, self.key_value_heads, self.head_width = config.heads, config.key_value_heads, config.head_width
        self.query, self.shared = self.heads * self.head_width, self.key_value_heads * self.head_width
        self.Wqkv = Linear(config.hidden_size, self.query + 2 * self.shared, bias=False)
        self.proj = Linear(self.query, config.hidden_size, bias=False)
        self.flat_norm = flat_norm
        if flat_norm:
            self.q_norm = RMSNorm(self.query, config.norm_eps)
            self.k_norm = RMSNorm(self.shared, config.norm_eps)
        self.qk_bias: Tensor | None = None
        if config.qk_bias:
            self.qk_bias = nn.Parameter(torch.zeros(2, 1, self.heads, self.head_width))

    def forward(self, x_BSD: Tensor, around: Surroundings, slot: int, queries: Queries | None = None) -> Tensor:
        """[B, S, D] → [B, S, D], or [1, N, D] at the queries."""
        if queries is None:
            mixed = attend(*self._jointly(self.Wqkv(x_BSD), around), around, slot)
        else:
            q = linear(queries.pick(x_BSD), self.Wqkv.weight[: self.query])
            kv = linear(x_BSD, self.Wqkv.weight[self.query :])
            q = self._rotated(q, "query", queries.rotary, around.plain)
            k = self._rotated(kv[..., : self.shared], "key", around.rotary, around.plain)
            v = self._heads(kv[..., self.shared :])
            mixed = queries.in_order(attend(queries.by_row(q), k, v, around, slot, queries.visible_B1MT))
        projected: Tensor = self.proj(mixed)
        return projected

    def _jointly(self, qkv: Tensor, around: Surroundings) -> tuple[Tensor, Tensor, Tensor]:
        both = self.query + self.shared
        v = self._heads(qkv[..., both:])
        if self.flat_norm:
            q = self._rotated(qkv[..., : self.query], "query", around.rotary, around.plain)
            return q, self._rotated(qkv[..., self.query : both], "key", around.rotary, around.plain), v
        bias = None if self.qk_bias is None else self.qk_bias.reshape(-1, self.head_width)
        qk = rotate_own(self._heads(qkv[..., :both]), around.rotary, bias)
        return qk[:, :, : self.heads], qk[:, :, self.heads :], v

    def _rotated(self, flat: Tensor, kind: Literal["query", "key"], rotary: RotaryTables, plain: bool) -> Tensor:
        if self.flat_norm:
            flat = (self.q_norm if kind == "query" else self.k_norm)(flat, plain)
        bias = None if self.qk_bias is None else self.qk_bias[0 if kind == "query" else 1, 0]
        return rotate_own(self._heads(flat), rotary, bias)

    def _heads(self, flat: Tensor) -> Tensor:
        return flat.reshape(flat.shape[0], flat.shape[1], -1, self.head_width)


class JointFeedForward(nn.Module):
    """proj(silu(gate) · up) with gate and up in one matrix, gate first."""

    def __init__(self, config: RecurrentDepthConfig) -> None:
        super().__init__()
        self.fc = Linear(config.hidden_size, 2 * config.inner_size, bias=False)
        self.proj = Linear(config.inner_size, config.hidden_size, bias=False)

    def forward(self, x_BSD: Tensor, plain: bool) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        result: Tensor = self.proj(gated_silu_joined(self.fc(x_BSD), plain))
        return result


class RecurrentDepth(LoopedModule):
    """The skeleton; a family says what a block is and whether the coda's input is normed."""

    boundary = "the recurrent core's raw output, before the coda"
    shares_context = True
    unpadded = True
    alike = True
    norm_before_coda: bool = False
    readout_parts: tuple[str, ...] = ("coda", "ln_f")

    def __init__(self, config: RecurrentDepthConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = config.hidden_size
        self.vocabulary_size = config.vocabulary_size
        self.max_positions = config.max_positions
        self.eos_ids = config.eos_ids
        self.trained_depth = config.trained_depth
        self.initial_state = InitialState(config.hidden_size, config.state_std, config.embed_scale)
        wide = config.hidden_size
        self.transformer = nn.ModuleDict(
            {
                "wte": Embedding(config.vocabulary_size, wide),
                "prelude": self._stack(0, config.prelude_layers),
                "adapter": self.adapter(config),
                "core_block": self._stack(config.prelude_layers, config.core_layers),
                "coda": self._stack(config.prelude_layers + config.core_layers, config.coda_layers),
                "ln_f": RMSNorm(wide, config.norm_eps),
            }
        )
        self.lm_head = Linear(wide, config.vocabulary_size, bias=False)
        self.tie()

    def _stack(self, first: int, count: int) -> nn.ModuleList:
        return nn.ModuleList(self.block(self.config, first + index) for index in range(count))

    @staticmethod
    def block(config: Any, number: int) -> nn.Module:
        """One block of the family; `number` counts prelude, core and coda through, from 0."""
        raise NotImplementedError

    @staticmethod
    def adapter(config: RecurrentDepthConfig) -> nn.Module:
        """What joins the state and the embedded input ahead of the core."""
        return Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    @property
    def positions(self) -> Positions:
        """What positions mean."""
        return self.config.rotary

    def tied_tensors(self) -> dict[str, str]:
        """The head shares the embedding where the configuration ties them."""
        return {"lm_head.weight": "transformer.wte.weight"} if self.config.tied else {}

    def ignorable_tensors(self) -> set[str]:
        """The stored rotation table."""
        return {"freqs_cis"}

    def embed(self, batch: Batch) -> Context:
        """H_0 is drawn from the source row's seed unless the batch brings one; the prelude runs once."""
        self.check_batch(batch)
        if batch.padding == "left":
            raise LoopscopeError(
                f"{self.name} reads padding as text when it comes first; pad on the right (Batch.from_rows does)"
            )
        if batch.position_ids is not None and not batch.is_packed:
            raise LoopscopeError(f"{self.name} counts positions from 0; leave position_ids out")
        state = self._drawn(batch) if batch.initial_state is None else batch.initial_state.to(self.device, self.dtype)
        batch = batch.to(self.device)
        around = self.given_tokens(surroundings(batch, self.positions, self.dtype), batch.input_ids)
        return Context(state, batch, self._prelude(batch, around), around)

    def given_tokens(self, around: Surroundings, ids_BS: Tensor) -> Surroundings:
        """The surroundings with what layers read from the tokens themselves, where a family has such layers."""
        return around

    def _drawn(self, batch: Batch) -> Tensor:
        parts = batch.parts
        count = batch.input_ids.shape[0] if parts is None else len(parts.lengths)
        rows = batch.source_rows if batch.source_rows is not None else [0] * count
        if not batch.is_packed:
            return self.draw_initial_state(rows, batch.attention_mask.sum(dim=1).tolist(), batch.input_ids.shape[1])
        shares = parts is None or parts.places is not None
        if shares and (rule := self.initial_state.rule) != "question":
            raise LoopscopeError(f'the rule "{rule}" draws a sequence by its length; run sequences one to a row')
        assert batch.position_ids is not None
        assert batch.reach is not None
        positions = batch.position_ids.to(self.device)
        if parts is not None:
            return self.draw_initial_state(rows, parts.lengths, batch.reach)[parts.owner_1N.to(self.device), positions]
        counted = self.draw_initial_state(rows, [batch.reach] * len(rows), batch.reach)
        valid = batch.attention_mask.to(self.device)[..., None]
        return counted.gather(1, positions[..., None].expand(-1, -1, counted.shape[2])) * valid

    def draw_initial_state(self, source_rows: Sequence[int], lengths: Sequence[int], width: int) -> Tensor:
        """H_0 for rows of the given lengths, [B, width, D] on the model's device; zero at padding."""
        drawn = self.initial_state.draw(source_rows, lengths)
        padded = functional.pad(drawn, (0, 0, 0, width - drawn.shape[1]))
        if self.device.type == "cuda":
            padded = padded.pin_memory()  # so that nobody waits for what the device does meanwhile
        return padded.to(self.device, non_blocking=True).to(self.dtype)

    def embed_cached(self, batch: Batch, cache: KeyValueCache) -> Context:
        """H_0 of new positions (`batch.position_ids`, `batch.initial_state`) that continue the cache."""
        batch = batch.to(self.device)
        assert batch.position_ids is not None
        assert batch.initial_state is not None
        around = cached_surroundings(batch.position_ids, cache, self.positions, self.dtype)
        around = self.given_tokens(around, batch.input_ids)
        return Context(batch.initial_state.to(self.dtype), batch, self._prelude(batch, around), around)

    def _prelude(self, batch: Batch, around: Surroundings) -> Tensor:
        x: Tensor = self.transformer["wte"](batch.input_ids)
        if self.config.embed_scale != 1.0:
            x = x * self.config.embed_scale
        return run_blocks(x, self._blocks("prelude"), around, range(self.config.prelude_layers)).state

    def step(self, state: Tensor, context: Context, depth: int = 0) -> Tensor:
        """One pass through the core. `depth` chooses the cache slots, if there is a cache."""
        assert context.injection is not None
        x = self.joined(state, context.injection)
        first = self.config.prelude_layers + depth * self.config.core_layers
        slots = range(first, first + self.config.core_layers)
        return run_blocks(x, self._blocks("core_block"), context.extra, slots).state

    def joined(self, state: Tensor, injection: Tensor) -> Tensor:
        """What the core reads."""
        adapted: Tensor = self.transformer["adapter"](torch.cat([state, injection], dim=-1))
        return adapted

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits through the coda. Rows begin at position 0; what stands after a position never reaches it."""
        return self.body_and_head(dtype)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead:
        """The readout as the coda with the last norm, and the head."""

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            around = readout_surroundings(self, state, self.positions, dtype)
            return self.head_hidden(state, dtype, around, positions)

        matrix = partial(self._head_matrix, dtype)
        return BodyAndHead(body, lambda hidden: self._head(hidden, dtype), self.vocabulary_size, matrix)

    def readout_cached(self, state: Tensor, context: Context, positions: Tensor | None = None) -> Tensor:
        """The readout of new positions, whose coda reads and writes the cache."""
        return self._head(self.head_hidden(state, None, context.extra, positions), None)

    def head_hidden(
        self, state: Tensor, dtype: torch.dtype | None, around: Surroundings, positions: Tensor | None = None
    ) -> Tensor:
        """What the head reads: the state after the coda and the last norm, [B, S, D], or [N, D] at positions."""
        modules = self._readout_modules(dtype)
        x = state if dtype is None else state.to(dtype)
        norm = cast(RMSNorm, modules["ln_f"])
        x = self.entering_coda(x, modules, around.plain)
        coda = list(modules["coda"].children())
        return read_blocks(x, coda, around, [-1 - index for index in range(len(coda))], norm, positions)

    def entering_coda(self, state: Tensor, modules: nn.ModuleDict, plain: bool) -> Tensor:
        """What the coda reads, with the readout's own modules."""
        return cast(RMSNorm, modules["ln_f"])(state, plain) if self.norm_before_coda else state

    def _head(self, hidden: Tensor, dtype: torch.dtype | None) -> Tensor:
        return linear(hidden, self._head_matrix(dtype))

    def _head_matrix(self, dtype: torch.dtype | None) -> Tensor:
        return self._readout_modules(dtype)["head"].weight  # type: ignore[return-value]

    def _readout_modules(self, dtype: torch.dtype | None) -> nn.ModuleDict:
        live = {name: self.transformer[name] for name in self.readout_parts}
        modules = self.in_dtype(nn.ModuleDict(live | {"head": self.lm_head}), dtype, mixes=True)
        assert isinstance(modules, nn.ModuleDict)
        return modules

    def _blocks(self, name: str) -> nn.ModuleList:
        blocks = self.transformer[name]
        assert isinstance(blocks, nn.ModuleList)
        return blocks
