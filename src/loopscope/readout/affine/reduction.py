"""The reductions over the vocabulary: everything that a path needs from the logits of its two states.

FP32 logits z⁰ and z⁺ of states that follow one another; one program reduces one token of one update. Results are FP64
made of FP32 sums: every lane adds up its entries, a tile's first, and lanes are added up in FP64. Logits below −10⁹
count as −10⁹, so that masks of −∞ and −3·10³⁸ weigh nothing and put no infinity into a sum.

`reduce_grid` reads every logit once, for evenly spaced scales. With M⁰ and M⁺ a lane's largest logits so far,
x = z − M at either end and d = (z⁺ − z⁰) − (M⁺ − M⁰), the weight of an entry is exp(x⁰ + αd): at most 1, as the chord
from M⁰ to M⁺ lies above every logit, which is affine in α. When a maximum rises, sums are brought to the new units.
Weights of neighbouring scales follow from one exponential by multiplications with exp(d · step). Power sums are about
the means of the first tile. All of that is as good as exact unless the chord lies far above the likeliest entry in
between or a displacement spans hundreds: such tokens are marked.

`reduce_any` takes any scales and any rows, and the tokens that `reduce_grid` marked. It reads them twice: first the
largest logit at every scale, in whose units no mass underflows, and the displacement of that entry, about which power
sums lose nothing where it has all the mass; then the sums.

`reduce_powers` takes FP64 logits and displacements of one token: P_n = Σ_{a≠d} w_a (v_a − v_d)ⁿ in units of the
likeliest entry d at some scales (`moments` says what follows from them).

Shapes: T tokens, V vocabulary entries, K scales, S states.
"""

# Triton's tuples know concatenation, not unpacking.
# ruff: noqa: RUF005, SIM102
# mypy: disable-error-code="assignment,var-annotated,misc"

from __future__ import annotations

from loopscope.kernels.language import Value, constant, constexpr, jit, tl

_LOG2_E = constant(1.4426950408889634)
_UNIT = constant(1.0 / 1.44269502162933349609375)
"""What undoes a multiplication by log₂ e as float32 has it."""
_LOWEST = constant(-1.0e9)
_NOWHERE = constant(-2.0e9)
"""What stands beyond the end of a row: it weighs nothing even where every logit is masked."""
_LEAST = constant(1.0e-12)
"""The smallest mass, in units of the chord, that weights which underflow at some scale cannot add to."""
_FARTHEST = constant(16.0)
"""By how many powers of two a weight may change from one scale to the next."""

STRIDE = 4
"""From one exponential to the next there are so many scales."""

EXTRA = ("initial", "divergence", "reverse_divergence", "initial_entropy", "final_entropy", "entropy_change", "spread")
"""What is written of a token after its gains [K] and its derivatives [places, order]; then whether it is marked."""


