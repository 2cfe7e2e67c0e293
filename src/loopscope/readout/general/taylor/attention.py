"""The rule for scaled dot-product attention.

A product of two series has K+1 coefficients Σ_i a_i b_{k−i}, K(K+1)/2 products in all. Laid side by side along the axis
that is summed over, a₀ … a_k against b_k … b₀, they are one matrix product a coefficient, and no sum of products is
written to memory and read again.

Shapes: n coefficients, G heads of all rows, S queries, T keys, P head width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.readout.general.taylor.core import (
    Series,
    implements,
    lifted,
    refused,
    takes_series_kernel,
    unsupported,
)
from loopscope.readout.general.taylor.elementwise import div
from loopscope.readout.general.taylor.normalise import exponentials

_ATTENTION_ELEMENTS = 1 << 25  # of scores at once, all orders counted: bounds the memory of long contexts
_WIDEST_KERNEL = 1 << 13


class Visibility(NamedTuple):
    """Which keys a query sees.

    Attributes:
        mask_MST: bool, or numbers that are added to the scores; None where nothing is masked.
        heads: how many neighbouring heads share one of the M masks.
        causal: query i sees keys up to i.
    """

    mask_MST: Tensor | None
    heads: int
    causal: bool

    def added(self, heads: slice, queries: int, keys: int, like: Tensor) -> Tensor | None:
        """What is added to the scores of some heads: 0 where a query sees a key and −∞ where it does not."""
        mask = self.mask_MST
        if self.causal:
            mask = torch.ones(1, queries, keys, dtype=torch.bool, device=like.device).tril()
        elif mask is not None and mask.shape[0] > 1:
            mask = mask[torch.arange(heads.start, heads.stop, device=mask.device) // self.heads]
        if mask is None or mask.dtype != torch.bool:
            return mask
        return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(~mask, -math.inf)


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
    if isinstance(attn_mask, Series):
        return _plain_attention(query, key, value, attn_mask, scale, enable_gqa)
    if is_causal and attn_mask is not None:
        raise unsupported("scaled_dot_product_attention", "is_causal together with attn_mask")
    n = next(x for x in (query, key, value) if isinstance(x, Series)).coefficients.shape[0]
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    queries, keys = int(query.shape[-2]), int(key.shape[-2])
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call]
    visible = _visibility(attn_mask, is_causal, batch, queries, keys, query.dtype)
    q_GSX = _orders(query, batch, n, -2).reshape(-1, queries, n * query.shape[-1])
    k_GTX = _orders(key, batch, n, -2, backwards=True).reshape(-1, keys, n * key.shape[-1])
    v_GXP = _orders(value, batch, n, -3, backwards=True).reshape(-1, n * keys, value.shape[-1])
    total, step = batch.numel(), max(1, _ATTENTION_ELEMENTS // max(1, n * queries * keys))
    found = []
    for start in range(0, max(1, total), step):
        heads = slice(start, min(start + step, total))
        scores_nGST = _products(q_GSX[heads], k_GTX[heads].mT, n, factor)
        found.append(_attended(scores_nGST, v_GXP[heads], visible, heads))
    out = found[0] if len(found) == 1 else torch.cat(found, 1)
    return Series(out.reshape(n, *batch, queries, value.shape[-1]))


def _plain_attention(query: Any, key: Any, value: Any, mask: Series, scale: float | None, gqa: bool) -> Any:
    """By its formula, for scores to which something is added that depends on the state."""
    if gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return torch.softmax(query @ key.mT * factor + mask, -1) @ value


def _orders(x: Any, batch: torch.Size, n: int, axis: int, *, backwards: bool = False) -> Tensor:
    """The coefficients of a series, or of a constant, along an axis of the value, in one copy."""
    if isinstance(x, Series):
        coefficients = lifted(x, len(batch) + 2)
        orders = [c.expand(*batch, *c.shape[-2:]) for c in coefficients.unbind(0)]
    else:
        orders = [x.expand(*batch, *x.shape[-2:])]
        orders += [torch.zeros_like(x).expand_as(orders[0])] * (n - 1)
    return torch.stack(orders[::-1] if backwards else orders, axis)


def _products(a_GSX: Tensor, b_GXT: Tensor, n: int, factor: float = 1.0) -> Tensor:
    """Coefficients [n, G, S, T] of a product, from a₀ … a_K side by side and b_K … b₀ one below the other."""
    width = b_GXT.shape[1] // n
    pairs = [(a_GSX[:, :, : (k + 1) * width], b_GXT[:, (n - 1 - k) * width :]) for k in range(n)]
    if torch.is_grad_enabled():
        return torch.stack([torch.bmm(a, b) * factor for a, b in pairs])
    out = torch.empty(n, a_GSX.shape[0], a_GSX.shape[1], b_GXT.shape[2], dtype=a_GSX.dtype, device=a_GSX.device)
    for k, (a, b) in enumerate(pairs):
        torch.baddbmm(out[k], a, b, beta=0.0, alpha=factor, out=out[k])
    return out


def _attended(scores_nGST: Tensor, v_GXP: Tensor, visible: Visibility, heads: slice) -> Tensor:
    """The attended values [n, G, S, P]; v_K … v₀ lie one below the other."""
    n, groups, queries, keys = scores_nGST.shape
    mask = visible.mask_MST
    known = mask is None or mask.dtype == torch.bool
    if known and keys <= _WIDEST_KERNEL and takes_series_kernel(scores_nGST):
        from loopscope.readout.general.taylor.kernels import attention_weights

        weights_GSnT = attention_weights(scores_nGST, mask, visible.heads, heads.start, causal=visible.causal)
        return _products(weights_GSnT.reshape(groups, queries, n * keys), v_GXP, n)
    added = visible.added(heads, queries, keys, scores_nGST)
    if added is not None:
        scores_nGST[0] += added
    raised, total = exponentials(scores_nGST, -1)
    raised_GSX = raised.coefficients.permute(1, 2, 0, 3).reshape(groups, queries, n * keys)
    return div(Series(_products(raised_GSX, v_GXP, n)), total).coefficients


def _visibility(
    attn_mask: Tensor | None, is_causal: bool, batch: torch.Size, queries: int, keys: int, dtype: torch.dtype
) -> Visibility:
    if attn_mask is None:
        return Visibility(None, max(1, batch.numel()), is_causal)
    mask = attn_mask if attn_mask.dtype == torch.bool else attn_mask.to(dtype)
    if mask.shape[:-2].numel() == 1:
        return Visibility(mask.expand(*mask.shape[:-2], queries, keys).reshape(1, queries, keys), batch.numel(), False)
    if mask.ndim == len(batch) + 2 and mask.shape[:-2] == (*batch[:-1], 1):
        # One mask for all heads of a row, as models have it.
        return Visibility(mask.expand(*mask.shape[:-2], queries, keys).reshape(-1, queries, keys), batch[-1], False)
    return Visibility(mask.expand(*batch, queries, keys).reshape(-1, queries, keys), 1, False)
