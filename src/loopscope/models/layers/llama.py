"""The layer of Llama and of what descends from it: x += attention(norm(x)); x += feed_forward(norm(x)).

Qwen2's biases and Qwen3's norms on the heads are in `AttentionSizes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from loopscope.models.layers.blocks import (
    AttentionSizes,
    Block,
    Branch,
    RMSNorm,
    SeparateAttention,
    SeparateFeedForward,
)
from loopscope.models.layers.linear import Embedding


@dataclass(frozen=True)
class LlamaSizes:
    """The widths of the layers and the eps of their norms."""

    vocabulary: int
    inner: int
    attention: AttentionSizes
    norm_eps: float


class LlamaLayer(Block):
    """Norms before each branch."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        hidden = sizes.attention.hidden
        self.self_attn = SeparateAttention(sizes.attention)
        self.mlp = SeparateFeedForward(hidden, sizes.inner)
        self.input_layernorm = RMSNorm(hidden, sizes.norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden, sizes.norm_eps)

    def branches(self) -> tuple[Branch, Branch]:
        """Norms before each branch."""
        return Branch(self.self_attn, self.input_layernorm), Branch(self.mlp, self.post_attention_layernorm)


class LlamaStack(nn.Module):
    """Embedding, layers and output norm, under the checkpoint's names."""

    def __init__(self, sizes: LlamaSizes, layers: int) -> None:
        super().__init__()
        self.embed_tokens = Embedding(sizes.vocabulary, sizes.attention.hidden)
        self.layers = nn.ModuleList(LlamaLayer(sizes) for _ in range(layers))
        self.norm = RMSNorm(sizes.attention.hidden, sizes.norm_eps)


def stored_frequencies(layers: int) -> set[str]:
    """Rotary frequencies, which some tools store and no model reads."""
    return {"model.rotary_emb.inv_freq"} | {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(layers)}