@jit
def reduce_grid(
    logits: Value,
    bias: Value,
    targets: Value,
    out: Value,
    tokens: Value,
    vocabulary: Value,
    state_stride: Value,
    out_stride: Value,
    COUNT: constexpr,
    PLACES: constexpr,
    ORDER: constexpr,
    HAS_BIAS: constexpr,
    RAGGED: constexpr,
    LANES: constexpr,
    ROUNDS: constexpr,
    STRIDE: constexpr,
) -> None:
    """One token of one update at COUNT even scales from 0 to 1; the bits of PLACES are those with derivatives."""
    update = tl.program_id(0)
    token = tl.program_id(1)
    row0 = logits + update.to(tl.int64) * state_stride + token.to(tl.int64) * vocabulary
    row1 = row0 + state_stride
    y0, y1 = _logits(row0, row1, bias, tl.load(targets + token), True, HAS_BIAS, False)
    v_y = y1 - y0
    step = 1.0 / (COUNT - 1)
    turn = tl.arange(0, ROUNDS)[:, None, None]
    lane = tl.arange(0, LANES)[None, :, None]
    entries = (turn * LANES + lane) * 4 + tl.arange(0, 4)[None, None, :]

    z0, z1 = _logits(row0, row1, bias, entries, entries < vocabulary, HAS_BIAS, RAGGED)
    x0 = (z0 - tl.max(z0)) * _LOG2_E
    d = (z1 - tl.max(z1)) * _LOG2_E - x0
    alphas = ()
    centres = ()
    for k in tl.static_range(COUNT):
        alphas = alphas + (y0 * 0.0 + k * step,)
        if (PLACES >> k) & 1:
            w = tl.exp2(tl.fma(d, k * step, x0))
            centres = centres + (tl.sum(w * (z1 - z0)) / tl.maximum(tl.sum(w), 1.0e-30),)

    nothing = _fold(tl.zeros([ROUNDS, LANES, 4], dtype=tl.float32))
    top0 = nothing + y0
    top1 = nothing + y1
    highest = nothing + v_y
    lowest = highest
    ends = (nothing, nothing, nothing, nothing)
    masses = _copies(nothing, COUNT)
    powers = _copies(nothing, len(centres) * ORDER)
    for start in range(0, vocabulary, ROUNDS * LANES * 4):
        inside = start + entries < vocabulary
        z0, z1 = _logits(row0, row1, bias, start + entries, inside, HAS_BIAS, RAGGED)
        v = z1 - z0
        if RAGGED:
            v = tl.where(inside, v, v_y)
        highest = tl.maximum(highest, tl.max(tl.max(v, 2), 0))
        lowest = tl.minimum(lowest, tl.min(tl.min(v, 2), 0))
        drop0 = top0
        drop1 = top1
        top0 = tl.maximum(top0, tl.max(tl.max(z0, 2), 0))
        top1 = tl.maximum(top1, tl.max(tl.max(z1, 2), 0))
        drop0 = (drop0 - top0) * _LOG2_E
        off = (drop1 - top1) * _LOG2_E - drop0
        x0 = (z0 - top0[None, :, None]) * _LOG2_E
        x1 = (z1 - top1[None, :, None]) * _LOG2_E
        d = (v - (top1 - top0)[None, :, None]) * _LOG2_E
        grow = tl.exp2(d * step)
        w0 = tl.exp2(x0)
        w1 = tl.exp2(x1)
        ends = _brought(ends, masses[0], masses[COUNT - 1], drop0, off)
        ends = (
            ends[0] + _fold(w0 * x0),
            ends[1] + _fold(w0 * d),
            ends[2] + _fold(w1 * x1),
            ends[3] + _fold(w1 * d),
        )
        new_masses = ()
        new_powers = ()
        for k in tl.static_range(COUNT):
            keep = tl.exp2(tl.fma(off, k * step, drop0))
            if k == 0:
                w = w0
            elif k == COUNT - 1:
                w = w1
                keep = tl.exp2(off + drop0)
            elif k % STRIDE == 0:
                w = tl.exp2(tl.fma(d, k * step, x0))
            else:
                w = w * grow
            new_masses = new_masses + (tl.fma(masses[k], keep, _fold(w)),)
            if (PLACES >> k) & 1:
                c = v - centres[len(new_powers) // ORDER]
                term = w
                for _ in tl.static_range(ORDER):
                    term = term * c
                    new_powers = new_powers + (tl.fma(powers[len(new_powers)], keep, _fold(term)),)
        masses = new_masses
        powers = new_powers

    most0 = tl.max(top0, 0)
    most1 = tl.max(top1, 0)
    drop0 = (top0 - most0) * _LOG2_E
    off = (top1 - most1) * _LOG2_E - drop0
    ends = _brought(ends, masses[0], masses[COUNT - 1], drop0, off)
    totals = ()
    moments = ()
    references = ()
    least = tl.full([], 1.0, dtype=tl.float64)
    for k in tl.static_range(COUNT):
        keep = tl.exp2(tl.fma(off, k * step, drop0))
        totals = totals + (_total(masses[k] * keep),)
        references = references + (y0 * 0.0,)
        least = tl.minimum(least, totals[k], propagate_nan=tl.PropagateNan.ALL)
        if (PLACES >> k) & 1:
            for _ in tl.static_range(ORDER):
                moments = moments + (_total(powers[len(moments)] * keep),)
    spread = tl.max(highest, 0) - tl.min(lowest, 0)
    to = out + update.to(tl.int64) * tokens + token
    last = _write(
        to, out_stride, totals, moments, centres, ends, alphas, references, y0 - most0, v_y, most1 - most0, spread,
        COUNT, PLACES, ORDER,
    )  # fmt: skip
    near = (least > _LEAST) & (spread * step * _LOG2_E < _FARTHEST)
    tl.store(last, tl.where(near, 0.0, 1.0).to(tl.float64))


@jit
def reduce_any(
    logits: Value,
    bias: Value,
    targets: Value,
    scales: Value,
    out: Value,
    tokens: Value,
    vocabulary: Value,
    state_stride: Value,
    scale_stride: Value,
    out_stride: Value,
    mark_slot: Value,
    COUNT: constexpr,
    PLACES: constexpr,
    ORDER: constexpr,
    HAS_BIAS: constexpr,
    RAGGED: constexpr,
    MARKED: constexpr,
    LANES: constexpr,
) -> None:
    """One token of one update at COUNT scales of which the first is 0 and the last 1; MARKED: if it is marked."""
    update = tl.program_id(0)
    token = tl.program_id(1)
    to = out + update.to(tl.int64) * tokens + token
    if MARKED:
        if tl.load(to + mark_slot * out_stride) == 0.0:
            return
    row0 = logits + update.to(tl.int64) * state_stride + token.to(tl.int64) * vocabulary
    row1 = row0 + state_stride
    y0, y1 = _logits(row0, row1, bias, tl.load(targets + token), True, HAS_BIAS, False)
    v_y = y1 - y0
    lanes = tl.arange(0, LANES)
    nothing = tl.zeros([LANES], dtype=tl.float32)
    highest = nothing + v_y
    lowest = highest
    alphas = ()
    tops = ()
    displacements = ()
    for k in tl.static_range(COUNT):
        alphas = alphas + (tl.load(scales + token * scale_stride + k),)
        tops = tops + (nothing + _NOWHERE,)
        if (PLACES >> k) & 1:
            displacements = displacements + (highest,)
    for start in range(0, vocabulary, LANES):
        inside = start + lanes < vocabulary
        z0, z1 = _logits(row0, row1, bias, start + lanes, inside, HAS_BIAS, RAGGED)
        v = z1 - z0
        if RAGGED:
            v = tl.where(inside, v, v_y)
        highest = tl.maximum(highest, v)
        lowest = tl.minimum(lowest, v)
        new_tops = ()
        new_displacements = ()
        for k in tl.static_range(COUNT):
            if k == 0:
                z = z0
            elif k == COUNT - 1:
                z = z1
            else:
                z = tl.fma(v, alphas[k], z0)
            if (PLACES >> k) & 1:
                before = displacements[len(new_displacements)]
                new_displacements = new_displacements + (tl.where(z > tops[k], v, before),)
            new_tops = new_tops + (tl.maximum(tops[k], z),)
        tops = new_tops
        displacements = new_displacements

    top0 = tl.max(tops[0], 0)
    top1 = tl.max(tops[COUNT - 1], 0)
    rise = top1 - top0
    references = ()
    centres = ()
    for k in tl.static_range(COUNT):
        top = tl.max(tops[k], 0)
        if k == 0 or k == COUNT - 1:
            references = references + (y0 * 0.0,)
        else:
            references = references + ((top - top0 - alphas[k] * rise) * _LOG2_E,)
        if (PLACES >> k) & 1:
            among = tl.where(tops[k] == top, displacements[len(centres)], -float("inf"))
            centres = centres + (tl.max(among, 0),)

    ends = (nothing, nothing, nothing, nothing)
    masses = _copies(nothing, COUNT)
    powers = _copies(nothing, len(centres) * ORDER)
    for start in range(0, vocabulary, LANES):
        inside = start + lanes < vocabulary
        z0, z1 = _logits(row0, row1, bias, start + lanes, inside, HAS_BIAS, RAGGED)
        v = z1 - z0
        x0 = (z0 - top0) * _LOG2_E
        x1 = (z1 - top1) * _LOG2_E
        d = (v - rise) * _LOG2_E
        w0 = tl.exp2(x0)
        w1 = tl.exp2(x1)
        ends = (ends[0] + w0 * x0, ends[1] + w0 * d, ends[2] + w1 * x1, ends[3] + w1 * d)
        new_masses = ()
        new_powers = ()
        for k in tl.static_range(COUNT):
            if k == 0:
                w = w0
            elif k == COUNT - 1:
                w = w1
            else:
                w = tl.exp2(tl.fma(d, alphas[k], x0 - references[k]))
            new_masses = new_masses + (masses[k] + w,)
            if (PLACES >> k) & 1:
                c = v - centres[len(new_powers) // ORDER]
                for _ in tl.static_range(ORDER):
                    w = w * c
                    new_powers = new_powers + (powers[len(new_powers)] + w,)
        masses = new_masses
        powers = new_powers

    totals = ()
    moments = ()
    for k in tl.static_range(COUNT):
        totals = totals + (_total(masses[k]),)
        if (PLACES >> k) & 1:
            for _ in tl.static_range(ORDER):
                moments = moments + (_total(powers[len(moments)]),)
    spread = tl.max(highest, 0) - tl.min(lowest, 0)
    last = _write(
        to, out_stride, totals, moments, centres, ends, alphas, references, y0 - top0, v_y, rise, spread, COUNT,
        PLACES, ORDER,
    )  # fmt: skip
    tl.store(last, tl.zeros([], dtype=tl.float64))


@jit
def _logits(
    row0: Value, row1: Value, bias: Value, at: Value, inside: Value, HAS_BIAS: constexpr, RAGGED: constexpr
) -> Value:
    """Logits of both states."""
    if RAGGED:
        z0 = tl.load(row0 + at, mask=inside, other=0.0)
        z1 = tl.load(row1 + at, mask=inside, other=0.0)
    else:
        z0 = tl.load(row0 + at)
        z1 = tl.load(row1 + at)
    if HAS_BIAS:
        shift = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        z0 += shift
        z1 += shift
    z0 = tl.maximum(z0, _LOWEST, propagate_nan=tl.PropagateNan.ALL)
    z1 = tl.maximum(z1, _LOWEST, propagate_nan=tl.PropagateNan.ALL)
    if RAGGED:
        z0 = tl.where(inside, z0, _NOWHERE)
        z1 = tl.where(inside, z1, _NOWHERE)
    return z0, z1


@jit
def _copies(value: Value, NUMBER: constexpr) -> Value:
    out = ()
    for _ in tl.static_range(NUMBER):
        out = out + (value,)
    return out


@jit
def _brought(ends: Value, mass0: Value, mass1: Value, drop0: Value, off: Value) -> Value:
    """Σ w⁰x⁰, Σ w⁰d, Σ w⁺x⁺, Σ w⁺d in units of other maxima: Σ w (x + drop) = Σ wx + drop Σ w."""
    keep0 = tl.exp2(drop0)
    keep1 = tl.exp2(off + drop0)
    return (
        tl.fma(mass0, drop0, ends[0]) * keep0,
        tl.fma(mass0, off, ends[1]) * keep0,
        tl.fma(mass1, off + drop0, ends[2]) * keep1,
        tl.fma(mass1, off, ends[3]) * keep1,
    )


@jit
def _fold(tile: Value) -> Value:
    """Sums of what a thread holds."""
    return tl.sum(tl.sum(tile, 2), 0)


@jit
def _total(lanes: Value) -> Value:
    return tl.sum(lanes.to(tl.float64), 0)


@jit
def _write(
    to: Value, out_stride: Value, totals: Value, moments: Value, centres: Value, ends: Value, alphas: Value,
    references: Value, below: Value, v_y: Value, rise: Value, spread: Value, COUNT: constexpr, PLACES: constexpr,
    ORDER: constexpr,
) -> Value:  # fmt: skip
    """What follows from the sums, in FP64, and the place after it; log Z(α) is in units of M⁰ + α rise + reference."""
    log0 = tl.log(totals[0])
    log1 = tl.log(totals[COUNT - 1])
    d_y = (v_y - rise).to(tl.float64)
    done = ()
    for k in tl.static_range(COUNT):
        mass = totals[k]
        reference = references[k].to(tl.float64) * _UNIT
        tl.store(to + k * out_stride, alphas[k].to(tl.float64) * d_y - reference - (tl.log(mass) - log0))
        if (PLACES >> k) & 1:
            mean = moments[len(done)] / mass
            at = to + (COUNT + len(done)) * out_stride
            tl.store(at, (v_y - centres[len(done) // ORDER]).to(tl.float64) - mean)
            if ORDER >= 2:
                second = moments[len(done) + 1] / mass
                variance = tl.maximum(second - mean * mean, 0.0)
                tl.store(at + out_stride, -variance)
            if ORDER >= 3:
                third = moments[len(done) + 2] / mass
                tl.store(at + 2 * out_stride, -(third - 3.0 * second * mean + 2.0 * mean * mean * mean))
            if ORDER >= 4:
                fourth = moments[len(done) + 3] / mass
                square = mean * mean
                fourth = fourth - 4.0 * third * mean + 6.0 * second * square - 3.0 * square * square
                tl.store(at + 3 * out_stride, 3.0 * variance * variance - fourth)
            for _ in tl.static_range(ORDER):
                done = done + (mean,)
    at = to + (COUNT + len(done)) * out_stride
    entropy0 = log0 - _total(ends[0]) / totals[0] * _UNIT
    entropy1 = log1 - _total(ends[2]) / totals[COUNT - 1] * _UNIT
    growth = log1 - log0
    tl.store(at, below.to(tl.float64) - log0)
    tl.store(at + out_stride, tl.maximum(growth - _total(ends[1]) / totals[0] * _UNIT, 0.0))
    tl.store(at + 2 * out_stride, tl.maximum(_total(ends[3]) / totals[COUNT - 1] * _UNIT - growth, 0.0))
    tl.store(at + 3 * out_stride, entropy0)
    tl.store(at + 4 * out_stride, entropy1)
    tl.store(at + 5 * out_stride, entropy1 - entropy0)
    tl.store(at + 6 * out_stride, spread.to(tl.float64))
    return at + 7 * out_stride


@jit
def reduce_powers(
    z0: Value,
    v: Value,
    scales: Value,
    entry: Value,
    out: Value,
    tokens: Value,
    vocabulary: Value,
    row_stride: Value,
    scale_stride: Value,
    COUNT: constexpr,
    GROUPS: constexpr,
    TERMS: constexpr,
    ROWS: constexpr,
    SKIP_ZERO: constexpr,
    LANES: constexpr,
) -> None:
    """One token at GROUPS of its COUNT scales. P_{i+ROWS·j} = Σ (w uⁱ)(u^ROWS)ʲ shares its products."""
    token = tl.program_id(1)
    if SKIP_ZERO:
        if tl.load(scales + token * scale_stride) == 0.0:
            return
    row0 = z0 + token.to(tl.int64) * row_stride
    row1 = v + token.to(tl.int64) * row_stride
    lanes = tl.arange(0, LANES)[None, :]
    scale = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)[:, None]
    alpha = tl.load(scales + token * scale_stride + tl.minimum(scale, COUNT - 1))

    top = tl.full([GROUPS, LANES], -float("inf"), dtype=tl.float64)
    place = tl.zeros([GROUPS, LANES], dtype=tl.int32)
    for start in range(0, vocabulary, LANES):
        at = start + lanes
        inside = at < vocabulary
        z = tl.load(row0 + at, mask=inside, other=-float("inf"))
        z += alpha * tl.load(row1 + at, mask=inside, other=0.0)
        place = tl.where(z > top, at, place)
        top = tl.maximum(top, z)
    best = tl.max(top, 1, keep_dims=True)
    likeliest = tl.min(tl.where(top == best, place, vocabulary - 1), 1, keep_dims=True)
    z_d = tl.load(row0 + likeliest)
    v_d = tl.load(row1 + likeliest)

    sums = ()
    for _ in tl.static_range(TERMS):
        sums = sums + (tl.zeros([GROUPS, LANES], dtype=tl.float64),)
    for start in range(0, vocabulary, LANES):
        at = start + lanes
        inside = at < vocabulary
        u = tl.load(row1 + at, mask=inside, other=0.0) - v_d
        x = (tl.load(row0 + at, mask=inside, other=0.0) - z_d) + alpha * u
        w = tl.where(inside & (at != likeliest), tl.exp(x), 0.0)
        low = (w,)
        high = u
        for _ in tl.static_range(ROWS - 1):
            low = low + (low[len(low) - 1] * u,)
            high = high * u
        factor = high
        new = ()
        for n in tl.static_range(TERMS):
            if n < ROWS:
                new = new + (sums[n] + low[n],)
            else:
                new = new + (tl.fma(low[n % ROWS], factor, sums[n]),)
                if n % ROWS == ROWS - 1:
                    factor = factor * high
        sums = new

    wanted = scale < COUNT
    tl.store(entry + token * COUNT + scale, likeliest, mask=wanted)
    to = out + token.to(tl.int64) * COUNT + scale
    for n in tl.static_range(TERMS):
        tl.store(to + n * (tokens.to(tl.int64) * COUNT), tl.sum(sums[n], 1, keep_dims=True), mask=wanted)
