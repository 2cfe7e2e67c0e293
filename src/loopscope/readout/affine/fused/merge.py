"""The kernel that puts the splits of the vocabulary together, one after the other in their order, in float64.

With M the largest logit of all splits at either end, each split's sums are brought to the common units by
exp(a_s(α) − a(α)) and added; power sums about the first split's centre, which float64 turns into central ones without
loss. Then, with S(α) the mass and y the reference label,

    log p_y(α) = −log S(α) − (a(α) − z_y(α)),    φ' = −E[u],    φ'' = −Var[u],    φ''' = −κ₃,    φ'''' = −κ₄,
    KL(p‖q) = E_p[x⁰ − x⁺] − log S(0) + log S(1),    H(p) = log S(0) − E_p[x⁰].

Where masses were summed at few scales (`nodes`), those of the grid are weighed sums of what there is, and tokens for
which that is not good enough go into the list of those that are swept again (`again`).

Shapes: T tokens, K scales.
"""

# Triton's tuples know concatenation, not unpacking.
# ruff: noqa: RUF005, SIM102
# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from loopscope.kernels.language import Value, constant, constants, constexpr, jit, tl
from loopscope.readout.affine.fused.nodes import ALLOWED, ROUNDING
from loopscope.readout.affine.fused.sums import (
    CENTRE0,
    CENTRE1,
    HEADER,
    HIGHEST,
    LOWEST,
    OWN_MASS,
    S00,
    S01,
    S10,
    S11,
    TOP0,
    TOP1,
    shifted,
)

_LOG2 = constant(0.6931471805599453)
_ALLOWED, _ROUNDING = constant(ALLOWED), constant(ROUNDING)


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
    again: Tensor  # 1 where few scales were not enough, else 0


INITIAL, DIVERGENCE, REVERSE, ENTROPY0, ENTROPY1, CHANGE, SPREAD, OWN, AGAIN = constants(len(Extra._fields))


