"""Ouro: the whole stack of layers is the loop, and an exit gate says how likely each loop is to be the last.

    H_0 = embedding,   H_{t+1} = norm(layers(H_t)),   logits_t = lm_head(H_t)
    layer:  x ← x + norm(attention(norm(x))),   x ← x + norm(mlp(norm(x)))

The normed state is what feeds the next loop and what the head reads: it is the state boundary, and logits are affine in
it. The exit gate reads the same state; the published policy is the rule "cdf" of `exit_gate`.

With `inside=k` the state is taken before layer k instead: the same weights and loops behind a readout that is not
affine. It shows what of a finding belongs to the affine head.

    H_0 = layers[0 … k−1](embedding),   H_{t+1} = layers[0 … k−1](norm(layers[k …](H_t))),
    logits_t = lm_head(norm(layers[k …](H_t)))

Reading H_t is then reading Ouro after t + 1 loops, exactly.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from loopscope.models.batch import Batch
from loopscope.models.families import LlamaConfig, Loops, Number, Size, family, only, option
from loopscope.models.families.decoder import LoopedLlama, Readout, llama_layer
from loopscope.models.layers.blocks import Block, Linear, Names, linear
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.protocol import Context, ExitGate


class OuroConfig(LlamaConfig):
    """config.json of an Ouro checkpoint."""

    title = "Ouro"
    fixed = only(LlamaConfig.fixed, attention_bias=False)
    max_position_embeddings: Size = 65536
    total_ut_steps: Loops = 4
    early_exit_threshold: Number = 1.0
    inside: Annotated[int, Field(ge=0)] = option(
        0, "the layer before which the state is taken, with the rest of the stack as readout"
    )

    def model_post_init(self, _: Any) -> None:
        """Checks the layer that is chosen."""
        if self.inside >= self.num_hidden_layers:
            raise self.fault(f"inside={self.inside} is not a layer from 1 to {self.num_hidden_layers - 1}")
        if self.inside and self.total_ut_steps < 2:
            raise self.fault("inside: the model was trained for one loop, which is over at its first state inside")


class OuroLayer(Block):
    """Norms on the input and on the output of each branch."""

    attention_names = Names("self_attn", "input_layernorm", branch_norm="input_layernorm_2")
    mlp_names = Names("mlp", "post_attention_layernorm", branch_norm="post_attention_layernorm_2")


@family("ouro", OuroConfig, "OuroForCausalLM", "ouro")
class Ouro(LoopedLlama):
    """Ouro at any size; padding on either side, or on the right with the state inside."""

    boundary = "the shared stack's output after its norm, just before the language-model head"

    def __init__(self, config: OuroConfig) -> None:
        super().__init__(config, lambda: llama_layer(config, OuroLayer), config.total_ut_steps - (config.inside > 0))
        self.model.early_exit_gate = Linear(config.hidden_size, 1)
        if config.inside:
            inside = f"before its layer {config.inside}, in the loop after the one counted"
            self.boundary = f"the shared stack's stream {inside}"

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """H_0: the embedding, after the layers before the boundary."""
        batch, attention = self.enter(batch, cache)
        inside = self.model.layers[: self.config.inside]
        state = self.start(batch, lambda: self.run(inside, self.model.embed_tokens(batch.input_ids), attention))
        return Context(state, batch, extra=attention)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """All layers from the boundary on, the norm, and the layers before the boundary."""
        layers, inside = self.model.layers, self.config.inside
        normed = self.run(layers[inside:], state, context.extra, self.model.norm)
        return self.run(layers[:inside], normed, context.extra)

    def readout_layers(self) -> Readout:
        """The head; with the state inside, the rest of the stack and its norm before it."""
        if not self.config.inside:
            return Readout(self.lm_head)
        return Readout(self.lm_head, self.model.norm, self.model.layers[self.config.inside :])

    @property
    def exit_gate(self) -> ExitGate | None:
        """The gate with the checkpoint's own threshold (`early_exit_threshold`)."""
        if self.config.inside:
            return None
        return ExitGate(self.gate_logits, self.config.early_exit_threshold, self.trained_depth, "cdf")

    def gate_logits(self, state: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The exit gate before its sigmoid, [B, S]."""
        gate, dtype = self.model.early_exit_gate, dtype or state.dtype
        return linear(state.to(dtype), gate.weight.to(dtype), gate.bias.to(dtype))[..., 0]
