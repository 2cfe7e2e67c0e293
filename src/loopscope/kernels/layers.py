"""The layers' Triton kernels; `models.layers` has the plain code and its roundings.

    rms_norm           y = round(x / sqrt(mean(x²) + eps)) · weight
    add_branch         s = x + branch_norm(branch),   x' = sum_norm(s),   next = next_norm(x'); a norm may be absent
    gated_silu         silu(gate) · up, straight from the product that holds both side by side
    rotate_in_place    queries and keys rotated by their positions where they are in memory
    attend_shared      attention of sequences that share how they begin

Norms are taken in float32 but for the rounding, which is to the weight's dtype. A program of `rotate_in_place` takes
some heads of one position: with tables of the state's own dtype every product is rounded to it before it is added;
with float32 tables only the sum is rounded.

A row of `packing` holds what its sequences share and then what is each one's own. A program of `attend_shared` takes
some positions of one row and one head, and passes over the keys that any of them sees, where they are: what is shared,
and its own part. Scores and their sum are float32, and weights are rounded to the values' dtype, as in torch's fused
kernels, which instead need the shared keys once for every sequence. Nothing depends on what else is in the batch.

Shapes: N positions, H heads, K key-value heads, P head width; in a program M positions that ask, T keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension; `weight` has x's dtype."""
    return add_branch(x, None, (None, None, weight), (0.0, 0.0, eps))[1]


def add_branch(
    x: Tensor, branch: Tensor | None, weights: Sequence[Tensor | None], eps: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The sum x' and next (x' itself where there is no norm for it); weights and eps of the three norms in order.

    Without a branch x is the sum.
    """
    width = x.shape[-1]
    rows = x.contiguous()
    added = rows if branch is None else torch.empty_like(rows)
    following = added if weights[2] is None else torch.empty_like(rows)
    block = power_of_two(width)
    launch(
        _add_branch,
        (x.numel() // width,),
        x,
        rows,
        rows if branch is None else branch.contiguous(),
        *(rows if weight is None else weight for weight in weights),
        added,
        following,
        width,
        *eps,
        JOINS=branch is not None,
        BRANCH=weights[0] is not None,
        SUM=weights[1] is not None,
        NEXT=weights[2] is not None,
        BLOCK=block,
        warps=min(16, max(1, block // 512)),  # sixteen entries a thread, or more in wide rows
    )
    return added, following


@jit
def _normed(values: Value, weight: Value, columns: Value, inside: Value, width: Value, eps: Value) -> Value:
    """A row held in float32; the product with the weight is the caller's to round. Beyond the width all is zero."""
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    rounded = (values * scale).to(weight.dtype.element_ty).to(tl.float32)
    return rounded * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)


