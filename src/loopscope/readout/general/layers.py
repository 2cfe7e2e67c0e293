"""Rules for linear maps, products, norms, attention and parts of layers.

A model that offers `gated_silu_joined` and `rotate_own` through torch's own protocol (`__torch_function__`) gets the
rules for these whole operations.

Attention: a product of two series has K+1 coefficients Σ_i a_i b_{k−i}, K(K+1)/2 products in all. Concatenated along
the axis that is summed over, a₀ … a_k against b_k … b₀, they are one matrix product a coefficient, and no sum of
products is written to memory and read again.

Shapes: n coefficients, G heads of all rows, S queries, T keys, P head width, M masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.kernels.product import is_mixed, mixed_linear
from loopscope.readout.general.core import Series, cauchy, implements, lifted, refused, takes_series_kernel, unsupported
from loopscope.readout.general.operations import div, exponentials


@implements("linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Series:
    """The affine map x Wᵀ + b: one product for all coefficients; the bias joins the constant one.

    A float32 series may meet a matrix that is stored in BF16: the product is float32 all the same.
    """
    if not isinstance(input, Series) or isinstance(weight, Series) or isinstance(bias, Series):
        raise unsupported("linear", "a weight that depends on the state")
    c = input.coefficients
    product = mixed_linear if is_mixed(c, weight) else functional.linear
    # As one matrix: of coefficients that are not neighbours in memory torch would make a product each.
    out = product(c.reshape(-1, c.shape[-1]), weight).reshape(*c.shape[:-1], weight.shape[0])
    if bias is not None:
        out[0] += bias
    return Series(out)


@implements("matmul", "mm", "bmm", "mv")
def matmul(input: Any, other: Any) -> Series:
    """A product of matrices, either of them a series or both."""
    row, column = input.ndim == 1, other.ndim == 1
    a, b = input.unsqueeze(0) if row else input, other.unsqueeze(-1) if column else other
    ndim = max(a.ndim, b.ndim)
    if isinstance(a, Series) and isinstance(b, Series):
        out = cauchy(lifted(a, ndim), lifted(b, ndim), torch.matmul)
    else:
        out = torch.matmul(*(lifted(x, ndim) if isinstance(x, Series) else x for x in (a, b)))
    out = out.squeeze(-2) if row else out
    return Series(out.squeeze(-1) if column else out)


_WIDEST_NORM = 1 << 14


@implements("rms_norm")
def rms_norm(
    input: Any, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    """The input over √(mean x² + ε), times the weight."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    epsilon = torch.finfo(input.dtype).eps if eps is None else eps
    same = weight is None or weight.dtype == input.dtype
    if same and len(axes) == 1 and input.shape[-1] <= _WIDEST_NORM and takes_series_kernel(input.coefficients):
        from loopscope.readout.general.kernels import rms_norm as kernel

        return Series(kernel(input.coefficients, weight, epsilon))
    out = input * torch.rsqrt((input * input).mean(axes, keepdim=True) + epsilon)
    return out if weight is None else out * weight


