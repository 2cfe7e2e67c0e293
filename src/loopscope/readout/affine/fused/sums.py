r"""What the sweep sums up of every token: names of the sums, bringing them to other units, adding logits to them.

**Units.** With M⁰ and M⁺ the largest logits at either end, a(α) = (1−α) M⁰ + α M⁺ lies above every z(α), which is
affine in α. Weights w(α) = exp(z(α) − a(α)) are therefore at most 1; at either end the likeliest entry weighs exactly
1. When a maximum rises, what was summed before is brought to the new units by exp(a_old(α) − a_new(α)), as in a running
softmax; that factor's rounding touches the smaller mass only.

**Even scales.** w at α = k/(K−1) follows from its neighbour by one multiplication with exp(±v'/(K−1)), v' the
displacement less that of a. Weights go on STRIDE scales at a time; those in between are summed as soon as they are
multiplied. The lower half of the scales is reached from α = 0, the upper half from α = 1: a weight is never more than
(K−1)/2 multiplications from an exponential, and one that underflowed at its end is below exp(−43). Which of the K
scales are summed, and which of those have moments, are the bits of MASSES and PLACES (`nodes`).

**Moments** are power sums Σ w dⁿ of d = v − c. Each half of the scales has its own centre c, which follows the mean
at its outermost place with derivatives: about a centre near the mean little cancels, and where one entry has all the
mass its d vanishes. An entry far likelier than all before becomes the centre at once. Sums about another centre follow
from sums about the old one, so that nothing waits for the mean of the logits at hand.

**Private sums.** Four threads hold a token's logits. Each keeps sums of its own, [T, 4], which are added up when all is
swept; largest logits, extremes and centres are the token's, [T].

Shapes: T tokens; four threads of each, N logits of a thread; K scales.
"""

# Triton's tuples know concatenation, not unpacking, and grow while a loop is unrolled.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

from loopscope.kernels.language import Value, constants, constexpr, jit, tl

TOP0, TOP1, S00, S01, S10, S11, HIGHEST, LOWEST, OWN_MASS, CENTRE0, CENTRE1, HEADER = constants(12)
"""A token's first sums: M⁰, M⁺; Σw⁰x⁰, Σw⁰x⁺, Σw⁺x⁰, Σw⁺x⁺ with x a logit less the largest, in units of log 2; the
largest and the smallest v; the mass at the token's own scale; the centres of the lower and the upper half of the
scales. From HEADER on: MASS masses, then the power sums of each scale with moments."""


def slots(masses: int, placed: int, order: int) -> int:
    """How many sums a token has."""
    return int(HEADER) + masses + placed * order


@jit
def nothing(y0: Value, y1: Value, SLOTS: constexpr) -> Value:
    """The sums before the first logit: the reference's own logits are the largest, its displacement is the centre."""
    four = tl.zeros([y0.shape[0], 4], dtype=tl.float32)
    v_y = y1 - y0
    out = (y0, y1, four, four, four, four, v_y, v_y, four, v_y, v_y)
    for _ in tl.static_range(SLOTS - HEADER):
        out = out + (four,)
    return out


@jit
def means(
    found: Value, MASS: constexpr, FIRST_MASS: constexpr, LAST_MASS: constexpr, SLOTS: constexpr, ORDER: constexpr
) -> Value:
    """The mean displacement at the first scale with moments and at the last one; the centre of a half without any."""
    c0 = found[CENTRE0]
    c1 = found[CENTRE1]
    if FIRST_MASS >= 0:
        c0 += tl.sum(found[HEADER + MASS], 1) / tl.maximum(tl.sum(found[HEADER + FIRST_MASS], 1), 1.0e-30)
    if LAST_MASS >= 0:
        c1 += tl.sum(found[SLOTS - ORDER], 1) / tl.maximum(tl.sum(found[HEADER + LAST_MASS], 1), 1.0e-30)
    return c0, c1


