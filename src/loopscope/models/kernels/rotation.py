"""Queries and keys turned by their positions where they lie; `rope` has the plain code.

A program turns some heads of one position. With tables of the state's own dtype every product is rounded to it
before it is added; with float32 tables only the sum is rounded.
"""

from __future__ import annotations

from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl

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
    width: Value,
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
    row = (tl.program_id(0) // width).to(tl.int64)
    position = (tl.program_id(0) % width).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    first = pair * 2 if INTERLEAVED else pair
    second = first + 1 if INTERLEAVED else first + pairs
    inside = (head < heads) & (pair < pairs)

    base = x + row * row_stride + position * position_stride + head * head_stride
    a = tl.load(base + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(base + second, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        offset = bias + head * (2 * pairs)
        a = (a + tl.load(offset + first, mask=inside, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
        b = (b + tl.load(offset + second, mask=inside, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)

    table = row * table_row_stride + position * table_position_stride + first
    c = tl.load(cos + table, mask=pair < pairs, other=0.0).to(tl.float32)
    s = tl.load(sin + table, mask=pair < pairs, other=0.0).to(tl.float32)
    ac, bs, bc, a_s = a * c, b * s, b * c, a * s
    if ROUNDED:
        ac, bs = ac.to(dtype).to(tl.float32), bs.to(dtype).to(tl.float32)
        bc, a_s = bc.to(dtype).to(tl.float32), a_s.to(dtype).to(tl.float32)
    tl.store(base + first, (ac - bs).to(dtype), mask=inside)
    tl.store(base + second, (bc + a_s).to(dtype), mask=inside)
