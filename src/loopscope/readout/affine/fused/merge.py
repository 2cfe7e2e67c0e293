"""The kernel that puts the stretches of the vocabulary together, split after split in one order, in float64.

With M the largest logit of all splits at either end, each split's sums are brought to the common units by
exp(a_s(α) − a(α)) and added; means and central moments by the formulas about the common mean. Then, with S(α) the mass
and y the reference label,

    log p_y(α) = −log S(α) − (a(α) − z_y(α)),    φ' = −E[u],    φ'' = −Var[u],    φ''' = −κ₃,    φ'''' = −κ₄,
    KL(p‖q) = E_p[x⁰ − x⁺] − log S(0) + log S(1),    H(p) = log S(0) − E_p[x⁰].

Shapes: T tokens, K scales.
"""

from __future__ import annotations

from typing import NamedTuple

from loopscope.kernels.language import Value, constexpr, jit, tl

RESULTS = 8


class Results(NamedTuple):
    """Where the results of a token are: K gains, then gain and derivatives of each place, then eight more.

    The eight: U(H), KL(p‖q), KL(q‖p), H(p), H(q), H(q) − H(p), max v − min v, and the gain at the token's own scale.
    All are NaN where the mass at some scale is below 1e-9: entries that underflowed at an end might count there.
    """

    scales: int
    placed: int
    order: int

    @property
    def extra(self) -> int:
        """The first of the eight."""
        return self.scales + self.placed * (1 + self.order)

    @property
    def total(self) -> int:
        """How many there are."""
        return self.extra + RESULTS


