r"""Moments at evenly spaced scales on FP64 tensor cores: the sums over the vocabulary are small matrix products.

One program takes one token, one run of 96 scales and one stretch of the vocabulary. The run falls into parts of 96, 48
or 16 scales, or fewer, as narrow as the range of v in the stretch asks for (`even_sums` derives how narrow: from the
middle of a part to its ends the weights grow by at most e⁴ against each other). Inside a part everything is measured
from the stretch's likeliest entry d at its middle: u = v − v_d.

The weights of 16 neighbouring scales and a tile of entries are a matrix W[k, a] = w_a r_a^k with r = exp(hu), made by
two exponentials an entry and four multiplications a weight; the next 16 follow by one multiplication with r¹⁶. Their
moments are W · C with C[a, j] = u_a^j: a product with the entries as its inner dimension, which the tensor cores add
up. A weight is at most 4 + 5 multiplications away from its exponentials, whose own rounding is raised to the power 95
at most: about 2e-14 relative.

Results are those of `even_kernel.sums_kernel`, and merged by the same kernel.

Shapes: K scales, b vocabulary entries of a stretch.
"""

# Triton's tuples know concatenation, not unpacking.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

from loopscope.triton_kernels.language import Value, constexpr, jit, tl

RUN = 96
TILE = 64


@jit
def tensor_sums_kernel(
    z0: Value,
    v: Value,
    v_y: Value,
    scales: Value,
    parts: Value,
    tokens: Value,
    entries: Value,
    z0_stride: Value,
    v_stride: Value,
    COUNT: constexpr,
    ORDER: constexpr,
    TILE: constexpr,
) -> None:
    """One token's moments over one stretch of the vocabulary at 96 scales."""
    first = tl.program_id(0) * 96
    token = tl.program_id(1)
    end = tl.minimum(first + 96, COUNT)
    z0 += token.to(tl.int64) * z0_stride
    v += token.to(tl.int64) * v_stride
    target = tl.load(v_y + token)
    step = tl.load(scales + 1)
    out = parts + token.to(tl.int64) * COUNT
    slot = tokens.to(tl.int64) * COUNT

    low = tl.full([TILE], float("inf"), dtype=tl.float64)
    high = tl.full([TILE], -float("inf"), dtype=tl.float64)
    for start in range(0, entries, TILE):
        at = start + tl.arange(0, TILE)
        low = tl.minimum(low, tl.load(v + at, mask=at < entries, other=float("inf")))
        high = tl.maximum(high, tl.load(v + at, mask=at < entries, other=-float("inf")))
    most = 8.0 / tl.maximum((tl.max(high, 0) - tl.min(low, 0)) * step, 1e-6)
    if most >= 96.0:
        _part(z0, v, scales, step, target, out, slot, entries, first, end, 6, ORDER, TILE)
    elif most >= 48.0:
        for start in range(first, end, 48):
            stop = tl.minimum(start + 48, end)
            _part(z0, v, scales, step, target, out, slot, entries, start, stop, 3, ORDER, TILE)
    else:
        size = tl.maximum(tl.minimum(most, 16.0).to(tl.int32), 1)
        for start in range(first, end, size):
            stop = tl.minimum(start + size, end)
            _part(z0, v, scales, step, target, out, slot, entries, start, stop, 1, ORDER, TILE)


@jit
def _part(
    z0: Value,
    v: Value,
    scales: Value,
    step: Value,
    target: Value,
    out: Value,
    slot: Value,
    entries: Value,
    low: Value,
    high: Value,
    GROUPS: constexpr,
    ORDER: constexpr,
    TILE: constexpr,
) -> None:
    """The scales low … high − 1, at most 16 · GROUPS of them, from one likeliest entry."""
    at_middle = tl.load(scales + (low + high) // 2)
    top = tl.full([TILE], -float("inf"), dtype=tl.float64)
    where = tl.zeros([TILE], dtype=tl.int32)
    for start in range(0, entries, TILE):
        at = start + tl.arange(0, TILE)
        live = at < entries
        key = tl.load(z0 + at, mask=live, other=-float("inf")) + at_middle * tl.load(v + at, mask=live, other=0.0)
        better = key > top
        top = tl.where(better, key, top)
        where = tl.where(better, at, where)
    best = tl.min(tl.where(top == tl.max(top, 0), where, entries), 0)
    z_d = tl.load(z0 + best)
    v_d = tl.load(v + best)

    begin = tl.load(scales + low)
    node = tl.arange(0, 16)[:, None]
    power = tl.arange(0, 8)[None, :]
    sums = ()
    for _ in tl.static_range(GROUPS):
        sums = sums + (tl.zeros([16, 8], dtype=tl.float64),)
    for start in range(0, entries, TILE):
        at = start + tl.arange(0, TILE)
        live = at < entries
        z = tl.load(z0 + at, mask=live, other=-float("inf"))
        u = tl.where(live, tl.load(v + at, mask=live, other=0.0) - v_d, 0.0)
        w = tl.where(at == best, 0.0, tl.exp((z - z_d) + begin * u))
        r = tl.exp(step * u)
        r2 = r * r
        r4 = r2 * r2
        r8 = r4 * r4
        r16 = (r8 * r8)[None, :]
        weights = w[None, :] * tl.where(node % 2 > 0, r[None, :], 1.0)
        weights = weights * tl.where(node % 4 > 1, r2[None, :], 1.0)
        weights = weights * tl.where(node % 8 > 3, r4[None, :], 1.0)
        weights = weights * tl.where(node > 7, r8[None, :], 1.0)
        u2 = u * u
        powers = tl.where(power == 0, 1.0, tl.where(power == 1, u[:, None], 0.0))
        powers = tl.where(power == 2, u2[:, None], tl.where(power == 3, (u2 * u)[:, None], powers))
        if ORDER >= 4:
            powers = tl.where(power == 4, (u2 * u2)[:, None], powers)
        added = ()
        for g in tl.static_range(GROUPS):
            added = added + (tl.dot(weights, powers, sums[g], out_dtype=tl.float64),)
            weights = weights * r16
        sums = added

    for g in tl.static_range(GROUPS):
        place = low + 16 * g + tl.arange(0, 16)
        inside = place < high
        s0 = tl.sum(tl.where(power == 0, sums[g], 0.0), 1)
        s1 = tl.sum(tl.where(power == 1, sums[g], 0.0), 1)
        s2 = tl.sum(tl.where(power == 2, sums[g], 0.0), 1)
        s3 = tl.sum(tl.where(power == 3, sums[g], 0.0), 1)
        mass = 1.0 + s0
        m = s1 / mass
        to = out + place
        tl.store(to, z_d + tl.zeros([16], dtype=tl.float64), mask=inside)
        tl.store(to + slot, v_d + tl.zeros([16], dtype=tl.float64), mask=inside)
        tl.store(to + 2 * slot, s0, mask=inside)
        tl.store(to + 3 * slot, m, mask=inside)
        tl.store(to + 4 * slot, mass * (target - v_d) - s1, mask=inside)
        tl.store(to + 5 * slot, tl.maximum(s2 - m * s1, 0.0), mask=inside)
        tl.store(to + 6 * slot, s3 - 3.0 * m * s2 + 2.0 * m * m * s1, mask=inside)
        if ORDER >= 4:
            s4 = tl.sum(tl.where(power == 4, sums[g], 0.0), 1)
            tl.store(to + 7 * slot, s4 - 4.0 * m * s3 + 6.0 * m * m * s2 - 3.0 * m * m * m * s1, mask=inside)
