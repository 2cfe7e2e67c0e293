"""Huginn: prelude, recurrent core and coda of blocks that norm the residual sum.

    e = prelude(scale · wte[ids]),   s_0 drawn,   s_{t+1} = core(adapter([s_t ; e]))
    logits_t = lm_head(ln_f(coda(ln_f(s_t))))
    block:  x ← norm_2(x + attention(norm_1(x))),   x ← norm_4(x + mlp(norm_3(x)))

The raw output of the core is the state boundary. A bias is added to queries and keys before the rotation, whose pairs
are interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.models.batch import Batch
from loopscope.models.families import family
from loopscope.models.families.config import (
    FamilyConfig,
    Fraction,
    Layers,
    LayersOrNone,
    Loops,
    Number,
    RotaryFields,
    Size,
    TokenIds,
    only,
)
from loopscope.models.families.decoder import LoopedDecoder, Readout
from loopscope.models.initial_state import DrawsState, InitialState
from loopscope.models.layers.attention import Attention, AttentionSizes, Kind
from loopscope.models.layers.linear import Embedding, GatedMLP, Linear
from loopscope.models.layers.mask import KeyValueCache
from loopscope.models.layers.residual import Block, Names, RMSNorm
from loopscope.models.layers.rope import Rotary, RotaryTables, rotate_own
from loopscope.models.protocol import Context


class InitValues(FamilyConfig):
    """How the first state is drawn and embeddings are scaled."""

    title = "init_values"
    std: Number | None = None
    embed_scale: Number | None = None


class RavenConfig(RotaryFields):
    """The fields that Huginn and the models retrofitted to its skeleton share."""

    fixed = only(
        RotaryFields.fixed, bias=False, injection_type="linear", state_init="like-init", nonlin_name="SiLU",
        mlp_class_name="GatedMLP", test_time_noise=0
    )  # fmt: skip
    vocab_size: Size
    padded_vocab_size: Size | None = None
    n_embd: Size
    intermediate_size: Size
    n_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    n_layers: Layers | None = None
    n_layers_in_prelude: LayersOrNone
    n_layers_in_recurrent_block: Layers
    n_layers_in_coda: LayersOrNone
    norm_eps: Fraction = 1e-6
    init_values: InitValues = InitValues()

    @property
    def vocabulary(self) -> int:
        """Entries of the embedding."""
        return self.padded_vocab_size or self.vocab_size

    @property
    def sizes(self) -> AttentionSizes:
        """Of the attention layers."""
        return self.attention_sizes(self.n_embd, self.n_heads, self.num_key_value_heads, self.head_dim)

    @property
    def state_std(self) -> float:
        """Of the drawn state, before it is scaled."""
        return self.init_values.std or math.sqrt(2 / (5 * self.n_embd))


class HuginnConfig(RavenConfig):
    """config.json of a Huginn checkpoint."""

    title = "Huginn"
    block_size: Size = 4096
    mean_recurrence: Loops = 32
    rope_base: Number = 50000.0
    qk_bias: bool = True
    tie_embeddings: bool = True
    eos_token_id: TokenIds = ()

    @property
    def positions(self) -> int:
        """The most that a sequence may have."""
        return self.block_size

    @property
    def rotary(self) -> Rotary:
        """What positions mean."""
        return Rotary(self.sizes.head_width, self.rope_base, "interleaved")

    @property
    def scale(self) -> float:
        """Of the embedding and of the drawn state."""
        return self.init_values.embed_scale or math.sqrt(self.n_embd)


class BiasedAttention(Attention):
    """Attention with a bias on queries and keys."""

    def __init__(self, sizes: AttentionSizes, *, biased: bool) -> None:
        super().__init__(sizes, "Wqkv proj")
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, self.heads, self.head_width)) if biased else None

    def positioned(self, x_BSHP: Tensor, kind: Kind, tables: RotaryTables | None, plain: bool) -> Tensor:
        """Queries or keys with their bias, rotated."""
        assert tables is not None
        return rotate_own(x_BSHP, tables, None if self.qk_bias is None else self.qk_bias[int(kind == "key"), 0])


class HuginnBlock(Block):
    """Norms before each branch and on each residual sum."""

    attention_names = Names("attn", "norm_1", sum_norm="norm_2")
    mlp_names = Names("mlp", "norm_3", sum_norm="norm_4")


def _is_huginn(config: Mapping[str, Any], tensors: Collection[str] | None) -> bool:
    if tensors is None:
        return config.get("qk_bias") is True
    return any(".norm_3." in name or name.endswith(("qk_bias", "freqs_cis")) for name in tensors)


@family("huginn", HuginnConfig, "RavenForCausalLM", "huginn_raven", recognises=_is_huginn)
class Huginn(LoopedDecoder, DrawsState):
    """Huginn at any size; padding on the right."""

    boundary = "the recurrent core's raw output, before the coda"
    ignored = frozenset({"freqs_cis"})

    def __init__(self, config: Any) -> None:
        wide = config.n_embd
        super().__init__(config, wide, config.vocabulary, config.positions, config.mean_recurrence)
        self.rotary, self.scale = config.rotary, config.scale
        self.initial_state = InitialState(wide, config.state_std, self.scale)
        parts = {"prelude": config.n_layers_in_prelude, "core_block": config.n_layers_in_recurrent_block}
        parts["coda"] = config.n_layers_in_coda
        self.transformer: Any = nn.ModuleDict(
            {name: nn.ModuleList(self.block(config) for _ in range(count)) for name, count in parts.items()}
        )
        self.transformer["wte"] = Embedding(config.vocabulary, wide)
        self.transformer["adapter"] = Linear(2 * wide, wide, bias=False)
        self.transformer["ln_f"] = RMSNorm(wide, config.norm_eps)
        self.lm_head = Linear(wide, config.vocabulary, bias=False)
        self.tie_head(config.tie_embeddings, "transformer.wte.weight")

    def block(self, config: Any) -> Block:
        """A block of any part."""
        attention = BiasedAttention(config.sizes, biased=config.qk_bias)
        mlp = GatedMLP(config.n_embd, config.intermediate_size, "fc proj")
        return HuginnBlock(attention, mlp, lambda: RMSNorm(config.n_embd, config.norm_eps))

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """The prelude's output, which every step reads, and the drawn s_0."""
        batch, attention = self.enter(batch, cache)
        x = self.transformer["wte"](batch.input_ids)
        x = x * self.scale if self.scale != 1.0 else x
        injection = self.run(self.transformer["prelude"], x, attention)
        return Context(self.start(batch, lambda: self.drawn(batch)), batch, injection, attention)

    def step(self, state: Tensor, context: Context, depth: int = 0) -> Tensor:
        """The core, on the state joined with the injection."""
        assert context.injection is not None
        joined = self.transformer["adapter"](torch.cat([state, context.injection], dim=-1))
        core = self.transformer["core_block"]
        slot = self.config.n_layers_in_prelude + depth * self.config.n_layers_in_recurrent_block
        return self.run(core, joined, context.extra, slot)

    @property
    def readout_layers(self) -> Readout:
        """The norm, the coda, the norm again and the head."""
        norm = self.transformer["ln_f"]
        return Readout(self.lm_head, norm, self.transformer["coda"], enter=norm)
