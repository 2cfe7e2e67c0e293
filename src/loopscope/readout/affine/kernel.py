"""The back end of a CUDA device: FP32 logits by the library's product, then one reduction over the vocabulary.

FP32 logits of a few hundred tokens of every BF16 or FP16 state go into a scratch buffer, and one launch reduces all of
it. Updates that follow one another multiply each state once. Any other logits are reduced to FP64 power sums, from
which everything follows as in `moments`.

Shapes: S states, T tokens, t of them at a time, D hidden width, V vocabulary entries, K scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopscope.kernels.choice import takes_kernel
from loopscope.kernels.language import launch
from loopscope.readout.affine.moments import ORDER, MomentsBackend, Sums
from loopscope.readout.affine.query import (
    HeadLogits,
    LogitBlock,
    LogitSource,
    Query,
    StoredLogits,
    scales_on,
    spacing,
    taken,
)
from loopscope.readout.affine.reduction import EXTRA, reduce_path, reduce_powers
from loopscope.readout.blocks import blocks

SCRATCH = 400 << 20
"""Bytes of logits that exist at a time."""

MOST_SCALES = 33
"""Of the FP32 kernel: each has sums in registers."""

_GRID = 65_535  # programs along the second axis of a launch
_TILE = 512  # entries of a row: four for each of 128 threads
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
        if not _is_search(query, logits):
            return super().spread(query, logits)
        return _start(query, logits).spread_T

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


class _Start(NamedTuple):
    """What a search over logits that stay asks for again and again: power sums at scale 0 and the range."""

    entry: Tensor
    powers: Tensor
    spread_T: Tensor


_starts: WeakKeyDictionary[LogitSource, _Start] = WeakKeyDictionary()


def _is_search(query: Query, logits: LogitBlock) -> bool:
    """Whether each token has its own scale, and all logits are there."""
    return query.common is None and logits.z0.shape[0] == query.source.tokens


def _start(query: Query, logits: LogitBlock) -> _Start:
    found = _starts.get(query.source)
    if found is None:
        powers = power_sums(*logits, torch.zeros(1, dtype=torch.float64, device=logits.z0.device), ORDER + 1)
        _starts[query.source] = found = _Start(*powers, logits.v.amax(1) - logits.v.amin(1))
    return found


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
    first = sources[0]
    states = [first.h_TD, *(source.h_plus_TD for source in sources)]
    plan = Plan.of(queries[0])
    most = min(_GRID, max(1, SCRATCH // (4 * len(states) * whole_tiles(first.vocabulary))))
    rows = most // 128 * 128 or most  # whole tiles of the product
    scratch = empty_logits(len(states) * min(rows, first.tokens), first.vocabulary, first.device)
    out = torch.empty(plan.slots, len(queries), first.tokens, dtype=torch.float64, device=first.device)
    shares, measured = scratch, 0
    for some in blocks(first.tokens, rows):
        here_StD = torch.stack([state[some] for state in states])
        logits_StV = scratch[: len(states) * here_StD.shape[1]].view(*here_StD.shape[:2], -1)
        multiply(here_StD.flatten(0, 1), first.weight_VD, logits_StV.flatten(0, 1))
        if logits_StV.shape[1] != measured:  # the library may sum in another order
            shares, measured = missing_shares(here_StD, first.weight_VD, logits_StV), logits_StV.shape[1]
        head = Head(here_StD, first.weight_VD, first.bias_V)
        plan.reduce(logits_StV, head, queries[0].targets_T[some], shares, out[:, :, some], some)
    return [plan.answer(query, out[:, update]) for update, query in enumerate(queries)]


def whole_tiles(vocabulary: int) -> int:
    """The length of a row of logits that the kernel reads."""
    return -(-vocabulary // _TILE) * _TILE


def empty_logits(rows: int, vocabulary: int, device: torch.device) -> Tensor:
    """Room for rows of logits, [rows, V], each followed by what fills its last tile."""
    return torch.empty(rows, whole_tiles(vocabulary), dtype=torch.float32, device=device)[:, :vocabulary]


def multiply(x_MK: Tensor, weight_NK: Tensor, out_MN: Tensor) -> None:
    """X · weightᵀ of 16-bit matrices into a float32 one."""
    if x_MK.is_cuda:
        torch.mm(x_MK, weight_NK.T, out_dtype=torch.float32, out=out_MN)
    else:
        torch.mm(x_MK.float(), weight_NK.float().T, out=out_MN)


def missing_shares(states_StD: Tensor, weight_VD: Tensor, logits_StV: Tensor) -> Tensor:
    """The shares of themselves by which logits and their differences are too small, from a part of them, float32 [2].

    A tensor core cuts its sum off after every sixteen products, towards zero. Over a long sum that is a bias of some
    millionths, which averages over a vocabulary do not average away: the variance of a displacement is off by fifty
    times the error of a plain float32 sum. The rest of the error is less than that. As the bias is not quite linear in
    the sum, entries count by their probability at both ends.
    """
    tokens, outputs = (max(1, size // some) for size, some in zip(logits_StV.shape[1:], (256, 1024), strict=True))
    exact_Sno = states_StD[:, ::tokens].double() @ weight_VD[::outputs].double().T
    off_Sno = exact_Sno - logits_StV[:, ::tokens, ::outputs]
    p_Sno = torch.softmax(exact_Sno, -1)
    found = (p_Sno * exact_Sno * off_Sno).sum() / (p_Sno * exact_Sno.square()).sum()
    p_Uno, v_Uno = p_Sno[:-1] + p_Sno[1:], exact_Sno.diff(dim=0)
    weighted_Uno = p_Uno * (v_Uno - 0.5 * (p_Uno * v_Uno).sum(-1, keepdim=True))
    of_v = (weighted_Uno * off_Sno.diff(dim=0)).sum() / (weighted_Uno * v_Uno).sum()
    return torch.stack([found, of_v]).nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1e-5).float()


class Head(NamedTuple):
    """What the logits are products of: the states of some tokens, a matrix, and a bias that is added to the product."""

    states_StD: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None


@dataclass(frozen=True)
class Plan:
    """How a query is put to the FP32 kernel: scales from 0 to 1, and where derivatives are wanted.

    Attributes:
        scales: all scales, [K], or those of each token, [T, K].
        asked: the places of the query's scales among them.
        places: places with derivatives, in order.
        order: of the derivatives.
        even: whether they are evenly spaced.
    """

    scales: Tensor
    asked: tuple[int, ...]
    places: tuple[int, ...]
    order: int
    even: bool

    @classmethod
    def of(cls, query: Query) -> Plan:
        """With both ends of the segment added to the scales that are asked for."""
        if query.common is None:
            zero = torch.zeros_like(query.scales_K)
            scales = torch.cat([zero, query.scales_K, zero + 1.0], 1)
            asked: tuple[int, ...] = (1,)
            even = False
        else:
            all_scales = sorted({0.0, 1.0, *query.common})
            asked = tuple(all_scales.index(alpha) for alpha in query.common)
            scales = scales_on(tuple(all_scales), query.source.device)
            even = spacing(all_scales) is not None
        places = tuple(sorted({asked[place] for place in query.places})) if query.order else ()
        return cls(scales.float(), asked, places, query.order, even)

    @property
    def count(self) -> int:
        """How many scales there are."""
        return int(self.scales.shape[-1])

    @property
    def slots(self) -> int:
        """How many numbers the kernel writes of a token, its mark included."""
        return self.count + len(self.places) * self.order + len(EXTRA) + 1

    def reduce(
        self, logits: Tensor, head: Head | None, targets_t: Tensor, shares: Tensor, out: Tensor, rows: slice
    ) -> None:
        """One launch, and a second one for tokens that the first has marked; targets are multiplied where a head is."""
        states, tokens, vocabulary = logits.shape
        scales = self.scales if self.scales.ndim == 1 else self.scales[rows]
        states_StD, weight_VD, bias_V = head or Head(logits, logits, None)
        for even in (True, False) if self.even else (False,):
            launch(
                reduce_path,
                (states - 1, tokens),
                logits,
                logits,
                logits if bias_V is None else bias_V,
                targets_t,
                states_StD,
                weight_VD,
                scales,
                shares,
                out,
                out.stride(1),
                vocabulary,
                logits.stride(0),
                logits.stride(1),
                scales.stride(0) if scales.ndim == 2 else 0,
                out.stride(0),
                states_StD.shape[-1],
                weight_VD.stride(0),
                fusion=True,
                registers=128 if even and logits.is_cuda else None,
                COUNT=self.count,
                PLACES=sum(1 << place for place in self.places),
                ORDER=max(1, self.order),
                OWN=head is not None,
                EVEN=even,
                MARKED=self.even and not even,
                HAS_BIAS=bias_V is not None,
                RAGGED=vocabulary % _TILE != 0,
                LANES=_TILE // 4,
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
        z0_tV,
        v_tV,
        centres,
        entry,
        out,
        tokens,
        vocabulary,
        z0_tV.stride(0),
        centres.stride(0) if centres.ndim == 2 else 0,
        count,
        warps=4 if cuda else 1,
        GROUPS=groups,
        TERMS=terms,
        ROWS=min(_ROWS, terms),
        SKIP_ZERO=skip_zero,
        LANES=(64 if terms > _ROWS else 256 // groups) if cuda else 32,
    )
    return entry.long(), out
