"""Huginn: prelude, recurrent core and coda of blocks that norm the residual sum.

    x ← norm_2(x + attention(norm_1(x))),   x ← norm_4(x + feed_forward(norm_3(x)))
    logits_t = lm_head(ln_f(coda(ln_f(s_t))))

A bias is added to queries and keys before the rotation, whose pairs are interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from loopscope.models.checkpoint.config import MOST_LOOPS, ConfigFields
from loopscope.models.families.recurrent_depth import (
    JointAttention,
    JointFeedForward,
    RecurrentDepth,
    RecurrentDepthConfig,
    read_stack_sizes,
)
from loopscope.models.layers.blocks import Block, Branch, RMSNorm
from loopscope.models.layers.rope import Rotary


@dataclass(frozen=True)
class HuginnConfig(RecurrentDepthConfig):
    """The sizes of one Huginn checkpoint."""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> HuginnConfig:
        """Reads config.json; every unsupported or contradictory value is a `LoopscopeError`."""
        fields = ConfigFields(json, "Huginn")
        sizes = read_stack_sizes(fields)
        qk_bias = fields.flag("qk_bias", True)
        shared = fields.grouped_heads(sizes.heads)
        if qk_bias and shared != sizes.heads:
            raise fields.fault(f"qk_bias needs as many key-value heads ({shared}) as heads ({sizes.heads})")
        drawn = fields.mapping("init_values") or ConfigFields({}, fields.family)
        return cls(
            vocabulary_size=sizes.vocabulary,
            hidden_size=sizes.hidden,
            inner_size=fields.size("intermediate_size"),
            heads=sizes.heads,
            key_value_heads=shared,
            head_width=sizes.head_width,
            prelude_layers=sizes.prelude,
            core_layers=sizes.core,
            coda_layers=sizes.coda,
            norm_eps=fields.number("norm_eps", 1e-6, most=1.0),
            rotary=Rotary(sizes.head_width, fields.number("rope_base", 50000), "interleaved"),
            max_positions=fields.size("block_size", 4096),
            trained_depth=fields.size("mean_recurrence", 32, MOST_LOOPS),
            state_std=drawn.number("std", math.sqrt(2 / (5 * sizes.hidden))),
            embed_scale=drawn.number("embed_scale", math.sqrt(sizes.hidden)),
            qk_bias=qk_bias,
            tied=fields.flag("tie_embeddings", True),
            eos_ids=fields.token_ids("eos_token_id", sizes.vocabulary),
        )


class HuginnBlock(Block):
    """norm_2(x + attention(norm_1(x))), then norm_4(x + feed_forward(norm_3(x)))."""

    def __init__(self, config: RecurrentDepthConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.hidden_size, config.norm_eps)
        self.attn = JointAttention(config, flat_norm=False)
        self.norm_2 = RMSNorm(config.hidden_size, config.norm_eps)
        self.norm_3 = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = JointFeedForward(config)
        self.norm_4 = RMSNorm(config.hidden_size, config.norm_eps)

    def branches(self) -> tuple[Branch, Branch]:
        """Norms before each branch and on each residual sum."""
        attention = Branch(self.attn, self.norm_1, sum_norm=self.norm_2)
        return attention, Branch(self.mlp, self.norm_3, sum_norm=self.norm_4)


class Huginn(RecurrentDepth):
    """Huginn at any size; padding on the right."""

    family = "huginn"
    name = "huginn"
    norm_before_coda = True

    @staticmethod
    def block(config: RecurrentDepthConfig, number: int) -> nn.Module:
        """A Huginn block."""
        return HuginnBlock(config)
