"""Retrofitted recurrence: Huginn's skeleton grown out of the layers of a Llama or an OLMo-2.

    Llama block:  x ← x + attention(norm_1(x)),   x ← x + feed_forward(norm_2(x))
    OLMo block:   x ← x + norm_1(attention(x)),   x ← x + norm_2(feed_forward(x)), flat norms on q and k
    logits_t = lm_head(ln_f(coda(s_t)))           (no norm before the coda)

The configuration calls itself Huginn's; only the tensors tell the variants apart (`variant_from_tensors`).
`rope_theta` holds the base of the rotation, `rope_base` is left over and unused, and the width of the drawn
state is the inherited `init_values.std`, not a function of the hidden size. The token ids named in the
configuration are Huginn's, not the tokenizer's, and are not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint.config import MOST_LOOPS, ConfigFields
from loopscope.models.families.recurrent_depth import (
    JointAttention,
    JointFeedForward,
    RecurrentDepth,
    RecurrentDepthConfig,
    read_stack_sizes,
)
from loopscope.models.layers.blocks import Block, Branch, RMSNorm
from loopscope.models.layers.rope import read_rotary

Variant = Literal["huginn", "llama", "olmo"]


def variant_from_tensors(names: Iterable[str]) -> Variant:
    """Which of the three architectures a checkpoint of type "huginn_raven" holds.

    >>> variant_from_tensors(["transformer.prelude.0.norm_1.weight"])
    'llama'
    """
    held = list(names)
    if not any(name.startswith("transformer.core_block.") or ".norm_1." in name for name in held):
        raise LoopscopeError("the checkpoint holds no recurrent block; is it a Huginn-style checkpoint?")
    olmo = any(".attn.q_norm." in name or ".attn.k_norm." in name for name in held)
    huginn = any(".norm_3." in name or ".norm_4." in name or name.endswith((".qk_bias", "freqs_cis")) for name in held)
    if olmo and huginn:
        raise LoopscopeError("the checkpoint mixes Huginn's tensors (norm_3, qk_bias) with OLMo's (attn.q_norm)")
    return "olmo" if olmo else "huginn" if huginn else "llama"


@dataclass(frozen=True)
class RetrofitConfig(RecurrentDepthConfig):
    """The sizes of one retrofitted checkpoint."""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> RetrofitConfig:
        """Reads config.json; every unsupported or contradictory value is a `LoopscopeError`."""
        fields = ConfigFields(json, "retrofitted recurrence")
        sizes = read_stack_sizes(fields)
        fields.only("qk_bias", False)
        drawn = fields.mapping("init_values")
        if drawn is None:
            raise fields.fault("init_values is missing; it holds the std of the initial state")
        return cls(
            vocabulary_size=sizes.vocabulary,
            hidden_size=sizes.hidden,
            inner_size=fields.size("intermediate_size"),
            heads=sizes.heads,
            key_value_heads=fields.grouped_heads(sizes.heads),
            head_width=sizes.head_width,
            prelude_layers=sizes.prelude,
            core_layers=sizes.core,
            coda_layers=sizes.coda,
            norm_eps=fields.number("norm_eps", most=1.0),
            rotary=read_rotary(fields, sizes.head_width, rounded=False),
            max_positions=fields.size("max_position_embeddings"),
            trained_depth=fields.size("mean_recurrence", most=MOST_LOOPS),
            state_std=drawn.number("std"),
            embed_scale=drawn.number("embed_scale", 1.0),
            qk_bias=False,
            tied=fields.flag("tie_embeddings", False),
        )


class RetrofitLlamaBlock(Block):
    """Norms before each branch."""

    def __init__(self, config: RecurrentDepthConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.hidden_size, config.norm_eps)
        self.attn = JointAttention(config, flat_norm=False)
        self.norm_2 = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = JointFeedForward(config)

    def branches(self) -> tuple[Branch, Branch]:
        """Norms before each branch."""
        return Branch(self.attn, self.norm_1), Branch(self.mlp, self.norm_2)


class RetrofitOlmoBlock(Block):
    """Norms on each branch's output, and on the flat queries and keys."""

    def __init__(self, config: RecurrentDepthConfig) -> None:
        super().__init__()
        self.attn = JointAttention(config, flat_norm=True)
        self.norm_1 = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = JointFeedForward(config)
        self.norm_2 = RMSNorm(config.hidden_size, config.norm_eps)

    def branches(self) -> tuple[Branch, Branch]:
        """Norms on each branch's output."""
        return Branch(self.attn, branch_norm=self.norm_1), Branch(self.mlp, branch_norm=self.norm_2)


class RetrofitLlama(RecurrentDepth):
    """A retrofitted Llama-3.2 or TinyLlama; padding on the right."""

    family = "retrofit-llama"
    name = "retrofit-llama"

    def __init__(self, config: RetrofitConfig) -> None:
        # The published Llama code rounds its rotation tables to the model's dtype.
        super().__init__(dataclasses.replace(config, rotary=dataclasses.replace(config.rotary, rounded=True)))

    @staticmethod
    def block(config: RecurrentDepthConfig, number: int) -> nn.Module:
        """A Llama block."""
        return RetrofitLlamaBlock(config)


class RetrofitOlmo(RecurrentDepth):
    """A retrofitted OLMo-2; padding on the right."""

    family = "retrofit-olmo"
    name = "retrofit-olmo"

    def __init__(self, config: RetrofitConfig) -> None:
        super().__init__(config)

    @staticmethod
    def block(config: RecurrentDepthConfig, number: int) -> nn.Module:
        """An OLMo block."""
        return RetrofitOlmoBlock(config)
