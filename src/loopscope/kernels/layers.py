"""The layers' Triton kernels, each one pass over the rows; `blocks` and `rope` have the plain code and its roundings.

    rms_norm           y = round(x / sqrt(mean(x²) + eps)) · weight
    add_branch         s = x + branch_norm(branch),   x' = sum_norm(s),   next = next_norm(x'); a norm may be absent
    gated_silu         silu(gate) · up, straight from the product that holds both side by side
    rotate_in_place    queries and keys rotated by their positions where they are in memory

Norms are taken in float32 but for the rounding, which is to the weight's dtype. A program of `rotate_in_place` takes
some heads of one position: with tables of the state's own dtype every product is rounded to it before it is added;
with float32 tables only the sum is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl


@jit
def normed_row(values: Value, weight: Value, columns: Value, inside: Value, width: Value, eps: Value) -> Value:
    """A row held in float32; the product with the weight is the caller's to round. Beyond the width all is zero."""
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    rounded = (values * scale).to(weight.dtype.element_ty).to(tl.float32)
    return rounded * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)


def row_block(width: int) -> int:
    """Entries of a row that a program holds: all of them."""
    return power_of_two(width)


def row_warps(width: int) -> int:
    """Warps for a row: sixteen entries a thread, or more in wide rows."""
    return min(16, max(1, row_block(width) // 512))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension; `weight` has x's dtype."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(
        _rms_norm,
        (rows.shape[0],),
        x,
        rows,
        weight,
        out,
        rows.stride(0),
        width,
        eps,
        BLOCK=row_block(width),
        warps=row_warps(width),
    )
    return out


@jit
def _rms_norm(x: Value, weight: Value, out: Value, stride: Value, width: Value, eps: Value, BLOCK: constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    normed = normed_row(values, weight, columns, inside, width, eps)
    tl.store(out + row * width + columns, normed.to(out.dtype.element_ty), mask=inside)


def add_branch(
    x: Tensor, branch: Tensor, weights: Sequence[Tensor | None], eps: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The sum x' and next (x' itself where there is no norm for it); weights and eps of the three norms in order."""
    width = x.shape[-1]
    rows, branch_rows = x.contiguous(), branch.contiguous()
    added = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    following = added if weights[2] is None else torch.empty_like(added)
    launch(
        _add_branch,
        (x.numel() // width,),
        x,
        rows,
        branch_rows,
        *(rows if weight is None else weight for weight in weights),
        added,
        following,
        width,
        *eps,
        BRANCH=weights[0] is not None,
        SUM=weights[1] is not None,
        NEXT=weights[2] is not None,
        BLOCK=row_block(width),
        warps=row_warps(width),
    )
    return added, following


@jit
def _add_branch(
    x: Value,
    branch: Value,
    branch_weight: Value,
    sum_weight: Value,
    next_weight: Value,
    added: Value,
    following: Value,
    width: Value,
    branch_eps: Value,
    sum_eps: Value,
    next_eps: Value,
    BRANCH: constexpr,
    SUM: constexpr,
    NEXT: constexpr,
    BLOCK: constexpr,
) -> None:
    dtype = added.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    joining = tl.load(branch + row + columns, mask=inside, other=0.0).to(tl.float32)
    if BRANCH:
        joining = normed_row(joining, branch_weight, columns, inside, width, branch_eps).to(dtype).to(tl.float32)
    total = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32) + joining
    total = total.to(dtype).to(tl.float32)
    if SUM:
        total = normed_row(total, sum_weight, columns, inside, width, sum_eps).to(dtype).to(tl.float32)
    tl.store(added + row + columns, total.to(dtype), mask=inside)
    if NEXT:
        normed = normed_row(total, next_weight, columns, inside, width, next_eps)
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
    x_BSHP: Tensor,
    cos_BS1P: Tensor,
    sin_BS1P: Tensor,
    bias_HP: Tensor | None,
    *,
    interleaved: bool,
) -> Tensor:
    """`x` itself, with `bias` added and turned; entries of a head must be neighbours in memory."""
    rows, width, heads, head_width = x_BSHP.shape
    pairs = head_width // 2
    block = min(_HEADS, power_of_two(heads))
    launch(
        _rotate,
        (rows * width, -(-heads // block)),
        x_BSHP,
        x_BSHP,
        x_BSHP if bias_HP is None else bias_HP,
        cos_BS1P,
        sin_BS1P,
        width,
        heads,
        pairs,
        x_BSHP.stride(0),
        x_BSHP.stride(1),
        x_BSHP.stride(2),
        cos_BS1P.stride(0) if cos_BS1P.shape[0] > 1 else 0,
        cos_BS1P.stride(1),
        BIAS=bias_HP is not None,
        INTERLEAVED=interleaved,
        ROUNDED=cos_BS1P.dtype == x_BSHP.dtype,
        HEADS=block,
        PAIRS=power_of_two(pairs),
    )
    return x_BSHP


@jit
def _rotate(
    x: Value,
    bias: Value,
    cos: Value,
    sin: Value,
    positions: Value,
    heads: Value,
    pairs: Value,
    row_stride: Value,
    position_stride: Value,
    head_stride: Value,
    table_row_stride: Value,
    table_position_stride: Value,
    BIAS: constexpr,
    INTERLEAVED: constexpr,
    ROUNDED: constexpr,
    HEADS: constexpr,
    PAIRS: constexpr,
) -> None:
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
