"""Attention of sequences that share how they begin, as one Triton kernel: keys and values are read where they stand.

A row of `packing` holds what its sequences share and then what is each one's own. A program takes some positions of one
row and one head, and passes over the keys that any of them sees: what is shared, and its own part. Scores and their sum
are float32, and weights are rounded to the values' dtype, as in the fused kernels of `varlen`, which instead need the
shared keys once for every sequence. Nothing depends on what else is in the batch. `attention` has the plain code.

Shapes: N positions, H heads, K key-value heads, P head width; in a program M positions that ask, T keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl

_ASKING, _KEYS, _WARPS, _STAGES = 64, 32, 4, 2
_LEAST = 16
"""What a product of the kernel has at least."""


def attend_shared(
    q_NHP: Tensor,
    k_NKP: Tensor,
    v_NKP: Tensor,
    rows: Tensor,
    shared: Tensor,
    own_N: Tensor,
    longest_row: int,
) -> Tensor:
    """The attended values of every position, [N, H, P]; entries of a head must be neighbours in memory."""
    tokens, heads, width = q_NHP.shape
    out = torch.empty(tokens, heads, width, dtype=q_NHP.dtype, device=q_NHP.device)
    asking = min(_ASKING, max(_LEAST, power_of_two(longest_row)))
    launch(
        _attend_shared,
        (heads, len(shared), -(-longest_row // asking)),
        q_NHP,
        q_NHP,
        k_NKP,
        v_NKP,
        out,
        rows,
        shared,
        own_N,
        math.log2(math.e) * width**-0.5,
        *q_NHP.stride()[:2],
        *k_NKP.stride()[:2],
        *v_NKP.stride()[:2],
        heads // k_NKP.shape[1],
        width,
        M=asking,
        T=_KEYS,
        P=max(_LEAST, power_of_two(width)),
        warps=_WARPS,
        num_stages=_STAGES,
        fusion=True,
    )
    return out


@jit
def _attend_shared(
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    row_begins: Value,
    row_shared: Value,
    own_begins: Value,
    scale: Value,
    q_stride: Value,
    q_head_stride: Value,
    k_stride: Value,
    k_head_stride: Value,
    v_stride: Value,
    v_head_stride: Value,
    heads_a_key: Value,
    width: Value,
    M: constexpr,
    T: constexpr,
    P: constexpr,
) -> None:
    head, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = tl.load(row_begins + row), tl.load(row_begins + row + 1)
    first = begin + tl.program_id(2) * M
    if first >= end:
        return
    shared_end, last = begin + tl.load(row_shared + row), tl.minimum(first + M, end)
    asking_M = first + tl.arange(0, M)
    there_M = asking_M < end
    own_M = tl.load(own_begins + asking_M, mask=there_M, other=end)
    column_P = tl.arange(0, P)
    inside_P = column_P < width
    at_M, key_head = asking_M.to(tl.int64), head // heads_a_key
    q_MP = tl.load(
        q + at_M[:, None] * q_stride + head * q_head_stride + column_P[None, :],
        mask=there_M[:, None] & inside_P[None, :],
        other=0.0,
    )
    # Blocks of keys are counted from the row's begin: those with anything shared, then those from the first own key on.
    before = (tl.minimum(shared_end, last) - begin + T - 1) // T
    own = tl.maximum(before, (tl.min(own_M, axis=0) - begin) // T)
    blocks = before + tl.maximum((last - begin + T - 1) // T - own, 0)
    most_M = tl.full((M,), float("-inf"), tl.float32)
    sum_M = tl.zeros((M,), tl.float32)
    mixed_MP = tl.zeros((M, P), tl.float32)
    for block in range(0, blocks):
        key_T = begin + tl.where(block < before, block, own + block - before) * T + tl.arange(0, T)
        at_T, known_T = key_T.to(tl.int64), key_T < last
        k_PT = tl.load(
            k + at_T[None, :] * k_stride + key_head * k_head_stride + column_P[:, None],
            mask=known_T[None, :] & inside_P[:, None],
            other=0.0,
        )
        scores_MT = tl.dot(q_MP, k_PT) * scale
        seen_MT = (key_T[None, :] < shared_end) | (key_T[None, :] >= own_M[:, None])
        seen_MT &= key_T[None, :] <= asking_M[:, None]
        scores_MT = tl.where(seen_MT, scores_MT, float("-inf"))
        # Every position sees the row's first key, so that the largest score is finite from the first block on.
        larger_M = tl.maximum(most_M, tl.max(scores_MT, axis=1))
        fade_M = tl.exp2(most_M - larger_M)
        weights_MT = tl.exp2(scores_MT - larger_M[:, None])
        sum_M = sum_M * fade_M + tl.sum(weights_MT, axis=1)
        v_TP = tl.load(
            v + at_T[:, None] * v_stride + key_head * v_head_stride + column_P[None, :],
            mask=known_T[:, None] & inside_P[None, :],
            other=0.0,
        )
        mixed_MP = tl.dot(weights_MT.to(v_TP.dtype), v_TP, mixed_MP * fade_M[:, None])
        most_M = larger_M
    mixed_MP = mixed_MP / sum_M[:, None]
    tl.store(
        out + (at_M[:, None] * tl.num_programs(0) + head) * width + column_P[None, :],
        mixed_MP.to(out.dtype.element_ty),
        mask=there_M[:, None] & inside_P[None, :],
    )
