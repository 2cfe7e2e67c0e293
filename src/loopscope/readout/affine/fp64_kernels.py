"""Moments at evenly spaced scales on a GPU in float64, every weight in registers: the kernels of the way `fp64_kernel`.

`power_sums_kernel` takes one token, some scales and one block of the vocabulary, a tile at a time. The scales fall
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

Sums over a tile about v_d + μ become moments about the tile's mean; tiles are merged by `pairwise.merge_states`, and so
are blocks, in their order, so that results are bitwise repeatable (`merge_kernel`). What is merged is a state: a tuple
whose order `merge_states` defines, stored and read by its index.

Shapes: t tokens, b vocabulary entries of a block, S blocks, K scales.
"""

# Triton's tuples know concatenation, not unpacking, and grow while a loop is unrolled.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl
from loopscope.readout.affine.moments import LogMass, merge_states
from loopscope.readout.affine.power_sums import DOMINANT, REACH, EvenNodes, EvenResult

LEAST_ORDER = 3
"""The kernels always take moments up to the third; their sums are needed for the second anyway."""

MOST_POWERS = 32
"""Reciprocals that the kernel is given: 27 terms at the most, four orders, to a multiple of `Shape.unroll`."""


class Shape(NamedTuple):
    """How the work is cut: scales of a program, entries of a tile, powers in an unrolled loop, warps."""

    scales: int = 64
    tile: int = 512
    unroll: int = 4
    warps: int = 1


