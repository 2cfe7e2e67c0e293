"""The reductions over the vocabulary: everything that a path needs from the logits of its two states.

`reduce_path` takes FP32 logits z⁰ and z⁺ of states that follow one another; one program reduces one token of one
update. Results are FP64 made of FP32 sums: every thread adds up its entries, and threads are added up in FP64. In units
of two reference logits M⁰ and M⁺, with x = z − M at either end and d = (z⁺ − z⁰) − (M⁺ − M⁰), the weight of an entry at
scale α is exp(x⁰ + αd). References are whole numbers, so that differences to them lose nothing. Logits below −10⁹ count
as −10⁹, so that masks of −∞ and −3·10³⁸ weigh nothing and put no infinity into a sum. It runs in two ways:

- EVEN, for evenly spaced scales, reads every logit once. References are the largest of the first entries, and power
  sums are about the means of the first tile. Weights of up to two scales on either side of one follow from its
  exponential by factors exp(±d · step), exp(±2d · step). All of that is as good as exact unless a mass leaves the range
  of float32 or a displacement spans hundreds: such tokens are marked.
- Otherwise, for any scales and any rows, and for the tokens that were marked, it reads them twice: first the largest
  logit at every scale, in whose units no mass underflows, and the displacement of that entry, about which power sums
  lose nothing where it has all the mass; then the sums.

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
_LEAST, _MOST = constant(1.0e-12), constant(1.0e18)
"""Between these masses neither weights that underflow nor power sums that overflow matter."""
_FARTHEST = constant(16.0)
"""By how many powers of two a weight may change from one scale to the next."""
_SAMPLE = constant(2048)
"""Entries from which EVEN takes its references."""

EXTRA = ("initial", "divergence", "reverse_divergence", "initial_entropy", "final_entropy", "entropy_change", "spread")
"""What is written of a token after its gains [K] and its derivatives [places, order]; then whether it is marked."""


@jit
def reduce_path(
    logits: Value,
    bias: Value,
    targets: Value,
    states: Value,
    weight: Value,
    scales: Value,
    shares: Value,
    out: Value,
    tokens: Value,
    vocabulary: Value,
    state_stride: Value,
    row_stride: Value,
    scale_stride: Value,
    out_stride: Value,
    width: Value,
    weight_stride: Value,
    COUNT: constexpr,
    PLACES: constexpr,
    ORDER: constexpr,
    OWN: constexpr,
    EVEN: constexpr,
    MARKED: constexpr,
    HAS_BIAS: constexpr,
    RAGGED: constexpr,
    LANES: constexpr,
) -> None:
    """One token of one update at COUNT scales from 0 to 1; the bits of PLACES are those with derivatives.

    Logits are too small by the first of `shares`, of themselves, and their differences by the second, and rows hold
    whole tiles of 4 · LANES of them. OWN: the target's are multiplied here. MARKED: only a token that is marked.
    """
    token = tl.program_id(1)
    to = out + tl.program_id(0).to(tl.int64) * tokens + token
    if MARKED:
        slots = COUNT + 7
        for k in tl.static_range(COUNT):
            slots = slots + ((PLACES >> k) & 1) * ORDER
        if tl.load(to + slots * out_stride) == 0.0:
            return
    row0 = logits + tl.program_id(0).to(tl.int64) * state_stride + token.to(tl.int64) * row_stride
    row1 = row0 + state_stride
    entries = (tl.arange(0, LANES) * 4)[:, None] + tl.arange(0, 4)[None, :]
    nothing = tl.sum(tl.zeros([LANES, 4], dtype=tl.float32), 1)
    share0 = tl.load(shares)
    share = tl.load(shares + 1)
    target = tl.load(targets + token)
    if OWN:
        y0, v_y, early = _own(
            states + (tl.program_id(0) * tl.num_programs(1) + token).to(tl.int64) * width,
            tl.num_programs(1).to(tl.int64) * width, weight + target * weight_stride, width, entries, nothing, LANES,
        )  # fmt: skip
        share = share * early
        y1 = y0 + v_y
        if HAS_BIAS:
            y0 = tl.maximum(y0 + tl.load(bias + target).to(tl.float32), _LOWEST)
            y1 = tl.maximum(y1 + tl.load(bias + target).to(tl.float32), _LOWEST)
    else:
        y0, y1, v_y = _logits(row0, row1, bias, share0, share, target, True, HAS_BIAS, False)
    of_target = (target, y0, y1, v_y)
    step = 1.0 / (COUNT - 1)
    alphas = ()
    tops = ()
    likeliest = ()
    for k in tl.static_range(COUNT):
        if EVEN:
            alphas = alphas + (tl.full([], k * step, dtype=tl.float32),)
        else:
            alphas = alphas + (tl.load(scales + token * scale_stride + k),)
        tops = tops + (nothing + (y0 if k == 0 else y1 if k == COUNT - 1 else _NOWHERE),)
        likeliest = likeliest + (nothing + v_y,)

    end = vocabulary
    if EVEN:
        end = tl.minimum(vocabulary, _SAMPLE)
    for start in range(0, end, LANES * 4):
        inside = start + entries < vocabulary
        z0, z1, v = _logits(row0, row1, bias, share0, share, start + entries, inside, HAS_BIAS, RAGGED)
        z0, z1, v = _with_target(z0, z1, v, start + entries, of_target)
        new_tops = ()
        new_likeliest = ()
        for k in tl.static_range(COUNT):
            if k == 0:
                z = z0
            elif k == COUNT - 1:
                z = z1
            else:
                z = tl.fma(v, alphas[k], z0)
            if EVEN and k > 0 and k < COUNT - 1:
                new_tops = new_tops + (tops[k],)
            else:
                top = tl.max(z, 1)
                if not EVEN and (PLACES >> k) & 1:
                    own = tl.max(tl.where(z == top[:, None], v, -float("inf")), 1)
                    new_likeliest = new_likeliest + (tl.where(top > tops[k], own, likeliest[k]),)
                new_tops = new_tops + (tl.maximum(tops[k], top),)
            if len(new_likeliest) <= k:
                new_likeliest = new_likeliest + (likeliest[k],)
        tops = new_tops
        likeliest = new_likeliest

    top0 = tl.floor(tl.max(tops[0], 0))
    top1 = tl.floor(tl.max(tops[COUNT - 1], 0))
    rise = top1 - top0
    references = ()
    centres = ()
    if EVEN:
        z0, z1, v = _logits(row0, row1, bias, share0, share, entries, entries < vocabulary, HAS_BIAS, RAGGED)
        z0, z1, v = _with_target(z0, z1, v, entries, of_target)
    for k in tl.static_range(COUNT):
        if EVEN or k == 0 or k == COUNT - 1:
            references = references + (tl.zeros([], dtype=tl.float32),)
        else:
            references = references + ((tl.max(tops[k], 0) - top0 - alphas[k] * rise) * _LOG2_E,)
        if (PLACES >> k) & 1:
            if EVEN:
                w = tl.exp2(tl.fma(v - rise, alphas[k], z0 - top0) * _LOG2_E)
                centre = tl.sum(w * v) / tl.maximum(tl.sum(w), 1.0e-30)
            else:
                most = tl.max(tops[k], 0)
                centre = tl.max(tl.where(tops[k] == most, likeliest[k], -float("inf")), 0)
            centres = centres + (centre,)

    highest = nothing + v_y
    lowest = highest
    ends = (nothing, nothing, nothing, nothing)
    masses = _copies(nothing, COUNT)
    powers = _copies(nothing, len(centres) * ORDER)
    for start in range(0, vocabulary, LANES * 4):
        inside = start + entries < vocabulary
        z0, z1, v = _logits(row0, row1, bias, share0, share, start + entries, inside, HAS_BIAS, RAGGED)
        z0, z1, v = _with_target(z0, z1, v, start + entries, of_target)
        if RAGGED:
            v = tl.where(inside, v, v_y)
        highest = tl.maximum(highest, tl.max(v, 1))
        lowest = tl.minimum(lowest, tl.min(v, 1))
        x0 = (z0 - top0) * _LOG2_E
        x1 = (z1 - top1) * _LOG2_E
        d = (v - rise) * _LOG2_E
        w0 = tl.exp2(x0)
        w1 = tl.exp2(x1)
        ends = (
            ends[0] + tl.sum(w0 * x0, 1),
            ends[1] + tl.sum(w0 * d, 1),
            ends[2] + tl.sum(w1 * x1, 1),
            ends[3] + tl.sum(w1 * d, 1),
        )
        if EVEN:
            on = tl.exp2(d * step)
            back = tl.exp2(d * -step)
            factors = (back * back, back, on, on, on * on)
            middle = tl.exp2(tl.fma(d, 2 * step, x0))
        new_masses = ()
        new_powers = ()
        for k in tl.static_range(COUNT):
            if k == 0:
                w = w0
            elif k == COUNT - 1:
                w = w1
            elif EVEN:
                if k % 5 == 0:
                    middle = tl.exp2(tl.fma(d, (k + 2) * step, x0))
                w = middle if k % 5 == 2 else middle * factors[k % 5]
            else:
                w = tl.exp2(tl.fma(d, alphas[k], x0 - references[k]))
            new_masses = new_masses + (masses[k] + tl.sum(w, 1),)
            if (PLACES >> k) & 1:
                c = v - centres[len(new_powers) // ORDER]
                for _ in tl.static_range(ORDER):
                    w = w * c
                    new_powers = new_powers + (powers[len(new_powers)] + tl.sum(w, 1),)
        masses = new_masses
        powers = new_powers

    totals = ()
    moments = ()
    least = tl.full([], 1.0, dtype=tl.float64)
    most = least
    for k in tl.static_range(COUNT):
        totals = totals + (_total(masses[k]),)
        least = tl.minimum(least, totals[k], propagate_nan=tl.PropagateNan.ALL)
        most = tl.maximum(most, totals[k], propagate_nan=tl.PropagateNan.ALL)
        if (PLACES >> k) & 1:
            for _ in tl.static_range(ORDER):
                moments = moments + (_total(powers[len(moments)]),)
    spread = tl.max(highest, 0) - tl.min(lowest, 0)
    last = _write(
        to, out_stride, totals, moments, centres, ends, alphas, references, y0 - top0, v_y, rise, spread,
        COUNT, PLACES, ORDER,
    )  # fmt: skip
    mark = tl.zeros([], dtype=tl.float64)
    if EVEN:
        near = (least > _LEAST) & (most < _MOST) & (spread * step * _LOG2_E < _FARTHEST)
        mark = tl.where(near, 0.0, 1.0).to(tl.float64)
    tl.store(last, mark)


@jit
def _own(
    state: Value, next_state: Value, head_row: Value, width: Value, entries: Value, nothing: Value, LANES: constexpr
) -> Value:
    """The target's logit and displacement, and how early inputs differ.

    A tensor core's sum of n inputs cuts off what comes first n times and what comes last once: the share of a
    displacement grows with that of its squares that come early.
    """
    logit = nothing
    displacement = nothing
    squares = nothing
    early = nothing
    for start in range(0, width, LANES * 4):
        at = start + entries
        h = tl.load(state + at, mask=at < width, other=0.0).to(tl.float32)
        d = tl.load(state + next_state + at, mask=at < width, other=0.0).to(tl.float32) - h
        w = tl.load(head_row + at, mask=at < width, other=0.0).to(tl.float32)
        logit += tl.sum(h * w, 1)
        displacement += tl.sum(d * w, 1)
        squares += tl.sum(d * d, 1)
        early += tl.sum(d * d * (width - at).to(tl.float32), 1)
    total = _total(squares)
    factor = tl.where(total > 0.0, 2.0 * _total(early) / (total * (width + 1.0)), 1.0)
    return _total(logit).to(tl.float32), _total(displacement).to(tl.float32), factor.to(tl.float32)


@jit
def _with_target(z0: Value, z1: Value, v: Value, at: Value, of_target: Value) -> Value:
    """With the target's logits in their place."""
    here = at == of_target[0]
    return tl.where(here, of_target[1], z0), tl.where(here, of_target[2], z1), tl.where(here, of_target[3], v)