@implements("layer_norm")
def layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """(x − mean) / √(var + ε), times the weight, plus the bias; of tensors too."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    centred = input - input.mean(axes, keepdim=True)
    out = centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


@implements("gated_silu_joined")
def gated_silu_joined(both: Series, plain: bool = False, impl: Any = None) -> Any:
    """silu(gate) · up from gate and up next to each other, [..., 2F] → [..., F], gate first."""
    c = both.coefficients
    if takes_series_kernel(c, impl):
        from loopscope.readout.general.kernels import gated_silu

        return Series(gated_silu(c))
    gate, up = both.chunk(2, -1)
    return functional.silu(gate) * up


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
    sizes, axis = ((2, -1), -2) if tables.layout == "half" else ((-1, 2), -1)
    a, b = c.unflatten(-1, sizes).unbind(axis)  # type: ignore[no-untyped-call]
    cos, sin = (table.unflatten(-1, sizes).select(axis, 0) for table in (tables.cos, tables.sin))
    return torch.stack([a * cos - b * sin, b * cos + a * sin], axis).flatten(-2).to(c.dtype)


def _as_complex(c: Tensor) -> Tensor:
    pairs = c.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    even = c.storage_offset() % 2 == 0 and all(stride % 2 == 0 for stride in pairs.stride()[:-1])
    return torch.view_as_complex(pairs if even and pairs.stride(-1) == 1 else pairs.contiguous())


_ATTENTION_ELEMENTS = 1 << 25  # of scores at once, all orders counted: bounds the memory of long contexts
_WIDEST_ATTENTION = 1 << 13


@implements("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q kᵀ·scale + mask) v, a few heads at a time."""
    if dropout_p > 0.0:
        raise refused("scaled_dot_product_attention", "dropout is random; call model.eval().")
    if isinstance(attn_mask, Series) or (is_causal and attn_mask is not None):
        raise unsupported("scaled_dot_product_attention", "this mask")
    n = next(x for x in (query, key, value) if isinstance(x, Series)).coefficients.shape[0]
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    queries, keys = int(query.shape[-2]), int(key.shape[-2])
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call]
    if is_causal:
        attn_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    mask_MST, shared = _masks(attn_mask, batch, queries, keys)
    q_GSX = _orders(query, batch, n, -2).reshape(-1, queries, n * query.shape[-1])
    k_GTX = _orders(key, batch, n, -2, backwards=True).reshape(-1, keys, n * key.shape[-1])
    v_GXP = _orders(value, batch, n, -3, backwards=True).reshape(-1, n * keys, value.shape[-1])
    total, step = batch.numel(), max(1, _ATTENTION_ELEMENTS // max(1, n * queries * keys))
    found = []
    for start in range(0, max(1, total), step):
        heads = slice(start, min(start + step, total))
        scores_nGST = _products(q_GSX[heads], k_GTX[heads].mT, n, factor)
        found.append(_attended(scores_nGST, v_GXP[heads], mask_MST, shared, start))
    out = found[0] if len(found) == 1 else torch.cat(found, 1)
    return Series(out.reshape(n, *batch, queries, value.shape[-1]))


def _masks(mask: Tensor | None, batch: torch.Size, queries: int, keys: int) -> tuple[Tensor | None, int]:
    """The masks [M, S, T], and how many neighbouring heads share one."""
    if mask is None or mask.shape[:-2].numel() == 1:
        shape = (1, queries, keys)
        return None if mask is None else mask.reshape(mask.shape[-2:]).expand(shape), max(1, batch.numel())
    by_row = mask.ndim == len(batch) + 2 and mask.shape[-3] == 1  # one mask for all heads of a row, as models have it
    leading = (*batch[:-1], 1) if by_row else batch
    return mask.expand(*leading, queries, keys).reshape(-1, queries, keys), batch[-1] if by_row else 1


def _orders(x: Any, batch: torch.Size, n: int, axis: int, *, backwards: bool = False) -> Tensor:
    """The coefficients of a series, or of a constant, along an axis of the value, in one copy."""
    if isinstance(x, Series):
        orders = [c.expand(*batch, *c.shape[-2:]) for c in lifted(x, len(batch) + 2).unbind(0)]
    else:
        whole = x.expand(*batch, *x.shape[-2:])
        orders = [whole] + [torch.zeros_like(x).expand_as(whole)] * (n - 1)
    return torch.stack(orders[::-1] if backwards else orders, axis)


def _products(a_GSX: Tensor, b_GXT: Tensor, n: int, factor: float = 1.0) -> Tensor:
    """Coefficients [n, G, S, T] of a product, from a₀ … a_K in one row and b_K … b₀ in one column."""
    width = b_GXT.shape[1] // n
    pairs = [(a_GSX[:, :, : (k + 1) * width], b_GXT[:, (n - 1 - k) * width :]) for k in range(n)]
    if torch.is_grad_enabled():
        return torch.stack([torch.bmm(a, b) * factor for a, b in pairs])
    out = torch.empty(n, a_GSX.shape[0], a_GSX.shape[1], b_GXT.shape[2], dtype=a_GSX.dtype, device=a_GSX.device)
    for k, (a, b) in enumerate(pairs):
        torch.baddbmm(out[k], a, b, beta=0.0, alpha=factor, out=out[k])
    return out


def _attended(scores_nGST: Tensor, v_GXP: Tensor, mask_MST: Tensor | None, shared: int, first: int) -> Tensor:
    """The attended values [n, G, S, P] of heads from `first` on; v_K … v₀ lie one below the other."""
    n, groups, queries, keys = scores_nGST.shape
    added = mask_MST is not None and mask_MST.dtype != torch.bool
    if not added and keys <= _WIDEST_ATTENTION and takes_series_kernel(scores_nGST):
        from loopscope.readout.general.kernels import attention_weights

        weights_GSnT = attention_weights(scores_nGST, mask_MST, shared, first)
        return _products(weights_GSnT.reshape(groups, queries, n * keys), v_GXP, n)
    if mask_MST is not None:
        heads = torch.arange(first, first + groups, device=mask_MST.device) // shared
        mask_GST = mask_MST if mask_MST.shape[0] == 1 else mask_MST[heads]
        scores_nGST[0] += mask_GST.to(scores_nGST.dtype) if added else torch.where(mask_GST, 0.0, -math.inf)
    raised, total = exponentials(scores_nGST, -1)
    raised_GSX = raised.coefficients.permute(1, 2, 0, 3).reshape(groups, queries, n * keys)
    return div(Series(_products(raised_GSX, v_GXP, n)), total).coefficients
