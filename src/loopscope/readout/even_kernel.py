"""The Triton kernels of `even`: moments at evenly spaced scales, float64, every weight in registers.

`sums_kernel` takes one token, one run of scales and one stretch of the vocabulary, a tile at a time. A run falls into
parts as narrow as the range of v in the tile asks for (`even_sums` derives how narrow, and the errors). A part starts
from an exponential at its first scale and goes on by w ← w·exp(hu): the bound of `even_sums` holds with its length in
place of I + J, for runs of 64 about 3e-14 at worst. Sums over the tile about v_d + μ become moments about the tile's
mean, and tiles are merged by the pairwise formulas of `moments`. `merge_kernel` does the same for the stretches, in
their order, so that results are bitwise repeatable, and divides by the mass.

Shapes: t tokens, b vocabulary entries of a stretch, S stretches, K scales.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.even_merge import EvenResult
from loopscope.readout.even_merge_kernel import merge_states
from loopscope.readout.even_power_kernel import MOST_POWERS, power_sums_kernel
from loopscope.readout.even_sums import EvenNodes, LogMass
from loopscope.triton_kernels.language import Value, constexpr, jit, launch, power_of_two, tl

LEAST_ORDER = 3
"""The kernels always take moments up to the third; the sums are there for the asking."""

FEW = 48
"""Up to so many scales the weights are multiplied on from one to the next; beyond it power sums cost less."""

_SLOTS = 5  # z_d, v_d, others, mean, slope; then the central sums


class Shape(NamedTuple):
    """How the work is cut: scales to a run, entries to a tile, scales to a turn of the inner loop, warps."""

    run: int = 64
    tile: int = 512
    turn: int = 4
    warps: int = 1


POWERS = Shape(run=64, tile=512, turn=4, warps=1)


class KernelSums:
    """Moments of some tokens at evenly spaced scales, a stretch of the vocabulary at a time."""

    def __init__(self, v_y_t1: Tensor, nodes: EvenNodes, stretches: int, shape: Shape | None = None) -> None:
        self._v_y_t, self._nodes = v_y_t1[:, 0].contiguous(), nodes
        self._scales_K = nodes.scales(v_y_t1.device)
        self._inverses = 1.0 / torch.arange(1, MOST_POWERS + 1, dtype=torch.float64, device=v_y_t1.device)
        self._order, self._shape, self._added = max(nodes.order, LEAST_ORDER), shape, 0
        sizes = (stretches, _SLOTS + self._order - 1, v_y_t1.shape[0], nodes.count)
        self._parts_SstK = torch.empty(sizes, dtype=torch.float64, device=v_y_t1.device)

    def add(self, z0_tb: Tensor, v_tb: Tensor, _spread_t: Tensor | None = None) -> None:
        """Takes in the next stretch, float64. The kernel finds the range of v by itself."""
        if z0_tb.stride(1) != 1 or v_tb.stride(1) != 1:
            z0_tb, v_tb = z0_tb.contiguous(), v_tb.contiguous()
        if self._shape is None and self._nodes.count > FEW:
            self._add_by_powers(z0_tb, v_tb)
        else:
            self._add_by_lanes(z0_tb, v_tb, self._shape or Shape())
        self._added += 1

    def _add_by_powers(self, z0_tb: Tensor, v_tb: Tensor, shape: Shape = POWERS) -> None:
        tokens, entries = z0_tb.shape
        count = self._nodes.count
        run = -(-count // -(-count // shape.run))
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

    def _add_by_lanes(self, z0_tb: Tensor, v_tb: Tensor, shape: Shape) -> None:
        tokens, entries = z0_tb.shape
        count = self._nodes.count
        run = -(-count // -(-count // shape.run))  # as many runs, of nearly the same length
        launch(
            sums_kernel,
            (-(-count // run), tokens),
            z0_tb,
            z0_tb,
            v_tb,
            self._v_y_t,
            self._scales_K,
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
def sums_kernel(
    z0: Value,
    v: Value,
    v_y: Value,
    scales: Value,
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
        size = 1 + tl.minimum(8.0 / tl.maximum(spread * step, 1e-6), RUN - 1.0).to(tl.int32)

        z_b, v_b, mu = none, none, none
        s0, s1, s2, s3, s4 = none, none, none, none, none
        for part in range(0, (length + size - 1) // size):
            low = part * size
            high = tl.minimum(low + size, length)
            middle = (low + high) // 2
            at_middle = tl.load(scales + first + middle)
            key = z + at_middle * d
            best = tl.min(tl.where(key == tl.max(key, 0), at, entries), 0)
            z_d = tl.sum(tl.where(at == best, z, 0.0), 0)
            v_d = tl.sum(tl.where(at == best, d, 0.0), 0)
            u = tl.where(live, d - v_d, 0.0)
            below = z - z_d
            w = tl.where(at == best, 0.0, tl.exp(below + at_middle * u))
            mass = tl.sum(w, 0)
            origin = tl.where(mass > 4.0, tl.sum(w * u, 0) / (1.0 + mass), 0.0)
            w = tl.where(at == best, 0.0, tl.exp(below + tl.load(scales + first + low) * u))
            r = tl.exp(step * u)
            c = u - origin
            c2 = c * c
            c3 = c2 * c
            for turn in range(low, high, TURN):
                for k in tl.static_range(TURN):
                    here = (place == turn + k) & (place < high)
                    s0 = tl.where(here, tl.sum(w, 0), s0)
                    s1 = tl.where(here, tl.sum(w * c, 0), s1)
                    s2 = tl.where(here, tl.sum(w * c2, 0), s2)
                    s3 = tl.where(here, tl.sum(w * c3, 0), s3)
                    if ORDER >= 4:
                        s4 = tl.where(here, tl.sum((w * c2) * c2, 0), s4)
                    w = w * r
            these = (place >= low) & (place < high)
            z_b, v_b, mu = tl.where(these, z_d, z_b), tl.where(these, v_d, v_b), tl.where(these, origin, mu)

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
