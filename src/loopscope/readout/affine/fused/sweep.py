r"""The kernel that multiplies and reduces: both logit products of a tile of the head, and everything summed over it.

One program takes BLOCK_T tokens and a split of the vocabulary, tile after tile. Both states meet the same tile of
the head, so it is loaded once; z⁰ and z⁺ stay in registers, and v = z⁺ − z⁰ comes from them, never from a rounded D.
`risen` and `added` are the reducing itself, a row for each set of sums; `chain` uses them, too. Here the four threads
that hold a row of a tile have sums of their own, which nobody has to put together before the end (`LANES`).

**Units.** With M⁰ and M⁺ the largest logits of a token so far at either end, a(α) = (1−α) M⁰ + α M⁺ lies above every
z(α), which is affine in α. Weights w(α) = exp(z(α) − a(α)) are therefore at most 1; at either end the likeliest
entry weighs exactly 1. When a maximum rises, what was summed before is brought to the new units by
exp(a_old(α) − a_new(α)), as in a running softmax; that factor's rounding touches the smaller mass only.

**Even scales.** w at α = k/(K−1) follows from its neighbour by one multiplication with exp(±u'/(K−1)), u' the
displacement less that of a. The lower half of the scales is reached from α = 0, the upper half from α = 1: a weight is
never more than (K−1)/2 multiplications from an exponential, and one that underflowed at its end is below exp(−43).

**Growth.** Tensor cores lose a little of every sum (`logits`): z is in raw units here, and grows where it is used.

**Moments** are of u = v − v_y, about the new entries' own mean in a second look at the registers, and merged with what
was there by the formulas of `moments`, in which nothing cancels.

Sums are FP32, stay in registers, and end up in `sums` [splits · lanes, slots, tokens], whose slots have their names
here.

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
"""Then, for each scale with moments, their mean and central sums up to the order, and last what the second and the mass
lost to rounding."""

LANES = constant(4)
"""Threads that hold a row of a tile together: column 8i + 2j + k is the j-th one's. Each has sums of its own."""

LOG2_E = constant(1.4426950408889634)


