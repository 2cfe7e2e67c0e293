"""LoopUS: a Qwen3 cut into encoder, looped and decoder layers, with a gate that mixes every step with its state.

    H_0 = encoder(embedding)
    y = reasoning(H_t),   d = softplus(delta_proj(dt_input_proj(y − H_t))),   a = exp(−d · exp(A_log))
    H_{t+1} = a · y + (1 − a) · H_t,   logits_t = lm_head(norm(decoder(H_t)))

The gated state is the boundary. The readout runs the decoder's layers, which attend, so it is not affine. The gate and
the exit head keep float32 where the model is in 16 bits. The exit head's confidence is sigmoid(q_head(H_t)) where the
text ends: at every position here, as if the text ended there; a step that exceeds the threshold is the last
(`exit=none` leaves that out). Rows are padded on the right, because a readout gets nothing but the state.

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.config import MOST_LAYERS, MOST_LOOPS, ConfigFields
from loopscope.models.checkpoint.safetensors import TensorEntry
from loopscope.models.choices import chosen_word
from loopscope.models.exit_gate import ExitGate
from loopscope.models.layers.attention import KeyValueCache, Surroundings, cached_surroundings, surroundings
from loopscope.models.layers.blocks import AttentionSizes, RMSNorm, read_blocks, readout_surroundings, run_blocks
from loopscope.models.layers.linear import Embedding, Linear, linear
from loopscope.models.layers.llama import LlamaLayer, LlamaSizes
from loopscope.models.layers.rope import Rotary, read_rotary
from loopscope.models.protocol import BodyAndHead, Context

_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class LoopUSConfig:
    """The sizes of one LoopUS checkpoint."""

    sizes: LlamaSizes
    encoder_layers: int
    reasoning_layers: int
    decoder_layers: int
    rotary: Rotary
    max_positions: int
    trained_depth: int
    exit_threshold: float | None
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, json: Mapping[str, Any], chosen: Mapping[str, str] | None = None) -> LoopUSConfig:
        """Reads config.json; every unsupported or contradictory value is a `LoopscopeError`."""
        outer = ConfigFields(json, "LoopUS")
        fields = outer.mapping("base_config_dict")
        if fields is None:
            raise outer.fault("base_config_dict is missing; it holds the sizes of the model that was cut")
        fields.only("model_type", "qwen3")
        fields.only("hidden_act", "silu")
        fields.only("attention_bias", False)
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        vocabulary, width = fields.size("vocab_size"), fields.head_width(hidden, heads)
        eps = fields.number("rms_norm_eps", 1e-6, most=1.0)
        layers = fields.size("num_hidden_layers", most=MOST_LAYERS)
        fields.only_full_attention(layers)
        encoder, reasoning, decoder = _cut(outer, layers)
        attention = AttentionSizes(hidden, heads, fields.grouped_heads(heads), width, head_norm_eps=eps)
        return cls(
            LlamaSizes(vocabulary, fields.size("intermediate_size"), attention, eps),
            encoder,
            reasoning,
            decoder,
            read_rotary(fields, width, rounded=True),
            fields.size("max_position_embeddings"),
            outer.size("N", most=MOST_LOOPS),
            _exit_threshold(outer, chosen or {}),
            fields.token_ids("eos_token_id", vocabulary),
        )


def _cut(fields: ConfigFields, layers: int) -> list[int]:
    """How many layers each part has; the files name layers of the model that was cut, each once."""
    counts: list[int] = []
    seen: set[int] = set()
    for part in ("encoder", "reasoning", "decoder"):
        listed = fields.json.get(f"{part}_layer_indices")
        if not isinstance(listed, list) or not all(type(index) is int and 0 <= index < layers for index in listed):
            raise fields.fault(f"{part}_layer_indices must be a list of layers from 0 to {layers - 1}")
        if len(set(listed)) < len(listed) or seen & set(listed):
            raise fields.fault(f"{part}_layer_indices names a layer twice")
        seen |= set(listed)
        counts.append(len(listed))
    if not counts[1]:
        raise fields.fault("reasoning_layer_indices names no layer to loop")
    return counts


def _exit_threshold(fields: ConfigFields, chosen: Mapping[str, str]) -> float | None:
    """None where no exit is recorded. Other strategies are not: what they decide is not certain."""
    if chosen_word(chosen, "exit", ("threshold", "none"), "threshold") == "none":
        return None
    for name, known in (("halting_strategy", "threshold"), ("q_eval_interval", 1)):
        if fields.json.get(name, known) != known and "exit" not in chosen:
            raise fields.fault(f"{name} {fields.json[name]!r} is not supported, only {known!r}; choose exit=none")
    return fields.number("q_threshold", 0.9)


class UpdateGate(nn.Module):
    """a · y + (1 − a) · h, with a from y − h, in the arithmetic of its own weights."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        rank = math.ceil(hidden / 16)
        self.A_log = nn.Parameter(torch.zeros(hidden))
        self.dt_input_proj = Linear(hidden, rank, bias=False)
        self.delta_proj = Linear(rank, hidden)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """[B, S, D] of the state and of what the layers made of it → [B, S, D] in their dtype."""
        h, y = before.to(self.A_log.dtype), after.to(self.A_log.dtype)
        delta = functional.softplus(self.delta_proj(self.dt_input_proj(y - h)))
        kept = torch.exp(-delta * torch.exp(self.A_log))
        return (kept * y + (1 - kept) * h).to(before.dtype)


class _Layers(nn.Module):
    """A part of the cut model under the checkpoint's names; layers are counted from 0 in each."""

    def __init__(self, sizes: LlamaSizes, layers: int, **others: nn.Module) -> None:
        super().__init__()
        for name, module in others.items():
            self.add_module(name, module)
        self.layers = nn.ModuleList(LlamaLayer(sizes) for _ in range(layers))


