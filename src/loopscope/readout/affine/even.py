"""Everything that one sweep over the vocabulary tells about an update: what a pass over a benchmark stores.

The two logit products H Wᵀ and H⁺ Wᵀ cost far more than what is done with their entries, so a pass asks all its
questions at once: φ on an even grid of scales, derivatives at some of them, U(H), and how the two output
distributions differ.

Shapes: N examples (or tokens), K scales of the grid, M of them with derivatives.

φ at evenly spaced scales and its derivatives at some of them, from one sweep over the vocabulary.

For affine logits z(α) = z(0) + αv (Appendix C) moments at many scales follow from power sums at a few of them
(`power_sums`; on a GPU `fp64_kernels`). Vocabulary blocks are merged as in `moments`, and the two endpoint
distributions are compared on the same blocks, so that the products H Wᵀ and D Wᵀ are taken once for everything.

Accuracy. Derivatives keep the relative accuracy of `moments`, to about 1e-12 at worst. The gain

    φ(α) = α(v_y − v_d) − (z_d(0) − z_e(0)) − (log1p Σ_{a≠d} w_a(α) − log1p Σ_{a≠e} w_a(0))

is a difference of log-sum-exps taken term by term, with an absolute error of about 1e-15 times the size of its terms.
Where the whole displacement is so small that this would cost digits, φ is its Taylor polynomial at 0, whose first
neglected term is then below 1e-13 of it.

On a CPU groups of tokens run side by side, each on its share of torch's threads (`in_parallel`): small operations on
small arrays gain little from torch's own threads, which all wait for the last at the end of every operation.

Shapes: t tokens, b vocabulary entries, K scales, M of them with derivatives.
"""

from __future__ import annotations

import contextvars
import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.affine.endpoint import EndpointDistributions, EndpointSweep
from loopscope.readout.affine.moments import derivatives_from_moments, merge_log_mass, merge_moments
from loopscope.readout.affine.power_sums import EvenNodes, EvenResult, EvenSums, power_sums
from loopscope.readout.affine.sources import LogitSource, blocks

if TYPE_CHECKING:
    from loopscope.readout.affine.kernel_sums import KernelSums


@dataclass(frozen=True)
class Survey:
    """One update seen at evenly spaced scales 0, …, 1; float64 throughout.

    Attributes:
        alpha: the scales, [K].
        gains: φ at each of them, [N, K].
        moments_at: the scales with derivatives, [M].
        derivatives: φ, φ', … there, [order+1, N, M].
        initial: U(H), [N].
        distributions: the two divergences and entropies, [N] each.
        spread: the range of the displacement, max v − min v; of an example, its tokens' largest, [N]. None where it
            was not asked for.
    """

    alpha: Tensor
    gains: Tensor
    moments_at: Tensor
    derivatives: Tensor
    initial: Tensor
    distributions: EndpointDistributions
    spread: Tensor | None


@dataclass(frozen=True)
class EvenScales:
    """`count` evenly spaced scales from 0 to 1, and the places among them where derivatives are wanted."""

    count: int
    places: tuple[int, ...]

    @classmethod
    def of(cls, count: int, moments_at: Sequence[float]) -> EvenScales:
        """Finds the scales of `moments_at` on the grid.

        >>> EvenScales.of(21, [0.0, 0.25, 1.0]).places
        (0, 5, 20)
        """
        if count < 2:
            raise LoopscopeError(f"{count} scales are no grid from 0 to 1: give at least 2")
        cells = count - 1
        places = tuple(round(alpha * cells) for alpha in moments_at)
        for alpha, place in zip(moments_at, places, strict=True):
            if not 0 <= place <= cells or abs(alpha * cells - place) > 1e-9:
                raise LoopscopeError(f"{alpha} is not one of the {count} evenly spaced scales from 0 to 1")
        return cls(count, places)

    @property
    def scales(self) -> list[float]:
        """All of them."""
        return [index / (self.count - 1) for index in range(self.count)]

    @property
    def with_derivatives(self) -> list[float]:
        """Those with derivatives."""
        return [place / (self.count - 1) for place in self.places]


@functools.lru_cache(maxsize=64)
def scales_on(scales: tuple[float, ...], device: torch.device) -> Tensor:
    """Scales on a device, sent there once."""
    return torch.tensor(scales, dtype=torch.float64).to(device)


Result = TypeVar("Result")
_MOST = 4  # Python runs one thread at a time between operations


def workers() -> int:
    """How many groups of tokens are worked on at a time."""
    return min(_MOST, torch.get_num_threads())


