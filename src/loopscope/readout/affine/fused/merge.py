"""The kernel that puts the splits of the vocabulary together, one after the other in their order, in float64.

With M the largest logit of all splits at either end, each split's sums are brought to the common units by
exp(a_s(α) − a(α)) and added; means and central moments by the formulas about the common mean. Then, with S(α) the mass
and y the reference label,

    log p_y(α) = −log S(α) − (a(α) − z_y(α)),    φ' = −E[u],    φ'' = −Var[u],    φ''' = −κ₃,    φ'''' = −κ₄,
    KL(p‖q) = E_p[x⁰ − x⁺] − log S(0) + log S(1),    H(p) = log S(0) − E_p[x⁰].

Shapes: T tokens, K scales.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from loopscope.kernels.language import Value, constant, constants, constexpr, jit, tl
from loopscope.readout.affine.fused.sweep import (
    FOURTH,
    HEADER,
    HIGHEST,
    LOWEST,
    MEAN,
    OWN_MASS,
    S00,
    S01,
    S10,
    S11,
    SECOND,
    THIRD,
    TOP0,
    TOP1,
)

_LOG2 = constant(0.6931471805599453)


class Extra(NamedTuple):
    """What a token has beside its gains and derivatives, in the order of the slots below; [T] each."""

    initial: Tensor  # U(H)
    divergence: Tensor  # KL(p‖q)
    reverse_divergence: Tensor  # KL(q‖p)
    initial_entropy: Tensor  # H(p)
    final_entropy: Tensor  # H(q)
    entropy_change: Tensor  # H(q) − H(p)
    spread: Tensor  # max v − min v
    own: Tensor  # the gain at the token's own scale


INITIAL, DIVERGENCE, REVERSE, ENTROPY0, ENTROPY1, CHANGE, SPREAD, OWN = constants(len(Extra._fields))


class Results(NamedTuple):
    """Where the results of a token are: K gains, then gain and derivatives of each place, then those of `Extra`.

    All are NaN where the mass at some scale is below 1e-9: entries that underflowed at an end might count there.
    """

    scales: int
    placed: int
    order: int

    @property
    def extra(self) -> int:
        """The first of `Extra`."""
        return self.scales + self.placed * (1 + self.order)

    @property
    def total(self) -> int:
        """How many there are."""
        return self.extra + len(Extra._fields)


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
    SLOTS: constexpr,
    EXTRA: constexpr,
    ORDER: constexpr,
    KEPT: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
    EXTREMES: constexpr,
    BLOCK_T: constexpr,
    BLOCK_K: constexpr,
) -> None:
    """A few tokens: all their splits, in order."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    live = rows < tokens
    scale = tl.arange(0, BLOCK_K)
    alpha = scale.to(tl.float64) / (COUNT - 1)
    stride = SLOTS * tokens.to(tl.int64)
    at = sums + rows
    grow = tl.load(growth).to(tl.float64)
    grow_spread = 1.0 + tl.load(target_logits + 2 * tokens + rows, mask=live, other=0.0).to(tl.float64)
    top0 = tl.full([BLOCK_T], -1.0e30, dtype=tl.float64)
    top1 = tl.full([BLOCK_T], -1.0e30, dtype=tl.float64)
    for split in range(splits):
        top0 = tl.maximum(top0, _sum(at + split * stride, TOP0, tokens, live) * grow)
        top1 = tl.maximum(top1, _sum(at + split * stride, TOP1, tokens, live) * grow)

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
        here = at + split * stride
        drop0 = _sum(here, TOP0, tokens, live) * grow - top0
        drop1 = _sum(here, TOP1, tokens, live) * grow - top1
        masses = tl.load(here[:, None] + (scale + HEADER)[None, :] * tokens, mask=wanted, other=0.0).to(tl.float64)
        mass += masses * tl.exp(drop0[:, None] + alpha[None, :] * (drop1 - drop0)[:, None])
        keep0 = tl.exp(drop0)
        keep1 = tl.exp(drop1)
        here0 = _sum(here, HEADER, tokens, live)
        here1 = _sum(here, HEADER + COUNT - 1, tokens, live)
        mass0 += keep0 * here0
        mass1 += keep1 * here1
        if ENDS:
            s00 += keep0 * (_sum(here, S00, tokens, live) * _LOG2 + here0 * drop0)
            s01 += keep0 * (_sum(here, S01, tokens, live) * _LOG2 + here0 * drop1)
            s10 += keep1 * (_sum(here, S10, tokens, live) * _LOG2 + here1 * drop0)
            s11 += keep1 * (_sum(here, S11, tokens, live) * _LOG2 + here1 * drop1)
        if EXTREMES:
            highest = tl.maximum(highest, _sum(here, HIGHEST, tokens, live))
            lowest = tl.minimum(lowest, _sum(here, LOWEST, tokens, live))
        if HAS_OWN:
            own_mass += _sum(here, OWN_MASS, tokens, live) * tl.exp(drop0 + own_alpha * (drop1 - drop0))

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
    extra = out + EXTRA * tokens + rows
    tl.store(extra + tokens * INITIAL, initial, mask=live)
    if ENDS:
        entropy0 = poison + log0 - s00 / mass0
        entropy1 = poison + log1 - s11 / mass1
        tl.store(extra + tokens * DIVERGENCE, poison + (s00 - s01) / mass0 - log0 + log1, mask=live)
        tl.store(extra + tokens * REVERSE, poison + (s11 - s10) / mass1 - log1 + log0, mask=live)
        tl.store(extra + tokens * ENTROPY0, entropy0, mask=live)
        tl.store(extra + tokens * ENTROPY1, entropy1, mask=live)
        tl.store(extra + tokens * CHANGE, entropy1 - entropy0, mask=live)
    if EXTREMES:
        tl.store(extra + tokens * SPREAD, poison + (highest - lowest) * grow, mask=live)
    if HAS_OWN:
        gain = log0 - tl.log(own_mass) - own_alpha * (lead1 - lead0)
        tl.store(extra + tokens * OWN, tl.where(own_alpha == 0.0, 0.0, gain) + poison, mask=live)
    place = 0
    for k in tl.static_range(0, COUNT):
        if (PLACES >> k) & 1:
            derivatives = out + (COUNT + place * (1 + ORDER)) * tokens + rows
            tl.store(derivatives, tl.sum(tl.where((scale == k)[None, :], gains, 0.0), 1), mask=live)
            _moments(
                at, derivatives + tokens, top0, top1, tokens, splits, stride, poison, grow, grow_spread, live,
                HEADER + COUNT + place * KEPT, COUNT, ORDER, k,
            )  # fmt: skip
            place += 1


