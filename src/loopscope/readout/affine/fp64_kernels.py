"""Moments at evenly spaced scales on a GPU in float64, every weight in registers: the kernels of the way `fp64_kernel`.

`power_sums_kernel` takes one token, some scales and one block of the vocabulary. The scales fall into intervals. With
α_c the centre of an interval, d the block's likeliest entry there and u = v − v_d, the weight of an entry at
α = α_c + δ is w e^{δu}, w = exp(z(0) − z_d(0) + α_c u). About an origin μ close to the mean of u and with c = u − μ,

    Σ w e^{δu} c^m = e^{δμ} Σ_n P_{n+m} δⁿ/n!,        P_n = Σ w cⁿ,

and some 30 power sums give the moments at all scales of the interval. A first look at the block finds d and μ, in
float32: any entry and any origin would do, and these keep the digits. In a second look every thread adds up the powers
of its own entries, and the threads' sums are put together once.

**Errors.** Intervals have |δc| ≤ x = `REACH` for every entry, and the series stops where e^{2x} x^N/N! ≤ ε = 2⁻⁵³. Its
terms add up to e^{|δc|} at most while their sum is e^{δc} ≥ e^{−|δc|}; the n-th carries (4n + 2m + 4)ε from its power
and its coefficient, and Σ n|δc|ⁿ/n! = |δc|e^{|δc|}. So the m-th sum is right to e^{2x}(4x + 2m + 5)ε of
Σ w e^{δu}|c|^m: 1e-13 if all the weight lies at the far end of the range of v, a few ε otherwise. `power_sums` says
what taking moments about v_d + μ costs.

All threads must take μ for the same number, or the powers and e^{δμ} would be about different origins. They would not
if products were contracted with the sums that follow them: a thread that adds its own product to another thread's would
round the other one alone. So nothing is contracted here but what `tl.fma` says.

Sums over a block about v_d + μ become moments about the block's mean; blocks are merged by `moments.merge_states`, in
their order, so that results are bitwise repeatable (`merge_kernel`). What is merged is a state: a tuple whose order
`merge_states` defines, stored and read by its index.

`kernel_sums` launches them.
"""

# Triton's tuples know concatenation, not unpacking, and grow while a loop is unrolled.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import Any

from loopscope.kernels.language import Value, constant, constexpr, jit, tl
from loopscope.readout.affine.moments import merge_states

_LOG2_E = constant(1.4426950408889634)


@jit
def power_sums_kernel(
    z0: Value,
    v: Value,
    v_y: Value,
    least: Value,
    most: Value,
    scales: Value,
    states: Value,
    tokens: Value,
    entries: Value,
    z0_stride: Value,
    v_stride: Value,
    COUNT: constexpr,
    SCALES: constexpr,
    NODES: constexpr,
    ORDER: constexpr,
    STORED: constexpr,
    REACH: constexpr,
    DOMINANT: constexpr,
    TERMS: constexpr,
    ROWS: constexpr,
    LINES: constexpr,
    LANES: constexpr,
    TILE: constexpr,
) -> None:
    """One token's state over one block of the vocabulary at SCALES scales."""
    first = tl.program_id(0) * SCALES
    token = tl.program_id(1)
    place = tl.arange(0, NODES)
    length = tl.minimum(SCALES, COUNT - first)
    scales += first
    alpha = tl.load(scales + place, mask=place < length, other=0.0)
    step = 1.0 / (COUNT - 1)
    target = tl.load(v_y + token)
    low_v = tl.load(least + token)
    high_v = tl.load(most + token)
    z0 += token.to(tl.int64) * z0_stride
    v += token.to(tl.int64) * v_stride
    out = states + token * COUNT + first + place
    # No entry is farther from an origin than the range of v, and mostly none is nearly as far.
    wide = high_v - low_v
    far = 0.75 * wide
    low = 0
    while low < length:
        size = 1 + tl.minimum(2.0 * REACH / tl.maximum(far * step, 1e-6), length - low - 1.0).to(tl.int32)
        high = low + size
        centre = 0.5 * (tl.load(scales + low) + tl.load(scales + high - 1))
        z_d, v_d, best, origin = _centred(z0, v, entries, centre, low_v, high_v, DOMINANT, LINES, LANES)
        farthest = tl.maximum(high_v - (v_d + origin), (v_d + origin) - low_v)
        if (0.5 * (size - 1) * step * farthest > REACH) & (far < wide):
            far = wide
        else:
            these = (place >= low) & (place < high)
            away = tl.where(these, alpha - centre, 0.0)
            sums = _power_sums(z0, v, entries, centre, z_d, v_d, best, origin, size > 1, TERMS + ORDER, ROWS, TILE)
            found = _moments(sums, away, z_d, v_d, origin, target, TERMS, ORDER)
            for slot in tl.static_range(STORED):
                tl.store(out + slot * tokens * COUNT, found[slot], mask=these)
            low = high


