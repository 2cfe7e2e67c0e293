"""φ at evenly spaced scales and its derivatives at some of them, from one sweep over the vocabulary.

For affine logits z(α) = z(0) + αv (Appendix C) the weights exp z(α_k) at evenly spaced scales are geometric
progressions, so a scale costs a multiplication and not an exponential (`even_sums` says how, and bounds the error).
Vocabulary blocks are merged as in `moments`, and the two endpoint distributions are compared on the same blocks, so
that the products H Wᵀ and D Wᵀ are taken once for everything.

Accuracy. Derivatives keep the relative accuracy of `moments`, to about 1e-12 at worst. The gain

    φ(α) = α(v_y − v_d) − (z_d(0) − z_e(0)) − (log1p Σ_{a≠d} w_a(α) − log1p Σ_{a≠e} w_a(0))

is a difference of log-sum-exps taken part by part, with an absolute error of about 1e-15 times the size of its parts.
Where the whole displacement is so small that this would cost digits, φ is its Taylor polynomial at 0, whose first
neglected term is then below 1e-13 of it.

Shapes: t tokens, b vocabulary entries, K scales, M of them with derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from loopscope._errors import LoopscopeError
from loopscope.readout._workers import in_parallel, workers
from loopscope.readout.endpoint import EndpointDistributions, EndpointSweep
from loopscope.readout.even_kernel import KernelSums
from loopscope.readout.even_merge import BlockSums, EvenResult
from loopscope.readout.even_sums import EvenNodes
from loopscope.readout.sources import LogitSource, blocks
from loopscope.triton_kernels.choice import takes_kernel

BLOCK_TOKENS = 256
BLOCK_VOCABULARY = 1024
_LEAST_TOKENS = 16  # for which a piece of work of its own, with products of its own, is worth it
_FEWEST_CELLS = 4
_ROUNDING = 2.0**-52  # of a scale, however it was computed
_NEGLECTED = 1e-13


@dataclass(frozen=True)
class EvenBlocks:
    """How many tokens and vocabulary entries are worked on at a time."""

    tokens: int
    vocabulary: int

    @classmethod
    def on(cls, device: torch.device, most_vocabulary: int = BLOCK_VOCABULARY) -> EvenBlocks:
        """Large enough for efficient products; small enough for a CPU's caches, or a few hundred MiB of a GPU."""
        if device.type == "cuda":
            return cls(1024, 8192)
        return cls(BLOCK_TOKENS, min(most_vocabulary, BLOCK_VOCABULARY))


@dataclass(frozen=True)
class EvenSurvey:
    """What one sweep tells about some tokens at evenly spaced scales; float64 throughout.

    Attributes:
        gains: φ at all scales, [t, K].
        derivatives: φ, φ', … at the scales where they were wanted, [order+1, t, M].
        initial: log p_y(0), [t].
        spread: the range of the displacement, max v − min v, [t].
        distributions: how the two endpoints' distributions differ, [t] each; None where they were not asked for.
    """

    gains: Tensor
    derivatives: Tensor
    initial: Tensor
    spread: Tensor
    distributions: EndpointDistributions | None


def is_even(scales: Sequence[float]) -> bool:
    """Whether these are so many evenly spaced scales from 0 to 1 that they are worth a sweep of their own kind.

    >>> is_even([0.0, 0.25, 0.5, 0.75, 1.0]), is_even([0.0, 0.25, 0.6, 0.75, 1.0]), is_even([0.0, 1.0])
    (True, False, False)
    """
    last = len(scales) - 1
    return last >= _FEWEST_CELLS and all(abs(scale - k / last) <= _ROUNDING for k, scale in enumerate(scales))


def even_nodes(count: int, places: tuple[int, ...] | None, order: int) -> EvenNodes:
    """Scales k/(count − 1) with derivatives at some places, None for all."""
    if count < 2:
        raise LoopscopeError(f"{count} scales are no grid from 0 to 1; give at least 2.")
    if not 0 <= order <= 4:
        raise LoopscopeError(f"order={order} is not available here; choose an integer from 0 to 4.")
    chosen = tuple(range(count)) if places is None else tuple(places)
    for place in chosen:
        if not 0 <= place < count:
            raise LoopscopeError(f"there is no scale number {place}; give places from 0 to {count - 1}.")
    return EvenNodes(count, chosen, order)


