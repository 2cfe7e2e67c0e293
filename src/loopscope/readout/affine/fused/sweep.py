r"""The kernel that multiplies and reduces: both logit products of a tile of the head, and everything summed over it.

One program takes BLOCK_T tokens and a split of the vocabulary, tile after tile. Both states meet the same tile of
the head, so it is loaded once; z⁰ and z⁺ stay in registers, and v = z⁺ − z⁰ comes from them, never from a rounded D.
What is summed, and in which units, is told in `sums`.

**Order.** Programs that run at the same time share a few blocks of tokens and take all splits of the head between them,
so that the states and the tiles of the head that they read over and over stay in the cache.

**Growth.** Tensor cores lose a little of every sum (`growth`). Sums grow halfway through the width; after that z is in
raw units here, and grows where it is used.

**Again.** With LIMITED the tokens are those of a list that another sweep left (`again`), from `first` on.

Sums are FP32, stay in registers, and end up in `sums` [splits, slots, tokens]; displacements there are less the
reference's own, u = v − v_y.

Shapes: T tokens, V vocabulary entries, D hidden width, K scales.
"""

# Triton's tuples know concatenation, not unpacking.
# ruff: noqa: RUF005, SIM102
# mypy: disable-error-code="assignment"

from __future__ import annotations

from loopscope.kernels.language import Value, constant, constexpr, jit, tl
from loopscope.readout.affine.fused.sums import (
    HIGHEST,
    LOWEST,
    TOP0,
    TOP1,
    added,
    brought,
    means,
    nothing,
)

LOG2_E = constant(1.4426950408889634)
FAR = constant(3.0)
"""By how many powers of two a largest logit rises that is the centre at once."""


