"""HRM-Text: a slow state z_H and a fast state z_L, each with a stack of its own; one H cycle is a step.

    z_H = scale · embedding,   z_L = z_L_init at every position
    a step:   z_L ← L_stack(z_L + z_H)  (L_cycles times),   z_H ← H_stack(z_H + z_L)
    logits_t = lm_head(z_H)

z_H is the measured state and z_L is carried along (`carry`): it goes on from cycle to cycle, and the embedding is never
added again. A stack ends in a norm, so logits are affine in z_H. Norms have no weights; attention has a gate on its
output. The prompt attends both ways, as in training, unless `attention=causal` is chosen; `L_cycles=N` chooses the
second depth of the model.

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError, shown
from loopscope.models.base import LoopedModule, select
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.config import MOST_LAYERS, MOST_LOOPS, ConfigFields
from loopscope.models.checkpoint.safetensors import TensorEntry
from loopscope.models.choices import chosen_number, chosen_word
from loopscope.models.layers.attention import (
    KeyValueCache,
    Surroundings,
    cached_surroundings,
    surroundings,
    visible_keys,
)
from loopscope.models.layers.blocks import (
    AttentionSizes,
    Block,
    Branch,
    GatedAttention,
    SeparateFeedForward,
    WeightlessNorm,
    run_blocks,
)
from loopscope.models.layers.linear import Embedding, Linear, linear
from loopscope.models.layers.rope import Rotary, read_rotary
from loopscope.models.protocol import AffineHead, Context

_LAYER = re.compile(r"model\.(H|L)_module\.layers\.(\d{1,6})\.")
_BLOCKS = {
    "attn.gqkv_proj.weight": [f"self_attn.{name}_proj.weight" for name in ("gate", "q", "k", "v")],
    "attn.o_proj.weight": ["self_attn.o_proj.weight"],
    "mlp.gate_up_proj.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
}
"""Published tensors of a layer, and what their equal blocks of rows are."""


@dataclass(frozen=True)
class HrmTextConfig:
    """The sizes of one HRM-Text checkpoint, and what was chosen."""

    vocabulary_size: int
    inner_size: int
    layers: int
    attention: AttentionSizes
    norm_eps: float
    rotary: Rotary
    max_positions: int
    trained_depth: int
    fast_cycles: int
    embedding_scale: float
    prefix: bool
    tied: bool
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def from_json(
        cls,
        json: Mapping[str, Any],
        tensor_names: Iterable[str] | None = None,
        chosen: Mapping[str, str] | None = None,
    ) -> HrmTextConfig:
        """Reads config.json; every unsupported or contradictory value is a `LoopscopeError`."""
        fields = ConfigFields(json, "HRM-Text")
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        vocabulary, width = fields.size("vocab_size"), fields.head_width(hidden, heads)
        for name, value in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
            fields.only(name, value)
        fields.only("num_key_value_heads", heads)
        chosen = chosen or {}
        trained = fields.flag("prefix_lm", True)
        attention = chosen_word(chosen, "attention", ("prefix", "causal"), "prefix" if trained else "causal")
        if attention == "prefix" and not trained:
            raise fields.fault("prefix_lm is false: choose attention=causal")
        fast = chosen_number(chosen, "L_cycles", fields.size("L_cycles", most=MOST_FAST), MOST_FAST)
        return cls(
            vocabulary_size=vocabulary,
            inner_size=fields.size("intermediate_size"),
            layers=_layers(fields, tensor_names),
            attention=AttentionSizes(hidden, heads, heads, width),
            norm_eps=fields.number("rms_norm_eps", 1e-6, most=1.0),
            rotary=read_rotary(fields, width, rounded=True, default_theta=10000.0),
            max_positions=fields.size("max_position_embeddings"),
            trained_depth=fields.size("H_cycles", most=MOST_LOOPS),
            fast_cycles=fast,
            embedding_scale=_embedding_scale(fields),
            prefix=attention == "prefix",
            tied=fields.flag("tie_word_embeddings", False),
            eos_ids=fields.token_ids("eos_token_id", vocabulary),
        )


MOST_FAST = 1000
"""L cycles in one step."""


def _embedding_scale(fields: ConfigFields) -> float:
    return fields.number("embedding_scale", 1.0 / fields.number("initializer_range", 0.02))


def _layers(fields: ConfigFields, names: Iterable[str] | None) -> int:
    """Layers of each stack, counted from the tensors: `num_hidden_layers` has had three meanings."""
    if names is None:
        return fields.size("num_layers_per_stack", fields.size("num_hidden_layers"))
    found = [match for match in map(_LAYER.match, names) if match]
    counts = {stack: len({match[2] for match in found if match[1] == stack}) for stack in "HL"}
    if counts["H"] > MOST_LAYERS:
        raise fields.fault(f"the checkpoint holds {counts['H']} layers of H_module, more than {MOST_LAYERS}")
    if counts["H"] != counts["L"] or not counts["H"]:
        raise fields.fault(
            f"the checkpoint holds {counts['H']} layers of H_module and {counts['L']} of L_module: "
            "it is incomplete or of another architecture"
        )
    return counts["H"]


class HrmLayer(Block):
    """x += gated_attention(norm(x)); x += feed_forward(norm(x)); the norms have no weights."""

    def __init__(self, config: HrmTextConfig) -> None:
        super().__init__()
        self.self_attn = GatedAttention(config.attention)
        self.mlp = SeparateFeedForward(config.attention.hidden, config.inner_size)
        self.norm = WeightlessNorm(config.attention.hidden, config.norm_eps)

    def branches(self) -> tuple[Branch, Branch]:
        """Norms before each branch."""
        return Branch(self.self_attn, self.norm), Branch(self.mlp, self.norm)


class HrmStack(nn.Module):
    """Layers, then a norm."""

    def __init__(self, config: HrmTextConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(HrmLayer(config) for _ in range(config.layers))
        self.norm = WeightlessNorm(config.attention.hidden, config.norm_eps)

    def forward(self, x: Tensor, around: Surroundings, call: int) -> Tensor:
        """[B, S, D] → [B, S, D]. `call` counts the calls of both stacks; each has cache slots of its own."""
        first = call * len(self.layers)
        return run_blocks(x, self.layers, around, range(first, first + len(self.layers)), self.norm).normed


class HrmStates(nn.Module):
    """Embedding, both stacks and the first fast state, under the checkpoint's names."""

    def __init__(self, config: HrmTextConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocabulary_size, config.attention.hidden)
        self.H_module = HrmStack(config)
        self.L_module = HrmStack(config)
        self.z_L_init = nn.Parameter(torch.zeros(config.attention.hidden))


