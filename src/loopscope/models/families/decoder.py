"""What the model families share: batches come in, layers run, states are read out.

A family is a class of its own file: modules under the checkpoint's names, then `embed`, `step` and `readout_layers`.

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from loopscope.models.base import LoopedModule, needs_elementary_operations
from loopscope.models.batch import Batch
from loopscope.models.layers import blocks as block_layers
from loopscope.models.layers.attention import Attention
from loopscope.models.layers.blocks import Block, Embedding, GatedMLP, Linear, Names, RMSNorm, linear
from loopscope.models.layers.positions import (
    AttentionContext,
    KeyValueCache,
    Rotary,
    attention_context,
    readout_context,
)
from loopscope.models.protocol import AffineHead, BodyAndHead, Context, select


class Readout(nn.Module):
    """logits = head(norm(coda(enter(H)))); all but the head may be left out."""

    def __init__(
        self, head: Linear, norm: RMSNorm | None = None, coda: Iterable[nn.Module] = (), enter: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.head, self.norm, self.enter = head, norm, enter
        self.coda = nn.ModuleList(coda)

    @property
    def is_affine(self) -> bool:
        """Whether the head reads the state as it is."""
        return self.norm is None and self.enter is None and not len(self.coda)

    def forward(self, state: Tensor, attention: Callable[[], AttentionContext], positions: Tensor | None) -> Tensor:
        """What the head reads, [B, S, D], or [N, D] at positions of (row, position)."""
        plain = needs_elementary_operations(state)
        if self.enter is not None:
            state = self.enter(state, plain) if isinstance(self.enter, RMSNorm) else self.enter(state)
        if len(self.coda):
            return block_layers.read_blocks(state, list(self.coda), attention(), self.norm, positions)
        chosen = select(state, positions)
        return chosen if self.norm is None else cast(Tensor, self.norm(chosen, plain))


class LoopedDecoder(LoopedModule):
    """A causal language model whose state is [B, S, D].

    Attributes:
        rotary: what positions mean; None where nothing is rotated.
        prefix: whether the prompt attends both ways.
    """

    unpadded = True
    alike = True
    prefix = False
    rotary: Rotary | None = None
    lm_head: Linear

    def __init__(
        self, config: Any, width: int, vocabulary: int, positions: int | None, trained_depth: int | None
    ) -> None:
        super().__init__()
        self.config, self.eos_ids = config, getattr(config, "eos_token_id", ())
        self.hidden_size, self.vocabulary_size, self.max_positions = width, vocabulary, positions
        self.trained_depth = trained_depth  # type: ignore[assignment]

    def readout_layers(self) -> Readout:
        """What stands between the state and the logits."""
        raise NotImplementedError

    def tie_head(self, tied: bool, source: str, head: str = "lm_head.weight") -> None:
        """Makes the head the embedding where the configuration says so."""
        self.tied = {head: source} if tied else {}
        self.tie()

    def enter(self, batch: Batch, cache: KeyValueCache | None = None) -> tuple[Batch, AttentionContext]:
        """The batch on the model's device and what its layers share; with a cache, of new positions alone."""
        if cache is None:
            # A coda gets nothing but states.
            self.check_batch(batch, from_zero=len(self.readout_layers().coda) > 0)
        batch = batch.to(self.device)
        return batch, attention_context(batch, self.rotary, self.dtype, prefix=self.prefix, cache=cache)

    def start(self, batch: Batch, first: Callable[[], Tensor]) -> Tensor:
        """H_0: the batch's own, or `first()`."""
        return first() if batch.initial_state is None else batch.initial_state.to(self.dtype)

    def run(
        self,
        blocks: Sequence[nn.Module] | nn.Module,
        x: Tensor,
        context: AttentionContext,
        norm: RMSNorm | None = None,
        first_slot: int | None = None,
    ) -> Tensor:
        """Blocks in a row, and a norm after the last; their keys and values have the next slots, or those named."""
        listed = list(cast(Iterable[nn.Module], blocks))
        slots = context.slots if first_slot is None else itertools.count(first_slot)
        return block_layers.run_blocks(x, listed, context, itertools.islice(slots, len(listed)), norm)

    @property
    def head(self) -> AffineHead | None:
        """The head, where logits are affine in the state."""
        layers = self.readout_layers()
        return AffineHead(layers.head.weight) if layers.is_affine else None

    def readout(self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits of a state."""
        return self.logits_of(dtype)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None) -> BodyAndHead | None:
        """The readout in two; None where it is affine."""
        return None if self.readout_layers().is_affine else self.logits_of(dtype)

    def logits_of(
        self,
        dtype: torch.dtype | None,
        token_values: Mapping[int, Tensor] | None = None,
        around: AttentionContext | None = None,
    ) -> BodyAndHead:
        """The readout; `around` is what its layers share where they continue a cache."""
        live, arithmetic = self.readout_layers(), dtype or self.dtype

        def layers() -> Readout:
            # At every use: whether matrices may stay in BF16 depends on whether gradients are recorded there.
            return cast(Readout, self.in_dtype(live, dtype, mixes=not live.is_affine))

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            def alone() -> AttentionContext:
                plain = needs_elementary_operations(state)
                found = readout_context(state.shape[1], self.device, self.rotary, arithmetic, plain=plain)
                return found if token_values is None else dataclasses.replace(found, token_values=token_values)

            hidden: Tensor = layers()(
                state if dtype is None else state.to(dtype), alone if around is None else lambda: around, positions
            )
            return hidden

        def weight() -> Tensor:
            return layers().head.weight

        return BodyAndHead(body, lambda hidden: linear(hidden, weight()), self.vocabulary_size, weight)

    def readout_cached(self, state: Tensor, context: Context, positions: Tensor | None = None) -> Tensor:
        """The readout of new positions, whose layers read and write the cache."""
        return self.logits_of(None, around=context.extra)(state, positions)


class LlamaLayer(Block):
    """x += attention(norm(x)); x += mlp(norm(x))."""

    attention_names = Names("self_attn", "input_layernorm")
    mlp_names = Names("mlp", "post_attention_layernorm")


class PreNormBlock(Block):
    """The same with the names of Huginn's relatives."""

    attention_names = Names("attn", "norm_1")
    mlp_names = Names("mlp", "norm_2")


class LlamaStack(nn.Module):
    """Embedding, layers and output norm under the names of transformers."""

    def __init__(self, vocabulary: int, hidden: int, layers: Iterable[nn.Module], norm: RMSNorm) -> None:
        super().__init__()
        self.embed_tokens = Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = norm


class LoopedLlama(LoopedDecoder):
    """A model of layers under the names of transformers; a family says what a layer is and what is looped."""

    def __init__(
        self, config: Any, layer: Callable[[], Block], trained_depth: int, default_theta: float | None = None
    ) -> None:
        hidden, vocabulary, count = config.hidden_size, config.vocab_size, config.num_hidden_layers
        super().__init__(config, hidden, vocabulary, config.max_position_embeddings, trained_depth)
        self.rotary = config.half_split(rounded=True, default_theta=default_theta)
        layers = (layer() for _ in range(count))
        self.model: Any = LlamaStack(vocabulary, hidden, layers, RMSNorm(hidden, config.rms_norm_eps))
        self.lm_head = Linear(hidden, vocabulary, bias=False)
        # Rotary frequencies, which some tools store.
        owners = ("", *(f"layers.{index}.self_attn." for index in range(count)))
        self.ignored = frozenset(f"model.{owner}rotary_emb.inv_freq" for owner in owners)
        self.tie_head(config.tie_word_embeddings, "model.embed_tokens.weight")


def llama_layer(config: Any, kind: type[Block] = LlamaLayer, **options: Any) -> Block:
    """A layer of Llama, or with Qwen2's biases or Qwen3's norms of the heads (options of `Attention`)."""
    hidden, eps = config.hidden_size, config.rms_norm_eps
    attention = Attention(config.sizes, norm_eps=eps, **options)
    return kind(attention, GatedMLP(hidden, config.intermediate_size), lambda: RMSNorm(hidden, eps))
