"""Nanbeige4.2: a Llama stack run as a loop, with the output norm inside it.

    H_0 = embedding,   H_{t+1} = norm(layers(H_t)),   logits_t = lm_head(H_t)

The normed state is what feeds the next loop and what the head reads: logits are affine in it. With
`skip_loop_final_norm` the raw output of the layers is fed on instead and normed just before the head, so that the
readout is not affine. A head is wider than the hidden size over the number of heads (`head_dim`).

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from loopscope.models.base import LoopedModule, needs_elementary_operations, select
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.config import MOST_LOOPS, ConfigFields
from loopscope.models.layers.attention import KeyValueCache, cached_surroundings, surroundings
from loopscope.models.layers.blocks import AttentionSizes, RMSNorm, run_blocks
from loopscope.models.layers.linear import Linear, linear
from loopscope.models.layers.llama import LlamaSizes, LlamaStack, stored_frequencies
from loopscope.models.layers.rope import Rotary, read_rotary
from loopscope.models.protocol import AffineHead, BodyAndHead, Context

OTHER_FUNCTIONS = (
    "enable_double_loop_split",
    "loop_share_kv",
    "enable_hyper_connection",
    "enable_mhc",
    "enable_depth_attention",
    "emb_neighbor_num",
    "qk_layernorm",
    "attention_bias",
    "mlp_bias",
)
"""Switches of the published code that the published checkpoints leave off; each makes another function of it."""


@dataclass(frozen=True)
class NanbeigeConfig:
    """The sizes of one Nanbeige checkpoint."""

    sizes: LlamaSizes
    layers: int
    rotary: Rotary
    max_positions: int
    trained_depth: int
    norm_in_loop: bool
    tied: bool
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> NanbeigeConfig:
        """Reads config.json; every unsupported or contradictory value is a `LoopscopeError`."""
        fields = ConfigFields(json, "Nanbeige")
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        layers, vocabulary = fields.size("num_hidden_layers"), fields.size("vocab_size")
        head_width = fields.head_width(hidden, heads)
        fields.only("hidden_act", "silu")
        for switch in OTHER_FUNCTIONS:
            fields.only(switch, False)
        fields.only_full_attention(layers)
        rotary = read_rotary(fields, head_width, rounded=True)
        if rotary.scaling is not None:
            raise fields.fault("rope_scaling is not supported, only null")
        return cls(
            LlamaSizes(
                vocabulary,
                fields.size("intermediate_size"),
                AttentionSizes(hidden, heads, fields.grouped_heads(heads), head_width),
                fields.number("rms_norm_eps", most=1.0),
            ),
            layers,
            rotary,
            fields.size("max_position_embeddings"),
            _trained_depth(fields),
            not fields.flag("skip_loop_final_norm", False),
            fields.flag("tie_word_embeddings", False),
            fields.token_ids("eos_token_id", vocabulary),
        )


def _trained_depth(fields: ConfigFields) -> int:
    """One loss for each loop but the last, where losses are listed; they are stronger than `num_loops`."""
    weights = fields.json.get("loop_loss_weights")
    if weights is not None and not isinstance(weights, list):
        raise fields.fault("loop_loss_weights must be a list")
    return len(weights) + 1 if weights else fields.size("num_loops", most=MOST_LOOPS)


class Nanbeige(LoopedModule):
    """Nanbeige at any size; padding on either side."""

    family = "nanbeige"
    name = "nanbeige"
    shares_context = True
    unpadded = True
    alike = True
    boundary = "the shared stack's output after its norm, just before the language-model head"

    def __init__(self, config: NanbeigeConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = config.sizes.attention.hidden
        self.vocabulary_size = config.sizes.vocabulary
        self.max_positions = config.max_positions
        self.eos_ids = config.eos_ids
        self.trained_depth = config.trained_depth
        if not config.norm_in_loop:
            self.boundary = "the shared stack's raw output, before the norm and the language-model head"
        self.model = LlamaStack(config.sizes, config.layers)
        self.lm_head = Linear(self.hidden_size, self.vocabulary_size, bias=False)
        self.tie()

    def tied_tensors(self) -> dict[str, str]:
        """The head shares the embedding where the configuration ties them."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.config.tied else {}

    def ignorable_tensors(self) -> set[str]:
        """Rotary frequencies."""
        return stored_frequencies(self.config.layers)

    @property
    def head(self) -> AffineHead | None:
        """The logits are state · weightᵀ where the norm is inside the loop."""
        return AffineHead(self.lm_head.weight) if self.config.norm_in_loop else None

    def embed(self, batch: Batch) -> Context:
        """H_0 is the token embedding."""
        self.check_batch(batch)
        batch = batch.to(self.device)
        return Context(self._initial(batch), batch, extra=surroundings(batch, self.config.rotary, self.dtype))

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
        """One loop: all layers, and the norm where it is inside. `depth` chooses the cache slots, if any."""
        first = depth * self.config.layers
        slots = range(first, first + self.config.layers)
        norm = self.model.norm if self.config.norm_in_loop else None
        return run_blocks(state, self.model.layers, context.extra, slots, norm).normed

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """lm_head(state), after the norm where that is not inside the loop."""
        modules = self._readout_modules(dtype)
        return linear(self._hidden(modules, state, positions, dtype), cast(Linear, modules["head"]).weight)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead | None:
        """The norm, and the head; None where the norm is inside the loop and the readout is affine."""
        if self.config.norm_in_loop:
            return None
        return BodyAndHead(
            lambda state, positions: self._hidden(self._readout_modules(dtype), state, positions, dtype),
            lambda hidden: linear(hidden, cast(Linear, self._readout_modules(dtype)["head"]).weight),
            self.vocabulary_size,
        )

    def readout_cached(self, state: Tensor, context: Context, positions: Tensor | None = None) -> Tensor:
        """The readout keeps no keys: the ordinary one."""
        return self.readout(state, positions)

    def _readout_modules(self, dtype: torch.dtype | None) -> nn.ModuleDict:
        norm = {} if self.config.norm_in_loop else {"norm": self.model.norm}
        live = nn.ModuleDict({**norm, "head": self.lm_head})
        return cast(nn.ModuleDict, self.in_dtype(live, dtype, mixes=bool(norm)))

    def _hidden(
        self, modules: nn.ModuleDict, state: Tensor, positions: Tensor | None, dtype: torch.dtype | None
    ) -> Tensor:
        chosen = select(state, positions)
        chosen = chosen if dtype is None else chosen.to(dtype)
        if self.config.norm_in_loop:
            return chosen
        return cast(RMSNorm, modules["norm"]).forward(chosen, needs_elementary_operations(state))