class LoopUS(LoopedModule):
    """LoopUS at any size; padding on the right."""

    family = "loopus"
    name = "loopus"
    shares_context = True
    unpadded = True
    alike = True
    boundary = "the state after the update gate, before the decoder's layers"

    def __init__(self, config: LoopUSConfig) -> None:
        super().__init__()
        self.config = config
        sizes, hidden = config.sizes, config.sizes.attention.hidden
        self.hidden_size, self.vocabulary_size = hidden, sizes.vocabulary
        self.max_positions = config.max_positions
        self.eos_ids = config.eos_ids
        self.trained_depth = config.trained_depth
        self.encoder = _Layers(sizes, config.encoder_layers, embed_tokens=Embedding(sizes.vocabulary, hidden))
        self.reasoning = _Layers(sizes, config.reasoning_layers, gate=UpdateGate(hidden))
        head = Linear(hidden, sizes.vocabulary, bias=False)
        self.decoder = _Layers(sizes, config.decoder_layers, norm=RMSNorm(hidden, sizes.norm_eps), lm_head=head)
        self.q_head = nn.Sequential(nn.LayerNorm(hidden), Linear(hidden, 1))

    def arrange(self, tensors: Mapping[str, TensorEntry]) -> Mapping[str, TensorEntry]:
        """Older files say `plateau` for `reasoning`."""
        old, new = "plateau.", "reasoning."
        return {new + name.removeprefix(old) if name.startswith(old) else name: tensors[name] for name in tensors}

    def parameter_dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The gate and the exit head are never rounded to 16 bits."""
        return torch.float32 if dtype in _HALF and name.startswith(("reasoning.gate.", "q_head.")) else dtype

    @property
    def exit_gate(self) -> ExitGate | None:
        """The exit head with the checkpoint's own threshold; None where `exit=none` was chosen."""
        threshold = self.config.exit_threshold
        return None if threshold is None else ExitGate(self.gate_logits, threshold, self.trained_depth, "threshold")

    def gate_logits(self, state: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The exit head before its sigmoid, [B, S], in the arithmetic of its own weights unless told."""
        norm, last = cast(nn.LayerNorm, self.q_head[0]), cast(Linear, self.q_head[1])
        kind = norm.weight.dtype if dtype is None else dtype
        weight, bias, row, offset = (given.to(kind) for given in (norm.weight, norm.bias, last.weight, last.bias))
        return linear(functional.layer_norm(state.to(kind), (self.hidden_size,), weight, bias, norm.eps), row, offset)[
            ..., 0
        ]

    def embed(self, batch: Batch) -> Context:
        """H_0 is what the encoder's layers make of the embedding."""
        self.check_batch(batch)
        if batch.padding == "left":
            raise LoopscopeError(f"{self.name} needs padding on the right (Batch.from_rows pads so)")
        if batch.position_ids is not None and not batch.is_packed:
            raise LoopscopeError(f"{self.name} counts positions from 0; leave position_ids out")
        batch = batch.to(self.device)
        return self._context(batch, surroundings(batch, self.config.rotary, self.dtype))

    def embed_cached(self, batch: Batch, cache: KeyValueCache) -> Context:
        """H_0 of new positions (`batch.position_ids`) that continue what the cache holds."""
        batch = batch.to(self.device)
        assert batch.position_ids is not None
        return self._context(batch, cached_surroundings(batch.position_ids, cache, self.config.rotary, self.dtype))

    def _context(self, batch: Batch, around: Surroundings) -> Context:
        if batch.initial_state is not None:
            return Context(batch.initial_state.to(self.dtype), batch, extra=around)
        x: Tensor = cast(Embedding, self.encoder.embed_tokens)(batch.input_ids)
        slots = range(self.config.encoder_layers)
        return Context(run_blocks(x, self.encoder.layers, around, slots).state, batch, extra=around)

    def step(self, state: Tensor, context: Context, depth: int = 0) -> Tensor:
        """The looped layers, then the gate. `depth` chooses the cache slots, if there is a cache."""
        first = self.config.encoder_layers + depth * self.config.reasoning_layers
        slots = range(first, first + self.config.reasoning_layers)
        after = run_blocks(state, self.reasoning.layers, context.extra, slots).state
        return cast(UpdateGate, self.reasoning.gate).forward(state, after)

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits through the decoder's layers. Rows begin at position 0."""
        return self.body_and_head(dtype)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead:
        """The readout as the decoder's layers with the last norm, and the head."""

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            around = readout_surroundings(self, state, self.config.rotary, dtype)
            return self._hidden(state, around, positions, dtype)

        return BodyAndHead(body, lambda hidden: self._head(hidden, dtype), self.vocabulary_size)

    def readout_cached(self, state: Tensor, context: Context, positions: Tensor | None = None) -> Tensor:
        """The readout of new positions, whose layers read and write the cache."""
        return self._head(self._hidden(state, context.extra, positions, None), None)

    def _decoder(self, dtype: torch.dtype | None) -> _Layers:
        return cast(_Layers, self.in_dtype(self.decoder, dtype, mixes=True))

    def _hidden(
        self, state: Tensor, around: Surroundings, positions: Tensor | None, dtype: torch.dtype | None
    ) -> Tensor:
        decoder = self._decoder(dtype)
        x = state if dtype is None else state.to(dtype)
        # After every loop there may be, however many there are.
        slots = [-1 - index for index in range(self.config.decoder_layers)]
        return read_blocks(x, decoder.layers, around, slots, cast(RMSNorm, decoder.norm), positions)

    def _head(self, hidden: Tensor, dtype: torch.dtype | None) -> Tensor:
        return linear(hidden, cast(Linear, self._decoder(dtype).lm_head).weight)