def in_parallel(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all tasks, in their order; an error in one is raised here."""
    if len(tasks) == 1 or workers() == 1:
        return [task() for task in tasks]
    pool = _pool(torch.get_num_threads(), os.getpid())
    running = [pool.submit(contextvars.copy_context().run, task) for task in tasks]
    return [task.result() for task in running]


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that are all started, and know how many of torch's threads are theirs.

    A forked process has none of its parent's threads, so it gets a pool of its own.
    """
    number = workers()
    all_started = threading.Barrier(number)
    pool = ThreadPoolExecutor(number, "loopscope", initializer=_begin, initargs=(threads // number,))
    for started in [pool.submit(all_started.wait) for _ in range(number)]:
        started.result()
    torch.set_num_threads(threads)  # what threads started elsewhere begin with is one setting for the process
    return pool


def _begin(threads: int) -> None:
    torch.get_num_threads()  # the first question makes a thread take over the process's setting
    torch.set_num_threads(threads)


class BlockSums:
    """Sums of some tokens at evenly spaced scales, a vocabulary block at a time."""

    def __init__(self, v_y_t1: Tensor, nodes: EvenNodes) -> None:
        self._v_y_t1, self._nodes = v_y_t1, nodes
        self._scales_K = nodes.scales(v_y_t1.device)
        self._sums: EvenSums | None = None

    def add(self, z0_tb: Tensor, v_tb: Tensor, least_t: Tensor, most_t: Tensor) -> None:
        """Takes in the next block; v lies between `least_t` and `most_t`."""
        spread = float((most_t - least_t).max())
        block = power_sums(z0_tb, v_tb, self._v_y_t1, spread, self._nodes)
        self._sums = block if self._sums is None else self._merged(self._sums, block)

    def result(self) -> EvenResult:
        """The blocks so far."""
        assert self._sums is not None
        wanted = derivatives_from_moments(self._sums.wanted)[: self._nodes.order]
        start = torch.stack(derivatives_from_moments(self._sums.start))[..., 0]
        shape = (0, *self._sums.wanted.others.shape)
        return EvenResult(self._sums.mass, torch.stack(wanted) if wanted else start.new_empty(shape), start)

    def _merged(self, a: EvenSums, b: EvenSums) -> EvenSums:
        return EvenSums(
            merge_log_mass(a.mass, b.mass, self._scales_K),
            merge_moments(a.wanted, b.wanted, self._scales_K[list(self._nodes.places)])[0],
            merge_moments(a.start, b.start, self._scales_K[:1])[0],
        )


BLOCK_TOKENS = 256
BLOCK_VOCABULARY = 1024
_LEAST_TOKENS = 16  # of a group: fewer are not worth products of their own
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


def even_nodes(count: int, places: tuple[int, ...] | None, order: int) -> EvenNodes:
    """Scales k/(count − 1) with derivatives at some places, None for all."""
    if count < 2:
        raise LoopscopeError(f"{count} scales are no grid from 0 to 1; give at least 2.")
    if not 0 <= order <= 4:
        raise LoopscopeError(f"order={order} is not available here; choose an integer from 0 to 4.")
    for place in places or ():
        if not 0 <= place < count:
            raise LoopscopeError(f"there is no scale number {place}; give places from 0 to {count - 1}.")
    return EvenNodes(count, tuple(range(count)) if places is None else tuple(places), order)


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
    kernel: bool = False,
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
        kernel: whether the sums are taken by `fp64_kernels` instead of `power_sums`.
    """
    nodes = even_nodes(count, places, order)
    width = block_vocabulary or EvenBlocks.on(source.device).vocabulary

    def some(here: slice) -> EvenSurvey:
        there = slice(rows.start + here.start, rows.start + here.stop)
        return _survey(source, there, targets_t[here], nodes, distributions, width, kernel)

    tokens = targets_t.shape[0]
    groups = 1 if source.device.type == "cuda" else max(1, min(workers(), tokens // _LEAST_TOKENS))
    return _joined(in_parallel([partial(some, here) for here in blocks(tokens, -(-tokens // groups))]))


def _joined(groups: list[EvenSurvey]) -> EvenSurvey:
    """Surveys of tokens that follow each other."""
    if len(groups) == 1:
        return groups[0]
    found = [group.distributions.stacked() for group in groups if group.distributions is not None]
    return EvenSurvey(
        torch.cat([group.gains for group in groups]),
        torch.cat([group.derivatives for group in groups], 1),
        torch.cat([group.initial for group in groups]),
        torch.cat([group.spread for group in groups]),
        EndpointDistributions(*torch.cat(found, 1)) if found else None,
    )


@torch.no_grad()
def _survey(
    source: LogitSource,
    rows: slice,
    targets_t: Tensor,
    nodes: EvenNodes,
    distributions: bool,
    block_vocabulary: int,
    kernel: bool,
) -> EvenSurvey:
    target = source.target_logits(rows, targets_t)
    slices = list(blocks(source.vocabulary, block_vocabulary))
    ends = EndpointSweep() if distributions else None
    sums = _kernel_sums(target.v, nodes, len(slices)) if kernel else BlockSums(target.v, nodes)
    low_t = high_t = target.v[:, 0]
    for columns in slices:
        z0_tb, v_tb = source.block(rows, columns, targets_t, target)
        # On a CPU torch finds both at once far more slowly than one after the other.
        least_t, most_t = v_tb.aminmax(dim=1) if v_tb.is_cuda else (v_tb.amin(1), v_tb.amax(1))
        low_t, high_t = torch.minimum(low_t, least_t), torch.maximum(high_t, most_t)
        sums.add(z0_tb, v_tb, least_t, most_t)
        if ends is not None:
            ends.add(z0_tb, v_tb)
    found = sums.result()
    gains_tK = even_gains(found, target.v, high_t - low_t, nodes.scales(source.device))
    return EvenSurvey(
        gains_tK,
        torch.cat([(gains_tK if nodes.everywhere else gains_tK[:, nodes.places]).unsqueeze(0), found.derivatives]),
        (target.z0[:, 0] - found.mass.z0_d[:, 0]) - torch.log1p(found.mass.others[:, 0]),
        high_t - low_t,
        None if ends is None else ends.result(),
    )


def _kernel_sums(v_y_t1: Tensor, nodes: EvenNodes, blocks: int) -> KernelSums:
    from loopscope.readout.affine.kernel_sums import KernelSums

    return KernelSums(v_y_t1, nodes, blocks)


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
