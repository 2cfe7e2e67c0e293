"""The back end of a CUDA device: FP32 logits by a product with rounded sums, then one reduction over the vocabulary.

FP32 logits of a few hundred tokens of every BF16 or FP16 state go into a scratch buffer, and one launch reduces all of
it. Updates that follow one another multiply each state once. Any other logits are reduced to FP64 power sums, from
which everything follows as in `moments`.

Shapes: S states, T tokens, t of them at a time, D hidden width, V vocabulary entries, K scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopscope.kernels.choice import takes_kernel
from loopscope.kernels.language import launch
from loopscope.kernels.product import cut_off, fits, rounded_product
from loopscope.readout.affine.endpoint import EndpointDistributions, EndpointSweep
from loopscope.readout.affine.moments import Interval, answered, at_scales, from_sums, intervals, series
from loopscope.readout.affine.query import Backend, Query, Survey, joined, scales_on, spacing, taken
from loopscope.readout.affine.reduction import EXTRA, STRIDE, reduce_any, reduce_grid, reduce_powers
from loopscope.readout.affine.sources import HeadLogits, LogitSource, StoredLogits, blocks

SCRATCH = 400 << 20
"""Bytes of logits that exist at a time."""

MOST_SCALES = 33
"""Of the FP32 kernels: each has sums in registers."""

_ENTRIES = 18 << 20  # of a block of FP64 logits: 144 MiB
_REACH, _TERMS, _ROWS = 2.0, 30, 6  # 30 power sums fit in registers, and are enough for intervals of this reach


class KernelBackend(Backend):
    """FP32 results of BF16 or FP16 states read in float32; FP64 results of everything else."""

    name = "kernel"

    @torch.no_grad()
    def not_supported_reasons(self, query: Query) -> list[str]:
        """It needs a device."""
        device = query.source.device
        if takes_kernel(torch.empty(1, dtype=torch.float64, device=device), dtypes=(torch.float64,)):
            return []
        return [f"it needs a CUDA device with Triton, not {device}"]

    @torch.no_grad()
    def evaluate(self, query: Query) -> Survey:
        """In FP32 sums where these are no worse than the logits, else in FP64."""
        return consecutive([query])[0] if in_float32(query) else _in_float64(query)


def in_float32(query: Query) -> bool:
    """Whether the FP32 kernels answer: BF16 or FP16 read in float32, a few scales from 0 to 1."""
    source, scales = query.source, query.common or (0.0,)
    return (
        isinstance(source, HeadLogits)
        and source.dtype == torch.float32
        and source.h_TD.dtype == source.h_plus_TD.dtype
        and fits(source.h_TD, source.weight_VD)
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
def consecutive(queries: Sequence[Query]) -> list[Survey]:
    """FP32 answers to the same query of updates that follow one another: each state is multiplied once."""
    sources = [query.source for query in queries if isinstance(query.source, HeadLogits)]
    first = sources[0]
    states = [first.h_TD, *(source.h_plus_TD for source in sources)]
    plan = Plan.of(queries[0])
    vocabulary = first.vocabulary
    most = max(1, SCRATCH // (4 * len(states) * vocabulary))
    whole = next(size for size in (256, 32, 1) if size <= most)  # no small group of tiles of the product at the end
    rows = most // whole * whole
    scratch = torch.empty(len(states) * min(rows, first.tokens), vocabulary, dtype=torch.float32, device=first.device)
    out = torch.empty(plan.slots, len(queries), first.tokens, dtype=torch.float64, device=first.device)
    for some in blocks(first.tokens, rows):
        here_D = torch.cat([state[some] for state in states])
        logits = scratch[: here_D.shape[0]]
        rounded_product(here_D, first.weight_VD, logits)
        plan.reduce(
            logits.view(len(states), -1, vocabulary), first.bias_V, queries[0].targets_T[some], out[:, :, some], some
        )
    return [plan.answer(query, out[:, update]) for update, query in enumerate(queries)]


@dataclass(frozen=True)
class Plan:
    """How a query is put to the FP32 kernels: scales from 0 to 1, and where derivatives are wanted.

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
        """How many numbers the kernels write of a token, its mark included."""
        return self.count + len(self.places) * self.order + len(EXTRA) + 1

    def reduce(self, logits: Tensor, bias_V: Tensor | None, targets_t: Tensor, out: Tensor, rows: slice) -> None:
        """One launch, and a second one for tokens that the first has marked."""
        states, tokens, vocabulary = logits.shape
        cuda = logits.is_cuda
        lanes, rounds, warps = (128, 1, 4) if cuda else (8, 1, 1)
        scales = self.scales if self.scales.ndim == 1 else self.scales[rows]
        common: dict[str, Any] = {
            "COUNT": self.count,
            "PLACES": sum(1 << place for place in self.places),
            "ORDER": max(1, self.order),
            "HAS_BIAS": bias_V is not None,
        }
        head = (logits, logits if bias_V is None else bias_V, targets_t)
        sizes = (out.stride(1), vocabulary, logits.stride(0))
        if self.even:
            launch(
                reduce_grid,
                (states - 1, tokens),
                logits,
                *head,
                out,
                *sizes,
                out.stride(0),
                warps=warps,
                RAGGED=vocabulary % (lanes * rounds * 4) != 0,
                LANES=lanes,
                ROUNDS=rounds,
                STRIDE=STRIDE,
                **common,
            )
        lanes = 256 if cuda else 16
        launch(
            reduce_any,
            (states - 1, tokens),
            logits,
            *head,
            scales,
            out,
            *sizes,
            scales.stride(0) if scales.ndim == 2 else 0,
            out.stride(0),
            self.slots - 1,
            warps=warps,
            RAGGED=vocabulary % lanes != 0,
            MARKED=self.even,
            LANES=lanes,
            **common,
        )

    def answer(self, query: Query, out: Tensor) -> Survey:
        """What the kernels wrote of one update, by name."""
        gains = taken(out[: self.count].T, self.asked)
        end = self.count + len(self.places) * self.order
        stack = out[self.count : end].view(len(self.places), self.order, out.shape[1]).permute(1, 2, 0)
        wanted = [self.places.index(self.asked[place]) for place in query.places] if query.order else []
        if query.order == 0:
            stack = stack.new_empty(0, gains.shape[0], len(query.places))
        else:
            stack = taken(stack, wanted)
            source = query.source
            missing = cut_off(source.h_TD, source.weight_VD) if isinstance(source, HeadLogits) else 0.0
            if missing:
                # All logits miss the same share, so displacements do; derivative m is homogeneous of degree m in them.
                powers = tuple((1.0 + missing) ** (m + 1) for m in range(query.order))
                stack = stack * scales_on(powers, out.device).view(-1, 1, 1)
        initial, kl, reverse, h0, h1, change, spread, _ = out[end:]
        ends = EndpointDistributions(kl, reverse, h0, h1, change)
        return Survey.of(query, gains, stack, initial, spread, ends)


