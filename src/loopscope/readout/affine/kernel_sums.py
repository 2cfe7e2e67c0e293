"""Moments of some tokens at evenly spaced scales on a GPU in float64: how the kernels of `fp64_kernels` are launched.

Shapes: t tokens, b vocabulary entries of a block, B blocks, s numbers of a state, K scales.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import launch, power_of_two
from loopscope.readout.affine.fp64_kernels import merge_kernel, power_sums_kernel
from loopscope.readout.affine.moments import LogMass
from loopscope.readout.affine.power_sums import DOMINANT, REACH, EvenNodes, EvenResult, series_terms

LEAST_ORDER = 3
"""The kernels always take moments up to the third; their sums are needed for the second anyway."""

TERMS = series_terms(REACH)
"""Terms of every series: what the widest interval needs."""

ROWS = 6
"""Power i + ROWS·j is the product of two that are shared: P_{i+6j} = Σ (w cⁱ)(c⁶)ʲ."""

LANES = 64
"""Entries side by side in the first look, each of which keeps its own largest logit."""

REGISTERS = 128
"""Of a thread, so that a multiprocessor holds 16 warps; what does not fit in is needed once an interval."""


class Shape(NamedTuple):
    """How the work is cut: scales of a program, entries in a line of the first look and of the second, warps."""

    scales: int = 65
    lines: int = 8
    tile: int = 32
    warps: int = 1


class KernelSums:
    """Moments of some tokens at evenly spaced scales, a block of the vocabulary at a time."""

    def __init__(self, v_y_t1: Tensor, nodes: EvenNodes, blocks: int, shape: Shape | None = None) -> None:
        self._v_y_t, self._nodes = v_y_t1[:, 0].contiguous(), nodes
        self._scales_K = nodes.scales(v_y_t1.device)
        self._order, self._shape, self._added = max(nodes.order, LEAST_ORDER), shape or Shape(), 0
        # z_d, v_d, others, mean and slope, then the central sums
        sizes = (blocks, 5 + (self._order - 1), v_y_t1.shape[0], nodes.count)
        self._states_BstK = torch.empty(sizes, dtype=torch.float64, device=v_y_t1.device)

    def add(self, z0_tb: Tensor, v_tb: Tensor, least_t: Tensor, most_t: Tensor) -> None:
        """Takes in the next block, float64; v lies between `least_t` and `most_t`."""
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
            least_t,
            most_t,
            self._scales_K,
            self._states_BstK[self._added],
            tokens,
            entries,
            z0_tb.stride(0),
            v_tb.stride(0),
            warps=shape.warps,
            registers=REGISTERS,
            COUNT=count,
            SCALES=scales,
            NODES=power_of_two(scales),
            ORDER=self._order,
            STORED=self._states_BstK.shape[1],
            REACH=REACH,
            DOMINANT=DOMINANT,
            TERMS=TERMS,
            ROWS=ROWS,
            LINES=shape.lines,
            LANES=LANES,
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
        wanted = derivatives_nt if self._nodes.everywhere else derivatives_nt[:, :, list(self._nodes.places)]
        return EvenResult(LogMass(*out_stK[:masses]), wanted[: self._nodes.order], derivatives_nt[:, :, 0])
