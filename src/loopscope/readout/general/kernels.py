"""Kernels for Taylor mode on a GPU: all coefficients up to the third in one pass; the rules have the plain code.

**Gated activation.** With σ = sigmoid(g₀) and δ = σ(1−σ), the coefficients of sigmoid(g) are σ, δg₁, δg₂ + ½δ'g₁² and
δg₃ + δ'g₁g₂ + ⅙δ''g₁³, where δ' = δ(1−2σ) and δ'' = δ(1−6δ).

**RMS norm.** With m(τ) the mean square plus ε, 2⟨x₀,x₁⟩ and so on, r = m^(−1/2) has r₁ = −½ρ₁r₀,
r₂ = r₀(⅜ρ₁² − ½ρ₂) and r₃ = r₀(−5⁄16 ρ₁³ + ¾ρ₁ρ₂ − ½ρ₃), where ρ_k = m_k/m₀; the result is the series
product x·r times the weight.

**Attention weights.** Every coefficient of the scores is measured from its mean under p₀, the softmax of the values,
which changes nothing and costs no digits: s_k. With e_k the coefficients of p₀·exp(Σ s_k τ^k) and t_k their sums
(t₀ = 1, and t₁ = 0 but for rounding), p_k = e_k − Σ_{i≥1} t_i p_{k−i}.

**Sums over the vocabulary** that a token's derivatives are made of: each program takes a block of one token's
vocabulary; the blocks are added in a fixed order. Everything after the loads is float64.

Shapes: n coefficients, G heads of all rows, S queries, T keys, t tokens, V vocabulary entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl

_BLOCK = 512


def gated_silu(c: Tensor) -> Tensor:
    """Coefficients [n, ..., 2F], gate first, → [n, ..., F]; orders one to three."""
    n, width = c.shape[0], c.shape[-1] // 2
    both = c.contiguous()
    out = torch.empty(*c.shape[:-1], width, dtype=c.dtype, device=c.device)
    rows = out[0].numel() // width
    block = min(_BLOCK, power_of_two(width))
    launch(_gated_silu, (rows, -(-width // block)), c, both, out, rows, width, ORDER=n - 1, BLOCK=block, fusion=True)
    return out


@jit
def _gated_silu(both: Value, out: Value, rows: Value, width: Value, ORDER: constexpr, BLOCK: constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    step_in = tl.cast(rows, tl.int64) * 2 * width
    step_out = tl.cast(rows, tl.int64) * width
    gate = both + row * 2 * width + columns
    up = gate + width
    to = out + row * width + columns

    g0 = tl.load(gate, mask=inside, other=0.0)
    u0 = tl.load(up, mask=inside, other=0.0)
    # Both sigmoid(g) and 1 − sigmoid(g) without a difference, so that a saturated gate keeps its derivatives.
    small = tl.exp(-tl.abs(g0))
    near, far = 1.0 / (1.0 + small), small / (1.0 + small)
    y0 = tl.where(g0 >= 0, near, far)
    delta = near * far
    a0 = g0 * y0
    tl.store(to, a0 * u0, mask=inside)

    g1 = tl.load(gate + step_in, mask=inside, other=0.0)
    u1 = tl.load(up + step_in, mask=inside, other=0.0)
    y1 = delta * g1
    a1 = g0 * y1 + g1 * y0
    tl.store(to + step_out, a0 * u1 + a1 * u0, mask=inside)
    if ORDER >= 2:
        g2 = tl.load(gate + 2 * step_in, mask=inside, other=0.0)
        u2 = tl.load(up + 2 * step_in, mask=inside, other=0.0)
        tilt = tl.where(g0 >= 0, far - near, near - far)
        y2 = delta * (g2 + 0.5 * tilt * g1 * g1)
        a2 = g0 * y2 + g1 * y1 + g2 * y0
        tl.store(to + 2 * step_out, a0 * u2 + a1 * u1 + a2 * u0, mask=inside)
        if ORDER >= 3:
            g3 = tl.load(gate + 3 * step_in, mask=inside, other=0.0)
            u3 = tl.load(up + 3 * step_in, mask=inside, other=0.0)
            y3 = delta * (g3 + tilt * g1 * g2 + (1.0 - 6.0 * delta) * g1 * g1 * g1 * (1.0 / 6.0))
            a3 = g0 * y3 + g1 * y2 + g2 * y1 + g3 * y0
            tl.store(to + 3 * step_out, a0 * u3 + a1 * u2 + a2 * u1 + a3 * u0, mask=inside)


def rms_norm(c: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Coefficients [n, ..., D] over the last dimension; orders one to three."""
    n, width = c.shape[0], c.shape[-1]
    rows, block = c.contiguous(), power_of_two(width)
    out, count, warps = torch.empty_like(rows), rows[0].numel() // width, min(16, max(1, block // 256))
    scale = c.new_ones(width) if weight is None else weight
    launch(
        _rms_norm, (count,), c, rows, scale, out, count, width, eps, ORDER=n - 1, BLOCK=block, warps=warps, fusion=True
    )
    return out