@jit
def merge_kernel(
    sums: Value,
    target_logits: Value,
    growth: Value,
    own: Value,
    out: Value,
    tokens: Value,
    splits: Value,
    COUNT: constexpr,
    PLACES: constexpr,
    PLACED: constexpr,
    ORDER: constexpr,
    KEPT: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
    EXTREMES: constexpr,
    BLOCK_T: constexpr,
    BLOCK_K: constexpr,
) -> None:
    """A few tokens: all their stretches, in order."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    live = rows < tokens
    scale = tl.arange(0, BLOCK_K)
    alpha = scale.to(tl.float64) / (COUNT - 1)
    stride = (9 + COUNT + PLACED * KEPT) * tokens.to(tl.int64)
    tops = sums + rows
    grow = tl.load(growth).to(tl.float64)
    grow_spread = tl.load(growth + 1).to(tl.float64)
    top0 = tl.full([BLOCK_T], -1.0e30, dtype=tl.float64)
    top1 = tl.full([BLOCK_T], -1.0e30, dtype=tl.float64)
    for split in range(splits):
        top0 = tl.maximum(top0, tl.load(tops + split * stride, mask=live, other=0.0).to(tl.float64) * grow)
        top1 = tl.maximum(top1, tl.load(tops + split * stride + tokens, mask=live, other=0.0).to(tl.float64) * grow)

    mass = tl.zeros([BLOCK_T, BLOCK_K], dtype=tl.float64)
    wanted = live[:, None] & (scale < COUNT)[None, :]
    zero = tl.zeros([BLOCK_T], dtype=tl.float64)
    mass0 = zero
    mass1 = zero
    s00 = zero
    s01 = zero
    s10 = zero
    s11 = zero
    own_mass = zero
    own_alpha = zero
    highest = tl.full([BLOCK_T], -1.0e30, dtype=tl.float64)
    lowest = tl.full([BLOCK_T], 1.0e30, dtype=tl.float64)
    if HAS_OWN:
        own_alpha = tl.load(own + rows, mask=live, other=0.0).to(tl.float64)
    for split in range(splits):
        part = sums + split * stride + rows
        drop0 = tl.load(tops + split * stride, mask=live, other=0.0).to(tl.float64) * grow - top0
        drop1 = tl.load(tops + split * stride + tokens, mask=live, other=0.0).to(tl.float64) * grow - top1
        masses = tl.load(part[:, None] + (9 + scale)[None, :] * tokens, mask=wanted, other=0.0).to(tl.float64)
        mass += masses * tl.exp(drop0[:, None] + alpha[None, :] * (drop1 - drop0)[:, None])
        keep0 = tl.exp(drop0)
        keep1 = tl.exp(drop1)
        here0 = tl.load(part + 9 * tokens, mask=live, other=0.0).to(tl.float64)
        here1 = tl.load(part + (8 + COUNT) * tokens, mask=live, other=0.0).to(tl.float64)
        mass0 += keep0 * here0
        mass1 += keep1 * here1
        if ENDS:
            ends = part + 2 * tokens
            s00 += keep0 * (tl.load(ends, mask=live, other=0.0).to(tl.float64) * 0.6931471805599453 + here0 * drop0)
            s01 += keep0 * (
                tl.load(ends + tokens, mask=live, other=0.0).to(tl.float64) * 0.6931471805599453 + here0 * drop1
            )
            s10 += keep1 * (
                tl.load(ends + 2 * tokens, mask=live, other=0.0).to(tl.float64) * 0.6931471805599453 + here1 * drop0
            )
            s11 += keep1 * (
                tl.load(ends + 3 * tokens, mask=live, other=0.0).to(tl.float64) * 0.6931471805599453 + here1 * drop1
            )
        if EXTREMES:
            found = part + 6 * tokens
            highest = tl.maximum(highest, tl.load(found, mask=live, other=0.0).to(tl.float64))
            lowest = tl.minimum(lowest, tl.load(found + tokens, mask=live, other=0.0).to(tl.float64))
        if HAS_OWN:
            here = tl.load(part + 8 * tokens, mask=live, other=0.0).to(tl.float64)
            own_mass += here * tl.exp(drop0 + own_alpha * (drop1 - drop0))

    y0 = tl.load(target_logits + rows, mask=live, other=0.0).to(tl.float64)
    y1 = tl.load(target_logits + tokens + rows, mask=live, other=0.0).to(tl.float64)
    mass0 = tl.where(live, mass0, 1.0)
    mass1 = tl.where(live, mass1, 1.0)
    log0 = tl.log(mass0)
    log1 = tl.log(mass1)
    lead0 = top0 - y0
    lead1 = top1 - y1
    least = tl.min(tl.where(wanted, mass, 1.0), 1)
    if HAS_OWN:
        own_mass = tl.where(live, own_mass, 1.0)
        least = tl.minimum(least, own_mass)
    poison = tl.where(least > 1.0e-9, 0.0, float("nan"))
    initial = poison - (log0 + lead0)
    gains = log0[:, None] - tl.log(tl.where(wanted, mass, 1.0))
    gains -= alpha[None, :] * (lead1 - lead0)[:, None]
    # The gain at scale 0 is 0 whichever way its mass was added up.
    gains = tl.where((scale == 0)[None, :], 0.0, gains) + poison[:, None]
    tl.store(out + scale[None, :] * tokens + rows[:, None], gains, mask=wanted)
    final = out + (COUNT + PLACED * (1 + ORDER)) * tokens + rows
    tl.store(final, initial, mask=live)
    if ENDS:
        entropy0 = poison + log0 - s00 / mass0
        entropy1 = poison + log1 - s11 / mass1
        tl.store(final + tokens, poison + (s00 - s01) / mass0 - log0 + log1, mask=live)
        tl.store(final + 2 * tokens, poison + (s11 - s10) / mass1 - log1 + log0, mask=live)
        tl.store(final + 3 * tokens, entropy0, mask=live)
        tl.store(final + 4 * tokens, entropy1, mask=live)
        tl.store(final + 5 * tokens, entropy1 - entropy0, mask=live)
    if EXTREMES:
        tl.store(final + 6 * tokens, poison + (highest - lowest) * grow, mask=live)
    if HAS_OWN:
        gain = log0 - tl.log(own_mass) - own_alpha * (lead1 - lead0)
        tl.store(final + 7 * tokens, tl.where(own_alpha == 0.0, 0.0, gain) + poison, mask=live)
    place = 0
    for k in tl.static_range(0, COUNT):
        if (PLACES >> k) & 1:
            slopes = out + (COUNT + place * (1 + ORDER)) * tokens + rows
            tl.store(slopes, tl.sum(tl.where((scale == k)[None, :], gains, 0.0), 1), mask=live)
            _moments(
                sums + rows,
                slopes + tokens,
                top0,
                top1,
                tokens,
                splits,
                stride,
                poison,
                (9 + COUNT + place * KEPT) * tokens,
                grow,
                grow_spread,
                live,
                COUNT,
                ORDER,
                k,
            )
            place += 1


@jit
def _moments(
    sums: Value,
    out: Value,
    top0: Value,
    top1: Value,
    tokens: Value,
    splits: Value,
    stride: Value,
    poison: Value,
    slot: Value,
    grow: Value,
    grow_spread: Value,
    live: Value,
    COUNT: constexpr,
    ORDER: constexpr,
    K: constexpr,
) -> None:
    """Mean and central moments at scale K about the common mean, and the derivatives that they are."""
    alpha = K / (COUNT - 1)
    mass = tl.zeros_like(top0)
    total = tl.zeros_like(top0)
    for split in range(splits):
        drop0 = tl.load(sums + split * stride, mask=live, other=0.0).to(tl.float64) * grow - top0
        drop1 = tl.load(sums + split * stride + tokens, mask=live, other=0.0).to(tl.float64) * grow - top1
        keep = tl.exp(drop0 + alpha * (drop1 - drop0))
        here = keep * tl.load(sums + split * stride + (9 + K) * tokens, mask=live, other=0.0).to(tl.float64)
        mass += here
        total += here * tl.load(sums + split * stride + slot, mask=live, other=0.0).to(tl.float64)
    mass = tl.where(live, mass, 1.0)
    mean = poison + total / mass
    tl.store(out, -mean * grow, mask=live)
    if ORDER >= 2:
        second = tl.zeros_like(top0)
        third = tl.zeros_like(top0)
        fourth = tl.zeros_like(top0)
        for split in range(splits):
            drop0 = tl.load(sums + split * stride, mask=live, other=0.0).to(tl.float64) * grow - top0
            drop1 = tl.load(sums + split * stride + tokens, mask=live, other=0.0).to(tl.float64) * grow - top1
            keep = tl.exp(drop0 + alpha * (drop1 - drop0))
            part = sums + split * stride + slot
            here = keep * tl.load(sums + split * stride + (9 + K) * tokens, mask=live, other=0.0).to(tl.float64)
            off = tl.load(part, mask=live, other=0.0).to(tl.float64) - mean
            m2 = tl.load(part + tokens, mask=live, other=0.0).to(tl.float64)
            m2 = keep * (m2 + tl.load(part + ORDER * tokens, mask=live, other=0.0).to(tl.float64))
            second += m2 + here * off * off
            if ORDER >= 3:
                m3 = keep * tl.load(part + 2 * tokens, mask=live, other=0.0).to(tl.float64)
                third += m3 + 3.0 * off * m2 + here * off * off * off
                if ORDER >= 4:
                    m4 = keep * tl.load(part + 3 * tokens, mask=live, other=0.0).to(tl.float64)
                    fourth += m4 + 4.0 * off * m3 + 6.0 * off * off * m2 + here * off * off * off * off
        square = grow_spread * grow_spread
        variance = second / mass * square
        tl.store(out + tokens, -variance, mask=live)
        if ORDER >= 3:
            tl.store(out + 2 * tokens, -third / mass * square * grow_spread, mask=live)
            if ORDER >= 4:
                tl.store(
                    out + 3 * tokens,
                    -(fourth / mass * square * square - 3.0 * variance * variance),
                    mask=live,
                )