def even_survey(
    source: LogitSource,
    rows: slice,
    targets_t: Tensor,
    count: int,
    *,
    places: tuple[int, ...] | None = None,
    order: int = 3,
    distributions: bool = True,
    block_vocabulary: int | None = None,
) -> EvenSurvey:
    """φ of some tokens at `count` scales 0, 1/(count−1), …, 1, and everything else one sweep can tell.

    Args:
        source: where the logits come from.
        rows: the tokens; `EvenBlocks.on` says how many at a time make the products efficient.
        targets_t: their reference labels.
        count: number of scales, 0 and 1 among them.
        places: indices of the scales where derivatives are wanted; None means all.
        order: highest derivative there, at most 4.
        distributions: whether to compare the endpoint distributions too.
        block_vocabulary: vocabulary entries worked on at a time.
    """
    nodes = even_nodes(count, places, order)
    width = block_vocabulary or EvenBlocks.on(source.device).vocabulary

    def some(here: slice) -> EvenSurvey:
        there = slice(rows.start + here.start, rows.start + here.stop)
        return _survey(source, there, targets_t[here], nodes, distributions, width)

    tokens = targets_t.shape[0]
    pieces = 1 if source.device.type == "cuda" else max(1, min(workers(), tokens // _LEAST_TOKENS))
    return _joined(in_parallel([partial(some, here) for here in blocks(tokens, -(-tokens // pieces))]))


def _joined(pieces: list[EvenSurvey]) -> EvenSurvey:
    """Surveys of tokens that follow each other."""
    if len(pieces) == 1:
        return pieces[0]
    found = [piece.distributions.stacked() for piece in pieces if piece.distributions is not None]
    return EvenSurvey(
        torch.cat([piece.gains for piece in pieces]),
        torch.cat([piece.derivatives for piece in pieces], 1),
        torch.cat([piece.initial for piece in pieces]),
        torch.cat([piece.spread for piece in pieces]),
        EndpointDistributions(*torch.cat(found, 1)) if found else None,
    )


@torch.no_grad()
def _survey(
    source: LogitSource, rows: slice, targets_t: Tensor, nodes: EvenNodes, distributions: bool, block_vocabulary: int
) -> EvenSurvey:
    target = source.target_logits(rows, targets_t)
    stretches = list(blocks(source.vocabulary, block_vocabulary))
    ends = EndpointSweep() if distributions else None
    on_kernel = takes_kernel(target.v, dtypes=(torch.float64,))
    sums = KernelSums(target.v, nodes, len(stretches)) if on_kernel else BlockSums(target.v, nodes)
    low_t = high_t = target.v[:, 0]
    for columns in stretches:
        z0_tb, v_tb = source.block(rows, columns, targets_t, target)
        least_t, most_t = v_tb.amin(1), v_tb.amax(1)
        low_t, high_t = torch.minimum(low_t, least_t), torch.maximum(high_t, most_t)
        sums.add(z0_tb, v_tb, most_t - least_t)
        if ends is not None:
            ends.add(z0_tb, v_tb)
    found = sums.result()
    gains_tK = even_gains(found, target.v, high_t - low_t, nodes.scales(source.device))
    return EvenSurvey(
        gains_tK,
        torch.cat([gains_tK[:, nodes.places].unsqueeze(0), found.derivatives]),
        (target.z0[:, 0] - found.mass.z0_d[:, 0]) - torch.log1p(found.mass.others[:, 0]),
        high_t - low_t,
        None if ends is None else ends.result(),
    )


def even_gains(found: EvenResult, v_y_t1: Tensor, spread_t: Tensor, scales_K: Tensor) -> Tensor:
    """φ at all scales, [t, K]."""
    mass = found.mass
    direct = (
        scales_K * (v_y_t1 - mass.v_d)
        - (mass.z0_d - mass.z0_d[:, :1])
        - (torch.log1p(mass.others) - torch.log1p(mass.others[:, :1]))
    )
    tiny_t = spread_t <= tiny_spread(found.start.shape[0])
    return torch.where(tiny_t.unsqueeze(1), taylor_gains(found.start, scales_K), direct)


def tiny_spread(order: int) -> float:
    """Up to which range of v the Taylor polynomial of φ of this order is taken."""
    return math.pow(_NEGLECTED, 1.0 / (order + 1))


def taylor_gains(start_nt: Tensor, scales_K: Tensor) -> Tensor:
    """φ at all scales from its derivatives φ', φ'', … at 0, [t, K]."""
    gains = torch.zeros_like(start_nt[0].unsqueeze(1) * scales_K)
    for n in range(start_nt.shape[0], 0, -1):
        gains = scales_K * (start_nt[n - 1].unsqueeze(1) / math.factorial(n) + gains)
    return gains
