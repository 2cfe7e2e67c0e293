"""The reductions over the vocabulary: everything that a path needs from the logits of its two states.

`reduce_path` takes FP32 logits z⁰ and z⁺ of states that follow one another, at least −10⁶ each; one program reduces one
token of one update. Results are FP64 made of FP32 sums: every thread adds up its entries, and threads are added up in
FP64. With whole numbers c⁰ and c⁺ near the largest of either, x = z⁰ log₂e − c⁰ and d = (z⁺ − z⁰) log₂e − (c⁺ − c⁰),
the weight of an entry at scale α is 2^(x + αd). It runs in two ways:

- EVEN, for evenly spaced scales, reads every logit once. c⁰ and c⁺ come from some entries, and power sums are about the
  means of those. Every fifth scale has an exponential, from which the weights at two scales on either side follow by
  factors 2^(±d · step), 2^(±2d · step). All of that is as good as exact unless a mass leaves the range of float32 or
  a displacement spans hundreds: such tokens are marked.
- Otherwise, for any scales and any rows, and for the tokens that were marked, it reads them twice: first the largest
  logit at every scale, in whose units no mass underflows, and the displacement of that entry, about which power sums
  lose nothing where it has all the mass; then the sums.

Where the mass hardly grows from z⁰ to z⁺, its logarithm grows by log(1 + Σ(w⁺ − w⁰)/Σw⁰): the sum of the differences
is small, and so is its rounding.

`reduce_powers` takes FP64 logits and displacements of one token: P_n = Σ_{a≠d} w_a (v_a − v_d)ⁿ in units of the
likeliest entry d at some scales (`moments` says what follows from them).

Shapes: T tokens, V vocabulary entries, K scales, S states.
"""

# Triton's tuples know concatenation, not unpacking.
# ruff: noqa: RUF005, SIM102
# mypy: disable-error-code="assignment,var-annotated,misc"

from __future__ import annotations

from loopscope.kernels.language import Value, constant, constexpr, jit, tl

LOWEST = -1.0e6
"""The least logit: a mask weighs nothing, and puts no infinity into a sum."""
_NOWHERE = constant(-2.0e6)
"""What stands beyond the end of a row: it weighs nothing even where every logit is masked."""
_LOG2_E = constant(1.4426950408889634)
_UNIT = constant(1.0 / 1.44269502162933349609375)
"""What undoes a multiplication by log₂ e as float32 has it."""
_LEAST, _MOST = constant(1.0e-15), constant(1.0e27)
"""Between these masses neither weights that underflow nor power sums that overflow matter."""
_ABOVE = constant(30.0)
"""By how many powers of two at most references are set above the largest logits of the sample."""
_FARTHEST = constant(16.0)
"""By how many powers of two a weight may change from one scale to the next."""
_SAMPLE = constant(1024)
"""Entries from which EVEN takes its references."""


