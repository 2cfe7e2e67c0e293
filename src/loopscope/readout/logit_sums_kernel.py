"""The sums over the vocabulary that a token's derivatives are made of, in one pass over its logit coefficients.

Each program takes a stretch of one token's vocabulary; the stretches are added in a fixed order. Everything after the
loads is float64. `token_derivatives` has the plain code.

Shapes: n coefficients, t tokens, V vocabulary entries, S stretches of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.triton_kernels.language import Value, constexpr, jit, launch, power_of_two, tl

_STRETCH = 8192
_BLOCK = 512


def logit_sums(c_ntV: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest entry d of every token, int64 [t], and the seven sums seen from it, float64 [7, t].

    With weights e^{z_a − z_d} and x_k the k-th coefficient less d's: Σ_{a≠d} 1, then the sums of x₁, x₂, x₃, x₁², x₁x₂
    and x₁³. Sums of coefficients that are not there are zero.
    """
    c = c_ntV if c_ntV.stride(2) == 1 else c_ntV.contiguous()
    n, tokens, vocabulary = c.shape
    likeliest_t = c[0].argmax(1)
    stretches = -(-vocabulary // _STRETCH)
    sums_S7t = torch.zeros(stretches, 7, tokens, dtype=torch.float64, device=c.device)
    launch(
        _logit_sums,
        (tokens, stretches),
        c,
        c,
        likeliest_t,
        sums_S7t,
        tokens,
        vocabulary,
        c.stride(0),
        c.stride(1),
        ORDER=n - 1,
        STRETCH=_STRETCH,
        BLOCK=min(_BLOCK, power_of_two(vocabulary)),
    )
    return likeliest_t, sums_S7t.sum(0)


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
    STRETCH: constexpr,
    BLOCK: constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    step = tl.cast(order_stride, tl.int64)
    d = tl.load(likeliest + token)
    z0 = c + token * token_stride
    z1 = z0 + step
    z2 = z1 + step
    z3 = z2 + step
    d0 = tl.load(z0 + d).to(tl.float64)
    zero = tl.zeros((BLOCK,), dtype=tl.float64)
    mass, s1, s2, s3, s11, s12, s111 = zero, zero, zero, zero, zero, zero, zero
    d1 = d0
    d2 = d0
    d3 = d0
    if ORDER >= 1:
        d1 = tl.load(z1 + d).to(tl.float64)
    if ORDER >= 2:
        d2 = tl.load(z2 + d).to(tl.float64)
    if ORDER >= 3:
        d3 = tl.load(z3 + d).to(tl.float64)
    first = tl.program_id(1) * STRETCH
    for start in range(first, min(first + STRETCH, vocabulary), BLOCK):
        entry = start + tl.arange(0, BLOCK)
        counted = (entry < vocabulary) & (entry != d)
        w = tl.load(z0 + entry, mask=counted, other=0.0).to(tl.float64) - d0
        w = tl.where(counted, tl.exp(w), 0.0)
        mass += w
        if ORDER >= 1:
            x1 = tl.load(z1 + entry, mask=counted, other=0.0).to(tl.float64) - d1
            w1 = w * x1
            s1 += w1
        if ORDER >= 2:
            x2 = tl.load(z2 + entry, mask=counted, other=0.0).to(tl.float64) - d2
            s2 += w * x2
            s11 += w1 * x1
        if ORDER >= 3:
            x3 = tl.load(z3 + entry, mask=counted, other=0.0).to(tl.float64) - d3
            s3 += w * x3
            s12 += w1 * x2
            s111 += w1 * x1 * x1
    here = sums + tl.program_id(1).to(tl.int64) * 7 * tokens + token
    tl.store(here, tl.sum(mass, axis=0))
    if ORDER >= 1:
        tl.store(here + tokens, tl.sum(s1, axis=0))
    if ORDER >= 2:
        tl.store(here + 2 * tokens, tl.sum(s2, axis=0))
        tl.store(here + 4 * tokens, tl.sum(s11, axis=0))
    if ORDER >= 3:
        tl.store(here + 3 * tokens, tl.sum(s3, axis=0))
        tl.store(here + 5 * tokens, tl.sum(s12, axis=0))
        tl.store(here + 6 * tokens, tl.sum(s111, axis=0))
