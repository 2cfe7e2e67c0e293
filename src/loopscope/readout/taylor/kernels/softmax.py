"""Attention weights of series: softmax over the keys that a query sees; `taylor.attention` has the plain code.

Every coefficient of the scores is measured from its mean under p₀, the softmax of the values, which changes nothing and
costs no digits: s_k. With e_k the coefficients of p₀·exp(Σ s_k τ^k) and t_k their sums (t₀ = 1, and t₁ = 0 but for
rounding), p_k = e_k − Σ_{i≥1} t_i p_{k−i}.

Shapes: n coefficients, G heads of all rows, S queries, T keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.triton_kernels.language import Value, constexpr, jit, launch, power_of_two, tl

_ENTRIES = 2048


def attention_weights(
    scores_nGST: Tensor, visible_MST: Tensor | None, heads: int, first: int, *, causal: bool
) -> Tensor:
    """The weights, [G, S, n, T], zero where a query does not see a key; orders one to three.

    Args:
        scores_nGST: coefficients of the scores, finite, contiguous.
        visible_MST: bool, the keys each query sees; None where it sees all, or all up to its own place if `causal`.
        heads: neighbouring heads that share one of the M masks.
        first: how many heads come before these: head g has the mask (first + g) // heads.
        causal: query i sees keys up to i.
    """
    n, groups, queries, keys = scores_nGST.shape
    out = torch.empty(groups, queries, n, keys, dtype=scores_nGST.dtype, device=scores_nGST.device)
    block = power_of_two(keys)
    rows = max(1, min(_ENTRIES // block, power_of_two(queries)))
    mask = scores_nGST if visible_MST is None else visible_MST.contiguous().view(torch.uint8)
    launch(
        _attention_weights,
        (groups, -(-queries // rows)),
        scores_nGST,
        scores_nGST,
        mask,
        out,
        groups,
        queries,
        keys,
        heads,
        first,
        mask.stride(0) if visible_MST is not None else 0,
        ORDER=n - 1,
        MASKED=visible_MST is not None,
        CAUSAL=causal,
        ROWS=rows,
        BLOCK=block,
        warps=min(8, max(1, rows * block // 512)),
        fusion=True,
    )
    return out


@jit
def _attention_weights(
    scores: Value,
    mask: Value,
    out: Value,
    groups: Value,
    queries: Value,
    keys: Value,
    heads: Value,
    first: Value,
    mask_stride: Value,
    ORDER: constexpr,
    MASKED: constexpr,
    CAUSAL: constexpr,
    ROWS: constexpr,
    BLOCK: constexpr,
) -> None:
    group = tl.program_id(0).to(tl.int64)
    query = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    key = tl.arange(0, BLOCK)[None, :]
    inside = (query < queries) & (key < keys)
    seen = inside
    if CAUSAL:
        seen = seen & (key <= query)
    if MASKED:
        at = mask + ((first + group) // heads) * mask_stride + query * keys + key
        seen = seen & (tl.load(at, mask=inside, other=0) != 0)
    step = tl.cast(groups, tl.int64) * queries * keys
    here = scores + (group * queries + query) * keys + key
    to = out + (group * queries + query) * (ORDER + 1) * keys + key

    x0 = tl.where(seen, tl.load(here, mask=seen, other=0.0), float("-inf"))
    top = tl.max(x0, axis=1, keep_dims=True)
    w = tl.where(seen, tl.exp(x0 - tl.where(top == float("-inf"), 0.0, top)), 0.0)
    mass = tl.sum(w, axis=1, keep_dims=True)
    p0 = w / tl.where(mass == 0.0, 1.0, mass)
    tl.store(to, p0, mask=inside)

    s1 = tl.load(here + step, mask=seen, other=0.0)
    s1 -= tl.sum(p0 * s1, axis=1, keep_dims=True)
    e1 = p0 * s1
    t1 = tl.sum(e1, axis=1, keep_dims=True)
    p1 = e1 - t1 * p0
    tl.store(to + keys, p1, mask=inside)
    if ORDER >= 2:
        s2 = tl.load(here + 2 * step, mask=seen, other=0.0)
        s2 -= tl.sum(p0 * s2, axis=1, keep_dims=True)
        e2 = p0 * (s2 + 0.5 * s1 * s1)
        t2 = tl.sum(e2, axis=1, keep_dims=True)
        p2 = e2 - t1 * p1 - t2 * p0
        tl.store(to + 2 * keys, p2, mask=inside)
        if ORDER >= 3:
            s3 = tl.load(here + 3 * step, mask=seen, other=0.0)
            s3 -= tl.sum(p0 * s3, axis=1, keep_dims=True)
            e3 = p0 * (s3 + s1 * s2 + s1 * s1 * s1 * (1.0 / 6.0))
            t3 = tl.sum(e3, axis=1, keep_dims=True)
            tl.store(to + 3 * keys, e3 - t1 * p2 - t2 * p1 - t3 * p0, mask=inside)
