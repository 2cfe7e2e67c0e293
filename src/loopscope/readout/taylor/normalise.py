"""Rules for normalisation and attention: RMS and layer norms, softmax, scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopscope.readout.taylor.core import Series, cauchy, implements, lifted, unsupported
from loopscope.readout.taylor.elementwise import add, chain, div, log, mul, rsqrt, square, sub
from loopscope.readout.taylor.linear import mean

_ATTENTION_ELEMENTS = 1 << 25  # of scores at once, all orders counted: bounds the memory of long contexts


@implements("rms_norm")
def rms_norm(
    input: Series, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Series:
    """The input over √(mean x² + ε), times the weight."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    epsilon = torch.finfo(input.dtype).eps if eps is None else eps
    out = mul(input, rsqrt(add(mean(square(input), axes, keepdim=True), epsilon)))
    return out if weight is None else mul(out, weight)


@implements("layer_norm")
def layer_norm(
    input: Series,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Series:
    """(x − mean) / √(var + ε), times the weight, plus the bias."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    centred = sub(input, mean(input, axes, keepdim=True))
    out = mul(centred, rsqrt(add(mean(square(centred), axes, keepdim=True), eps)))
    out = out if weight is None else mul(out, weight)
    return out if bias is None else add(out, bias)


@implements("softmax")
def softmax(input: Series, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Series:
    """Softmax along an axis."""
    if dim is None:
        raise unsupported("softmax", "give dim")
    axis = _axis(input, dim)
    weights, total = _weights(input.coefficients if dtype is None else input.coefficients.to(dtype), axis)
    return div(weights, total)


def _axis(x: Series, dim: int) -> int:
    """The axis counted from the end, where coefficients do not shift it."""
    return dim if dim < 0 else dim - x.ndim


def _weights(c: Tensor, axis: int) -> tuple[Series, Series]:
    """exp(x) as a series, and its sum along the axis, both free of the row's common motion.

    Softmax does not change when a row is shifted, so the value is measured from its largest entry and every higher
    coefficient from its mean under the softmax itself: a common drift of the logits then costs no digits. Entries
    masked with −∞ weigh nothing at any order.
    """
    top = c[0].amax(axis, keepdim=True)
    w0 = torch.exp(c[0] - torch.where(torch.isfinite(top), top, torch.zeros_like(top)))
    mass = w0.sum(axis, keepdim=True)
    centre = (w0 * c[1:]).sum(axis, keepdim=True) / mass.clamp(min=torch.finfo(c.dtype).tiny)
    moved = Series(torch.cat([c[:1], c[1:] - centre]))
    weights = chain(moved, w0, lambda y: y[-1])
    total = weights.coefficients.sum(axis, keepdim=True)
    # A row that is masked everywhere has no weights; dividing by one leaves the zeros that torch gives there.
    total = torch.cat([torch.where(total[:1] == 0, torch.ones_like(total[:1]), total[:1]), total[1:]])
    return weights, Series(total)


@implements("logsumexp", "special_logsumexp")
def logsumexp(x: Series, dim: int, keepdim: bool = False) -> Series:
    """The logarithm of Σ e^x along an axis."""
    axis = _axis(x, dim)
    c = x.coefficients
    weights, total = _weights(c, axis)
    mass = weights.coefficients[0]
    centre = (mass * c[1:]).sum(axis, keepdim=True) / total.coefficients[0]
    top = c[0].amax(axis, keepdim=True)
    out = add(log(total), Series(torch.cat([top.unsqueeze(0), centre])))
    return out if keepdim else Series(out.coefficients.squeeze(axis))


@implements("log_softmax")
def log_softmax(
    input: Series, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Series:
    """The input less log Σ e^x along an axis."""
    if dim is None:
        raise unsupported("log_softmax", "give dim")
    x = input if dtype is None else Series(input.coefficients.to(dtype))
    return sub(x, logsumexp(x, _axis(x, dim), keepdim=True))


@implements("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Series:
    """softmax(q kᵀ·scale + mask) v, a few heads at a time."""
    if dropout_p > 0.0:
        raise unsupported("scaled_dot_product_attention", "dropout is random; call model.eval()")
    if isinstance(attn_mask, Series):
        raise unsupported("scaled_dot_product_attention", "a mask that depends on the state")
    n = next(x for x in (query, key, value) if isinstance(x, Series)).coefficients.shape[0]
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    queries, keys = int(query.shape[-2]), int(key.shape[-2])
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call]
    mask = _mask(attn_mask, is_causal, queries, keys, query)
    q, k, v = (_flat_heads(x, batch, n) for x in (query, key, value))
    mask = None if mask is None else mask.expand(*batch, queries, keys).reshape(-1, queries, keys)
    step = max(1, _ATTENTION_ELEMENTS // max(1, n * queries * keys))
    parts = []
    for start in range(0, max(1, batch.numel()), step):
        heads = slice(start, start + step)
        scores = cauchy(q[:, heads], k[:, heads].mT, torch.matmul) * factor
        if mask is not None:
            scores[0] += mask[heads]
        weights, total = _weights(scores, -1)
        parts.append(div(Series(cauchy(weights.coefficients, v[:, heads], torch.matmul)), total).coefficients)
    return Series(torch.cat(parts, 1).reshape(n, *batch, queries, v.shape[-1]))


def _flat_heads(x: Any, batch: torch.Size, n: int) -> Tensor:
    """Coefficients [n, heads, positions, width] of a series or of a constant."""
    if isinstance(x, Series):
        c = lifted(x, len(batch) + 2)
    else:
        c = torch.cat([x.unsqueeze(0), torch.zeros_like(x).expand(n - 1, *x.shape)])
        c = lifted(Series(c), len(batch) + 2)
    return c.expand(n, *batch, *c.shape[-2:]).reshape(n, -1, *c.shape[-2:])


def _mask(attn_mask: Tensor | None, is_causal: bool, queries: int, keys: int, query: Any) -> Tensor | None:
    """The additive mask: 0 where a query sees a key, −∞ where it does not, or what was given."""
    allowed = attn_mask
    if is_causal:
        if attn_mask is not None:
            raise unsupported("scaled_dot_product_attention", "is_causal together with attn_mask")
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    if allowed is None:
        return None
    if allowed.dtype != torch.bool:
        return allowed.to(query.dtype)
    return torch.zeros(allowed.shape, dtype=query.dtype, device=query.device).masked_fill(~allowed, -math.inf)
