"""LoopUS: a Qwen3 cut into encoder, looped and decoder layers, with a gate that mixes every step with its state.

    H_0 = encoder(embedding)
    y = reasoning(H_t),   d = softplus(delta_proj(dt_input_proj(y − H_t))),   a = exp(−d · exp(A_log))
    H_{t+1} = a · y + (1 − a) · H_t,   logits_t = lm_head(norm(decoder(H_t)))

The gated state is the boundary. The readout runs the decoder's layers, which attend, so it is not affine. The gate and
the exit head keep float32 where the model is in 16 bits. The exit head's confidence is sigmoid(q_head(H_t)) where the
text ends: at every position here, as if the text ended there; a step that exceeds the threshold is the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from loopscope.models.batch import Batch
from loopscope.models.checkpoint import TensorEntry
from loopscope.models.families import FamilyConfig, LlamaConfig, Loops, Number, family, only
from loopscope.models.families.decoder import LoopedDecoder, Readout, llama_layer
from loopscope.models.layers.blocks import Embedding, Linear, RMSNorm, linear
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.protocol import Context, ExitGate

_HALF = (torch.bfloat16, torch.float16)


class Qwen3Config(LlamaConfig):
    """The model that was cut."""

    title = "LoopUS, base_config_dict"
    fixed = only(LlamaConfig.fixed, model_type="qwen3", attention_bias=False)


class LoopUSConfig(FamilyConfig):
    """config.json of a LoopUS checkpoint; layers are those of the model that was cut, each in one part at the most."""

    title = "LoopUS"
    base_config_dict: Qwen3Config
    encoder_layer_indices: list[int]
    reasoning_layer_indices: Annotated[list[int], Field(min_length=1)]
    decoder_layer_indices: list[int]
    N: Loops
    q_threshold: Number = 0.9
    q_eval_interval: int = 1
    halting_strategy: str = "threshold"


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


@family("loopus", LoopUSConfig, "LDSForCausalLM", "lds")
class LoopUS(LoopedDecoder):
    """LoopUS at any size; padding on the right."""

    boundary = "the state after the update gate, before the decoder's layers"

    def __init__(self, config: LoopUSConfig) -> None:
        base = config.base_config_dict
        hidden, vocabulary, eps = base.hidden_size, base.vocab_size, base.rms_norm_eps
        super().__init__(config, hidden, vocabulary, base.max_position_embeddings, config.N)
        self.eos_ids = base.eos_token_id
        self.rotary = base.half_split(rounded=True)

        def part(indices: list[int], **others: nn.Module) -> Any:
            # Under the checkpoint's names; layers are counted from 0 in each part.
            layers = nn.ModuleList(llama_layer(base, qk_norm="head") for _ in indices)
            return nn.ModuleDict({**others, "layers": layers})

        head = Linear(hidden, vocabulary, bias=False)
        self.encoder = part(config.encoder_layer_indices, embed_tokens=Embedding(vocabulary, hidden))
        self.reasoning = part(config.reasoning_layer_indices, gate=UpdateGate(hidden))
        self.decoder = part(config.decoder_layer_indices, norm=RMSNorm(hidden, eps), lm_head=head)
        self.q_head: Any = nn.Sequential(nn.LayerNorm(hidden), Linear(hidden, 1))

    def arrange(self, tensors: Mapping[str, TensorEntry]) -> Mapping[str, TensorEntry]:
        """Older files say `plateau` for `reasoning`."""
        old, new = "plateau.", "reasoning."
        return {new + name.removeprefix(old) if name.startswith(old) else name: tensors[name] for name in tensors}

    def parameter_dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The gate and the exit head are never rounded to 16 bits."""
        return torch.float32 if dtype in _HALF and name.startswith(("reasoning.gate.", "q_head.")) else dtype

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """H_0: the encoder's layers of the embedding."""
        batch, attention = self.enter(batch, cache)
        part = self.encoder
        state = self.start(batch, lambda: self.run(part.layers, part.embed_tokens(batch.input_ids), attention))
        return Context(state, batch, extra=attention)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The looped layers, then the gate."""
        after = self.run(self.reasoning.layers, state, context.extra)
        return cast(Tensor, self.reasoning.gate(state, after))

    def readout_layers(self) -> Readout:
        """The decoder's layers, its norm and its head."""
        return Readout(self.decoder.lm_head, self.decoder.norm, self.decoder.layers)

    @property
    def exit_gate(self) -> ExitGate | None:
        """The exit head with the checkpoint's own threshold; None for strategies whose decisions are not certain."""
        if (self.config.halting_strategy, self.config.q_eval_interval) != ("threshold", 1):
            return None
        return ExitGate(self.gate_logits, self.config.q_threshold, self.trained_depth, "threshold")

    def gate_logits(self, state: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The exit head before its sigmoid, [B, S], in the arithmetic of its own weights by default."""
        norm, last = self.q_head
        kind = norm.weight.dtype if dtype is None else dtype
        weight, bias, row, offset = (given.to(kind) for given in (norm.weight, norm.bias, last.weight, last.bias))
        normed = functional.layer_norm(state.to(kind), (self.hidden_size,), weight, bias, norm.eps)
        return linear(normed, row, offset)[..., 0]
