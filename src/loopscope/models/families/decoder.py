"""What the model families share: batches come in, layers run, states are read out.

A family is a class of its own file: modules under the checkpoint's names, then `embed`, `step` and `readout_layers`.

Some families draw H_0: a truncated normal, seeded by question (Appendix B, "Execution and differentiation").

    H_0 = scale · TruncatedNormal(0, std; ±3 std),   drawn on the CPU, BF16, seed 20260904 + source row

Rule "question" (the default) draws by inverting the distribution function at uniform numbers, one number an
entry, position by position, in float32, and rounds the state to BF16 (BF16 uniforms would shift its mean).
Position p of a row therefore depends on the seed and p alone: not on the padding, the batch or the length of the
sequence. All options of a question share the states of their common positions, and a token that is generated
gets the state it would have had in a prompt. Torch's own `trunc_normal_` rejects and redraws in recent versions,
which would tie every position to the width of the tensor.

Rule "paper" is the paper's sentence taken literally: `trunc_normal_` fills a BF16 tensor of the sequence's shape.
Rule "official" follows the published code's calls: a standard normal tensor of that shape is drawn and thrown
away first. Under both, values depend on the sequence's length (without padding) and on the version of torch, so
that options of a question share their seed and not their states.

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch, select
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
from loopscope.models.protocol import AffineHead, BodyAndHead, Context, LoopedModule, needs_elementary_operations

SEED = 20260904
_CUT = 3.0
_WORKERS = min(8, os.cpu_count() or 1)

Rule = Literal["question", "paper", "official"]
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True)
class InitialState:
    """How H_0 is drawn: `std` and `scale` are the model's, rule, seed and dtype the experiment's."""

    width: int
    std: float
    scale: float
    rule: Rule = "question"
    seed: int = SEED
    dtype: torch.dtype = torch.bfloat16

    def draw(self, source_rows: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """H_0 for rows of the given lengths, [B, max(lengths), D] on the CPU; zero beyond a row's length."""
        longest = max(lengths)
        # Under "question" a longer draw begins with the shorter one: one draw serves all options.
        reach = [longest] * len(lengths) if self.rule == "question" else lengths
        keys = list(zip(source_rows, reach, strict=True))
        distinct = list(dict.fromkeys(keys))
        with ThreadPoolExecutor(min(_WORKERS, len(distinct))) as pool:
            drawn = dict(zip(distinct, pool.map(lambda key: self._draw_row(*key), distinct), strict=True))
        state = torch.zeros(len(lengths), longest, self.width, dtype=self.dtype)
        for index, (key, length) in enumerate(zip(keys, lengths, strict=True)):
            state[index, :length] = drawn[key][:length]
        return state

    def _draw_row(self, row: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + row)
        shape = (length, self.width)
        if self.rule != "question":
            if self.rule == "official":
                torch.randn(shape, dtype=self.dtype, generator=generator)
            state = torch.empty(shape, dtype=self.dtype)
            bound = _CUT * self.std
            return nn.init.trunc_normal_(state, 0.0, self.std, -bound, bound, generator=generator).mul_(self.scale)
        reach = math.erf(_CUT / math.sqrt(2.0))
        uniform = torch.empty(shape, dtype=torch.float32).uniform_(-reach, reach, generator=generator)
        bound = _CUT * self.std * self.scale
        return uniform.erfinv_().mul_(self.std * self.scale * math.sqrt(2.0)).clamp_(-bound, bound).to(self.dtype)


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


class DrawsState(LoopedDecoder):
    """A model whose H_0 is drawn, as its attribute `initial_state` says."""

    initial_state: InitialState
    draws = True
    """Whether H_0 is what is drawn; a family may draw something else that its steps carry along."""

    def draw_initial_state(self, source_rows: Sequence[int], lengths: Sequence[int], width: int) -> Tensor:
        """H_0 for rows of the given lengths, [B, width, D] on the model's device; zero at padding."""
        drawn = self.initial_state.draw(source_rows, lengths)
        padded = functional.pad(drawn, (0, 0, 0, width - drawn.shape[1]))
        if self.device.type == "cuda":
            padded = padded.pin_memory()  # so that nobody waits for what the device does meanwhile
        return padded.to(self.device, non_blocking=True).to(self.dtype)

    def drawn(self, batch: Batch) -> Tensor:
        """H_0 of a batch, [B, S, D]."""
        parts = batch.parts
        lengths = batch.attention_mask.sum(dim=1).tolist() if parts is None else parts.lengths
        rows = batch.source_rows if batch.source_rows is not None else [0] * len(lengths)
        if parts is None:
            return self.draw_initial_state(rows, lengths, batch.input_ids.shape[1])
        if parts.places is not None and (rule := self.initial_state.rule) != "question":
            raise LoopscopeError(f'the rule "{rule}" draws a sequence by its length; run sequences one to a row')
        assert batch.position_ids is not None
        assert batch.reach is not None
        counted = self.draw_initial_state(rows, lengths, batch.reach)
        return counted[parts.owner_1N.to(self.device), batch.position_ids.to(self.device)]


class LlamaLayer(Block):
    """x += attention(norm(x)); x += mlp(norm(x))."""

    attention_names = Names("self_attn", "input_layernorm")
    mlp_names = Names("mlp", "post_attention_layernorm")


class PreNormBlock(Block):
    """The same with the names of Huginn's relatives."""

    attention_names = Names("attn", "norm_1")
    mlp_names = Names("mlp", "norm_2")


class LoopedLlama(LoopedDecoder):
    """A model of layers under the names of transformers; a family says what a layer is and what is looped."""

    def __init__(
        self, config: Any, layer: Callable[[], Block], trained_depth: int, default_theta: float | None = None
    ) -> None:
        hidden, vocabulary, count = config.hidden_size, config.vocab_size, config.num_hidden_layers
        super().__init__(config, hidden, vocabulary, config.max_position_embeddings, trained_depth)
        self.rotary = config.half_split(rounded=True, default_theta=default_theta)
        layers, norm = nn.ModuleList(layer() for _ in range(count)), RMSNorm(hidden, config.rms_norm_eps)
        self.model: Any = nn.ModuleDict({"embed_tokens": Embedding(vocabulary, hidden), "layers": layers, "norm": norm})
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
