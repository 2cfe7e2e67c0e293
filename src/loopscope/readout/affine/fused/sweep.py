r"""The kernel that multiplies and reduces: both logit products of a tile of the head, and everything summed over it.

One program takes BLOCK_T tokens and a split of the vocabulary, tile after tile. Both states meet the same tile of
the head, so it is loaded once; z⁰ and z⁺ stay in registers, and v = z⁺ − z⁰ comes from them, never from a rounded D.

**Units.** With M⁰ and M⁺ the largest logits of a token so far at either end, a(α) = (1−α) M⁰ + α M⁺ lies above every
z(α), which is affine in α. Weights w(α) = exp(z(α) − a(α)) are therefore at most 1; at either end the likeliest
entry weighs exactly 1. When a maximum rises, what was summed before is brought to the new units by
exp(a_old(α) − a_new(α)), as in a running softmax; that factor's rounding touches the smaller mass only.

**Even scales.** w at α = k/(K−1) follows from its neighbour by one multiplication with exp(±u'/(K−1)), u' the
displacement less that of a. The lower half of the scales is reached from α = 0, the upper half from α = 1: a weight is
never more than (K−1)/2 multiplications from an exponential, and one that underflowed at its end is below exp(−43).

**Growth.** Tensor cores lose a little of every sum (`growth`): z is in raw units here, and grows where it is used.

**Moments** are of u = v − v_y, about the tile's own mean in a second look at the registers, and merged with what was
there by the formulas of `pairwise`, in which nothing cancels.

Sums are FP32, stay in registers, and end up in `sums` [splits, slots, tokens], whose slots have their names here.

Shapes: T tokens, V vocabulary entries, D hidden width, K scales.
"""

# Triton's tuples know concatenation, not unpacking, and grow while a loop is unrolled.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

from loopscope.kernels.language import Value, constant, constants, constexpr, jit, tl
from loopscope.readout.affine.moments import merged_fourth, merged_third

TOP0, TOP1, S00, S01, S10, S11, HIGHEST, LOWEST, OWN_MASS, HEADER = constants(10)
"""A token's first sums: M⁰, M⁺; Σw⁰x⁰, Σw⁰x⁺, Σw⁺x⁰, Σw⁺x⁺ with x a logit less the largest, in units of log 2; the
largest and the smallest u; the mass at the token's own scale. From HEADER on: the masses at the K scales."""

MEAN, SECOND, THIRD, FOURTH = constants(4)
"""Then, for each scale with moments, their mean and central sums up to the order, and last what the second lost to
rounding."""

_LOG2_E = constant(1.4426950408889634)


def kept(order: int) -> int:
    """Sums of a scale with moments."""
    return order + 1 if order >= 2 else order


