"""The back end of a CUDA device: FP32 logits by one kernel, then one reduction over the vocabulary.

FP32 logits of a few hundred tokens of every BF16 or FP16 state go into a scratch buffer, and one launch reduces all of
it. Updates that follow one another multiply each state once. Any other logits are reduced to FP64 power sums, from
which everything follows as in `moments`.

Shapes: S states, T tokens, t of them at a time, D hidden width, V vocabulary entries, K scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopscope.kernels.choice import takes_kernel
from loopscope.kernels.language import launch
from loopscope.kernels.product import multiply, widest
from loopscope.readout.affine.moments import ORDER, MomentsBackend, Sums
from loopscope.readout.affine.query import (
    EXTRA,
    HeadLogits,
    LogitBlock,
    LogitSource,
    Query,
    StoredLogits,
    scales_on,
    spacing,
    taken,
)
from loopscope.readout.affine.reduction import LOWEST, reduce_path, reduce_powers
from loopscope.readout.blocks import blocks

SCRATCH = 400 << 20
"""Bytes of logits that exist at a time."""

MOST_SCALES = 33
"""Of the FP32 kernel: each has sums in registers."""

_GRID = 65_535  # programs along the second axis of a launch
_LANES, _STAGES = {True: 128, False: 512}, {True: 3, False: 1}
"""Threads of a token that take four entries at a time, and tiles in work and under way, by whether scales are even."""
_ENTRIES = 18 << 20  # of a block of FP64 logits
_TERMS, _ROWS = 30, 6  # of power sums, and powers whose products the others are


class KernelBackend(MomentsBackend):
    """FP32 results of BF16 or FP16 states read in float32; of everything else FP64 results as `moments` has them."""

    name = "kernel"
    reach = 2.0  # 26 terms: with four derivatives 30 power sums, `_TERMS`, which fit in registers

    @torch.no_grad()
    def not_supported_reasons(self, query: Query) -> list[str]:
        """It needs a device."""
        device = query.source.device
        if takes_kernel(torch.empty(1, dtype=torch.float64, device=device), dtypes=(torch.float64,)):
            return []
        return [f"it needs a CUDA device with Triton, not {device}"]

    @torch.no_grad()
    def evaluate(self, query: Query) -> Tensor:
        """In FP32 sums where these are no worse than the logits, else in FP64."""
        return consecutive([query])[0] if in_float32(query) else super().evaluate(query)

    def tokens_at_a_time(self, query: Query) -> int:
        """All where the logits are there, else as many as make blocks of 144 MiB."""
        source = query.source
        in_memory = isinstance(source, StoredLogits) and source.is_float64
        return source.tokens if in_memory else max(1, _ENTRIES // source.vocabulary)

    def power_sums(self, logits: LogitBlock, centres: Tensor, terms: int) -> tuple[Tensor, Tensor]:
        """By one launch; of kernels for a few terms or for all that fit, so that none is compiled for every number."""
        entry, powers = power_sums(*logits, centres, terms if terms <= ORDER + 1 else _TERMS)
        return entry, powers[:terms]

    def spread(self, query: Query, logits: LogitBlock) -> Tensor:
        """Read once where a search asks for it again and again."""
        return _start(query, logits)[2] if _is_search(query, logits) else super().spread(query, logits)

    def _sums(self, query: Query, logits: LogitBlock, scales_K: Tensor, spread_t: Tensor) -> Sums:
        """Of a search only those at new scales: tokens whose scale is 0 are not read again."""
        if not _is_search(query, logits):
            return super()._sums(query, logits, scales_K, spread_t)
        entry0, powers0, _ = _start(query, logits)
        own = scales_K[:, 1:]
        entry, powers = power_sums(*logits, own, ORDER + 1, skip_zero=True)
        entry = torch.cat([entry0, torch.where(own == 0.0, entry0, entry)], 1)
        powers = torch.cat([powers0, torch.where(own == 0.0, powers0, powers)], 2)
        return Sums(logits.z0.gather(1, entry), logits.v.gather(1, entry), powers.unbind())


_starts: WeakKeyDictionary[LogitSource, tuple[Tensor, Tensor, Tensor]] = WeakKeyDictionary()
"""Of logits that stay: power sums at scale 0 and the range, which a search asks for again and again."""


def _is_search(query: Query, logits: LogitBlock) -> bool:
    """Whether each token has its own scale, and all logits are there."""
    return query.common is None and logits.z0.shape[0] == query.source.tokens


def _start(query: Query, logits: LogitBlock) -> tuple[Tensor, Tensor, Tensor]:
    if query.source not in _starts:
        powers = power_sums(*logits, torch.zeros(1, dtype=torch.float64, device=logits.z0.device), ORDER + 1)
        _starts[query.source] = *powers, logits.v.amax(1) - logits.v.amin(1)
    return _starts[query.source]


def in_float32(query: Query) -> bool:
    """Whether the FP32 kernel answers: BF16 or FP16 read in float32, a few scales from 0 to 1."""
    source, scales = query.source, query.common or (0.0,)
    return (
        isinstance(source, HeadLogits)
        and source.dtype == torch.float32
        and source.h_TD.dtype == source.h_plus_TD.dtype == source.weight_VD.dtype
        and source.h_TD.dtype in (torch.bfloat16, torch.float16)
        and source.weight_VD.stride(1) == 1
        and len(scales) <= MOST_SCALES
        and all(0.0 <= alpha <= 1.0 for alpha in scales)
    )


def can_follow(queries: Sequence[Query]) -> bool:
    """Whether every update starts in the states, as they are in memory, in which the one before it ends."""
    sources = [query.source for query in queries if isinstance(query.source, HeadLogits)]
    return len(sources) == len(queries) and all(
        one.h_plus_TD.data_ptr() == other.h_TD.data_ptr() for one, other in pairwise(sources)
    )


@torch.no_grad()
def consecutive(queries: Sequence[Query]) -> list[Tensor]:
    """FP32 answers to the same query of updates that follow one another: each state is multiplied once."""
    sources = [query.source for query in queries if isinstance(query.source, HeadLogits)]
    first, plan = sources[0], Plan(queries[0])
    states = [first.h_TD, *(source.h_plus_TD for source in sources)]
    rows = min(_GRID, max(1, SCRATCH // (4 * len(states) * first.vocabulary)), first.tokens)
    rows = rows // 128 * 128 or rows  # whole tiles of the product
    scratch = torch.empty(len(states) * rows, first.vocabulary, dtype=torch.float32, device=first.device)
    out = torch.empty(plan.slots, len(queries), first.tokens, dtype=torch.float64, device=first.device)
    for some in blocks(first.tokens, rows):
        here_ND = torch.cat([state[some] for state in states])
        logits_NV = scratch[: here_ND.shape[0]]
        read_out(here_ND, first.weight_VD, first.bias_V, logits_NV)
        logits_StV = logits_NV.view(len(states), -1, first.vocabulary)
        plan.reduce(logits_StV, queries[0].targets_T[some], out[:, :, some], some)
    return [plan.answer(query, out[:, update]) for update, query in enumerate(queries)]


def read_out(h_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, out_NV: Tensor) -> None:
    """Logits in float32 of 16-bit states and a 16-bit head."""
    if h_ND.is_cuda:
        multiply(h_ND.unsqueeze(0), weight_VD, widest(h_ND.device), out_NV, bias_N=bias_V, least=LOWEST)
        return
    torch.mm(h_ND.float(), weight_VD.float().T, out=out_NV)
    if bias_V is not None:
        out_NV += bias_V
    out_NV.clamp_(min=LOWEST)


class Plan:
    """How a query is put to the FP32 kernel: scales from 0 to 1, and where derivatives are wanted.

    Attributes:
        scales: all scales, both ends of the segment included, [K], or those of each token, [T, K].
        asked: the places of the query's scales among them.
        places: places with derivatives, in order.
        even: whether they are evenly spaced.
        slots: how many numbers the kernel writes of a token, its mark included.
    """

    def __init__(self, query: Query) -> None:
        if query.common is None:
            zero = torch.zeros_like(query.scales_K)
            scales, self.asked, self.even = torch.cat([zero, query.scales_K, zero + 1.0], 1), [1], False
        else:
            every = sorted({0.0, 1.0, *query.common})
            scales, self.even = scales_on(tuple(every), query.source.device), spacing(every) is not None
            self.asked = [every.index(alpha) for alpha in query.common]
        self.scales, self.count, self.order = scales.float(), int(scales.shape[-1]), query.order
        self.places = sorted({self.asked[place] for place in query.places}) if query.order else []
        self.slots = self.count + len(self.places) * query.order + len(EXTRA) + 1

    def reduce(self, logits_StV: Tensor, targets_t: Tensor, out: Tensor, rows: slice) -> None:
        """One launch, and a second one for tokens that the first has marked."""
        states, tokens, vocabulary = logits_StV.shape
        scales = self.scales if self.scales.ndim == 1 else self.scales[rows]
        for even in (True, False) if self.even else (False,):
            launch(
                reduce_path,
                (states - 1, tokens),
                logits_StV,
                logits_StV,
                targets_t,
                scales,
                out,
                *(out.stride(1), vocabulary, *logits_StV.stride()[:2]),
                *(scales.stride(0) if scales.ndim == 2 else 0, out.stride(0)),
                fusion=True,
                COUNT=self.count,
                PLACES=sum(1 << place for place in self.places),
                ORDER=max(1, self.order),
                EVEN=even,
                MARKED=self.even and not even,
                RAGGED=vocabulary % (4 * _LANES[even]) != 0,
                LANES=_LANES[even],
                STAGES=_STAGES[even],
                warps=_LANES[even] // 32,
            )

    def answer(self, query: Query, out: Tensor) -> Tensor:
        """What the kernel wrote of one update, in the order of the query."""
        places = [self.places.index(self.asked[place]) for place in query.places] if query.order else []
        slopes = [self.count + place * self.order + k for place in places for k in range(self.order)]
        return taken(out, [*self.asked, *slopes, *range(self.slots - 1 - len(EXTRA), self.slots - 1)], 0)


def power_sums(
    z0_tV: Tensor, v_tV: Tensor, centres: Tensor, terms: int, *, skip_zero: bool = False
) -> tuple[Tensor, Tensor]:
    """The likeliest entry at each centre, [t, G], and Σ w uⁿ without it, [terms, t, G]; centres are [G] or [t, G].

    With `skip_zero` nothing is written of tokens whose first centre is 0.
    """
    if z0_tV.stride() != v_tV.stride() or z0_tV.stride(1) != 1:
        z0_tV, v_tV = z0_tV.contiguous(), v_tV.contiguous()
    (tokens, vocabulary), count, cuda = z0_tV.shape, int(centres.shape[-1]), z0_tV.is_cuda
    entry = torch.empty(tokens, count, dtype=torch.int32, device=z0_tV.device)
    out = torch.empty(terms, tokens, count, dtype=torch.float64, device=z0_tV.device)
    groups = min(2, count)
    launch(
        reduce_powers,
        (-(-count // groups) * tokens,),
        z0_tV,
        *(z0_tV, v_tV, centres, entry, out),
        *(tokens, vocabulary, z0_tV.stride(0), centres.stride(0) if centres.ndim == 2 else 0, count),
        warps=4 if cuda else 1,
        GROUPS=groups,
        TERMS=terms,
        ROWS=min(_ROWS, terms),
        SKIP_ZERO=skip_zero,
        LANES=(64 if terms > _ROWS else 256 // groups) if cuda else 32,
    )
    return entry.long(), out
