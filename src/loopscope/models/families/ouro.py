"""Ouro: the whole stack of layers is the loop, and an exit gate says how likely each loop is to be the last.

    H_0 = embedding,   H_{t+1} = norm(layers(H_t)),   logits_t = lm_head(H_t)

The normed state is what feeds the next loop and what the head reads: it is the state boundary, and logits are
affine in it. Every layer norms both the input and the output of its two branches. There is no cap on the number of
loops. The exit gate reads the same state; the published policy is the rule "cdf" of `exit_gate`.

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.models.base import LoopedModule, select
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.config import MOST_LOOPS, ConfigFields
from loopscope.models.choices import chosen_number
from loopscope.models.exit_gate import ExitGate
from loopscope.models.layers.attention import KeyValueCache, cached_surroundings, surroundings
from loopscope.models.layers.blocks import (
    AttentionSizes,
    Block,
    Branch,
    RMSNorm,
    SeparateAttention,
    SeparateFeedForward,
    run_blocks,
)
from loopscope.models.layers.linear import Embedding, Linear, linear
from loopscope.models.layers.llama import stored_frequencies
from loopscope.models.layers.rope import Rotary, read_rotary
from loopscope.models.protocol import AffineHead, Context


@dataclass(frozen=True)
class OuroConfig:
    """The sizes of one Ouro checkpoint; `inside` is the layer before which the state is taken, 0 for after the norm."""

    vocabulary_size: int
    hidden_size: int
    inner_size: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    norm_eps: float
    rotary: Rotary
    max_positions: int
    trained_depth: int
    exit_threshold: float
    tied: bool
    eos_ids: tuple[int, ...] = ()
    inside: int = 0

    @classmethod
    def from_json(cls, json: Mapping[str, Any], chosen: Mapping[str, str] | None = None) -> OuroConfig:
        """Reads config.json; every unsupported or contradictory value is a `LoopscopeError`."""
        fields = ConfigFields(json, "Ouro")
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        layers, vocabulary = fields.size("num_hidden_layers"), fields.size("vocab_size")
        head_width = fields.head_width(hidden, heads)
        fields.only("hidden_act", "silu")
        fields.only("attention_bias", False)
        fields.only_full_attention(layers)
        return cls(
            vocabulary_size=vocabulary,
            hidden_size=hidden,
            inner_size=fields.size("intermediate_size"),
            layers=layers,
            heads=heads,
            key_value_heads=fields.grouped_heads(heads),
            head_width=head_width,
            norm_eps=fields.number("rms_norm_eps", 1e-6, most=1.0),
            rotary=read_rotary(fields, head_width, rounded=True),
            max_positions=fields.size("max_position_embeddings", 65536),
            trained_depth=fields.size("total_ut_steps", 4, MOST_LOOPS),
            exit_threshold=fields.number("early_exit_threshold", 1.0, most=1.0),
            tied=fields.flag("tie_word_embeddings", False),
            eos_ids=fields.token_ids("eos_token_id", vocabulary),
            inside=chosen_number(chosen or {}, "inside", 0, layers - 1),
        )


class OuroLayer(Block):
    """x += norm(attention(norm(x))); x += norm(feed_forward(norm(x)))."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.self_attn = SeparateAttention(
            AttentionSizes(config.hidden_size, config.heads, config.key_value_heads, config.head_width)
        )
        self.mlp = SeparateFeedForward(config.hidden_size, config.inner_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.input_layernorm_2 = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm_2 = RMSNorm(config.hidden_size, config.norm_eps)

    def branches(self) -> tuple[Branch, Branch]:
        """Norms before and after each branch."""
        return (
            Branch(self.self_attn, self.input_layernorm, branch_norm=self.input_layernorm_2),
            Branch(self.mlp, self.post_attention_layernorm, branch_norm=self.post_attention_layernorm_2),
        )


class OuroStack(nn.Module):
    """Embedding, layers, output norm and exit gate, under the checkpoint's names."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocabulary_size, config.hidden_size)
        self.layers = nn.ModuleList(OuroLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.early_exit_gate = Linear(config.hidden_size, 1)


class Ouro(LoopedModule):
    """Ouro at any size; padding on either side."""

    family = "ouro"
    name = "ouro"
    shares_context = True
    unpadded = True
    alike = True
    boundary = "the shared stack's output after its norm, just before the language-model head"

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = config.hidden_size
        self.vocabulary_size = config.vocabulary_size
        self.max_positions = config.max_positions
        self.eos_ids = config.eos_ids
        self.trained_depth = config.trained_depth
        self.model = OuroStack(config)
        self.lm_head = Linear(config.hidden_size, config.vocabulary_size, bias=False)
        self.tie()

    def tied_tensors(self) -> dict[str, str]:
        """The head shares the embedding where the configuration ties them."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.config.tied else {}

    def ignorable_tensors(self) -> set[str]:
        """Rotary frequencies, which some tools store."""
        return stored_frequencies(self.config.layers)

    @property
    def exit_gate(self) -> ExitGate:
        """The gate with the checkpoint's own CDF threshold (`early_exit_threshold`)."""
        return ExitGate(self.gate_logits, self.config.exit_threshold, self.trained_depth, "cdf")

    @property
    def head(self) -> AffineHead:
        """The logits are state · weightᵀ."""
        return AffineHead(self.lm_head.weight)

    def embed(self, batch: Batch) -> Context:
        """H_0 is the token embedding."""
        self.check_batch(batch)
        batch = batch.to(self.device)
        around = surroundings(batch, self.config.rotary, self.dtype)
        return Context(self._initial(batch), batch, extra=around)

    def embed_cached(self, batch: Batch, cache: KeyValueCache) -> Context:
        """H_0 of new positions (`batch.position_ids`) that continue what the cache holds."""
        batch = batch.to(self.device)
        assert batch.position_ids is not None
        around = cached_surroundings(batch.position_ids, cache, self.config.rotary, self.dtype)
        return Context(self._initial(batch), batch, extra=around)

    def _initial(self, batch: Batch) -> Tensor:
        if batch.initial_state is not None:
            return batch.initial_state.to(self.dtype)
        embedded: Tensor = self.model.embed_tokens(batch.input_ids)
        return embedded

    def step(self, state: Tensor, context: Context, depth: int = 0) -> Tensor:
        """One loop: all layers, then the norm. `depth` chooses the cache slots, if there is a cache."""
        first = depth * self.config.layers
        slots = range(first, first + self.config.layers)
        return run_blocks(state, self.model.layers, context.extra, slots, self.model.norm).normed

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """lm_head(state), affine."""
        chosen = select(state, positions)
        head = self.in_dtype(self.lm_head, dtype)
        return linear(chosen if dtype is None else chosen.to(dtype), head.weight)  # type: ignore[arg-type]

    def readout_cached(self, state: Tensor, context: Context, positions: Tensor | None = None) -> Tensor:
        """The head keeps no keys: the ordinary readout."""
        return self.readout(state, positions)

    def gate_logits(self, state: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The exit gate before its sigmoid, [B, S]."""
        gate = self.model.early_exit_gate
        if dtype is None:
            return linear(state, gate.weight, gate.bias)[..., 0]
        return linear(state.to(dtype), gate.weight.to(dtype), gate.bias.to(dtype))[..., 0]