@jit
def _add_branch(
    x: Value, branch: Value, branch_weight: Value, sum_weight: Value, next_weight: Value, added: Value,
    following: Value, width: Value, branch_eps: Value, sum_eps: Value, next_eps: Value, JOINS: constexpr,
    BRANCH: constexpr, SUM: constexpr, NEXT: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    dtype = added.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
    if JOINS:
        joining = tl.load(branch + row + columns, mask=inside, other=0.0).to(tl.float32)
        if BRANCH:
            joining = _normed(joining, branch_weight, columns, inside, width, branch_eps).to(dtype).to(tl.float32)
        total = (total + joining).to(dtype).to(tl.float32)
        if SUM:
            total = _normed(total, sum_weight, columns, inside, width, sum_eps).to(dtype).to(tl.float32)
        tl.store(added + row + columns, total.to(dtype), mask=inside)
    if NEXT:
        normed = _normed(total, next_weight, columns, inside, width, next_eps)
        tl.store(following + row + columns, normed.to(dtype), mask=inside)


_BLOCK = 1024


def gated_silu(both: Tensor) -> Tensor:
    """[..., 2F], gate first, → [..., F]."""
    width = both.shape[-1] // 2
    rows = both.contiguous()
    out = torch.empty(*both.shape[:-1], width, dtype=both.dtype, device=both.device)
    block = min(_BLOCK, power_of_two(width))
    grid = (out.numel() // width, -(-width // block))
    launch(_gated_silu, grid, both, rows, out, width, BLOCK=block)
    return out


@jit
def _gated_silu(both: Value, out: Value, width: Value, BLOCK: constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(both + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, (active * up).to(out.dtype.element_ty), mask=inside)


_HEADS = 32


def rotate_in_place(
    x_BSHP: Tensor, cos_BS1P: Tensor, sin_BS1P: Tensor, bias_HP: Tensor | None, *, interleaved: bool
) -> Tensor:
    """`x` itself, with `bias` added and turned; entries of a head must be neighbours in memory."""
    rows, width, heads, head_width = x_BSHP.shape
    pairs = head_width // 2
    block = min(_HEADS, power_of_two(heads))
    launch(
        _rotate,
        (rows * width, -(-heads // block)),
        x_BSHP,
        *(x_BSHP, x_BSHP if bias_HP is None else bias_HP, cos_BS1P, sin_BS1P),
        *(width, heads, pairs, *x_BSHP.stride()[:3]),
        *(cos_BS1P.stride(0) if cos_BS1P.shape[0] > 1 else 0, cos_BS1P.stride(1)),
        BIAS=bias_HP is not None,
        INTERLEAVED=interleaved,
        ROUNDED=cos_BS1P.dtype == x_BSHP.dtype,
        HEADS=block,
        PAIRS=power_of_two(pairs),
    )
    return x_BSHP


@jit
def _rotate(
    x: Value, bias: Value, cos: Value, sin: Value, positions: Value, heads: Value, pairs: Value, row_stride: Value,
    position_stride: Value, head_stride: Value, table_row_stride: Value, table_position_stride: Value,
    BIAS: constexpr, INTERLEAVED: constexpr, ROUNDED: constexpr, HEADS: constexpr, PAIRS: constexpr,
) -> None:  # fmt: skip
    dtype = x.dtype.element_ty
    row = (tl.program_id(0) // positions).to(tl.int64)
    position = (tl.program_id(0) % positions).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    base = x + row * row_stride + position * position_stride + head * head_stride
    a, b = _pairs(base, head < heads, pairs, INTERLEAVED, HEADS, PAIRS)
    if BIAS:
        first, second = _pairs(bias + head * (2 * pairs), head < heads, pairs, INTERLEAVED, HEADS, PAIRS)
        a, b = (a + first).to(dtype).to(tl.float32), (b + second).to(dtype).to(tl.float32)

    table = row * table_row_stride + position * table_position_stride + (pair * 2 if INTERLEAVED else pair)
    c = tl.load(cos + table, mask=pair < pairs, other=0.0).to(tl.float32)
    s = tl.load(sin + table, mask=pair < pairs, other=0.0).to(tl.float32)
    ac, bs, bc, a_s = a * c, b * s, b * c, a * s
    if ROUNDED:
        ac, bs = ac.to(dtype).to(tl.float32), bs.to(dtype).to(tl.float32)
        bc, a_s = bc.to(dtype).to(tl.float32), a_s.to(dtype).to(tl.float32)
    one, two = (ac - bs).to(dtype), (bc + a_s).to(dtype)
    if INTERLEAVED:
        column = tl.arange(0, 2 * PAIRS)[None, :]
        both = tl.reshape(tl.join(one, two), (HEADS, 2 * PAIRS))
        tl.store(base + column, both, mask=(head < heads) & (column < 2 * pairs))
    else:
        inside = (head < heads) & (pair < pairs)
        tl.store(base + pair, one, mask=inside)
        tl.store(base + pair + pairs, two, mask=inside)


@jit
def _pairs(
    base: Value, there: Value, pairs: Value, INTERLEAVED: constexpr, HEADS: constexpr, PAIRS: constexpr
) -> tuple[Value, Value]:
    """The first and the second entries of all pairs, [HEADS, PAIRS] in float32.

    Pairs of neighbours are read as they lie in memory and taken apart in registers: entries two apart, read one by one,
    would take the memory twenty times as long.
    """
    if INTERLEAVED:
        column = tl.arange(0, 2 * PAIRS)[None, :]
        both = tl.load(base + column, mask=there & (column < 2 * pairs), other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(both, (HEADS, PAIRS, 2)))
    else:
        pair = tl.arange(0, PAIRS)[None, :]
        inside = there & (pair < pairs)
        first = tl.load(base + pair, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(base + pairs + pair, mask=inside, other=0.0).to(tl.float32)
    return first, second


_ASKING, _KEYS, _WARPS, _STAGES = 64, 32, 4, 2
_LEAST = 16
"""What a product of the kernel has at least."""


def attend_shared(
    q_NHP: Tensor, k_NKP: Tensor, v_NKP: Tensor, rows: Tensor, shared: Tensor, own_N: Tensor, longest_row: int
) -> Tensor:
    """The attended values of every position, [N, H, P]; entries of a head must be neighbours in memory."""
    tokens, heads, width = q_NHP.shape
    out = torch.empty(tokens, heads, width, dtype=q_NHP.dtype, device=q_NHP.device)
    asking = min(_ASKING, max(_LEAST, power_of_two(longest_row)))
    launch(
        _attend_shared,
        (heads, len(shared), -(-longest_row // asking)),
        q_NHP,
        *(q_NHP, k_NKP, v_NKP, out, rows, shared, own_N),
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
    q: Value, k: Value, v: Value, out: Value, row_begins: Value, row_shared: Value, own_begins: Value, scale: Value,
    q_stride: Value, q_head_stride: Value, k_stride: Value, k_head_stride: Value, v_stride: Value,
    v_head_stride: Value, heads_a_key: Value, width: Value, M: constexpr, T: constexpr, P: constexpr,
) -> None:  # fmt: skip
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