@jit
def _centred(
    z0: Value,
    v: Value,
    entries: Value,
    centre: Value,
    low_v: Value,
    high_v: Value,
    DOMINANT: constexpr,
    LINES: constexpr,
    LANES: constexpr,
) -> Any:
    """The likeliest entry d at a scale, its place, and an origin near the mean of u: in float32, as any will do."""
    at = LANES * tl.arange(0, LINES)[:, None] + tl.arange(0, LANES)[None, :]
    lane = tl.arange(0, LANES)
    middle = 0.5 * (low_v + high_v)
    base = tl.load(z0)
    slope = centre.to(tl.float32) * _LOG2_E
    top = tl.full([LANES], -1e30, dtype=tl.float32)
    where = lane * 0
    mass = tl.zeros([LANES], dtype=tl.float32)
    total = tl.zeros([LANES], dtype=tl.float32)
    for start in range(0, entries, LINES * LANES):
        live = start + at < entries
        d = (tl.load(v + start + at, mask=live, other=0.0) - middle).to(tl.float32)
        z = (tl.load(z0 + start + at, mask=live, other=0.0) - base).to(tl.float32)
        key = tl.where(live, tl.fma(d, slope, z * _LOG2_E), -1e30)
        highest = tl.maximum(top, tl.max(key, 0))
        where = tl.where(highest > top, start, where)
        keep = tl.exp2(top - highest)
        w = tl.exp2(key - highest[None, :])
        mass = tl.fma(mass, keep, tl.sum(w, 0))
        total = tl.fma(total, keep, tl.sum(w * d, 0))
        top = highest
    highest = tl.max(top, 0)
    keep = tl.exp2(top - highest)
    whole = tl.sum(mass * keep, 0)
    mean = middle + (tl.sum(total * keep, 0) / whole).to(tl.float64)
    # One lane with the highest has it in the lines that it last took a higher one from.
    found = tl.min(tl.where(top == highest, lane, LANES - 1), 0)
    start = tl.min(tl.where(lane == found, where, entries), 0) + found
    line = tl.arange(0, LINES)
    live = start + LANES * line < entries
    d = (tl.load(v + start + LANES * line, mask=live, other=0.0) - middle).to(tl.float32)
    z = (tl.load(z0 + start + LANES * line, mask=live, other=0.0) - base).to(tl.float32)
    key = tl.where(live, tl.fma(d, slope, z * _LOG2_E), -1e30)
    best = start + LANES * tl.min(tl.where(key == tl.max(key, 0), line, 0 * line + LINES - 1), 0)
    best = tl.minimum(best, entries - 1)
    z_d = tl.load(z0 + best)
    v_d = tl.load(v + best)
    mean = tl.minimum(tl.maximum(mean, low_v), high_v)
    return z_d, v_d, best, tl.where(whole > DOMINANT + 1.0, mean - v_d, 0.0)


