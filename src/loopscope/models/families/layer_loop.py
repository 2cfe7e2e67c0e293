"""Any Llama-style checkpoint looped over a span of its layers, without training.

    H_0 = layers[0 … start−1](embedding),   H_{t+1} = layers[start … end](H_t),
    logits_t = lm_head(norm(layers[end+1 …](H_t)))

Layers are counted from 0 and the span includes both ends: `10-20` loops eleven layers. Depth 1 is the ordinary
model, exactly; depth 0 skips the span. The output of the span is the state boundary, and the readout, which runs
the layers after it, is nonlinear. Rows are padded on the right, because a readout gets nothing but the state; the
states of packed rows are separated before it (`packing`).

Supported: Llama; Mistral without a sliding window; Qwen2 (biases on q, k, v); Qwen3 (norms on the heads of q, k).

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError, shown
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.config import ConfigFields
from loopscope.models.layers.attention import KeyValueCache, Surroundings, cached_surroundings, surroundings
from loopscope.models.layers.blocks import AttentionSizes, RMSNorm, read_blocks, readout_surroundings, run_blocks
from loopscope.models.layers.linear import Linear, linear
from loopscope.models.layers.llama import LlamaSizes, LlamaStack, stored_frequencies
from loopscope.models.layers.rope import Rotary, read_rotary
from loopscope.models.protocol import BodyAndHead, Context

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True)
class LayerLoopConfig:
    """The sizes of one Llama-style checkpoint and the span of layers to loop, both ends included."""

    sizes: LlamaSizes
    layers: int
    start: int
    end: int
    rotary: Rotary
    max_positions: int
    tied: bool
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, json: Mapping[str, Any], span: tuple[int, int]) -> LayerLoopConfig:
        """Reads config.json; every unsupported or contradictory value is a `LoopscopeError`."""
        named = json.get("architectures") or ["LlamaForCausalLM"]
        architecture = named[0] if isinstance(named, list) else named
        fields = ConfigFields(json, "layer loop")
        if architecture not in ARCHITECTURES:
            raise fields.fault(
                f"cannot loop the layers of {shown(architecture)}; supported: {', '.join(ARCHITECTURES)}"
            )
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        layers, vocabulary = fields.size("num_hidden_layers"), fields.size("vocab_size")
        start, end = span
        if not 0 <= start <= end < layers:
            raise LoopscopeError(
                f"layers {start}-{end} are not a span of this {layers}-layer model; choose within 0-{layers - 1}"
            )
        fields.only("hidden_act", "silu")
        fields.only("mlp_bias", False)
        fields.only_full_attention(layers)
        eps = fields.number("rms_norm_eps", 1e-6, most=1.0)
        bias = fields.flag("attention_bias", False)
        head_width = fields.head_width(hidden, heads)
        attention = AttentionSizes(
            hidden,
            heads,
            fields.grouped_heads(heads),
            head_width,
            qkv_bias=bias or architecture == "Qwen2ForCausalLM",
            output_bias=bias and architecture != "Qwen2ForCausalLM",
            head_norm_eps=eps if architecture == "Qwen3ForCausalLM" else None,
        )
        return cls(
            sizes=LlamaSizes(vocabulary, fields.size("intermediate_size"), attention, eps),
            layers=layers,
            start=start,
            end=end,
            # The first Llamas were published without the field; 10000 is what it meant.
            rotary=read_rotary(fields, head_width, rounded=True, default_theta=10000.0),
            max_positions=fields.size("max_position_embeddings", 2048),
            tied=fields.flag("tie_word_embeddings", False),
            eos_ids=fields.token_ids("eos_token_id", vocabulary),
        )


class LayerLoop(LoopedModule):
    """A Llama-style model whose layers start … end are the loop."""

    family = "loop"
    name = "loop"
    trained_depth = 1
    shares_context = True
    unpadded = True
    alike = True

    def __init__(self, config: LayerLoopConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = config.sizes.attention.hidden
        self.vocabulary_size = config.sizes.vocabulary
        self.max_positions = config.max_positions
        self.eos_ids = config.eos_ids
        self.boundary = f"the output of layers {config.start}-{config.end}, before the layers that follow"
        self.model = LlamaStack(config.sizes, config.layers)
        self.lm_head = Linear(self.hidden_size, self.vocabulary_size, bias=False)
        self.tie()

    def tied_tensors(self) -> dict[str, str]:
        """The head shares the embedding where the configuration ties them."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.config.tied else {}

    def ignorable_tensors(self) -> set[str]:
        """Rotary frequencies, which older checkpoints store."""
        return stored_frequencies(self.config.layers)

    def embed(self, batch: Batch) -> Context:
        """H_0 is the state before the span: the layers ahead of it run once."""
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
        x: Tensor = self.model.embed_tokens(batch.input_ids)
        ahead = range(self.config.start)
        return Context(run_blocks(x, self._layers(ahead), around, ahead).state, batch, extra=around)

    def step(self, state: Tensor, context: Context, depth: int = 0) -> Tensor:
        """The span once. `depth` chooses the cache slots, if there is a cache."""
        span = range(self.config.start, self.config.end + 1)
        slots = [depth * self.config.layers + index for index in span]
        return run_blocks(state, self._layers(span), context.extra, slots).state

    def _layers(self, indices: range) -> list[nn.Module]:
        return [self.model.layers[index] for index in indices]

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits through the layers after the span. Rows begin at position 0."""
        return self.body_and_head(dtype)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead:
        """The readout as the layers after the span with the last norm, and the head."""

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            around = readout_surroundings(self, state, self.config.rotary, dtype)
            return self._hidden(state, around, positions, dtype)

        matrix = partial(self._head_matrix, dtype)
        return BodyAndHead(body, lambda hidden: self._head(hidden, dtype), self.vocabulary_size, matrix)

    def readout_cached(self, state: Tensor, context: Context, positions: Tensor | None = None) -> Tensor:
        """The readout of new positions, whose layers read and write the cache."""
        return self._head(self._hidden(state, context.extra, positions, None), None)

    def _readout_modules(self, dtype: torch.dtype | None) -> nn.ModuleDict:
        live = nn.ModuleDict(
            {
                "coda": nn.ModuleList(list(self.model.layers)[self.config.end + 1 :]),
                "norm": self.model.norm,
                "head": self.lm_head,
            }
        )
        modules = self.in_dtype(live, dtype, mixes=True)
        assert isinstance(modules, nn.ModuleDict)
        return modules

    def _hidden(
        self, state: Tensor, around: Surroundings, positions: Tensor | None, dtype: torch.dtype | None
    ) -> Tensor:
        modules = self._readout_modules(dtype)
        x = state if dtype is None else state.to(dtype)
        return read_blocks(
            x,
            list(modules["coda"].children()),
            around,
            range(self.config.end + 1, self.config.layers),
            cast(RMSNorm, modules["norm"]),
            positions,
        )

    def _head(self, hidden: Tensor, dtype: torch.dtype | None) -> Tensor:
        return linear(hidden, self._head_matrix(dtype))

    def _head_matrix(self, dtype: torch.dtype | None) -> Tensor:
        return self._readout_modules(dtype)["head"].weight  # type: ignore[return-value]
