"""Retrofitted recurrence: Huginn's skeleton grown out of the layers of a Llama or an OLMo-2.

    Llama block:  x ← x + attention(norm_1(x)),   x ← x + mlp(norm_2(x))
    OLMo block:   x ← x + norm_1(attention(x)),   x ← x + norm_2(mlp(x)),   flat norms on q and k
    logits_t = lm_head(ln_f(coda(s_t)))           (no norm before the coda)

The configuration calls itself Huginn's; only the tensors tell the variants apart. `rope_theta` holds the base of the
rotation, `rope_base` is left over and unused, and the width of the drawn state is the inherited `init_values.std`, not
a function of the hidden size. The token ids named in the configuration are Huginn's and are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from loopscope.models.families import family
from loopscope.models.families.config import Loops, Size, only
from loopscope.models.families.decoder import Readout
from loopscope.models.families.huginn import Huginn, RavenConfig
from loopscope.models.layers.attention import Attention
from loopscope.models.layers.linear import GatedMLP
from loopscope.models.layers.residual import Block, Names, RMSNorm
from loopscope.models.layers.rope import Rotary


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
        return self.half_split(self.sizes.head_width, rounded=self.rounded)

    @property
    def scale(self) -> float:
        """Of the embedding and of the drawn state."""
        return self.init_values.embed_scale or 1.0


class RetrofitOlmoConfig(RetrofitConfig):
    """The same of a retrofitted OLMo-2."""

    title = "Retrofitted OLMo-2"
    rounded = False


class RetrofitLlamaBlock(Block):
    """Norms before each branch."""

    attention_names = Names("attn", "norm_1")
    mlp_names = Names("mlp", "norm_2")


class RetrofitOlmoBlock(Block):
    """Norms on each branch's output."""

    attention_names = Names("attn", branch_norm="norm_1")
    mlp_names = Names("mlp", branch_norm="norm_2")


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
        return RetrofitLlamaBlock(Attention(config.sizes, "Wqkv proj"), *_mlp_and_norm(config))

    @property
    def readout_layers(self) -> Readout:
        """The coda, the norm and the head."""
        return Readout(self.lm_head, self.transformer["ln_f"], self.transformer["coda"])


@family("retrofit-olmo", RetrofitOlmoConfig, "RavenForCausalLM", "huginn_raven", recognises=_is_olmo)
class RetrofitOlmo(RetrofitLlama):
    """A retrofitted OLMo-2; padding on the right."""

    def block(self, config: Any) -> Block:
        """An OLMo block."""
        attention = Attention(config.sizes, "Wqkv proj", qk_norm="flat", norm_eps=config.norm_eps)
        return RetrofitOlmoBlock(attention, *_mlp_and_norm(config))


def _mlp_and_norm(config: RetrofitConfig) -> tuple[GatedMLP, Any]:
    mlp = GatedMLP(config.n_embd, config.intermediate_size, "fc proj")
    return mlp, lambda: RMSNorm(config.n_embd, config.norm_eps)