@jit
def _power_sums(
    z0: Value,
    v: Value,
    entries: Value,
    centre: Value,
    z_d: Value,
    v_d: Value,
    best: Value,
    origin: Value,
    several: Value,
    POWERS: constexpr,
    ROWS: constexpr,
    TILE: constexpr,
) -> Any:
    """Σ w cⁿ without the entry d, n < POWERS: every thread adds up its own entries, and all add up once.

    Two entries at a time keep a thread busy while it waits for the steps of an exponential.
    """
    one = tl.arange(0, TILE)
    two = one + TILE
    sums = ()
    for _ in tl.static_range(POWERS):
        sums = sums + (tl.zeros([TILE], dtype=tl.float64),)
    d_one, z_one = tl.load(v + one, mask=one < entries, other=v_d), tl.load(z0 + one, mask=one < entries, other=z_d)
    d_two, z_two = tl.load(v + two, mask=two < entries, other=v_d), tl.load(z0 + two, mask=two < entries, other=z_d)
    for _ in range(0, entries, 2 * TILE):
        # A place beyond the block weighs nothing, and its powers are finite.
        u_one, u_two = d_one - v_d, d_two - v_d
        x_one, x_two = tl.fma(u_one, centre, z_one - z_d), tl.fma(u_two, centre, z_two - z_d)
        weighs_one, weighs_two = (one < entries) & (one != best), (two < entries) & (two != best)
        one += 2 * TILE
        two += 2 * TILE
        d_one, z_one = tl.load(v + one, mask=one < entries, other=v_d), tl.load(z0 + one, mask=one < entries, other=z_d)
        d_two, z_two = tl.load(v + two, mask=two < entries, other=v_d), tl.load(z0 + two, mask=two < entries, other=z_d)
        w_one, w_two = tl.where(weighs_one, _exp(x_one), 0.0), tl.where(weighs_two, _exp(x_two), 0.0)
        sums = _added(sums, w_one, u_one - origin, several, POWERS, ROWS)
        sums = _added(sums, w_two, u_two - origin, several, POWERS, ROWS)
    whole = ()
    for n in tl.static_range(POWERS):
        whole = whole + (tl.sum(sums[n], 0),)
    return whole


