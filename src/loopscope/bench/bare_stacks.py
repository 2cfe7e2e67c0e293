"""One loop as one function over a model's own fused matrices, written for speed in eager torch.

No modules, norms fused with their weights, one rounding fewer in the rotation, sums in place: what a careful reader of
the published code would write without kernels of his own. `loop_speed` races the models against them.

Shapes: B rows, S positions, D hidden width, H heads, K key-value heads, P head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.models.families.nanbeige import Nanbeige
from loopscope.models.families.ouro import Ouro
from loopscope.models.families.parcae import Parcae
from loopscope.models.layers.rope import Positions
from loopscope.models.protocol import Context


class Rotation:
    """Queries and keys turned pair by pair, out of place."""

    def __init__(self, positions: Positions, width: int, device: torch.device, dtype: torch.dtype) -> None:
        cos, sin, layout = positions.tables(torch.arange(width, device=device)[None], dtype)
        half = cos.shape[-1] // 2
        self.one, self.two = slice(0, None, 2), slice(1, None, 2)
        if layout == "half":
            self.one, self.two = slice(0, half, 1), slice(half, None, 1)
        self.cos, self.sin = (table[..., self.one].to(dtype).contiguous() for table in (cos, sin))

    def __call__(self, x_BSHP: Tensor) -> Tensor:
        """[B, S, H, P] → [B, S, H, P]."""
        first, second = x_BSHP[..., self.one], x_BSHP[..., self.two]
        turned = torch.empty(x_BSHP.shape, dtype=x_BSHP.dtype, device=x_BSHP.device)
        torch.mul(first, self.cos, out=turned[..., self.one])
        turned[..., self.one].addcmul_(second, self.sin, value=-1)
        torch.mul(second, self.cos, out=turned[..., self.two])
        turned[..., self.two].addcmul_(first, self.sin)
        return turned


def attended(q_BSHP: Tensor, k_BSKP: Tensor, v_BSKP: Tensor, out: Tensor) -> Tensor:
    """Causal attention and its projection, [B, S, D]."""
    q, k, v = (x.transpose(1, 2) for x in (q_BSHP, k_BSKP, v_BSKP))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return functional.linear(mixed.transpose(1, 2).flatten(2), out)


class BareOuro:
    """Ouro's loop."""

    def __init__(self, model: Ouro, context: Context) -> None:
        config = model.config
        self.heads, self.head_width, self.eps = config.heads, config.head_width, config.norm_eps
        self.inner, self.shape = config.inner_size, (config.hidden_size,)
        self.final = model.model.norm.weight
        layers: Any = model.model.layers
        self.layers = [
            (
                layer.input_layernorm.weight,
                layer.self_attn.joined[0],
                layer.self_attn.o_proj.weight,
                layer.input_layernorm_2.weight,
                layer.post_attention_layernorm.weight,
                layer.mlp.joined[0],
                layer.mlp.down_proj.weight,
                layer.post_attention_layernorm_2.weight,
            )
            for layer in layers
        ]
        self.turn = Rotation(config.rotary, context.state.shape[1], model.device, model.dtype)

    def step(self, x: Tensor) -> Tensor:
        """One loop."""
        heads = self.heads
        for norm_in, qkv, out, norm_out, norm_mlp, gate_up, down, norm_down in self.layers:
            y = functional.linear(functional.rms_norm(x, self.shape, norm_in, self.eps), qkv)
            y = y.view(*x.shape[:2], 3 * heads, self.head_width)
            turned = self.turn(y[:, :, : 2 * heads])
            mixed = attended(turned[:, :, :heads], turned[:, :, heads:], y[:, :, 2 * heads :], out)
            x = x + functional.rms_norm(mixed, self.shape, norm_out, self.eps)
            y = functional.linear(functional.rms_norm(x, self.shape, norm_mlp, self.eps), gate_up)
            y = functional.silu(y[..., : self.inner]).mul_(y[..., self.inner :])
            x = x + functional.rms_norm(functional.linear(y, down), self.shape, norm_down, self.eps)
        return functional.rms_norm(x, self.shape, self.final, self.eps)