class _Sums(NamedTuple):
    """Power sums of some tokens about the likeliest entry d at the centre of each interval of scales.

    `powers` is [n, t, G]; `z0_d` and `v_d` are [t, G].
    """

    layout: list[Interval]
    powers: Tensor
    z0_d: Tensor
    v_d: Tensor
    z0_y: Tensor
    v_y: Tensor
    spread_t: Tensor
    ends: EndpointDistributions | None


def _in_float64(query: Query) -> Survey:
    source = query.source
    in_memory = isinstance(source, StoredLogits) and source.is_float64
    rows = source.tokens if in_memory else max(1, _ENTRIES // source.vocabulary)
    scales_K, shift = query.scales_K, int(query.common is None or query.common[0] != 0.0)
    if shift:
        scales_K = torch.cat([torch.zeros_like(scales_K[..., :1]), scales_K], -1)
    parts: list[_Sums] = []
    widest = 0.0
    for some in blocks(source.tokens, rows):
        part, widest = _some_in_float64(query, some, scales_K, widest, in_memory)
        parts.append(part)
    together = [list(group) for _, group in groupby(parts, key=lambda part: part.layout)]
    return joined([_answered(query, group, scales_K, shift) for group in together])


def _some_in_float64(
    query: Query, rows: slice, scales_K: Tensor, widest: float, in_memory: bool
) -> tuple[_Sums, float]:
    """The widest displacement so far decides how many scales share an interval, so that blocks mostly agree."""
    source, targets_t = query.source, query.targets_T[rows]
    target = source.target_logits(rows, targets_t)
    z0_tV, v_tV = source.block(rows, slice(0, source.vocabulary), targets_t, target)
    if z0_tV.stride() != v_tV.stride() or z0_tV.stride(1) != 1:
        z0_tV, v_tV = z0_tV.contiguous(), v_tV.contiguous()
    step = None if query.common is None else spacing(query.common)
    count, terms = int(scales_K.shape[-1]), max(query.order, 3) + 1
    layout = [Interval(range(k, k + 1), 0.0, 1) for k in range(count)]
    if query.common is None and in_memory:
        spread_t, entry, powers = _at_start_and(query.scales_K, source, z0_tV, v_tV, terms)
    else:
        spread_t, centres = _spread(v_tV), scales_K if query.common is not None else scales_K[rows]
        if step is not None:
            widest = max(widest, float(spread_t.max()))
            shared = intervals([0.0] * count, step, widest, _REACH)
            if len(shared) <= count // 2:
                layout, terms = shared, _TERMS
                centres = scales_on(tuple(float(each.centre) for each in layout), source.device)
        entry, powers = power_sums(z0_tV, v_tV, centres, terms)
    ends = None
    if query.distributions:
        sweep = EndpointSweep()
        sweep.add(z0_tV, v_tV)
        ends = sweep.result()
    return _Sums(layout, powers, z0_tV.gather(1, entry), v_tV.gather(1, entry), *target, spread_t, ends), widest


def _answered(query: Query, parts: list[_Sums], scales_K: Tensor, shift: int) -> Survey:
    """Power sums that have the same intervals."""
    layout, step = parts[0].layout, None if query.common is None else spacing(query.common)
    powers = torch.cat([part.powers for part in parts], 1).permute(2, 1, 0)
    z0_d, v_d, z0_y, v_y = (torch.cat(each) for each in zip(*(part[2:6] for part in parts), strict=True))
    ends = [part.ends.stacked() for part in parts if part.ends is not None]
    sums = series(powers, layout, step or 0.0, max(query.order, 3))
    return answered(
        query,
        from_sums(at_scales(z0_d, layout), at_scales(v_d, layout), sums, v_y),
        z0_y,
        v_y,
        torch.cat([part.spread_t for part in parts]),
        scales_K,
        shift,
        EndpointDistributions(*torch.cat(ends, 1)) if ends else None,
    )


_starts: WeakKeyDictionary[LogitSource, tuple[Tensor, Tensor, Tensor]] = WeakKeyDictionary()


def _at_start_and(
    own_T1: Tensor, source: LogitSource, z0_TV: Tensor, v_TV: Tensor, terms: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Range of v, entries and power sums at scale 0, kept for a search's next scales, and at each token's scale.

    A token whose scale is 0 is not read again.
    """
    if source not in _starts:
        _starts[source] = (_spread(v_TV), *power_sums(z0_TV, v_TV, scales_on((0.0,), source.device), 5))
    spread_T, entry0, powers0 = _starts[source]
    entry, powers = power_sums(z0_TV, v_TV, own_T1, terms, skip_zero=True)
    still, powers0 = own_T1 == 0.0, powers0[:terms]
    entry, powers = torch.where(still, entry0, entry), torch.where(still, powers0, powers)
    return spread_T, torch.cat([entry0, entry], 1), torch.cat([powers0, powers], 2)


def _spread(v_tV: Tensor) -> Tensor:
    least_t, most_t = v_tV.aminmax(dim=1)
    return most_t - least_t


def power_sums(
    z0_tV: Tensor, v_tV: Tensor, centres: Tensor, terms: int, *, skip_zero: bool = False
) -> tuple[Tensor, Tensor]:
    """The likeliest entry at each centre, [t, G], and Σ w uⁿ without it, [terms, t, G]; centres are [G] or [t, G].

    With `skip_zero` nothing is written of tokens whose first centre is 0.
    """
    (tokens, vocabulary), count, cuda = z0_tV.shape, int(centres.shape[-1]), z0_tV.is_cuda
    entry = torch.empty(tokens, count, dtype=torch.int32, device=z0_tV.device)
    out = torch.empty(terms, tokens, count, dtype=torch.float64, device=z0_tV.device)
    groups = min(2, count)
    launch(
        reduce_powers,
        (-(-count // groups), tokens),
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
        warps=4 if cuda else 1,
        COUNT=count,
        GROUPS=groups,
        TERMS=terms,
        ROWS=min(_ROWS, terms),
        SKIP_ZERO=skip_zero,
        LANES=(64 if terms > _ROWS else 256 // groups) if cuda else 32,
    )
    return entry.long(), out