@jit
def _added(sums: Value, w: Value, c: Value, several: Value, POWERS: constexpr, ROWS: constexpr) -> Any:
    """Sums with w cⁿ added to the n-th; beyond the first ROWS only for several scales, whose span bounds |c|."""
    square = c * c
    cube = square * c
    row = (w,)
    for i in tl.static_range(ROWS - 1):
        row = row + (row[i] * c,)
    factor = tl.where(several, cube * cube, 0.0)
    column = factor
    added = ()
    for i in tl.static_range(ROWS):
        added = added + (sums[i] + row[i],)
    for j in tl.static_range(1, (POWERS + ROWS - 1) // ROWS):
        for i in tl.static_range(ROWS):
            if j * ROWS + i < POWERS:
                added = added + (tl.fma(row[i], column, sums[j * ROWS + i]),)
        column = column * factor
    return added


@jit
def _exp(x: Value) -> Any:
    """e^x to a unit of rounding, 0 below −708; without a branch, so that two of them run side by side.

    With k the integer next to x/log 2, e^x = 2^k e^r and |r| ≤ log(2)/2. There e^r = 1 + r + r² q(r) to 2e-17, with q
    the polynomial of degree 9 that interpolates at Chebyshev's nodes.
    """
    big = tl.full([], 6755399441055744.0, tl.float64)  # 1.5·2⁵²: what is added to it is rounded to an integer
    shifted = tl.fma(x, tl.full([], 1.4426950408889634, tl.float64), big)
    k = shifted - big
    r = tl.fma(k, tl.full([], -0.6931467056274414, tl.float64), x)
    r = tl.fma(k, tl.full([], -4.7493250390316726e-07, tl.float64), r)
    q = tl.full([], 2.510038549551032e-08, tl.float64)
    q = tl.fma(q, r, tl.full([], 2.7620088445409746e-07, tl.float64))
    q = tl.fma(q, r, tl.full([], 2.7557268459997064e-06, tl.float64))
    q = tl.fma(q, r, tl.full([], 2.4801521295954376e-05, tl.float64))
    q = tl.fma(q, r, tl.full([], 0.00019841269863053618, tl.float64))
    q = tl.fma(q, r, tl.full([], 0.0013888888917213717, tl.float64))
    q = tl.fma(q, r, tl.full([], 0.008333333333330062, tl.float64))
    q = tl.fma(q, r, tl.full([], 0.04166666666662413, tl.float64))
    q = tl.fma(q, r, tl.full([], 0.16666666666666669, tl.float64))
    q = tl.fma(q, r, tl.full([], 0.5, tl.float64))
    q = tl.fma(q, r, tl.full([], 1.0, tl.float64))
    q = tl.fma(q, r, tl.full([], 1.0, tl.float64))
    bits = q.to(tl.int64, bitcast=True) + (shifted.to(tl.int64, bitcast=True) << 52)
    return tl.where(x < -708.0, 0.0, bits.to(tl.float64, bitcast=True))


@jit
def _moments(
    sums: Value,
    away: Value,
    z_d: Value,
    v_d: Value,
    origin: Value,
    target: Value,
    TERMS: constexpr,
    ORDER: constexpr,
) -> Any:
    """The state at the scales that lie `away` from the centre, from power sums."""
    s0, s1, s2, s3, s4 = away * 0.0, away * 0.0, away * 0.0, away * 0.0, away * 0.0
    e = s0 + 1.0
    for n in tl.static_range(TERMS):
        s0 = tl.fma(e, sums[n], s0)
        s1 = tl.fma(e, sums[n + 1], s1)
        s2 = tl.fma(e, sums[n + 2], s2)
        s3 = tl.fma(e, sums[n + 3], s3)
        if ORDER >= 4:
            s4 = tl.fma(e, sums[n + 4], s4)
        e = e * (away * (1.0 / (n + 1)))
    grow = tl.exp(away * origin)
    others = s0 * grow
    mass = 1.0 + others
    s1 = s1 * grow - origin
    s2 = s2 * grow + origin * origin
    s3 = s3 * grow - origin * origin * origin
    m = s1 / mass
    fourth = s0
    if ORDER >= 4:
        s4 = s4 * grow + (origin * origin) * (origin * origin)
        fourth = s4 - 4.0 * m * s3 + 6.0 * m * m * s2 - 3.0 * m * m * m * s1
    return (
        z_d + away * 0.0,
        v_d + away * 0.0,
        others,
        origin + m,
        mass * ((target - v_d) - origin) - s1,
        tl.maximum(s2 - m * s1, 0.0),
        s3 - 3.0 * m * s2 + 2.0 * m * m * s1,
        fourth,
    )


@jit
def merge_kernel(
    states: Value,
    scales: Value,
    results: Value,
    tokens: Value,
    BLOCKS: constexpr,
    COUNT: constexpr,
    NODES: constexpr,
    STORED: constexpr,
    RESULTS: constexpr,
) -> None:
    """One token's log mass and derivatives over the whole vocabulary at NODES scales, from the states of its blocks."""
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    token = tl.program_id(1)
    live = node < COUNT
    alpha = tl.load(scales + node, mask=live, other=0.0)
    stride = tokens * COUNT
    state = _nothing(NODES)
    at = states + token * COUNT + node
    for _ in range(0, BLOCKS):
        block = ()
        for slot in tl.static_range(STORED):
            block = block + (tl.load(at + slot * stride, mask=live, other=0.0),)
        for _ in tl.static_range(len(state) - STORED):
            block = block + (tl.zeros([NODES], dtype=tl.float64),)
        state = merge_states(state, block, alpha)
        at += STORED * stride
    z, v, others, _mean, slope, second, third, fourth = state
    mass = 1.0 + others
    variance = second / mass
    kurtosis = fourth / mass - 3.0 * variance * variance
    found = (z, v, others, slope / mass, -variance, -third / mass, -kurtosis)
    out = results + token * COUNT + node
    for slot in tl.static_range(RESULTS):
        tl.store(out + slot * stride, found[slot], mask=live)


@jit
def _nothing(NODES: constexpr) -> Any:
    """The state of no entries, whose weight against any other is zero."""
    none = tl.zeros([NODES], dtype=tl.float64)
    return none - 1e300, none, none, none, none, none, none, none