@jit
def reduce_path(
    logits: Value, targets: Value, scales: Value, out: Value, tokens: Value, vocabulary: Value, state_stride: Value,
    row_stride: Value, scale_stride: Value, out_stride: Value, COUNT: constexpr, PLACES: constexpr, ORDER: constexpr,
    EVEN: constexpr, MARKED: constexpr, RAGGED: constexpr, LANES: constexpr, STAGES: constexpr,
) -> None:  # fmt: skip
    """One token of one update at COUNT scales from 0 to 1; the bits of PLACES are those with derivatives.

    Gains are written first, then derivatives, the numbers of `query.EXTRA`, and whether the token is marked.

    MARKED: only a token that is marked. RAGGED: rows do not hold a multiple of 4 · LANES entries.
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
    target = tl.load(targets + token)
    y0 = tl.load(row0 + target)
    v_y = tl.load(row1 + target) - y0
    nothing = tl.zeros([LANES], dtype=tl.float32)
    alphas = ()
    for k in tl.static_range(COUNT):
        if EVEN:
            alphas = alphas + (tl.full([], k * (1.0 / (COUNT - 1)), dtype=tl.float32),)
        else:
            alphas = alphas + (tl.load(scales + token * scale_stride + k),)

    # The largest logits, for the references, and about what power sums are taken.
    references = ()
    centres = ()
    if EVEN:
        some = tl.arange(0, _SAMPLE)
        z0 = tl.load(row0 + some, mask=some < vocabulary, other=_NOWHERE)
        v = tl.load(row1 + some, mask=some < vocabulary, other=_NOWHERE) - z0
        range0, range1 = _range(z0), _range(z0 + v)
        # The largest logit may lie above all of the sample, the farther the more these differ.
        above = tl.floor(tl.minimum(tl.maximum(range0, range1) * 0.18, _ABOVE))
        top0, rise = _whole(tl.maximum(tl.max(z0, 0), y0), tl.maximum(tl.max(z0 + v, 0), y0 + v_y), above)
        for k in tl.static_range(COUNT):
            references = references + (tl.zeros([], dtype=tl.float32),)
            if (PLACES >> k) & 1:
                w = _weight(z0, v, top0, rise, alphas[k])
                w_y = _weight(y0, v_y, top0, rise, alphas[k])
                centres = centres + ((tl.sum(w * v, 0) + w_y * v_y) / tl.maximum(tl.sum(w, 0) + w_y, 1.0e-30),)
    else:
        tops = _copies(nothing + _NOWHERE, COUNT)
        likeliest = _copies(nothing + v_y, COUNT)
        for start in range(0, vocabulary, LANES):
            at = start + tl.arange(0, LANES)
            z0 = tl.load(row0 + at, mask=at < vocabulary, other=_NOWHERE)
            v = tl.load(row1 + at, mask=at < vocabulary, other=_NOWHERE) - z0
            new_tops = ()
            new_likeliest = ()
            for k in tl.static_range(COUNT):
                z = tl.fma(v, alphas[k], z0)
                new_likeliest = new_likeliest + (tl.where(z > tops[k], v, likeliest[k]),)
                new_tops = new_tops + (tl.maximum(z, tops[k], propagate_nan=tl.PropagateNan.ALL),)
            tops = new_tops
            likeliest = new_likeliest
        top0, rise = _whole(tl.max(tops[0], 0), tl.max(tops[COUNT - 1], 0), 0.0)
        for k in tl.static_range(COUNT):
            top = tl.max(tops[k], 0)
            if k == 0 or k == COUNT - 1:
                references = references + (tl.zeros([], dtype=tl.float32),)
            else:
                references = references + (tl.fma(top, _LOG2_E, -top0) - alphas[k] * rise,)
            if (PLACES >> k) & 1:
                centres = centres + (tl.max(tl.where(tops[k] == top, likeliest[k], -float("inf")), 0),)

    about = (top0, rise, alphas, references, centres)
    powers = _copies(nothing, len(centres) * ORDER)
    sums = (_copies(nothing, COUNT), powers, _copies(nothing, 5), _copies(nothing + v_y, 2))
    for start in tl.range(0, vocabulary, LANES * 4, num_stages=STAGES):
        entries = start + tl.arange(0, LANES * 4)
        # Four neighbours in memory are four entries of one thread.
        if RAGGED:
            first = _quarters(tl.load(row0 + entries, mask=entries < vocabulary, other=_NOWHERE), LANES)
            last = _quarters(tl.load(row1 + entries, mask=entries < vocabulary, other=_NOWHERE), LANES)
        else:
            first = _quarters(tl.load(row0 + entries), LANES)
            last = _quarters(tl.load(row1 + entries), LANES)
        for j in tl.static_range(4):
            sums = _added(sums, first[j], last[j], v_y, about, COUNT, PLACES, ORDER, EVEN, RAGGED)
    _write(to, out_stride, sums, about, y0, v_y, COUNT, PLACES, ORDER, EVEN)


@jit
def _range(z: Value) -> Value:
    """Of logits that are not masked."""
    top = tl.max(z, 0)
    return top - tl.min(tl.where(z > top - 1000.0, z, top), 0)


@jit
def _whole(top0: Value, top1: Value, above: Value) -> Value:
    """Whole numbers near the largest logits, in powers of two: that at the start, and the rise from there."""
    first = tl.floor(top0 * _LOG2_E)
    rise = tl.floor(top1 * _LOG2_E) - first
    return first + above, tl.where(tl.abs(rise) <= 2.0, 0.0, rise)


@jit
def _weight(z0: Value, v: Value, top0: Value, rise: Value, alpha: Value) -> Value:
    return tl.exp2(tl.fma(tl.fma(v, _LOG2_E, -rise), alpha, tl.fma(z0, _LOG2_E, -top0)))


@jit
def _quarters(values: Value, LANES: constexpr) -> Value:
    first, second = tl.split(tl.reshape(values, (LANES, 2, 2)))
    a, b = tl.split(first)
    c, d = tl.split(second)
    return a, b, c, d


@jit
def _added(
    sums: Value, z0: Value, z1: Value, v_y: Value, about: Value, COUNT: constexpr, PLACES: constexpr, ORDER: constexpr,
    EVEN: constexpr, RAGGED: constexpr,
) -> Value:  # fmt: skip
    """The sums with one more entry for each thread."""
    masses, powers, ends, farthest = sums
    top0, rise, alphas, references, centres = about
    step = 1.0 / (COUNT - 1)
    v = z1 - z0
    inside_v = tl.where(z0 > 0.75 * _NOWHERE, v, v_y) if RAGGED else v
    x0 = tl.fma(z0, _LOG2_E, -top0)
    x1 = tl.fma(z1, _LOG2_E, -(top0 + rise))
    d = tl.fma(v, _LOG2_E, -rise)
    w0 = tl.exp2(x0)
    w1 = tl.exp2(x1)
    ends = (
        tl.fma(w0, x0, ends[0]), tl.fma(w0, d, ends[1]), tl.fma(w1, x1, ends[2]), tl.fma(w1, d, ends[3]),
        ends[4] + (w1 - w0),
    )  # fmt: skip
    if EVEN:
        on = tl.exp2(d * step)
        back = tl.exp2(-(d * step))
        factors = (on, on, on * on, back * back, back)
        near = w0
    new_masses = ()
    new_powers = ()
    for k in tl.static_range(COUNT):
        if k == 0:
            w = w0
        elif k == COUNT - 1:
            w = w1
        elif EVEN:
            if k % 5 == 3:
                near = w1 if k + 2 == COUNT - 1 else tl.exp2(tl.fma(d, (k + 2) * step, x0))
            w = near if k % 5 == 0 else near * factors[k % 5]
        else:
            w = tl.exp2(tl.fma(d, alphas[k], x0 - references[k]))
        new_masses = new_masses + (masses[k] + w,)
        if (PLACES >> k) & 1:
            c = v - centres[len(new_powers) // ORDER]
            for _ in tl.static_range(ORDER):
                w = w * c
                new_powers = new_powers + (powers[len(new_powers)] + w,)
    return new_masses, new_powers, ends, (tl.minimum(farthest[0], inside_v), tl.maximum(farthest[1], inside_v))


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
    to: Value, out_stride: Value, sums: Value, about: Value, y0: Value, v_y: Value, COUNT: constexpr,
    PLACES: constexpr, ORDER: constexpr, EVEN: constexpr,
) -> None:  # fmt: skip
    """What follows from the sums, in FP64; log₂ Z(α) is in units of c⁰ + α rise + reference."""
    masses, powers, ends, farthest = sums
    top0, rise, alphas, references, centres = about
    mass0 = _total(masses[0])
    mass1 = _total(masses[COUNT - 1])
    log0 = tl.log(mass0)
    difference = _total(ends[4]) / mass0
    growth = tl.where(tl.abs(difference) < 0.5, tl.log(1.0 + difference), tl.log(mass1) - log0)
    rise = rise.to(tl.float64) * _UNIT
    least = mass0
    most = mass0
    done = ()
    for k in tl.static_range(COUNT):
        mass = _total(masses[k])
        least = tl.minimum(least, mass, propagate_nan=tl.PropagateNan.ALL)
        most = tl.maximum(most, mass, propagate_nan=tl.PropagateNan.ALL)
        log_mass = growth if k == COUNT - 1 else tl.log(mass) - log0
        reference = references[k].to(tl.float64) * _UNIT
        tl.store(to + k * out_stride, alphas[k].to(tl.float64) * (v_y.to(tl.float64) - rise) - reference - log_mass)
        if (PLACES >> k) & 1:
            mean = _total(powers[len(done)]) / mass
            at = to + (COUNT + len(done)) * out_stride
            tl.store(at, (v_y - centres[len(done) // ORDER]).to(tl.float64) - mean)
            if ORDER >= 2:
                second = _total(powers[len(done) + 1]) / mass
                variance = tl.maximum(second - mean * mean, 0.0)
                tl.store(at + out_stride, -variance)
            if ORDER >= 3:
                third = _total(powers[len(done) + 2]) / mass
                tl.store(at + 2 * out_stride, -(third - 3.0 * second * mean + 2.0 * mean * mean * mean))
            if ORDER >= 4:
                fourth = _total(powers[len(done) + 3]) / mass
                square = mean * mean
                fourth = fourth - 4.0 * third * mean + 6.0 * second * square - 3.0 * square * square
                tl.store(at + 3 * out_stride, 3.0 * variance * variance - fourth)
            done = done + _copies(mean, ORDER)
    at = to + (COUNT + len(done)) * out_stride
    entropy0 = log0 - _total(ends[0]) / mass0 * _UNIT
    entropy1 = growth + log0 - _total(ends[2]) / mass1 * _UNIT
    spread = tl.max(farthest[1], 0) - tl.min(farthest[0], 0)
    tl.store(at, y0.to(tl.float64) - top0.to(tl.float64) * _UNIT - log0)
    tl.store(at + out_stride, tl.maximum(growth - _total(ends[1]) / mass0 * _UNIT, 0.0))
    tl.store(at + 2 * out_stride, tl.maximum(_total(ends[3]) / mass1 * _UNIT - growth, 0.0))
    tl.store(at + 3 * out_stride, entropy0)
    tl.store(at + 4 * out_stride, entropy1)
    tl.store(at + 5 * out_stride, entropy1 - entropy0)
    tl.store(at + 6 * out_stride, spread.to(tl.float64))
    mark = tl.zeros([], dtype=tl.float64)
    if EVEN:
        near = (least > _LEAST) & (most < _MOST) & (spread * (1.0 / (COUNT - 1)) * _LOG2_E < _FARTHEST)
        mark = tl.where(near, 0.0, 1.0).to(tl.float64)
    tl.store(at + 7 * out_stride, mark)


@jit
def reduce_powers(
    z0: Value, v: Value, scales: Value, entry: Value, out: Value, tokens: Value, vocabulary: Value, row_stride: Value,
    scale_stride: Value, count: Value, GROUPS: constexpr, TERMS: constexpr, ROWS: constexpr, SKIP_ZERO: constexpr,
    LANES: constexpr,
) -> None:  # fmt: skip
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
