"""Huginn, and retrofitted recurrence: its skeleton grown out of the layers of a Llama or an OLMo-2.

    e = prelude(scale · wte[ids]),   s_0 drawn,   s_{t+1} = core(adapter([s_t ; e]))
    Huginn     x ← norm_2(x + attention(norm_1(x))),   x ← norm_4(x + mlp(norm_3(x)))
               logits_t = lm_head(ln_f(coda(ln_f(s_t))))
    Llama      x ← x + attention(norm_1(x)),   x ← x + mlp(norm_2(x)),   logits_t = lm_head(ln_f(coda(s_t)))
    OLMo       x ← x + norm_1(attention(x)),   x ← x + norm_2(mlp(x)),   flat norms on q and k, logits as Llama's

The raw output of the core is the state boundary. Huginn adds a bias to queries and keys before the rotation, whose
pairs are interleaved.

A retrofitted configuration calls itself Huginn's; only the tensors tell the variants apart. `rope_theta` holds the base
of the rotation, `rope_base` is left over and unused, and the width of the drawn state is the inherited
`init_values.std`, not a function of the hidden size. The token ids named in the configuration are Huginn's and are not
read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from loopscope.models.batch import Batch
from loopscope.models.families import FamilyConfig, Layers, Loops, Number, RotaryFields, Size, TokenIds, family, only
from loopscope.models.families.decoder import DrawsState, InitialState, PreNormBlock, Readout
from loopscope.models.layers.attention import Attention, AttentionSizes, Kind
from loopscope.models.layers.blocks import Block, Embedding, GatedMLP, Linear, Names, RMSNorm
from loopscope.models.layers.positions import KeyValueCache, Rotary, RotaryTables, rotate_own
from loopscope.models.protocol import Context


class InitValues(FamilyConfig):
    """How the first state is drawn and embeddings are scaled."""

    title = "init_values"
    std: Number | None = None
    embed_scale: Number | None = None


class RavenConfig(RotaryFields):
    """The fields that Huginn and the models retrofitted to its skeleton share."""

    widths = ("n_embd", "n_heads", "num_key_value_heads", "head_dim")
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
    n_layers_in_prelude: Layers
    n_layers_in_recurrent_block: Layers
    n_layers_in_coda: Layers
    norm_eps: Number = 1e-6
    init_values: InitValues = InitValues()

    @property
    def vocabulary(self) -> int:
        """Entries of the embedding."""
        return self.padded_vocab_size or self.vocab_size

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


class RetrofitConfig(RavenConfig):
    """config.json of a retrofitted checkpoint."""

    title = "Retrofitted Llama"
    rounded: ClassVar[bool] = True
    """The published Llama code rounds its rotation tables to the model's dtype."""
    fixed = only(RavenConfig.fixed, qk_bias=False)
    max_position_embeddings: Size
    mean_recurrence: Loops
    tie_embeddings: bool = False

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self.require(self.init_values.std is not None, "init_values is missing; it holds the std of the initial state")
        self.rotary  # noqa: B018
        return self

    @property
    def positions(self) -> int:
        """The most that a sequence may have."""
        return self.max_position_embeddings

    @property
    def rotary(self) -> Rotary:
        """What positions mean."""
        return self.half_split(rounded=self.rounded)

    @property
    def scale(self) -> float:
        """Of the embedding and of the drawn state."""
        return self.init_values.embed_scale or 1.0


class RetrofitOlmoConfig(RetrofitConfig):
    """The same of a retrofitted OLMo-2."""

    title = "Retrofitted OLMo-2"
    rounded = False


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


class RetrofitOlmoBlock(Block):
    """Norms on each branch's output."""

    attention_names = Names("attn", branch_norm="norm_1")
    mlp_names = Names("mlp", branch_norm="norm_2")


def _is_huginn(config: Mapping[str, Any], tensors: Collection[str] | None) -> bool:
    if tensors is None:
        return config.get("qk_bias") is True
    return any(".norm_3." in name or name.endswith(("qk_bias", "freqs_cis")) for name in tensors)


@family("huginn", HuginnConfig, "RavenForCausalLM", "huginn_raven", recognises=_is_huginn)
class Huginn(DrawsState):
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
        return self.block_of(HuginnBlock, BiasedAttention(config.sizes, biased=config.qk_bias))

    def block_of(self, kind: type[Block], attention: Attention) -> Block:
        """A block with this attention, with the MLP and the norms of the configuration."""
        config = self.config
        mlp = GatedMLP(config.n_embd, config.intermediate_size, "fc proj")
        return kind(attention, mlp, lambda: RMSNorm(config.n_embd, config.norm_eps))

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """The prelude's output, which every step reads, and the drawn s_0."""
        batch, attention = self.enter(batch, cache)
        x = self.transformer["wte"](batch.input_ids)
        x = x * self.scale if self.scale != 1.0 else x
        injection = self.run(self.transformer["prelude"], x, attention)
        return Context(self.start(batch, lambda: self.drawn(batch)), batch, injection, attention)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The core, on the state joined with the injection."""
        assert context.injection is not None
        joined = self.transformer["adapter"](torch.cat([state, context.injection], dim=-1))
        return self.run(self.transformer["core_block"], joined, context.extra)

    def readout_layers(self) -> Readout:
        """The norm, the coda, the norm again and the head."""
        norm = self.transformer["ln_f"]
        return Readout(self.lm_head, norm, self.transformer["coda"], enter=norm)


def _is_llama(config: Mapping[str, Any], tensors: Collection[str] | None) -> bool:
    foreign = (".norm_3.", ".norm_4.", ".q_norm.", ".k_norm.", "qk_bias", "freqs_cis")
    return tensors is not None and not any(part in name for name in tensors for part in foreign)


def _is_olmo(config: Mapping[str, Any], tensors: Collection[str] | None) -> bool:
    return any(".attn.q_norm." in name for name in tensors or ())


@family("retrofit-llama", RetrofitConfig, "RavenForCausalLM", "huginn_raven", recognises=_is_llama)
class RetrofitLlama(Huginn):
    """A retrofitted Llama-3.2 or TinyLlama; padding on the right."""

    ignored = frozenset()

    def block(self, config: Any) -> Block:
        """A Llama block."""
        return self.block_of(PreNormBlock, Attention(config.sizes, "Wqkv proj"))

    def readout_layers(self) -> Readout:
        """The coda, the norm and the head."""
        return Readout(self.lm_head, self.transformer["ln_f"], self.transformer["coda"])


@family("retrofit-olmo", RetrofitOlmoConfig, "RavenForCausalLM", "huginn_raven", recognises=_is_olmo)
class RetrofitOlmo(RetrofitLlama):
    """A retrofitted OLMo-2; padding on the right."""

    def block(self, config: Any) -> Block:
        """An OLMo block."""
        attention = Attention(config.sizes, "Wqkv proj", qk_norm="flat", norm_eps=config.norm_eps)
        return self.block_of(RetrofitOlmoBlock, attention)