class Results(NamedTuple):
    """Where the results of a token are: K gains, then gain and derivatives of each place, then those of `Extra`.

    All are NaN where the mass at some scale is below 1e-9 or no number: entries that underflowed at an end might count
    there. Of a token that is swept again only the gains are, if that happens at a scale that was not summed at first.
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
    scales: Value,
    weights: Value,
    limit: Value,
    again: Value,
    out: Value,
    tokens: Value,
    splits: Value,
    first: Value,
    COUNT: constexpr,
    MASSES: constexpr,
    MASS: constexpr,
    GRID: constexpr,
    PLACES: constexpr,
    SLOTS: constexpr,
    EXTRA: constexpr,
    ORDER: constexpr,
    HAS_OWN: constexpr,
    ENDS: constexpr,
    EXTREMES: constexpr,
    FEW: constexpr,
    LIMITED: constexpr,
    BLOCK_T: constexpr,
    BLOCK_K: constexpr,
    BLOCK_G: constexpr,
) -> None:
    """A few tokens: all their splits, in order.

    Scales of the MASS masses are in `scales`. With FEW those at GRID scales follow by `weights`, and the tokens for
    which they do not go into the list `again` of `limit` tokens. With LIMITED the tokens are those of that list, from
    `first` on.
    """
    if LIMITED:
        if first + tl.program_id(0) * BLOCK_T >= tl.load(limit):
            return
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    live = rows < tokens
    scale = tl.arange(0, BLOCK_K)
    alpha = tl.load(scales + scale, mask=scale < MASS, other=0.0)
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
    wanted = live[:, None] & (scale < MASS)[None, :]
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
    centre0 = _sum(at, CENTRE0, tokens, live)
    centre1 = _sum(at, CENTRE1, tokens, live)
    powers = ()
    for k in tl.static_range(0, COUNT):
        if (PLACES >> k) & 1:
            for _ in tl.static_range(0, ORDER + 1):
                powers = powers + (zero,)
    for split in range(splits):
        here = at + split * stride
        drop0 = _sum(here, TOP0, tokens, live) * grow - top0
        drop1 = _sum(here, TOP1, tokens, live) * grow - top1
        masses = tl.load(here[:, None] + (scale + HEADER)[None, :] * tokens, mask=wanted, other=0.0).to(tl.float64)
        mass += masses * tl.exp(drop0[:, None] + alpha[None, :] * (drop1 - drop0)[:, None])
        keep0 = tl.exp(drop0)
        keep1 = tl.exp(drop1)
        here0 = _sum(here, HEADER, tokens, live)
        here1 = _sum(here, HEADER + MASS - 1, tokens, live)
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
        off0 = _sum(here, CENTRE0, tokens, live) - centre0
        off1 = _sum(here, CENTRE1, tokens, live) - centre1
        powers = _powers(powers, here, drop0, drop1, off0, off1, tokens, live, COUNT, MASSES, MASS, PLACES, ORDER)

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
    # A weight that underflowed, times a ratio that overflowed, is no number, which a minimum passes over.
    known = (least > 1.0e-9) & (tl.sum(tl.where(wanted, mass, 0.0), 1) < 1.0e30)
    grid = tl.arange(0, BLOCK_G)
    stored = live[:, None] & (grid < GRID)[None, :]
    unsure = live & (live == 0)
    if FEW:
        # Derivatives of the mass in its own units: displacements less those of the largest logits.
        lead = (lead1 - lead0) / grow
        off0 = centre0 - lead
        off1 = centre1 - lead
        allowed = _ALLOWED + _ROUNDING * tl.maximum(tl.abs(top0), tl.abs(top1))
        mass, unsure = _between(
            mass, powers, off0, off1, grow, allowed, weights, scale, grid, live,
            COUNT, MASS, GRID, PLACES, ORDER, BLOCK_T, BLOCK_G,
        )  # fmt: skip
        alpha = grid.to(tl.float64) / (GRID - 1)
        unsure = unsure & known
        place = tl.atomic_add(limit + tl.zeros([BLOCK_T], dtype=tl.int32), 1, mask=unsure)
        tl.store(again + place, rows, mask=unsure)
    poison = tl.where(known, 0.0, float("nan"))
    initial = poison - (log0 + lead0)
    gains = log0[:, None] - tl.log(tl.where(stored, mass, 1.0))
    gains -= alpha[None, :] * (lead1 - lead0)[:, None]
    # The gain at scale 0 is 0 whichever way its mass was added up.
    gains = tl.where((grid == 0)[None, :], 0.0, gains) + poison[:, None]
    tl.store(out + grid[None, :] * tokens + rows[:, None], gains, mask=stored)
    extra = out + EXTRA * tokens + rows
    tl.store(extra + tokens * INITIAL, initial, mask=live)
    tl.store(extra + tokens * AGAIN, unsure.to(tl.float64), mask=live)
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
    seen = ()
    for k in tl.static_range(0, COUNT):
        if (PLACES >> k) & 1:
            derivatives = out + (GRID + len(seen)) * tokens + rows
            at_place = (grid == k * (GRID - 1) // (COUNT - 1))[None, :]
            tl.store(derivatives, tl.sum(tl.where(at_place, gains, 0.0), 1), mask=live)
            centre = poison + centre0
            if 2 * k >= COUNT:
                centre = poison + centre1
            _derivatives(derivatives, powers, centre, grow, grow_spread, tokens, live, len(seen), ORDER)
            for _ in tl.static_range(0, ORDER + 1):
                seen = seen + (zero,)


@jit
def _sum(at: Value, slot: Value, tokens: Value, live: Value) -> Value:
    """One sum of every token, in float64."""
    return tl.load(at + tokens * slot, mask=live, other=0.0).to(tl.float64)


@jit
def _powers(
    before: Value,
    at: Value,
    drop0: Value,
    drop1: Value,
    off0: Value,
    off1: Value,
    tokens: Value,
    live: Value,
    COUNT: constexpr,
    MASSES: constexpr,
    MASS: constexpr,
    PLACES: constexpr,
    ORDER: constexpr,
) -> Value:
    """Mass and power sums of every place with those of another split, whose centres are off by so much."""
    out = ()
    passed = ()
    slot = HEADER + MASS
    for k in tl.static_range(0, COUNT):
        if (PLACES >> k) & 1:
            keep = tl.exp(drop0 + k / (COUNT - 1) * (drop1 - drop0))
            off = off0
            if 2 * k >= COUNT:
                off = off1
            mass = _sum(at, HEADER + len(passed), tokens, live)
            here = ()
            for n in tl.static_range(0, ORDER):
                here = here + (_sum(at, slot + n, tokens, live),)
            out = out + (before[len(out)] + keep * mass,)
            for n in tl.static_range(1, ORDER + 1):
                out = out + (before[len(out)] + keep * shifted(here, 0, mass, off, n),)
            slot += ORDER
        if (MASSES >> k) & 1:
            passed = passed + (drop0,)
    return out


@jit
def _between(
    mass: Value,
    powers: Value,
    off0: Value,
    off1: Value,
    grow: Value,
    allowed: Value,
    weights: Value,
    scale: Value,
    grid: Value,
    live: Value,
    COUNT: constexpr,
    MASS: constexpr,
    GRID: constexpr,
    PLACES: constexpr,
    ORDER: constexpr,
    BLOCK_T: constexpr,
    BLOCK_G: constexpr,
) -> Value:
    """The masses at the scales of the grid, and which tokens' are not good enough (`nodes`)."""
    conditions = ()
    for j in tl.static_range(0, MASS):
        conditions = conditions + (tl.sum(tl.where((scale == j)[None, :], mass, 0.0), 1),)
    low = conditions[MASS // 2 - 1]
    high = conditions[MASS // 2 + 1]
    seen = ()
    for k in tl.static_range(0, COUNT):
        if (PLACES >> k) & 1:
            off = off0
            if 2 * k >= COUNT:
                off = off1
            here = powers[len(seen)]
            conditions = conditions + (grow * shifted(powers, len(seen) + 1, here, off, 1),)
            conditions = conditions + (grow * grow * shifted(powers, len(seen) + 1, here, off, 2),)
            for _ in tl.static_range(0, ORDER + 1):
                seen = seen + (here,)
    found = tl.zeros([BLOCK_T, BLOCK_G], dtype=tl.float64)
    low_error = tl.zeros([BLOCK_T], dtype=tl.float64)
    high_error = tl.zeros([BLOCK_T], dtype=tl.float64)
    for j in tl.static_range(0, len(conditions)):
        row = weights + j * (GRID + 2)
        found += conditions[j][:, None] * tl.load(row + grid, mask=grid < GRID, other=0.0)[None, :]
        low_error += conditions[j] * tl.load(row + GRID)
        high_error += conditions[j] * tl.load(row + GRID + 1)
    sure = (tl.abs(low_error) <= allowed * low) & (tl.abs(high_error) <= allowed * high)
    # A polynomial that is far off may be negative; what has no logarithm is not looked at.
    return tl.maximum(found, 1.0e-30), live & (sure == 0)


@jit
def _derivatives(
    out: Value,
    powers: Value,
    centre: Value,
    grow: Value,
    grow_spread: Value,
    tokens: Value,
    live: Value,
    MASS: constexpr,
    ORDER: constexpr,
) -> None:
    """The derivatives at a place from its mass and the power sums that follow it."""
    mass = tl.where(live, powers[MASS], 1.0)
    off = powers[MASS + 1] / mass
    tl.store(out + tokens, -(centre + off) * grow, mask=live)
    poison = centre - centre
    if ORDER >= 2:
        square = grow_spread * grow_spread
        variance = shifted(powers, MASS + 1, mass, -off, 2) / mass * square + poison
        tl.store(out + 2 * tokens, -variance, mask=live)
        if ORDER >= 3:
            third = shifted(powers, MASS + 1, mass, -off, 3) / mass * square * grow_spread
            tl.store(out + 3 * tokens, -(third + poison), mask=live)
            if ORDER >= 4:
                fourth = shifted(powers, MASS + 1, mass, -off, 4) / mass * square * square
                tl.store(out + 4 * tokens, 3.0 * variance * variance - fourth, mask=live)