class BareNanbeige:
    """Nanbeige's loop, the norm inside."""

    def __init__(self, model: Nanbeige, context: Context) -> None:
        sizes = model.config.sizes
        self.heads, self.shared = sizes.attention.heads, sizes.attention.key_value_heads
        self.head_width, self.inner = sizes.attention.head_width, sizes.inner
        self.eps, self.shape, self.final = sizes.norm_eps, (model.hidden_size,), model.model.norm.weight
        layers: Any = model.model.layers
        self.layers = [
            (
                layer.input_layernorm.weight,
                layer.self_attn.joined[0],
                layer.self_attn.o_proj.weight,
                layer.post_attention_layernorm.weight,
                layer.mlp.joined[0],
                layer.mlp.down_proj.weight,
            )
            for layer in layers
        ]
        self.turn = Rotation(model.config.rotary, context.state.shape[1], model.device, model.dtype)

    def step(self, x: Tensor) -> Tensor:
        """One loop."""
        heads, both = self.heads, self.heads + self.shared
        for norm_in, qkv, out, norm_mlp, gate_up, down in self.layers:
            y = functional.linear(functional.rms_norm(x, self.shape, norm_in, self.eps), qkv)
            y = y.view(*x.shape[:2], both + self.shared, self.head_width)
            turned = self.turn(y[:, :, :both])
            x = x + attended(turned[:, :, :heads], turned[:, :, heads:], y[:, :, both:], out)
            y = functional.linear(functional.rms_norm(x, self.shape, norm_mlp, self.eps), gate_up)
            y = functional.silu(y[..., : self.inner]).mul_(y[..., self.inner :])
            x = x + functional.linear(y, down)
        return functional.rms_norm(x, self.shape, self.final, self.eps)


class BareParcae:
    """Parcae's loop; the values of the tokens are looked up beforehand, and ½ joins a sum that is made anyway."""

    def __init__(self, model: Parcae, context: Context) -> None:
        config = model.config
        self.heads, self.head_width, self.eps = config.heads, config.head_width, config.norm_eps
        self.shape, self.head_eps = (config.hidden_size,), torch.finfo(torch.float32).eps
        adapter: Any = model.transformer["adapter"]
        self.decay, self.injection = adapter.decay(), context.injection
        blocks: Any = model.transformer["core_block"]
        self.layers = [
            (
                block.norm_1.weight,
                block.attn.joined[0],
                block.attn.c_proj.weight,
                None if block.attn.ve_gate is None else block.attn.ve_gate.weight,
                context.extra.token_values.get(block.attn.number),
                block.norm_2.weight,
                block.mlp.fc.weight,
                block.mlp.proj.weight,
            )
            for block in blocks
        ]
        self.turn = Rotation(model.positions, context.state.shape[1], model.device, model.dtype)

    def step(self, x: Tensor) -> Tensor:
        """One loop."""
        heads = self.heads
        assert self.injection is not None
        x = torch.addcmul(self.injection, self.decay, x)
        for norm_1, qkv, out, gate, values, norm_2, fc, proj in self.layers:
            h = functional.rms_norm(x, self.shape, norm_1, self.eps)
            y = functional.linear(h, qkv).view(*x.shape[:2], 3 * heads, self.head_width)
            turned = functional.rms_norm(self.turn(y[:, :, : 2 * heads]), (self.head_width,), None, self.head_eps)
            v = y[:, :, 2 * heads :]
            if gate is not None and values is not None:
                opened = functional.linear(h[..., : gate.shape[1]], gate).sigmoid_().mul_(2)
                v = torch.addcmul(v, opened.unsqueeze(-1), values.view(v.shape))
            x = x + attended(turned[:, :, :heads], turned[:, :, heads:], v, out)
            y = functional.linear(functional.rms_norm(x, self.shape, norm_2, self.eps), fc).relu_()
            x = torch.add(x, functional.linear(y.mul_(y), proj), alpha=0.5)
        return x