@jit
def _rms_norm(
    x: Value, weight: Value, out: Value, rows: Value, width: Value, eps: Value, ORDER: constexpr, BLOCK: constexpr
) -> None:
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    step = tl.cast(rows, tl.int64) * width
    here = tl.program_id(0).to(tl.int64) * width + columns
    scale = tl.load(weight + columns, mask=inside, other=0.0)
    x0 = tl.load(x + here, mask=inside, other=0.0)
    x1 = tl.load(x + step + here, mask=inside, other=0.0)
    m0 = tl.sum(x0 * x0, axis=0) / width + eps
    r0 = 1.0 / tl.sqrt(m0)
    per = 1.0 / (m0 * width)
    p1 = 2.0 * tl.sum(x0 * x1, axis=0) * per
    r1 = -0.5 * p1 * r0
    tl.store(out + here, x0 * r0 * scale, mask=inside)
    tl.store(out + step + here, (x0 * r1 + x1 * r0) * scale, mask=inside)
    if ORDER >= 2:
        x2 = tl.load(x + 2 * step + here, mask=inside, other=0.0)
        p2 = tl.sum(2.0 * x0 * x2 + x1 * x1, axis=0) * per
        r2 = (0.375 * p1 * p1 - 0.5 * p2) * r0
        tl.store(out + 2 * step + here, (x0 * r2 + x1 * r1 + x2 * r0) * scale, mask=inside)
        if ORDER >= 3:
            x3 = tl.load(x + 3 * step + here, mask=inside, other=0.0)
            p3 = 2.0 * tl.sum(x0 * x3 + x1 * x2, axis=0) * per
            r3 = (-0.3125 * p1 * p1 * p1 + 0.75 * p1 * p2 - 0.5 * p3) * r0
            tl.store(out + 3 * step + here, (x0 * r3 + x1 * r2 + x2 * r1 + x3 * r0) * scale, mask=inside)


_ENTRIES = 2048


