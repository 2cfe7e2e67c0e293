"""Nanbeige4.2: a Llama stack run as a loop, with the output norm inside it.

    H_0 = embedding,   H_{t+1} = norm(layers(H_t)),   logits_t = lm_head(H_t)

The normed state is what feeds the next loop and what the head reads: logits are affine in it. With
`skip_loop_final_norm` the raw output of the layers is fed on instead and normed just before the head, so that the
readout is not affine. A head is wider than the hidden size over the number of heads (`head_dim`).
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from loopscope.models.batch import Batch
from loopscope.models.families import LlamaConfig, Loops, family, only
from loopscope.models.families.decoder import LoopedLlama, Readout, llama_layer
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.protocol import Context


class NanbeigeConfig(LlamaConfig):
    """config.json of a Nanbeige checkpoint; switches that the published checkpoints leave off are refused."""

    title = "Nanbeige"
    fixed = only(
        LlamaConfig.fixed, enable_double_loop_split=False, loop_share_kv=False, enable_hyper_connection=False,
        enable_mhc=False, enable_depth_attention=False, emb_neighbor_num=0, qk_layernorm=False,
        attention_bias=False, mlp_bias=False
    )  # fmt: skip
    num_loops: Loops = 2
    loop_loss_weights: list[float] = Field(default_factory=list)
    skip_loop_final_norm: bool = False

    @property
    def loops(self) -> int:
        """One loss for each loop but the last, where losses are listed; they are stronger than `num_loops`."""
        return len(self.loop_loss_weights) + 1 if self.loop_loss_weights else self.num_loops


@family("nanbeige", NanbeigeConfig, "NanbeigeForCausalLM", "nanbeige")
class Nanbeige(LoopedLlama):
    """Nanbeige at any size; padding on either side."""

    boundary = "the shared stack's output after its norm, just before the language-model head"

    def __init__(self, config: NanbeigeConfig) -> None:
        super().__init__(config, lambda: llama_layer(config), config.loops)
        if config.skip_loop_final_norm:
            self.boundary = "the shared stack's raw output, before the norm and the language-model head"

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """H_0 is the token embedding."""
        batch, attention = self.enter(batch, cache)
        return Context(self.start(batch, lambda: self.model.embed_tokens(batch.input_ids)), batch, extra=attention)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """All layers, and the norm where it is inside the loop."""
        norm = None if self.config.skip_loop_final_norm else self.model.norm
        return self.run(self.model.layers, state, context.extra, norm)

    def readout_layers(self) -> Readout:
        """The head, after the norm where that is not inside the loop."""
        return Readout(self.lm_head, self.model.norm if self.config.skip_loop_final_norm else None)
