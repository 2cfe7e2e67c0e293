"""Moments at evenly spaced scales from power sums: so many multiplications a part of the scales, not a scale.

`power_sums_kernel` takes one token, one run of scales and one stretch of the vocabulary, a tile at a time. A run falls
into parts as narrow as the range of v in the tile asks for. With α_c the centre of a part, d the tile's likeliest entry
there and u = v − v_d, the weight of an entry at α = α_c + δ is w e^{δu}, w = exp(z(0) − z_d(0) + α_c u); so, about an
origin μ close to the mean of u and with c = u − μ,

    Σ w e^{δu} c^m = e^{δμ} Σ_n P_{n+m} δⁿ/n!,        P_n = Σ w cⁿ,

and some 30 multiplications an entry give the moments at all scales of the part.

**Errors.** Parts have |δ| range(v) ≤ x = 2, and the series stops where e^{2x} x^{N+1}/(N+1)! < ε = 2⁻⁵³. Its terms add
up to e^{|δc|} at most while their sum is e^{δc} ≥ e^{−|δc|}; the n-th carries (4n + 2m + 4)ε from its power and its
coefficient, and Σ n|δc|ⁿ/n! = |δc|e^{|δc|}. So the m-th sum is right to e^{2x}(4x + 2m + 5)ε of Σ w e^{δu}|c|^m: 1e-13
if all the weight lies at the far end of the range of v, a few ε otherwise. `even_sums` says what taking moments about
v_d + μ costs.

Sums over a tile about v_d + μ become moments about the tile's mean, and tiles are merged by the pairwise formulas of
`moments`.

Shapes: K scales, b vocabulary entries of a stretch.
"""

from __future__ import annotations

from loopscope.readout.even_merge_kernel import merge_states
from loopscope.triton_kernels.language import Value, constexpr, jit, tl

MOST_POWERS = 32
"""Reciprocals that the kernel is given: 27 terms at the most, four orders, to a multiple of the turns."""


@jit
def power_sums_kernel(
    z0: Value,
    v: Value,
    v_y: Value,
    scales: Value,
    inverses: Value,
    parts: Value,
    tokens: Value,
    entries: Value,
    z0_stride: Value,
    v_stride: Value,
    COUNT: constexpr,
    RUN: constexpr,
    NODES: constexpr,
    ORDER: constexpr,
    TURN: constexpr,
    TILE: constexpr,
) -> None:
    """One token's moments over one stretch of the vocabulary at RUN scales."""
    first = tl.program_id(0) * RUN
    token = tl.program_id(1)
    place = tl.arange(0, NODES)
    length = tl.minimum(RUN, COUNT - first)
    inside = place < length
    alpha = tl.load(scales + first + place, mask=inside, other=0.0)
    step = tl.load(scales + 1)
    target = tl.load(v_y + token)
    z0 += token.to(tl.int64) * z0_stride
    v += token.to(tl.int64) * v_stride

    # Nothing yet: a part whose weight against any other is zero.
    none = tl.zeros([NODES], dtype=tl.float64)
    z_a, v_a, others_a, mean_a, slope_a = none - 1e300, none, none, none, none
    second_a, third_a, fourth_a = none, none, none
    for start in range(0, entries, TILE):
        at = start + tl.arange(0, TILE)
        live = at < entries
        z = tl.load(z0 + at, mask=live, other=-float("inf"))
        d = tl.load(v + at, mask=live, other=0.0)
        spread = tl.max(tl.where(live, d, -float("inf")), 0) - tl.min(tl.where(live, d, float("inf")), 0)
        size = 1 + tl.minimum(4.0 / tl.maximum(spread * step, 1e-6), RUN - 1.0).to(tl.int32)
        reach = 0.5 * (size - 1) * step * spread
        powers = ORDER + tl.where(reach > 0.5, 27, tl.where(reach > 0.05, 16, tl.where(reach > 0.0, 10, 1)))

        z_b, v_b, mu = none, none, none
        s0, s1, s2, s3, s4 = none, none, none, none, none
        for part in range(0, (length + size - 1) // size):
            low = part * size
            high = tl.minimum(low + size, length)
            centre = 0.5 * (tl.load(scales + first + low) + tl.load(scales + first + high - 1))
            key = z + centre * d
            best = tl.min(tl.where(key == tl.max(key, 0), at, entries), 0)
            z_d = tl.sum(tl.where(at == best, z, 0.0), 0)
            v_d = tl.sum(tl.where(at == best, d, 0.0), 0)
            u = tl.where(live, d - v_d, 0.0)
            w = tl.where(at == best, 0.0, tl.exp((z - z_d) + centre * u))
            mass = tl.sum(w, 0)
            origin = tl.where(mass > 4.0, tl.sum(w * u, 0) / (1.0 + mass), 0.0)
            c = u - origin
            these = (place >= low) & (place < high)
            away = tl.where(these, alpha - centre, 0.0)
            # δⁿ/n! for the power at hand, and for the ones before it: what it adds to the sums of w, wc, wc², …
            e0, e1, e2, e3, e4 = none + 1.0, none, none, none, none
            t0, t1, t2, t3, t4 = none, none, none, none, none
            for turn in range(0, powers, TURN):
                for k in tl.static_range(TURN):
                    power = tl.sum(w, 0)
                    t0 += power * e0
                    t1 += power * e1
                    t2 += power * e2
                    t3 += power * e3
                    if ORDER >= 4:
                        t4 += power * e4
                        e4 = e3
                    e3 = e2
                    e2 = e1
                    e1 = e0
                    e0 = e0 * away * tl.load(inverses + turn + k)
                    w = w * c
            grow = tl.exp(away * origin)
            z_b, v_b, mu = tl.where(these, z_d, z_b), tl.where(these, v_d, v_b), tl.where(these, origin, mu)
            s0 = tl.where(these, t0 * grow, s0)
            s1 = tl.where(these, t1 * grow, s1)
            s2 = tl.where(these, t2 * grow, s2)
            s3 = tl.where(these, t3 * grow, s3)
            s4 = tl.where(these, t4 * grow, s4)

        mass_b = 1.0 + s0
        s1 = s1 - mu
        s2 = s2 + mu * mu
        s3 = s3 - mu * mu * mu
        m = s1 / mass_b
        second_b = tl.maximum(s2 - m * s1, 0.0)
        third_b = s3 - 3.0 * m * s2 + 2.0 * m * m * s1
        fourth_b = none
        if ORDER >= 4:
            fourth_b = (s4 + (mu * mu) * (mu * mu)) - 4.0 * m * s3 + 6.0 * m * m * s2 - 3.0 * m * m * m * s1
        slope_b = mass_b * ((target - v_b) - mu) - s1
        z_a, v_a, others_a, mean_a, slope_a, second_a, third_a, fourth_a = merge_states(
            z_a, v_a, others_a, mean_a, slope_a, second_a, third_a, fourth_a,
            z_b, v_b, s0, mu + m, slope_b, second_b, third_b, fourth_b, alpha,
        )  # fmt: skip

    slot = tokens * COUNT
    out = parts + token * COUNT + first + place
    tl.store(out, z_a, mask=inside)
    tl.store(out + slot, v_a, mask=inside)
    tl.store(out + 2 * slot, others_a, mask=inside)
    tl.store(out + 3 * slot, mean_a, mask=inside)
    tl.store(out + 4 * slot, slope_a, mask=inside)
    tl.store(out + 5 * slot, second_a, mask=inside)
    tl.store(out + 6 * slot, third_a, mask=inside)
    if ORDER >= 4:
        tl.store(out + 7 * slot, fourth_a, mask=inside)