def kept(order: int) -> int:
    """Sums of a scale with moments."""
    return order + 2 if order >= 2 else order


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
    LANES: constexpr,
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
    alpha = tl.zeros([BLOCK_T], dtype=tl.float32)
    if HAS_OWN:
        alpha = tl.load(own + rows, mask=live, other=0.0)
    alpha = _of_lanes(alpha, LANES)
    v_y = _of_lanes(y1 - y0, LANES)
    found = (_of_lanes(y0, LANES), _of_lanes(y1, LANES)) + _zeros(SLOTS - 2, BLOCK_T * LANES)
    first = split * tiles_per_split
    last = tl.minimum(first + tiles_per_split, (vocabulary + BLOCK_V - 1) // BLOCK_V)
    for tile in range(first, last):
        z0 = tl.zeros([BLOCK_T, BLOCK_V], dtype=tl.float32)
        z1 = tl.zeros([BLOCK_T, BLOCK_V], dtype=tl.float32)
        for start in range(0, width, BLOCK_D):
            head = weight.load([tile * BLOCK_V, start]).T
            z0 = tl.dot(h.load([start_row, start]), head, z0)
            z1 = tl.dot(h_plus.load([start_row, start]), head, z1)
        if HAS_BIAS:
            columns = tile * BLOCK_V + tl.arange(0, BLOCK_V)
            shift = tl.load(bias + columns, mask=columns < vocabulary, other=0.0).to(tl.float32) / grow
            z0 += shift[None, :]
            z1 += shift[None, :]
        # The reference's own entry is the one that everything is measured from, to the bit. Few tiles hold one.
        place = target - tile * BLOCK_V
        held = tl.max(((place >= 0) & (place < BLOCK_V)).to(tl.int32), 0) > 0
        if RAGGED:
            held = held | ((tile + 1) * BLOCK_V > vocabulary)
        if held:
            at = tl.arange(0, BLOCK_V)[None, :]
            is_target = at == place[:, None]
            z0 = tl.where(is_target, y0[:, None], z0)
            z1 = tl.where(is_target, y1[:, None], z1)
            if RAGGED:
                inside = at < vocabulary - tile * BLOCK_V
                z0 = tl.where(inside, z0, -1.0e30)
                z1 = tl.where(inside, z1, -1.0e30)
        z0_even, z0_odd = _lanes(z0, LANES)
        z1_even, z1_odd = _lanes(z1, LANES)
        found = risen(
            found,
            tl.maximum(found[TOP0], tl.max(tl.maximum(z0_even, z0_odd), 1)),
            tl.maximum(found[TOP1], tl.max(tl.maximum(z1_even, z1_odd), 1)),
            alpha, grow * LOG2_E, COUNT, PLACES, SLOTS, KEPT, HAS_OWN, ENDS,
        )  # fmt: skip
        found = added(
            found, z0_even, z1_even, v_y, alpha, grow * LOG2_E,
            COUNT, PLACES, SLOTS, ORDER, KEPT, HAS_OWN, ENDS, EXTREMES,
        )  # fmt: skip
        found = added(
            found, z0_odd, z1_odd, v_y, alpha, grow * LOG2_E,
            COUNT, PLACES, SLOTS, ORDER, KEPT, HAS_OWN, ENDS, EXTREMES,
        )  # fmt: skip

    lane = tl.arange(0, LANES)[None, :]
    at = sums + (split * LANES + lane).to(tl.int64) * SLOTS * tokens + rows[:, None]
    for slot in tl.static_range(0, SLOTS):
        tl.store(at + slot * tokens, tl.reshape(found[slot], [BLOCK_T, LANES]), mask=live[:, None])


@jit
def _lanes(z: Value, LANES: constexpr) -> Value:
    """Even and odd columns of a tile, a row for each lane of a token."""
    even, odd = tl.split(tl.reshape(z, [z.shape[0], z.shape[1] // (2 * LANES), LANES, 2]))
    rows: constexpr = z.shape[0] * LANES
    columns: constexpr = z.shape[1] // (2 * LANES)
    return (
        tl.reshape(tl.permute(even, (0, 2, 1)), [rows, columns]),
        tl.reshape(tl.permute(odd, (0, 2, 1)), [rows, columns]),
    )


@jit
def _of_lanes(row: Value, LANES: constexpr) -> Value:
    """A token's number for each of its lanes."""
    return tl.reshape(row[:, None] + tl.zeros([1, LANES], dtype=tl.float32), [row.shape[0] * LANES])


@jit
def risen(
    found: Value,
    top0: Value,
    top1: Value,
    alpha: Value,
    log2e: Value,
    COUNT: constexpr,
    PLACES: constexpr,
    SLOTS: constexpr,
    KEPT: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
) -> Value:
    """What was found so far, in units of higher maxima."""
    drop0 = found[TOP0] - top0
    drop1 = found[TOP1] - top1
    keep0 = tl.exp2(drop0 * log2e)
    keep1 = tl.exp2(drop1 * log2e)
    ends = (found[S00], found[S01], found[S10], found[S11])
    if ENDS:
        mass0, mass1 = found[HEADER], found[HEADER + COUNT - 1]
        ends = (
            (found[S00] + mass0 * drop0 * log2e) * keep0,
            (found[S01] + mass0 * drop1 * log2e) * keep0,
            (found[S10] + mass1 * drop0 * log2e) * keep1,
            (found[S11] + mass1 * drop1 * log2e) * keep1,
        )
    own_mass = found[OWN_MASS]
    if HAS_OWN:
        own_mass = own_mass * tl.exp2((drop0 + alpha * (drop1 - drop0)) * log2e)
    masses = ()
    moments = ()
    keep = keep0
    factor = keep0
    if COUNT > 2:
        factor = tl.exp2((drop1 - drop0) * (log2e / (COUNT - 1)))
    for k in tl.static_range(0, (COUNT + 1) // 2):
        if k > 0:
            keep = keep * factor
        masses = masses + (found[HEADER + k] * keep,)
        if (PLACES >> k) & 1:
            moments = moments + _kept(found, HEADER + COUNT + len(moments), keep, KEPT)
    upper_masses = ()
    upper_moments = ()
    keep = keep1
    if COUNT > 2:
        factor = tl.exp2((drop1 - drop0) * (-log2e / (COUNT - 1)))
    for j in tl.static_range(0, COUNT // 2):
        if j > 0:
            keep = keep * factor
        upper_masses = (found[HEADER + COUNT - 1 - j] * keep,) + upper_masses
        if (PLACES >> (COUNT - 1 - j)) & 1:
            upper_moments = _kept(found, SLOTS - KEPT - len(upper_moments), keep, KEPT) + upper_moments
    header = (top0, top1) + ends + (found[HIGHEST], found[LOWEST], own_mass)
    return header + masses + upper_masses + moments + upper_moments


@jit
def _kept(found: Value, FIRST: constexpr, keep: Value, KEPT: constexpr) -> Value:
    out = (found[FIRST],)
    for order in tl.static_range(1, KEPT):
        out = out + (found[FIRST + order] * keep,)
    return out


@jit
def added(
    found: Value,
    z0: Value,
    z1: Value,
    v_y: Value,
    alpha: Value,
    log2e: Value,
    COUNT: constexpr,
    PLACES: constexpr,
    SLOTS: constexpr,
    ORDER: constexpr,
    KEPT: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
    EXTREMES: constexpr,
) -> Value:
    """What was found so far together with some logits at both ends, none above the maxima."""
    top0, top1 = found[TOP0], found[TOP1]
    u = (z1 - z0) - v_y[:, None]
    # Logits less the largest in units of log 2, which is what exp2 wants.
    t0 = z0 * log2e - (top0 * log2e)[:, None]
    t1 = z1 * log2e - (top1 * log2e)[:, None]
    w0 = tl.exp2(t0)
    w1 = tl.exp2(t1)
    ends = (found[S00], found[S01], found[S10], found[S11])
    if ENDS:
        ends = (
            found[S00] + tl.sum(w0 * t0, 1),
            found[S01] + tl.sum(w0 * t1, 1),
            found[S10] + tl.sum(w1 * t0, 1),
            found[S11] + tl.sum(w1 * t1, 1),
        )
    highest = found[HIGHEST]
    lowest = found[LOWEST]
    if EXTREMES:
        # The reference's own u is 0, so that the extremes lie on either side of it.
        inside = z0 > -1.0e30
        highest = tl.maximum(highest, tl.max(tl.where(inside, u, 0.0), 1))
        lowest = tl.minimum(lowest, tl.min(tl.where(inside, u, 0.0), 1))
    own_mass = found[OWN_MASS]
    if HAS_OWN:
        own_mass += tl.sum(tl.exp2(t0 + alpha[:, None] * (t1 - t0)), 1)
    step = log2e / (COUNT - 1)
    # Above the largest logits' own displacement lies u + v_y − (top⁺ − top⁰).
    rise = ((v_y - (top1 - top0)) * step)[:, None]
    ratio = w0
    square = w0
    if COUNT > 2:
        ratio = tl.exp2(u * step + rise)
        square = ratio * ratio
    masses = ()
    moments = ()
    w = w0
    # Two scales at a time: the second needs no weights of its own, only their sum.
    for k in tl.static_range(0, (COUNT + 1) // 2):
        if k > 0 and k % 2 == 0:
            w = w * square
        here = w
        if k % 2 == 1:
            here = w * ratio
        mass = tl.sum(here, 1)
        masses = masses + (found[HEADER + k] + mass,)
        if (PLACES >> k) & 1:
            moments = moments + _moments(found, HEADER + COUNT + len(moments), HEADER + k, mass, here, u, ORDER)
    upper_masses = ()
    upper_moments = ()
    w = w1
    if COUNT > 2:
        ratio = tl.exp2(u * -step - rise)
        square = ratio * ratio
    for j in tl.static_range(0, COUNT // 2):
        if j > 0 and j % 2 == 0:
            w = w * square
        here = w
        if j % 2 == 1:
            here = w * ratio
        mass = tl.sum(here, 1)
        upper_masses = (found[HEADER + COUNT - 1 - j] + mass,) + upper_masses
        if (PLACES >> (COUNT - 1 - j)) & 1:
            upper_moments = (
                _moments(found, SLOTS - KEPT - len(upper_moments), HEADER + COUNT - 1 - j, mass, here, u, ORDER)
                + upper_moments
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
    MASS: constexpr,
    mass_b: Value,
    w: Value,
    u: Value,
    ORDER: constexpr,
) -> Value:
    """Mean and central moments of what was there (a) and some entries (b) together."""
    mass_a = old[MASS]
    mass = mass_a + mass_b
    mean_b = tl.sum(w * u, 1) / tl.maximum(mass_b, 1.0e-37)
    share_b = mass_b / tl.maximum(mass, 1.0e-37)
    delta = mean_b - old[FIRST + MEAN]
    out = (old[FIRST + MEAN] + delta * share_b,)
    if ORDER >= 2:
        share_a = 1.0 - share_b
        pair = mass_a * share_b
        c = u - mean_b[:, None]
        wc = w * c
        second_a = old[FIRST + SECOND]
        second_b = tl.sum(wc * c, 1)
        more = second_b + delta * delta * pair
        second = second_a + more
        # A flat distribution has thousands of equal parts: what each addition loses is kept beside the sum.
        lost = old[FIRST + ORDER] + (more - (second - second_a))
        lost_mass = old[FIRST + ORDER + 1] + (mass_b - (mass - mass_a))
        out = out + (second,)
        if ORDER >= 3:
            wc = wc * c
            third_a = old[FIRST + THIRD]
            third_b = tl.sum(wc * c, 1)
            out = out + (merged_third(second_a, second_b, third_a, third_b, delta, pair, share_a, share_b),)
            if ORDER >= 4:
                fourth = old[FIRST + FOURTH] + tl.sum(wc * c * c, 1)
                out = out + (
                    merged_fourth(second_a, second_b, third_a, third_b, fourth, delta, pair, share_a, share_b),
                )
        out = out + (lost, lost_mass)
    return out
