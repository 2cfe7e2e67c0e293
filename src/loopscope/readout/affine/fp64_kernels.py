"""Moments at evenly spaced scales on a GPU in float64, every weight in registers: the kernels of the way `fp64_kernel`.

`power_sums_kernel` takes one token, one run of scales and one block of the vocabulary, a tile at a time. A run falls
into intervals as narrow as the range of v in the tile asks for. With α_c the centre of an interval, d the tile's
likeliest entry there and u = v − v_d, the weight of an entry at α = α_c + δ is w e^{δu},
w = exp(z(0) − z_d(0) + α_c u); so, about an origin μ close to the mean of u and with c = u − μ,

    Σ w e^{δu} c^m = e^{δμ} Σ_n P_{n+m} δⁿ/n!,        P_n = Σ w cⁿ,

and some 30 multiplications an entry give the moments at all scales of the interval.

**Errors.** Intervals have |δ| range(v) ≤ x = 2, and the series stops where e^{2x} x^{N+1}/(N+1)! < ε = 2⁻⁵³. Its terms
add up to e^{|δc|} at most while their sum is e^{δc} ≥ e^{−|δc|}; the n-th carries (4n + 2m + 4)ε from its power and its
coefficient, and Σ n|δc|ⁿ/n! = |δc|e^{|δc|}. So the m-th sum is right to e^{2x}(4x + 2m + 5)ε of Σ w e^{δu}|c|^m: 1e-13
if all the weight lies at the far end of the range of v, a few ε otherwise. `power_sums` says what taking moments about
v_d + μ costs.

Sums over a tile about v_d + μ become moments about the tile's mean; tiles are merged by the pairwise formulas of
`moments` (`merge_states`), and so are blocks, in their order, so that results are bitwise repeatable (`merge_kernel`).

Shapes: t tokens, b vocabulary entries of a block, S blocks, K scales.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl
from loopscope.readout.affine.power_sums import EvenNodes, EvenResult, LogMass


@jit
def merge_states(
    z_a: Value,
    v_a: Value,
    others_a: Value,
    mean_a: Value,
    slope_a: Value,
    second_a: Value,
    third_a: Value,
    fourth_a: Value,
    z_b: Value,
    v_b: Value,
    others_b: Value,
    mean_b: Value,
    slope_b: Value,
    second_b: Value,
    third_b: Value,
    fourth_b: Value,
    alpha: Value,
) -> Any:
    """Logit and displacement of the likeliest entry, mass of the others, mean, slope and three central sums."""
    gap = (z_b - z_a) + alpha * (v_b - v_a)
    b_leads = gap > 0.0
    factor = tl.exp(-tl.abs(gap))
    factor_a = tl.where(b_leads, factor, 1.0)
    factor_b = tl.where(b_leads, 1.0, factor)
    mass_a = factor_a * (1.0 + others_a)
    mass_b = factor_b * (1.0 + others_b)
    others = tl.where(b_leads, others_b + mass_a, others_a + mass_b)
    mass = 1.0 + others
    share_a = mass_a / mass
    share_b = mass_b / mass
    delta = (v_b - v_a) + (mean_b - mean_a)
    mean = tl.where(b_leads, mean_b - delta * share_a, mean_a + delta * share_b)
    pair = mass_a * share_b
    square = delta * delta
    second_a = factor_a * second_a
    second_b = factor_b * second_b
    third_a = factor_a * third_a
    third_b = factor_b * third_b
    fourth = factor_a * fourth_a + factor_b * fourth_b
    fourth += square * square * pair * (share_a * share_a - share_a * share_b + share_b * share_b)
    fourth += 6.0 * square * (share_a * share_a * second_b + share_b * share_b * second_a)
    fourth += 4.0 * delta * (share_a * third_b - share_b * third_a)
    third = third_a + third_b + square * delta * pair * (share_a - share_b)
    third += 3.0 * delta * (share_a * second_b - share_b * second_a)
    second = second_a + second_b + square * pair
    slope = factor_a * slope_a + factor_b * slope_b
    z = tl.where(b_leads, z_b, z_a)
    v = tl.where(b_leads, v_b, v_a)
    return z, v, others, mean, slope, second, third, fourth


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


LEAST_ORDER = 3
"""The kernels always take moments up to the third; the sums are there for the asking."""

_SLOTS = 5  # z_d, v_d, others, mean, slope; then the central sums


class Shape(NamedTuple):
    """How the work is cut: scales to a run, entries to a tile, powers to a turn of the inner loop, warps."""

    run: int = 64
    tile: int = 512
    turn: int = 4
    warps: int = 1


class KernelSums:
    """Moments of some tokens at evenly spaced scales, a stretch of the vocabulary at a time."""

    def __init__(self, v_y_t1: Tensor, nodes: EvenNodes, stretches: int, shape: Shape | None = None) -> None:
        self._v_y_t, self._nodes = v_y_t1[:, 0].contiguous(), nodes
        self._scales_K = nodes.scales(v_y_t1.device)
        self._inverses = 1.0 / torch.arange(1, MOST_POWERS + 1, dtype=torch.float64, device=v_y_t1.device)
        self._order, self._shape, self._added = max(nodes.order, LEAST_ORDER), shape or Shape(), 0
        sizes = (stretches, _SLOTS + self._order - 1, v_y_t1.shape[0], nodes.count)
        self._parts_SstK = torch.empty(sizes, dtype=torch.float64, device=v_y_t1.device)

    def add(self, z0_tb: Tensor, v_tb: Tensor, _spread_t: Tensor | None = None) -> None:
        """Takes in the next stretch, float64. The kernel finds the range of v by itself."""
        if z0_tb.stride(1) != 1 or v_tb.stride(1) != 1:
            z0_tb, v_tb = z0_tb.contiguous(), v_tb.contiguous()
        tokens, entries = z0_tb.shape
        count, shape = self._nodes.count, self._shape
        run = -(-count // -(-count // shape.run))  # as many runs, of nearly the same length
        launch(
            power_sums_kernel,
            (-(-count // run), tokens),
            z0_tb,
            z0_tb,
            v_tb,
            self._v_y_t,
            self._scales_K,
            self._inverses,
            self._parts_SstK[self._added],
            tokens,
            entries,
            z0_tb.stride(0),
            v_tb.stride(0),
            warps=shape.warps,
            fusion=True,
            COUNT=count,
            RUN=run,
            NODES=power_of_two(run),
            ORDER=self._order,
            TURN=shape.turn,
            TILE=shape.tile,
        )
        self._added += 1

    def result(self) -> EvenResult:
        """The stretches put together."""
        stretches, _, tokens, count = self._parts_SstK.shape
        out_stK = self._parts_SstK.new_empty(3 + self._order, tokens, count)
        nodes = min(128, power_of_two(count))
        launch(
            merge_kernel,
            (-(-count // nodes), tokens),
            out_stK,
            self._parts_SstK,
            self._scales_K,
            out_stK,
            tokens,
            warps=min(4, max(1, nodes // 32)),
            STRETCHES=stretches,
            COUNT=count,
            NODES=nodes,
            ORDER=self._order,
        )
        derivatives_nt = out_stK[3:]
        every = self._nodes.places == tuple(range(count))
        wanted = derivatives_nt if every else derivatives_nt[:, :, list(self._nodes.places)]
        return EvenResult(LogMass(*out_stK[:3]), wanted[: self._nodes.order], derivatives_nt[:, :, 0])


@jit
def merge_kernel(
    parts: Value,
    scales: Value,
    results: Value,
    tokens: Value,
    STRETCHES: constexpr,
    COUNT: constexpr,
    NODES: constexpr,
    ORDER: constexpr,
) -> None:
    """One token's moments over the whole vocabulary at NODES scales, from those over its stretches."""
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    token = tl.program_id(1)
    live = node < COUNT
    alpha = tl.load(scales + node, mask=live, other=0.0)
    none = tl.zeros([NODES], dtype=tl.float64)
    z_a, v_a, others_a, mean_a, slope_a = none - 1e300, none, none, none, none
    second_a, third_a, fourth_a = none, none, none
    slot = tokens * COUNT
    part = parts + token * COUNT + node
    for _ in range(0, STRETCHES):
        z_b = tl.load(part, mask=live, other=0.0)
        v_b = tl.load(part + slot, mask=live, other=0.0)
        others_b = tl.load(part + 2 * slot, mask=live, other=0.0)
        mean_b = tl.load(part + 3 * slot, mask=live, other=0.0)
        slope_b = tl.load(part + 4 * slot, mask=live, other=0.0)
        second_b = tl.load(part + 5 * slot, mask=live, other=0.0)
        third_b = tl.load(part + 6 * slot, mask=live, other=0.0)
        fourth_b = none
        if ORDER >= 4:
            fourth_b = tl.load(part + 7 * slot, mask=live, other=0.0)
        z_a, v_a, others_a, mean_a, slope_a, second_a, third_a, fourth_a = merge_states(
            z_a, v_a, others_a, mean_a, slope_a, second_a, third_a, fourth_a,
            z_b, v_b, others_b, mean_b, slope_b, second_b, third_b, fourth_b, alpha,
        )  # fmt: skip
        part += (4 + ORDER) * slot
    mass = 1.0 + others_a
    variance = second_a / mass
    out = results + token * COUNT + node
    tl.store(out, z_a, mask=live)
    tl.store(out + slot, v_a, mask=live)
    tl.store(out + 2 * slot, others_a, mask=live)
    tl.store(out + 3 * slot, slope_a / mass, mask=live)
    tl.store(out + 4 * slot, -variance, mask=live)
    tl.store(out + 5 * slot, -third_a / mass, mask=live)
    if ORDER >= 4:
        tl.store(out + 6 * slot, -(fourth_a / mass - 3.0 * variance * variance), mask=live)