def attention_weights(scores_nGST: Tensor, visible_MST: Tensor | None, heads: int, first: int) -> Tensor:
    """The weights, [G, S, n, T], zero where a query does not see a key; orders one to three.

    Args:
        scores_nGST: coefficients of the scores, finite, contiguous.
        visible_MST: bool, the keys each query sees; None where it sees all.
        heads: neighbouring heads that share one of the M masks.
        first: how many heads come before these: head g has the mask (first + g) // heads.
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
        ORDER=n - 1,
        MASKED=visible_MST is not None,
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
    ORDER: constexpr,
    MASKED: constexpr,
    ROWS: constexpr,
    BLOCK: constexpr,
) -> None:
    group = tl.program_id(0).to(tl.int64)
    query = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    key = tl.arange(0, BLOCK)[None, :]
    inside = (query < queries) & (key < keys)
    seen = inside
    if MASKED:
        at = mask + (((first + group) // heads) * queries + query) * keys + key
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


_VOCABULARY_BLOCK = 8192


def logit_sums(c_ntV: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest entry d of every token, int64 [t], and seven sums seen from it, float64 [7, t].

    With weights e^{z_a − z_d} and x_k the k-th coefficient less d's: Σ_{a≠d} 1, then those of x₁, x₂, x₃, x₁², x₁x₂ and
    x₁³. Sums of coefficients that are not there are zero.
    """
    c = c_ntV if c_ntV.stride(2) == 1 else c_ntV.contiguous()
    n, tokens, vocabulary = c.shape
    likeliest_t = c[0].argmax(1)
    blocks = -(-vocabulary // _VOCABULARY_BLOCK)
    sums_B7t = torch.empty(blocks, 7, tokens, dtype=torch.float64, device=c.device)
    launch(
        _logit_sums,
        (tokens, blocks),
        c,
        c,
        likeliest_t,
        sums_B7t,
        tokens,
        vocabulary,
        c.stride(0),
        c.stride(1),
        ORDER=n - 1,
        VOCABULARY_BLOCK=_VOCABULARY_BLOCK,
        TILE=min(_BLOCK, power_of_two(vocabulary)),
    )
    return likeliest_t, sums_B7t.sum(0)


@jit
def _logit_sums(
    c: Value,
    likeliest: Value,
    sums: Value,
    tokens: Value,
    vocabulary: Value,
    order_stride: Value,
    token_stride: Value,
    ORDER: constexpr,
    VOCABULARY_BLOCK: constexpr,
    TILE: constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    step = tl.cast(order_stride, tl.int64)
    z = c + token * token_stride
    d = tl.load(likeliest + token)
    d0 = tl.load(z + d).to(tl.float64)
    d1, d2, d3 = d0, d0, d0
    if ORDER >= 1:
        d1 = tl.load(z + d + step).to(tl.float64)
    if ORDER >= 2:
        d2 = tl.load(z + d + 2 * step).to(tl.float64)
    if ORDER >= 3:
        d3 = tl.load(z + d + 3 * step).to(tl.float64)
    zero = tl.zeros((TILE,), dtype=tl.float64)
    mass, s1, s2, s3, s11, s12, s111 = zero, zero, zero, zero, zero, zero, zero
    first = tl.program_id(1) * VOCABULARY_BLOCK
    for start in range(first, min(first + VOCABULARY_BLOCK, vocabulary), TILE):
        entry = start + tl.arange(0, TILE)
        counted = (entry < vocabulary) & (entry != d)
        w = tl.load(z + entry, mask=counted, other=0.0).to(tl.float64) - d0
        w = tl.where(counted, tl.exp(w), 0.0)
        mass += w
        if ORDER >= 1:
            x1 = tl.load(z + step + entry, mask=counted, other=0.0).to(tl.float64) - d1
            w1 = w * x1
            s1 += w1
        if ORDER >= 2:
            x2 = tl.load(z + 2 * step + entry, mask=counted, other=0.0).to(tl.float64) - d2
            s2 += w * x2
            s11 += w1 * x1
        if ORDER >= 3:
            x3 = tl.load(z + 3 * step + entry, mask=counted, other=0.0).to(tl.float64) - d3
            s3 += w * x3
            s12 += w1 * x2
            s111 += w1 * x1 * x1
    here = sums + tl.program_id(1).to(tl.int64) * 7 * tokens + token
    tl.store(here, tl.sum(mass, axis=0))
    tl.store(here + tokens, tl.sum(s1, axis=0))
    tl.store(here + 2 * tokens, tl.sum(s2, axis=0))
    tl.store(here + 3 * tokens, tl.sum(s3, axis=0))
    tl.store(here + 4 * tokens, tl.sum(s11, axis=0))
    tl.store(here + 5 * tokens, tl.sum(s12, axis=0))
    tl.store(here + 6 * tokens, tl.sum(s111, axis=0))
