"""The Triton kernels of `even`: moments at evenly spaced scales, float64, every weight in registers.

`even_power_kernel` takes the sums of a stretch of the vocabulary; `merge_kernel` here puts the stretches together, in
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
