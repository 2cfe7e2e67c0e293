"""Any Llama-style checkpoint looped over a span of its layers, without training.

    H_0 = layers[0 … first−1](embedding),   H_{t+1} = layers[first … last](H_t),
    logits_t = lm_head(norm(layers[last+1 …](H_t)))

Layers are counted from 0 and the span includes both ends: `loop=10-20` loops eleven layers. Depth 1 is the ordinary
model, exactly; depth 0 skips the span. The output of the span is the state boundary, and the readout, which runs the
layers after it, is nonlinear.

Supported: Llama; Mistral without a sliding window; Qwen2 (biases on q, k, v); Qwen3 (norms on the heads of q, k).
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from pydantic import Field
from torch import Tensor

from loopscope.models.batch import Batch
from loopscope.models.families import LlamaConfig, Size, family, only, option
from loopscope.models.families.decoder import LoopedLlama, Readout, llama_layer
from loopscope.models.layers.positions import KeyValueCache
from loopscope.models.protocol import Context

Architecture = Literal["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]


ARCHITECTURES: tuple[str, ...] = get_args(Architecture)


class LayerLoopConfig(LlamaConfig):
    """config.json of a Llama-style checkpoint, and the layers to loop."""

    title = "Looped layers"
    fixed = only(LlamaConfig.fixed, mlp_bias=False)
    architectures: list[Architecture] = Field(["LlamaForCausalLM"], min_length=1)
    max_position_embeddings: Size = 2048
    attention_bias: bool = False
    loop: str = option("", "first and last of the layers to loop, counted from 0: 10-20")

    def model_post_init(self, _: Any) -> None:
        """Checks the span."""
        self.span  # noqa: B018

    @property
    def span(self) -> range:
        """The layers to loop."""
        given, count = re.fullmatch(r"(\d{1,9})-(\d{1,9})", self.loop, re.ASCII), self.num_hidden_layers
        span = range(int(given[1]), int(given[2]) + 1) if given else range(0)
        if not span or span[-1] >= count:
            raise self.fault(
                f"layers {self.loop or '(none)'} are not a span of this {count}-layer model; "
                f"choose within 0-{count - 1}"
            )
        return span

    @property
    def layer_options(self) -> dict[str, Any]:
        """What the layers of the architecture have besides Llama's."""
        match self.architectures[0]:
            case "Qwen2ForCausalLM":
                return {"bias": True}
            case "Qwen3ForCausalLM":
                return {"bias": self.attention_bias, "output_bias": self.attention_bias, "qk_norm": "head"}
            case _:
                return {"bias": self.attention_bias, "output_bias": self.attention_bias}


@family("loop", LayerLoopConfig)
class LayerLoop(LoopedLlama):
    """A Llama-style model with a span of layers as its loop; padding on the right."""

    boundary = "the output of the looped layers, before the layers that follow"

    def __init__(self, config: LayerLoopConfig) -> None:
        # The first Llamas were published without the field; 10000 is what it meant.
        super().__init__(config, lambda: llama_layer(config, **config.layer_options), 1, default_theta=10000.0)
        self.span = config.span
        self.boundary = f"the output of layers {self.span[0]}-{self.span[-1]}, before the layers that follow"

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """H_0: the layers before the span run once."""
        batch, attention = self.enter(batch, cache)
        before = self.model.layers[: self.span[0]]
        state = self.start(batch, lambda: self.run(before, self.model.embed_tokens(batch.input_ids), attention))
        return Context(state, batch, extra=attention)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The span once."""
        return self.run(self.model.layers[self.span.start : self.span.stop], state, context.extra)

    def readout_layers(self) -> Readout:
        """The layers after the span, the norm and the head."""
        return Readout(self.lm_head, self.model.norm, self.model.layers[self.span[-1] + 1 :])