@jit
def _sum(at: Value, slot: Value, tokens: Value, live: Value) -> Value:
    """One sum of every token, in float64."""
    return tl.load(at + tokens * slot, mask=live, other=0.0).to(tl.float64)


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
    grow: Value,
    grow_spread: Value,
    live: Value,
    FIRST: constexpr,
    COUNT: constexpr,
    ORDER: constexpr,
    K: constexpr,
) -> None:
    """Mean and central moments at scale K about the common mean, and the derivatives that they are."""
    alpha = K / (COUNT - 1)
    mass = tl.zeros_like(top0)
    total = tl.zeros_like(top0)
    for split in range(splits):
        at = sums + split * stride
        drop0 = _sum(at, TOP0, tokens, live) * grow - top0
        drop1 = _sum(at, TOP1, tokens, live) * grow - top1
        keep = tl.exp(drop0 + alpha * (drop1 - drop0))
        here = keep * _sum(at, HEADER + K, tokens, live)
        mass += here
        total += here * _sum(at, FIRST + MEAN, tokens, live)
    mass = tl.where(live, mass, 1.0)
    mean = poison + total / mass
    tl.store(out, -mean * grow, mask=live)
    if ORDER >= 2:
        second = tl.zeros_like(top0)
        third = tl.zeros_like(top0)
        fourth = tl.zeros_like(top0)
        for split in range(splits):
            at = sums + split * stride
            drop0 = _sum(at, TOP0, tokens, live) * grow - top0
            drop1 = _sum(at, TOP1, tokens, live) * grow - top1
            keep = tl.exp(drop0 + alpha * (drop1 - drop0))
            here = keep * _sum(at, HEADER + K, tokens, live)
            off = _sum(at, FIRST + MEAN, tokens, live) - mean
            lost = _sum(at, FIRST + ORDER, tokens, live)
            m2 = keep * (_sum(at, FIRST + SECOND, tokens, live) + lost)
            second += m2 + here * off * off
            if ORDER >= 3:
                m3 = keep * _sum(at, FIRST + THIRD, tokens, live)
                third += m3 + 3.0 * off * m2 + here * off * off * off
                if ORDER >= 4:
                    m4 = keep * _sum(at, FIRST + FOURTH, tokens, live)
                    fourth += m4 + 4.0 * off * m3 + 6.0 * off * off * m2 + here * off * off * off * off
        square = grow_spread * grow_spread
        variance = second / mass * square
        tl.store(out + tokens, -variance, mask=live)
        if ORDER >= 3:
            tl.store(out + 2 * tokens, -third / mass * square * grow_spread, mask=live)
            if ORDER >= 4:
                kurtosis = fourth / mass * square * square - 3.0 * variance * variance
                tl.store(out + 3 * tokens, -kurtosis, mask=live)