class KernelSums:
    """Moments of some tokens at evenly spaced scales, a block of the vocabulary at a time."""

    def __init__(self, v_y_t1: Tensor, nodes: EvenNodes, blocks: int, shape: Shape | None = None) -> None:
        self._v_y_t, self._nodes = v_y_t1[:, 0].contiguous(), nodes
        self._scales_K = nodes.scales(v_y_t1.device)
        self._inverses = 1.0 / torch.arange(1, MOST_POWERS + 1, dtype=torch.float64, device=v_y_t1.device)
        self._order, self._shape, self._added = max(nodes.order, LEAST_ORDER), shape or Shape(), 0
        # z_d, v_d, others, mean and slope, then the central sums
        sizes = (blocks, 5 + (self._order - 1), v_y_t1.shape[0], nodes.count)
        self._states_BstK = torch.empty(sizes, dtype=torch.float64, device=v_y_t1.device)

    def add(self, z0_tb: Tensor, v_tb: Tensor, _spread_t: Tensor | None = None) -> None:
        """Takes in the next block, float64. The kernel finds the range of v by itself."""
        if z0_tb.stride(1) != 1 or v_tb.stride(1) != 1:
            z0_tb, v_tb = z0_tb.contiguous(), v_tb.contiguous()
        tokens, entries = z0_tb.shape
        count, shape = self._nodes.count, self._shape
        scales = -(-count // -(-count // shape.scales))  # as many programs, of nearly the same number
        launch(
            power_sums_kernel,
            (-(-count // scales), tokens),
            z0_tb,
            z0_tb,
            v_tb,
            self._v_y_t,
            self._scales_K,
            self._inverses,
            self._states_BstK[self._added],
            tokens,
            entries,
            z0_tb.stride(0),
            v_tb.stride(0),
            warps=shape.warps,
            fusion=True,
            COUNT=count,
            SCALES=scales,
            NODES=power_of_two(scales),
            ORDER=self._order,
            STORED=self._states_BstK.shape[1],
            REACH=REACH,
            DOMINANT=DOMINANT,
            UNROLL=shape.unroll,
            TILE=shape.tile,
        )
        self._added += 1

    def result(self) -> EvenResult:
        """The blocks put together."""
        blocks, stored, tokens, count = self._states_BstK.shape
        masses = len(LogMass._fields)
        out_stK = self._states_BstK.new_empty(masses + self._order, tokens, count)
        nodes = min(128, power_of_two(count))
        launch(
            merge_kernel,
            (-(-count // nodes), tokens),
            out_stK,
            self._states_BstK,
            self._scales_K,
            out_stK,
            tokens,
            warps=min(4, max(1, nodes // 32)),
            BLOCKS=blocks,
            COUNT=count,
            NODES=nodes,
            STORED=stored,
            RESULTS=out_stK.shape[0],
        )
        derivatives_nt = out_stK[masses:]
        every = self._nodes.places == tuple(range(count))
        wanted = derivatives_nt if every else derivatives_nt[:, :, list(self._nodes.places)]
        return EvenResult(LogMass(*out_stK[:masses]), wanted[: self._nodes.order], derivatives_nt[:, :, 0])


@jit
def power_sums_kernel(
    z0: Value,
    v: Value,
    v_y: Value,
    scales: Value,
    inverses: Value,
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
    UNROLL: constexpr,
    TILE: constexpr,
) -> None:
    """One token's state over one block of the vocabulary at SCALES scales."""
    first = tl.program_id(0) * SCALES
    token = tl.program_id(1)
    place = tl.arange(0, NODES)
    length = tl.minimum(SCALES, COUNT - first)
    inside = place < length
    alpha = tl.load(scales + first + place, mask=inside, other=0.0)
    step = tl.load(scales + 1)
    target = tl.load(v_y + token)
    z0 += token.to(tl.int64) * z0_stride
    v += token.to(tl.int64) * v_stride

    none = tl.zeros([NODES], dtype=tl.float64)
    state = _nothing(NODES)
    for start in range(0, entries, TILE):
        at = start + tl.arange(0, TILE)
        live = at < entries
        z = tl.load(z0 + at, mask=live, other=-float("inf"))
        d = tl.load(v + at, mask=live, other=0.0)
        spread = tl.max(tl.where(live, d, -float("inf")), 0) - tl.min(tl.where(live, d, float("inf")), 0)
        size = 1 + tl.minimum(2.0 * REACH / tl.maximum(spread * step, 1e-6), SCALES - 1.0).to(tl.int32)
        reach = 0.5 * (size - 1) * step * spread
        powers = ORDER + tl.where(reach > 0.5, 27, tl.where(reach > 0.05, 16, tl.where(reach > 0.0, 10, 1)))

        z_b, v_b, mu = none, none, none
        s0, s1, s2, s3, s4 = none, none, none, none, none
        for interval in range(0, (length + size - 1) // size):
            low = interval * size
            high = tl.minimum(low + size, length)
            centre = 0.5 * (tl.load(scales + first + low) + tl.load(scales + first + high - 1))
            key = z + centre * d
            best = tl.min(tl.where(key == tl.max(key, 0), at, entries), 0)
            z_d = tl.sum(tl.where(at == best, z, 0.0), 0)
            v_d = tl.sum(tl.where(at == best, d, 0.0), 0)
            u = tl.where(live, d - v_d, 0.0)
            w = tl.where(at == best, 0.0, tl.exp((z - z_d) + centre * u))
            mass = tl.sum(w, 0)
            origin = tl.where(mass > DOMINANT, tl.sum(w * u, 0) / (1.0 + mass), 0.0)
            c = u - origin
            these = (place >= low) & (place < high)
            away = tl.where(these, alpha - centre, 0.0)
            # δⁿ/n! for the power at hand, and for the ones before it: what it adds to the sums of w, wc, wc², …
            e0, e1, e2, e3, e4 = none + 1.0, none, none, none, none
            t0, t1, t2, t3, t4 = none, none, none, none, none
            for n in range(0, powers, UNROLL):
                for k in tl.static_range(UNROLL):
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
                    e0 = e0 * away * tl.load(inverses + n + k)
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
        tile = (z_b, v_b, s0, mu + m, slope_b, second_b, third_b, fourth_b)
        state = merge_states(state, tile, alpha)

    out = states + token * COUNT + first + place
    for slot in tl.static_range(STORED):
        tl.store(out + slot * tokens * COUNT, state[slot], mask=inside)


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