def slots(count: int, placed: int, order: int) -> int:
    """How many sums a token has."""
    return int(HEADER) + count + placed * kept(order)


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
    sums: Value,
    tokens: Value,
    vocabulary: Value,
    width: Value,
    tiles_per_split: Value,
    COUNT: constexpr,
    PLACES: constexpr,
    SLOTS: constexpr,
    ORDER: constexpr,
    KEPT: constexpr,
    HAS_BIAS: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
    EXTREMES: constexpr,
    RAGGED: constexpr,
    HALVES: constexpr,
    BLOCK_T: constexpr,
    BLOCK_V: constexpr,
    BLOCK_D: constexpr,
) -> None:
    """Some tokens against a split of the vocabulary."""
    start_row = tl.program_id(0) * BLOCK_T
    rows = start_row + tl.arange(0, BLOCK_T)
    split = tl.program_id(1)
    live = rows < tokens
    target = tl.load(targets + rows, mask=live, other=0)
    grow = tl.load(growth)
    y0 = tl.load(target_logits + rows, mask=live, other=0.0) / grow
    y1 = tl.load(target_logits + tokens + rows, mask=live, other=0.0) / grow
    found = (y0, y1) + _zeros(SLOTS - 2, BLOCK_T)
    alpha = tl.zeros([BLOCK_T], dtype=tl.float32)
    if HAS_OWN:
        alpha = tl.load(own + rows, mask=live, other=0.0)
    first = split * tiles_per_split
    last = tl.minimum(first + tiles_per_split, (vocabulary + BLOCK_V - 1) // BLOCK_V)
    for tile in range(first, last):
        z0 = tl.zeros([BLOCK_T, BLOCK_V], dtype=tl.float32)
        z1 = tl.zeros([BLOCK_T, BLOCK_V], dtype=tl.float32)
        for start in range(0, width, BLOCK_D):
            head = weight.load([tile * BLOCK_V, start]).T
            z0 = tl.dot(h.load([start_row, start]), head, z0)
            z1 = tl.dot(h_plus.load([start_row, start]), head, z1)
        if HALVES:
            # Even and odd columns one after the other: half as many registers, twice the work on whole rows.
            z0, z0_odd = tl.split(tl.reshape(z0, [BLOCK_T, BLOCK_V // 2, 2]))
            z1, z1_odd = tl.split(tl.reshape(z1, [BLOCK_T, BLOCK_V // 2, 2]))
            columns = tile * BLOCK_V + 2 * tl.arange(0, BLOCK_V // 2)
        else:
            columns = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        found = _reduce(
            found, z0, z1, columns, target, y0, y1, alpha, bias, vocabulary, grow,
            COUNT, PLACES, SLOTS, ORDER, KEPT, HAS_BIAS, HAS_OWN, ENDS, EXTREMES, RAGGED,
        )  # fmt: skip
        if HALVES:
            found = _reduce(
                found, z0_odd, z1_odd, columns + 1, target, y0, y1, alpha, bias, vocabulary, grow,
                COUNT, PLACES, SLOTS, ORDER, KEPT, HAS_BIAS, HAS_OWN, ENDS, EXTREMES, RAGGED,
            )  # fmt: skip

    at = sums + split.to(tl.int64) * SLOTS * tokens + rows
    for slot in tl.static_range(0, SLOTS):
        tl.store(at + slot * tokens, found[slot], mask=live)


@jit
def _reduce(
    found: Value,
    z0: Value,
    z1: Value,
    columns: Value,
    target: Value,
    y0: Value,
    y1: Value,
    alpha: Value,
    bias: Value,
    vocabulary: Value,
    grow: Value,
    COUNT: constexpr,
    PLACES: constexpr,
    SLOTS: constexpr,
    ORDER: constexpr,
    KEPT: constexpr,
    HAS_BIAS: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
    EXTREMES: constexpr,
    RAGGED: constexpr,
) -> Value:
    """What was found so far together with a tile's logits at both ends."""
    log2e = grow * _LOG2_E
    v_y = y1 - y0
    if HAS_BIAS:
        shift = tl.load(bias + columns, mask=columns < vocabulary, other=0.0).to(tl.float32) / grow
        z0 += shift[None, :]
        z1 += shift[None, :]
    # The reference's own entry is the one that everything is measured from, to the bit.
    is_target = columns[None, :] == target[:, None]
    z0 = tl.where(is_target, y0[:, None], z0)
    z1 = tl.where(is_target, y1[:, None], z1)
    u = (z1 - z0) - v_y[:, None]
    if RAGGED:
        inside = (columns < vocabulary)[None, :]
        z0 = tl.where(inside, z0, -1.0e30)
        z1 = tl.where(inside, z1, -1.0e30)
        u = tl.where(inside, u, 0.0)
    top0 = tl.maximum(found[TOP0], tl.max(z0, 1))
    top1 = tl.maximum(found[TOP1], tl.max(z1, 1))
    drop0 = found[TOP0] - top0
    drop1 = found[TOP1] - top1
    keep0 = tl.exp2(drop0 * log2e)
    keep1 = tl.exp2(drop1 * log2e)
    # Logits less the largest in units of log 2, which is what exp2 wants.
    t0 = z0 * log2e - (top0 * log2e)[:, None]
    t1 = z1 * log2e - (top1 * log2e)[:, None]
    w0 = tl.exp2(t0)
    w1 = tl.exp2(t1)
    ends = (found[S00], found[S01], found[S10], found[S11])
    if ENDS:
        first, last = found[HEADER], found[HEADER + COUNT - 1]
        ends = (
            (found[S00] + first * drop0 * log2e) * keep0 + tl.sum(w0 * t0, 1),
            (found[S01] + first * drop1 * log2e) * keep0 + tl.sum(w0 * t1, 1),
            (found[S10] + last * drop0 * log2e) * keep1 + tl.sum(w1 * t0, 1),
            (found[S11] + last * drop1 * log2e) * keep1 + tl.sum(w1 * t1, 1),
        )
    highest = found[HIGHEST]
    lowest = found[LOWEST]
    if EXTREMES:
        # The reference's own u is 0, so that the extremes lie on either side of it.
        highest = tl.maximum(highest, tl.max(u, 1))
        lowest = tl.minimum(lowest, tl.min(u, 1))
    own_mass = found[OWN_MASS]
    if HAS_OWN:
        keep = tl.exp2((drop0 + alpha * (drop1 - drop0)) * log2e)
        own_mass = own_mass * keep + tl.sum(tl.exp2(t0 + alpha[:, None] * (t1 - t0)), 1)
    step = log2e / (COUNT - 1)
    # Above the largest logits' own displacement lies u + v_y − (top⁺ − top⁰).
    rise = ((v_y - (top1 - top0)) * step)[:, None]
    ratio = w0
    square = w0
    factor = keep0
    if COUNT > 2:
        ratio = tl.exp2(u * step + rise)
        square = ratio * ratio
        factor = tl.exp2((drop1 - drop0) * step)
    masses = ()
    moments = ()
    w = w0
    keep = keep0
    # Two scales at a time: the second needs no weights of its own, only their sum.
    for k in tl.static_range(0, (COUNT + 1) // 2):
        if k > 0:
            keep = keep * factor
            if k % 2 == 0:
                w = w * square
        here = w
        if k % 2 == 1:
            here = w * ratio
        mass_a = found[HEADER + k] * keep
        mass_b = tl.sum(here, 1)
        masses = masses + (mass_a + mass_b,)
        if (PLACES >> k) & 1:
            moments = moments + _moments(found, HEADER + COUNT + len(moments), mass_a, mass_b, here, u, keep, ORDER)
    upper_masses = ()
    upper_moments = ()
    w = w1
    keep = keep1
    if COUNT > 2:
        ratio = tl.exp2(u * -step - rise)
        square = ratio * ratio
        factor = tl.exp2((drop1 - drop0) * -step)
    for j in tl.static_range(0, COUNT // 2):
        if j > 0:
            keep = keep * factor
            if j % 2 == 0:
                w = w * square
        here = w
        if j % 2 == 1:
            here = w * ratio
        mass_a = found[HEADER + COUNT - 1 - j] * keep
        mass_b = tl.sum(here, 1)
        upper_masses = (mass_a + mass_b,) + upper_masses
        if (PLACES >> (COUNT - 1 - j)) & 1:
            upper_moments = (
                _moments(found, SLOTS - KEPT - len(upper_moments), mass_a, mass_b, here, u, keep, ORDER) + upper_moments
            )
    return (top0, top1) + ends + (highest, lowest, own_mass) + masses + upper_masses + moments + upper_moments


@jit
def _zeros(NUMBER: constexpr, BLOCK: constexpr) -> Value:
    out = ()
    for _ in tl.static_range(NUMBER):
        out = out + (tl.zeros([BLOCK], dtype=tl.float32),)
    return out


@jit
def _moments(
    old: Value,
    FIRST: constexpr,
    mass_a: Value,
    mass_b: Value,
    w: Value,
    u: Value,
    keep: Value,
    ORDER: constexpr,
) -> Value:
    """Mean and central moments of what was there (a) and a tile (b) together."""
    mean_b = tl.sum(w * u, 1) / tl.maximum(mass_b, 1.0e-37)
    share_b = mass_b / tl.maximum(mass_a + mass_b, 1.0e-37)
    delta = mean_b - old[FIRST + MEAN]
    out = (old[FIRST + MEAN] + delta * share_b,)
    if ORDER >= 2:
        share_a = 1.0 - share_b
        pair = mass_a * share_b
        c = u - mean_b[:, None]
        wc = w * c
        second_a = old[FIRST + SECOND] * keep
        second_b = tl.sum(wc * c, 1)
        more = second_b + delta * delta * pair
        second = second_a + more
        # A flat distribution has thousands of equal tiles: what each addition loses is kept beside the sum.
        lost = old[FIRST + ORDER] * keep + (more - (second - second_a))
        out = out + (second,)
        if ORDER >= 3:
            wc = wc * c
            third_a = old[FIRST + THIRD] * keep
            third_b = tl.sum(wc * c, 1)
            out = out + (merged_third(second_a, second_b, third_a, third_b, delta, pair, share_a, share_b),)
            if ORDER >= 4:
                fourth = old[FIRST + FOURTH] * keep + tl.sum(wc * c * c, 1)
                out = out + (
                    merged_fourth(second_a, second_b, third_a, third_b, fourth, delta, pair, share_a, share_b),
                )
        out = out + (lost,)
    return out
