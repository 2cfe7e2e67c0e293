"""HRM-Text: a slow state z_H and a fast state z_L, each with a stack of its own; one H cycle is a step.

    z_H = scale · embedding,   z_L = z_L_init at every position
    a step:   z_L ← L_stack(z_L + z_H)  (L_cycles times),   z_H ← H_stack(z_H + z_L)
    logits_t = lm_head(z_H)
    layer:    x ← x + attention(norm(x)) with a gate on what was attended to,   x ← x + mlp(norm(x))

z_H is the measured state and z_L is carried along (`carry`): it goes on from cycle to cycle, and the embedding is never
added again. A stack ends in a norm, so logits are affine in z_H. Norms have no weights. The prompt attends both ways,
as in training, unless `attention=causal` is chosen; `L_cycles=N` chooses the second depth of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationInfo, model_validator
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.checkpoint import TensorEntry
from loopscope.models.families import LlamaConfig, Loops, Number, family, only, option
from loopscope.models.families.decoder import LoopedDecoder, Readout
from loopscope.models.layers.attention import Attention, AttentionSizes
from loopscope.models.layers.blocks import Block, Embedding, GatedMLP, Linear, Names, WeightlessNorm
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.protocol import Context

_LAYER = re.compile(r"model\.[HL]_module\.layers\.(\d{1,6})\.")
_BLOCKS = {
    "attn.gqkv_proj.weight": [f"self_attn.{name}_proj.weight" for name in ("gate", "q", "k", "v")],
    "attn.o_proj.weight": ["self_attn.o_proj.weight"],
    "mlp.gate_up_proj.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
}
"""Published tensors of a layer, and what their equal blocks of rows are."""


class HrmTextConfig(LlamaConfig):
    """config.json of an HRM-Text checkpoint; `num_hidden_layers` is that of one stack."""

    title = "HRM-Text"
    fixed = only(LlamaConfig.fixed, attention_bias=False, mlp_bias=False)
    H_cycles: Loops
    L_cycles: Annotated[int, Field(gt=0, le=1000)] = option(
        ..., "updates of the fast state z_L in a step, instead of the checkpoint's own number"
    )
    attention: Literal["prefix", "causal"] | None = option(
        None, "prefix (the prompt attends both ways, as in training) or causal"
    )
    prefix_lm: bool = True
    initializer_range: Number = 0.02
    embedding_scale: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _count_layers(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Counts the layers of each stack in the tensors: `num_hidden_layers` has had three meanings."""
        names = (info.context or {}).get("tensors")
        if names is None:
            return values | {"num_hidden_layers": values.get("num_layers_per_stack", values.get("num_hidden_layers"))}
        return values | {"num_hidden_layers": len({match[1] for match in map(_LAYER.match, names) if match})}

    @property
    def prefix(self) -> bool:
        """Whether the prompt attends both ways."""
        return self.prefix_lm if self.attention is None else self.attention == "prefix"


class GatedAttention(Attention):
    """Attention with a gate on every entry of what was attended to: o(sigmoid(gate(x)) · attended)."""

    def __init__(self, sizes: AttentionSizes) -> None:
        super().__init__(sizes)
        self.gate_proj = Linear(sizes.hidden, self.query, bias=False)

    def gated(self, mixed_BSD: Tensor, asking_BSD: Tensor) -> Tensor:
        """The attended values times their gate."""
        return torch.sigmoid(self.gate_proj(asking_BSD)) * mixed_BSD


class HrmLayer(Block):
    """Norms before each branch."""

    attention_names = Names("self_attn", "norm")
    mlp_names = Names("mlp", "norm")


def _stack(config: HrmTextConfig) -> nn.ModuleDict:
    """Layers, then a norm."""
    hidden, inner = config.hidden_size, config.intermediate_size

    def norm() -> WeightlessNorm:
        return WeightlessNorm(hidden, config.rms_norm_eps)

    layers = range(config.num_hidden_layers)
    blocks = nn.ModuleList(HrmLayer(GatedAttention(config.sizes), GatedMLP(hidden, inner), norm) for _ in layers)
    return nn.ModuleDict({"layers": blocks, "norm": norm()})


@family("hrm-text", HrmTextConfig, "HrmTextForCausalLM", "hrm_text")
class HrmText(LoopedDecoder):
    """HRM-Text at any size; padding on either side."""

    boundary = "the slow state z_H after an H cycle, just before the language-model head"
    alike = False

    def __init__(self, config: HrmTextConfig) -> None:
        hidden, vocabulary = config.hidden_size, config.vocab_size
        super().__init__(config, hidden, vocabulary, config.max_position_embeddings, config.H_cycles)
        self.rotary = config.half_split(rounded=True, default_theta=10000.0)
        self.scale = config.embedding_scale or 1.0 / config.initializer_range
        self.prefix = config.prefix
        # A prompt that attends both ways would have to be shared as a whole.
        self.unpadded = not config.prefix
        attending = "the prompt attends both ways" if config.prefix else "causal attention"
        self.boundary = f"{self.boundary} ({config.L_cycles} L cycles a step, {attending})"
        self.model: Any = nn.Module()
        self.model.embed_tokens = Embedding(vocabulary, hidden)
        self.model.H_module, self.model.L_module = _stack(config), _stack(config)
        self.model.z_L_init = nn.Parameter(torch.zeros(hidden))
        self.lm_head = Linear(hidden, vocabulary, bias=False)
        self.tie_head(config.tie_word_embeddings, "model.embed_tokens.weight")

    def arrange(self, tensors: Mapping[str, TensorEntry]) -> Mapping[str, TensorEntry]:
        """Published tensors taken apart; those that a tool has taken apart already stay as they are."""
        found: dict[str, TensorEntry] = {}
        for name, entry in tensors.items():
            layer = _LAYER.match(name)
            parts = [layer[0] + part for part in _BLOCKS.get(name[layer.end() :], [])] if layer else []
            found |= {part.name: part for part in (entry.row_blocks(parts) if parts else [entry])}
        return found

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """z_H is the scaled embedding; z_L is carried."""
        if self.prefix and cache is None and batch.prompt_lengths is None:
            raise LoopscopeError(
                f"{self.name} reads the prompt both ways: give Batch its prompt_lengths (0 for none), or choose "
                "attention=causal"
            )
        batch, attention = self.enter(batch, cache)
        state = self.start(batch, lambda: self.model.embed_tokens(batch.input_ids) * self.scale)
        return Context(state, batch, extra=attention, carry=self.model.z_L_init.expand_as(state))

    def step(self, state: Tensor, context: Context, *, carry: Tensor) -> tuple[Tensor, Tensor]:
        """One H cycle: z_H and z_L after it."""
        high, low, fast = self.model.H_module, self.model.L_module, carry
        for _ in range(self.config.L_cycles):
            fast = self.run(low.layers, fast + state, context.extra, low.norm)
        return self.run(high.layers, state + fast, context.extra, high.norm), fast

    def readout_layers(self) -> Readout:
        """The head."""
        return Readout(self.lm_head)