@jit
def sweep_kernel(
    h: Value,
    h_plus: Value,
    weight: Value,
    bias: Value,
    targets: Value,
    target_logits: Value,
    growth: Value,
    own: Value,
    limit: Value,
    sums: Value,
    tokens: Value,
    first: Value,
    vocabulary: Value,
    width: Value,
    halfway: Value,
    tiles_per_split: Value,
    rounds: Value,
    COUNT: constexpr,
    MASSES: constexpr,
    MASS: constexpr,
    PLACES: constexpr,
    STRIDE: constexpr,
    FIRST_MASS: constexpr,
    LAST_MASS: constexpr,
    SLOTS: constexpr,
    ORDER: constexpr,
    HAS_BIAS: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
    EXTREMES: constexpr,
    RAGGED: constexpr,
    LIMITED: constexpr,
    BLOCK_T: constexpr,
    BLOCK_V: constexpr,
    BLOCK_D: constexpr,
    GROUP: constexpr,
) -> None:
    """Some tokens against a split of the vocabulary."""
    block, split = _work(GROUP)
    start_row = block * BLOCK_T
    if LIMITED:
        if first + start_row >= tl.load(limit):
            return
    rows = start_row + tl.arange(0, BLOCK_T)
    live = rows < tokens
    target = tl.load(targets + rows, mask=live, other=0).to(tl.int32)
    grow = tl.load(growth)
    grow_halfway = tl.load(growth + 1)
    log2e = grow * LOG2_E
    y0 = tl.load(target_logits + rows, mask=live, other=0.0) / grow
    y1 = tl.load(target_logits + tokens + rows, mask=live, other=0.0) / grow
    found = nothing(y0, y1, SLOTS)
    alpha = tl.zeros([BLOCK_T], dtype=tl.float32)
    if HAS_OWN:
        alpha = tl.load(own + rows, mask=live, other=0.0)
    first_tile = split * tiles_per_split
    for tile in range(first_tile, tl.minimum(first_tile + tiles_per_split, (vocabulary + BLOCK_V - 1) // BLOCK_V)):
        z0 = tl.zeros([BLOCK_T, BLOCK_V], dtype=tl.float32)
        z1 = tl.zeros([BLOCK_T, BLOCK_V], dtype=tl.float32)
        # A loop over both halves of the width is faster than one after the other; zeros do not grow.
        for half in range(2):
            z0 *= grow_halfway
            z1 *= grow_halfway
            for start in range(half * halfway, halfway + half * (width - halfway), BLOCK_D):
                head = weight.load([tile * BLOCK_V, start]).T
                z0 = tl.dot(h.load([start_row, start]), head, z0)
                z1 = tl.dot(h_plus.load([start_row, start]), head, z1)
        columns = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        if HAS_BIAS:
            shift = tl.load(bias + columns, mask=columns < vocabulary, other=0.0).to(tl.float32) / grow
            z0 += shift[None, :]
            z1 += shift[None, :]
        # The reference's own entry is the one that everything is measured from, to the bit. Few tiles have any.
        if has_reference(target, tile, BLOCK_V):
            is_target = columns[None, :] == target[:, None]
            z0 = tl.where(is_target, y0[:, None], z0)
            z1 = tl.where(is_target, y1[:, None], z1)
        if RAGGED:
            inside = (columns < vocabulary)[None, :]
            z0 = tl.where(inside, z0, -1.0e30)
            z1 = tl.where(inside, z1, -1.0e30)
        # Of a column's number the first bit and all but the next two tell registers of a thread apart.
        a0, b0 = tl.split(tl.reshape(z0, [BLOCK_T, BLOCK_V // 8, 4, 2]))
        a1, b1 = tl.split(tl.reshape(z1, [BLOCK_T, BLOCK_V // 8, 4, 2]))
        top0 = tl.maximum(found[TOP0], tl.max(tl.max(tl.maximum(a0, b0), 1), 1))
        top1 = tl.maximum(found[TOP1], tl.max(tl.max(tl.maximum(a1, b1), 1), 1))
        c0, c1 = means(found, MASS, FIRST_MASS, LAST_MASS, SLOTS, ORDER)
        far = tl.maximum(top0 - found[TOP0], top1 - found[TOP1]) * log2e > FAR
        c0 = tl.where(far, top1 - top0, c0)
        c1 = tl.where(far, top1 - top0, c1)
        highest = found[HIGHEST]
        lowest = found[LOWEST]
        if EXTREMES:
            v = z1 - z0
            if RAGGED:
                v = tl.where(inside, v, (y1 - y0)[:, None])
            highest = tl.maximum(highest, tl.max(v, 1))
            lowest = tl.minimum(lowest, tl.min(v, 1))
        found = brought(
            found, top0, top1, highest, lowest, c0, c1, alpha, log2e,
            COUNT, MASSES, MASS, PLACES, STRIDE, SLOTS, ORDER, HAS_OWN, ENDS,
        )  # fmt: skip
        # Even columns, then odd ones, each in four parts: few weights exist at a time, and the code stays short.
        for _ in range(rounds):
            p0, q0 = _halves(a0)
            p1, q1 = _halves(a1)
            found = _added_in_halves(
                found, p0, p1, alpha, log2e, COUNT, MASSES, MASS, PLACES, STRIDE, SLOTS, ORDER, HAS_OWN, ENDS
            )
            found = _added_in_halves(
                found, q0, q1, alpha, log2e, COUNT, MASSES, MASS, PLACES, STRIDE, SLOTS, ORDER, HAS_OWN, ENDS
            )
            a0 = b0
            a1 = b1

    at = sums + split.to(tl.int64) * SLOTS * tokens + rows
    stored(at, found, y0, y1, tokens, live, SLOTS)


@jit
def has_reference(target: Value, tile: Value, BLOCK_V: constexpr) -> Value:
    """Whether any token's label is in the tile."""
    return tl.max((target // BLOCK_V == tile).to(tl.int32), 0) > 0


@jit
def stored(at: Value, found: Value, y0: Value, y1: Value, tokens: Value, live: Value, SLOTS: constexpr) -> None:
    """A split's sums for `merge`, `tokens` apart; four at a time takes the compiler far less time."""
    for _ in tl.static_range(-SLOTS % 4):
        found = found + (y0,)
    pair = tl.arange(0, 2)
    which = pair[None, :, None] + 2 * pair[None, None, :]
    for slot in tl.static_range(0, SLOTS, 4):
        first_pair = tl.join(_whole(found, slot, y0, y1), _whole(found, slot + 1, y0, y1))
        last_pair = tl.join(_whole(found, slot + 2, y0, y1), _whole(found, slot + 3, y0, y1))
        wanted = live[:, None, None] & (slot + which < SLOTS)
        tl.store(at[:, None, None] + (slot + which) * tokens, tl.join(first_pair, last_pair), mask=wanted)


@jit
def _work(GROUP: constexpr) -> Value:
    """This program's tokens and split: all splits of a few blocks of tokens before those of the next ones."""
    blocks = tl.num_programs(0)
    number = tl.program_id(0) + tl.program_id(1) * blocks
    in_group = GROUP * tl.num_programs(1)
    first = number // in_group * GROUP
    here = tl.minimum(blocks - first, GROUP)
    number = number % in_group
    return first + number % here, number // here


@jit
def _whole(found: Value, SLOT: constexpr, y0: Value, y1: Value) -> Value:
    """A token's sum of all four threads; its displacements less the reference's."""
    if len(found[SLOT].shape) == 2:
        return tl.sum(found[SLOT], 1)
    elif SLOT >= HIGHEST:
        return found[SLOT] - (y1 - y0)
    else:
        return found[SLOT]


@jit
def _added_in_halves(
    found: Value,
    z0: Value,
    z1: Value,
    alpha: Value,
    log2e: Value,
    COUNT: constexpr,
    MASSES: constexpr,
    MASS: constexpr,
    PLACES: constexpr,
    STRIDE: constexpr,
    SLOTS: constexpr,
    ORDER: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
) -> Value:
    """`added` of the first registers of every thread, then of the others: with more at a time some go to memory."""
    p0, q0 = _halves(z0)
    p1, q1 = _halves(z1)
    found = added(found, p0, p1, alpha, log2e, COUNT, MASSES, MASS, PLACES, STRIDE, SLOTS, ORDER, HAS_OWN, ENDS)
    return added(found, q0, q1, alpha, log2e, COUNT, MASSES, MASS, PLACES, STRIDE, SLOTS, ORDER, HAS_OWN, ENDS)


@jit
def _halves(x: Value) -> Value:
    """The first and the last registers of every thread, [T, N, 4] → 2 × [T, N/2, 4]."""
    return tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2, 4]), [0, 2, 3, 1]))