class HrmText(LoopedModule):
    """HRM-Text at any size; padding on either side."""

    family = "hrm-text"
    name = "hrm-text"

    def __init__(self, config: HrmTextConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = config.attention.hidden
        self.vocabulary_size = config.vocabulary_size
        self.max_positions = config.max_positions
        self.eos_ids = config.eos_ids
        self.trained_depth = config.trained_depth
        # A prompt that attends both ways would have to be shared as a whole.
        self.shares_context = self.unpadded = not config.prefix
        way = "the prompt attends both ways" if config.prefix else "causal attention"
        self.boundary = (
            "the slow state z_H after an H cycle, just before the language-model head "
            f"({config.fast_cycles} L cycles a step, {way})"
        )
        self.model = HrmStates(config)
        self.lm_head = Linear(self.hidden_size, config.vocabulary_size, bias=False)
        self.tie()

    def tied_tensors(self) -> dict[str, str]:
        """The head shares the embedding where the configuration ties them."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.config.tied else {}

    def arrange(self, tensors: Mapping[str, TensorEntry]) -> Mapping[str, TensorEntry]:
        """Published tensors taken apart; those that a tool has taken apart already stay as they are."""
        found: dict[str, TensorEntry] = {}
        for name, entry in tensors.items():
            layer = _LAYER.match(name)
            parts = [layer[0] + part for part in _BLOCKS.get(name[layer.end() :], [])] if layer else []
            for own in entry.row_blocks(parts) if parts else [entry]:
                if own.name in found:
                    raise LoopscopeError(f"the checkpoint stores {shown(own.name)} twice, joined and by itself")
                found[own.name] = own
        return found

    @property
    def head(self) -> AffineHead:
        """The logits are state · weightᵀ."""
        return AffineHead(self.lm_head.weight)

    def embed(self, batch: Batch) -> Context:
        """z_H is the scaled embedding; z_L is carried."""
        self.check_batch(batch)
        if self.config.prefix and batch.prompt_lengths is None:
            raise LoopscopeError(
                f"{self.name} reads the prompt both ways: give Batch its prompt_lengths (0 for none), or choose "
                "attention=causal"
            )
        batch = batch.to(self.device)
        return self._context(batch, surroundings(batch, self.config.rotary, self.dtype, prefix=self.config.prefix))

    def embed_cached(self, batch: Batch, cache: KeyValueCache) -> Context:
        """z_H of new positions (`batch.position_ids`) that continue what the cache holds."""
        batch = batch.to(self.device)
        assert batch.position_ids is not None
        first = visible_keys(batch, prefix=True) if self.config.prefix and not cache.slots() else None
        return self._context(
            batch, cached_surroundings(batch.position_ids, cache, self.config.rotary, self.dtype, first)
        )

    def _context(self, batch: Batch, around: Surroundings) -> Context:
        if batch.initial_state is not None:
            state = batch.initial_state.to(self.dtype)
        else:
            state = self.model.embed_tokens(batch.input_ids) * self.config.embedding_scale
        return Context(state, batch, extra=around, carry=self.model.z_L_init.expand_as(state))

    def step(self, state: Tensor, context: Context, *, carry: Tensor, depth: int = 0) -> tuple[Tensor, Tensor]:
        """One H cycle: z_H and z_L after it. `depth` chooses the cache slots, if there is a cache."""
        cycles, fast = self.config.fast_cycles, carry
        call = depth * (cycles + 1)
        for cycle in range(cycles):
            fast = self.model.L_module(fast + state, context.extra, call + cycle)
        return self.model.H_module(state + fast, context.extra, call + cycles), fast

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """lm_head(state), affine."""
        chosen = select(state, positions)
        head = self.in_dtype(self.lm_head, dtype)
        return linear(chosen if dtype is None else chosen.to(dtype), head.weight)  # type: ignore[arg-type]

    def readout_cached(self, state: Tensor, context: Context, positions: Tensor | None = None) -> Tensor:
        """The head keeps no keys: the ordinary readout."""
        return self.readout(state, positions)