@jit
def brought(
    found: Value,
    top0: Value,
    top1: Value,
    highest: Value,
    lowest: Value,
    c0: Value,
    c1: Value,
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
    """The sums in the units of other largest logits and about other centres."""
    drop0 = ((found[TOP0] - top0) * log2e)[:, None]
    drop1 = ((found[TOP1] - top1) * log2e)[:, None]
    keep0 = tl.exp2(drop0)
    keep1 = tl.exp2(drop1)
    ends = (found[S00], found[S01], found[S10], found[S11])
    if ENDS:
        first, last = found[HEADER], found[HEADER + MASS - 1]
        ends = (
            (found[S00] + first * drop0) * keep0,
            (found[S01] + first * drop1) * keep0,
            (found[S10] + last * drop0) * keep1,
            (found[S11] + last * drop1) * keep1,
        )
    own_mass = found[OWN_MASS]
    if HAS_OWN:
        own_mass = own_mass * tl.exp2(drop0 + alpha[:, None] * (drop1 - drop0))
    step = (drop1 - drop0) / (COUNT - 1)
    masses = ()
    moments = ()
    keep = keep0
    ratio = keep0
    if COUNT > 2:
        ratio = tl.exp2(step)
    off = (found[CENTRE0] - c0)[:, None]
    for k in tl.static_range(0, (COUNT + 1) // 2):
        if k > 0 and k % STRIDE == 0:
            keep = _further(keep, ratio, STRIDE)
        if (MASSES >> k) & 1:
            here = _further(keep, ratio, k % STRIDE)
            mass = found[HEADER + len(masses)]
            masses = masses + (mass * here,)
            if (PLACES >> k) & 1:
                moments = moments + _about(found, HEADER + MASS + len(moments), mass, off, here, ORDER)
    upper_masses = ()
    upper_moments = ()
    keep = keep1
    if COUNT > 2:
        ratio = tl.exp2(-step)
    off = (found[CENTRE1] - c1)[:, None]
    for k in tl.static_range(0, COUNT // 2):
        if k > 0 and k % STRIDE == 0:
            keep = _further(keep, ratio, STRIDE)
        if (MASSES >> (COUNT - 1 - k)) & 1:
            here = _further(keep, ratio, k % STRIDE)
            mass = found[HEADER + MASS - 1 - len(upper_masses)]
            upper_masses = (mass * here,) + upper_masses
            if (PLACES >> (COUNT - 1 - k)) & 1:
                upper_moments = (
                    _about(found, SLOTS - ORDER - len(upper_moments), mass, off, here, ORDER) + upper_moments
                )
    others = (highest, lowest, own_mass, c0, c1)
    return (top0, top1) + ends + others + masses + upper_masses + moments + upper_moments


@jit
def _further(w: Value, ratio: Value, BY: constexpr) -> Value:
    """Weights so many scales further on."""
    if BY == 0:
        return w
    elif BY == 1:
        return w * ratio
    elif BY == 2:
        return w * (ratio * ratio)
    elif BY == 3:
        return w * (ratio * ratio * ratio)
    else:
        square = ratio * ratio
        return w * (square * square)


@jit
def _about(found: Value, FIRST: constexpr, mass: Value, off: Value, keep: Value, ORDER: constexpr) -> Value:
    """Power sums of d + off, in other units."""
    out = ()
    for n in tl.static_range(1, ORDER + 1):
        out = out + (shifted(found, FIRST, mass, off, n) * keep,)
    return out


@jit
def shifted(found: Value, FIRST: constexpr, mass: Value, off: Value, N: constexpr) -> Value:
    """Σ w (d + off)ᴺ from Σ w, Σ w d, …, Σ w dᴺ."""
    if N == 1:
        return found[FIRST] + off * mass
    elif N == 2:
        return found[FIRST + 1] + off * (2.0 * found[FIRST] + off * mass)
    elif N == 3:
        return found[FIRST + 2] + off * (3.0 * found[FIRST + 1] + off * (3.0 * found[FIRST] + off * mass))
    else:
        inner = 6.0 * found[FIRST + 1] + off * (4.0 * found[FIRST] + off * mass)
        return found[FIRST + 3] + off * (4.0 * found[FIRST + 2] + off * inner)


@jit
def added(
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
    """The sums with logits [T, N, 4] at both ends that are at most the largest of `found`."""
    top0, top1 = found[TOP0], found[TOP1]
    # Logits less the largest in units of log 2, which is what exp2 wants.
    t0 = z0 * log2e - (top0 * log2e)[:, None, None]
    t1 = z1 * log2e - (top1 * log2e)[:, None, None]
    v = z1 - z0
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
    own_mass = found[OWN_MASS]
    if HAS_OWN:
        own_mass = own_mass + tl.sum(tl.exp2(t0 + alpha[:, None, None] * (t1 - t0)), 1)
    step = log2e / (COUNT - 1)
    climb = v * step - ((top1 - top0) * step)[:, None, None]
    masses = ()
    moments = ()
    w = w0
    ratio = w0
    if COUNT > 2:
        ratio = tl.exp2(climb)
    d = v - found[CENTRE0][:, None, None]
    for k in tl.static_range(0, (COUNT + 1) // 2):
        if k > 0 and k % STRIDE == 0:
            w = _further(w, ratio, STRIDE)
        if (MASSES >> k) & 1:
            here = _further(w, ratio, k % STRIDE)
            masses = masses + (found[HEADER + len(masses)] + tl.sum(here, 1),)
            if (PLACES >> k) & 1:
                moments = moments + _powers(found, HEADER + MASS + len(moments), here, d, ORDER)
    upper_masses = ()
    upper_moments = ()
    w = w1
    if COUNT > 2:
        ratio = tl.exp2(-climb)
    d = v - found[CENTRE1][:, None, None]
    for k in tl.static_range(0, COUNT // 2):
        if k > 0 and k % STRIDE == 0:
            w = _further(w, ratio, STRIDE)
        if (MASSES >> (COUNT - 1 - k)) & 1:
            here = _further(w, ratio, k % STRIDE)
            upper_masses = (found[HEADER + MASS - 1 - len(upper_masses)] + tl.sum(here, 1),) + upper_masses
            if (PLACES >> (COUNT - 1 - k)) & 1:
                upper_moments = _powers(found, SLOTS - ORDER - len(upper_moments), here, d, ORDER) + upper_moments
    others = (found[HIGHEST], found[LOWEST], own_mass, found[CENTRE0], found[CENTRE1])
    return (top0, top1) + ends + others + masses + upper_masses + moments + upper_moments


@jit
def _powers(found: Value, FIRST: constexpr, w: Value, d: Value, ORDER: constexpr) -> Value:
    out = ()
    for n in tl.static_range(0, ORDER):
        w = w * d
        out = out + (found[FIRST + n] + tl.sum(w, 1),)
    return out
