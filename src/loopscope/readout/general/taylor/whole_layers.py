"""Rules for operations that are whole parts of layers: gated feed-forward, rotary positions, multi-head attention.

A model that offers `gated_silu_joined` and `rotate_own` through torch's own protocol (`__torch_function__`) gets the
rules for these whole operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.readout.general.taylor.activations import silu
from loopscope.readout.general.taylor.core import Series, implements, refused, takes_series_kernel, unsupported
from loopscope.readout.general.taylor.elementwise import mul


@implements("gated_silu_joined")
def gated_silu_joined(both: Series, plain: bool = False, impl: Any = None) -> Series:
    """silu(gate) · up from gate and up side by side, [..., 2F] → [..., F], gate first."""
    c = both.coefficients
    if takes_series_kernel(c, impl):
        from loopscope.readout.general.taylor.kernels import gated_silu

        return Series(gated_silu(c))
    inner = both.shape[-1] // 2
    return mul(silu(Series(c[..., :inner])), Series(c[..., inner:]))


@implements("rotate_own")
def rotate_own(x: Series, tables: Any, bias: Tensor | None = None, impl: Any = None) -> Series:
    """Pairs of entries turned by the angles of `tables` (cos, sin, layout): linear, each coefficient by itself.

    A bias is turned by itself and joins the constant coefficient.
    """
    out = _rotated(x.coefficients, tables)
    if bias is not None:
        out[0] += _rotated(bias, tables)
    return Series(out)


def _rotated(c: Tensor, tables: Any) -> Tensor:
    """(a, b) → (a cos − b sin, b cos + a sin)."""
    if tables.layout == "interleaved" and c.dtype == tables.cos.dtype:
        # Neighbours as complex numbers: one pass over memory.
        rotation = torch.complex(tables.cos[..., ::2], tables.sin[..., ::2])
        return torch.view_as_real(_as_complex(c) * rotation).flatten(-2)
    straight: Tensor = c * tables.cos
    crossed: Tensor = c * tables.sin
    half = c.shape[-1] // 2
    split = tables.layout == "half"
    one, two = (slice(None, half), slice(half, None)) if split else (slice(0, None, 2), slice(1, None, 2))
    straight[..., one] -= crossed[..., two]
    straight[..., two] += crossed[..., one]
    return straight.to(c.dtype)


def _as_complex(c: Tensor) -> Tensor:
    pairs = c.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    even = c.storage_offset() % 2 == 0 and all(stride % 2 == 0 for stride in pairs.stride()[:-1])
    return torch.view_as_complex(pairs if even and pairs.stride(-1) == 1 else pairs.contiguous())


@implements("multi_head_attention_forward")
def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Any]:
    """What `nn.MultiheadAttention` computes, for inputs [positions, rows, width]."""
    if training and dropout_p > 0.0:
        raise refused("multi_head_attention_forward", "dropout is random; call model.eval().")
    if static_k is not None or static_v is not None or bias_k is not None or add_zero_attn:
        raise unsupported("multi_head_attention_forward", "static or added keys and values")
    unbatched = query.ndim == 2
    inputs = [x.unsqueeze(1) if unbatched else x for x in (query, key, value)]
    weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight and in_proj_weight is not None:
        weights = in_proj_weight.chunk(3)
    biases: Any = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    projected: Any = [functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
    q, k, v = (x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for x in projected)
    mask = _added_mask(attn_mask, key_padding_mask, q, k)
    if mask is None and is_causal:
        mask = torch.full((q.shape[2], k.shape[2]), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
    weights_BHST = None
    if need_weights:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        weights_BHST = torch.softmax(scores if mask is None else scores + mask, -1)
        seen = weights_BHST @ v
    else:
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out = functional.linear(seen.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    if weights_BHST is not None and average_attn_weights:
        weights_BHST = weights_BHST.mean(1)
    if unbatched:
        out, weights_BHST = out.squeeze(1), None if weights_BHST is None else weights_BHST.squeeze(0)
    return out, weights_BHST


def _added_mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Any, k: Any) -> Tensor | None:
    """What is added to the scores [rows, heads, queries, keys]; True means hidden in masks of this module."""

    def added(mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return mask.to(q.dtype)
        return torch.zeros(mask.shape, dtype=q.dtype, device=mask.device).masked_fill(mask, -torch.inf)

    total = None
    if attn_mask is not None:
        total = added(attn_mask)
        total = total.reshape(-1, q.shape[1], *total.shape[1:]) if total.ndim == 3 else total[None, None]
    if key_padding_mask is not None:
        hidden = added(key_padding_mask.reshape(-1, 1, 1, k.shape[2]))
        total = hidden if total is None else total + hidden
    return None if total is None else total.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