@jit
def _logits(
    row0: Value, row1: Value, bias: Value, share0: Value, share: Value, at: Value, inside: Value, HAS_BIAS: constexpr,
    RAGGED: constexpr,
) -> Value:  # fmt: skip
    """Logits of both states and their difference."""
    z0 = tl.maximum(tl.load(row0 + at), _LOWEST, propagate_nan=tl.PropagateNan.ALL)
    z1 = tl.maximum(tl.load(row1 + at), _LOWEST, propagate_nan=tl.PropagateNan.ALL)
    v = z1 - z0
    v = tl.fma(v, share, v)
    z0 = tl.fma(z0, share0, z0)
    z1 = tl.fma(z1, share0, z1)
    if HAS_BIAS:
        shift = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        z0 = tl.maximum(z0 + shift, _LOWEST, propagate_nan=tl.PropagateNan.ALL)
        z1 = tl.maximum(z1 + shift, _LOWEST, propagate_nan=tl.PropagateNan.ALL)
    if RAGGED:
        z0 = tl.where(inside, z0, _NOWHERE)
        z1 = tl.where(inside, z1, _NOWHERE)
        v = tl.where(inside, v, 0.0)
    return z0, z1, v


@jit
def _copies(value: Value, NUMBER: constexpr) -> Value:
    out = ()
    for _ in tl.static_range(NUMBER):
        out = out + (value,)
    return out


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
    count: Value,
    GROUPS: constexpr,
    TERMS: constexpr,
    ROWS: constexpr,
    SKIP_ZERO: constexpr,
    LANES: constexpr,
) -> None:
    """One token at GROUPS of its `count` scales. P_{i+ROWS·j} = Σ (w uⁱ)(u^ROWS)ʲ shares its products."""
    programs = tl.cdiv(count, GROUPS)
    token = tl.program_id(0) // programs
    if SKIP_ZERO:
        if tl.load(scales + token * scale_stride) == 0.0:
            return
    row0 = z0 + token.to(tl.int64) * row_stride
    row1 = v + token.to(tl.int64) * row_stride
    lanes = tl.arange(0, LANES)[None, :]
    scale = (tl.program_id(0) % programs) * GROUPS + tl.arange(0, GROUPS)[:, None]
    alpha = tl.load(scales + token * scale_stride + tl.minimum(scale, count - 1))

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
    # The next entries are loaded while these are worked on.
    z = tl.load(row0 + lanes, mask=lanes < vocabulary, other=0.0)
    dz = tl.load(row1 + lanes, mask=lanes < vocabulary, other=0.0)
    for start in range(0, vocabulary, LANES):
        at = start + lanes
        following = at + LANES
        u = dz - v_d
        x = (z - z_d) + alpha * u
        z = tl.load(row0 + following, mask=following < vocabulary, other=0.0)
        dz = tl.load(row1 + following, mask=following < vocabulary, other=0.0)
        w = tl.where((at < vocabulary) & (at != likeliest), tl.exp(x), 0.0)
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

    wanted = scale < count
    tl.store(entry + token * count + scale, likeliest, mask=wanted)
    to = out + token.to(tl.int64) * count + scale
    for n in tl.static_range(TERMS):
        tl.store(to + n * (tokens.to(tl.int64) * count), tl.sum(sums[n], 1, keep_dims=True), mask=wanted)
