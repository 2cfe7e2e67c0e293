"""What a path is asked, what a back end answers, and what a back end is.

Shapes: T reference tokens, N examples, K scales, M of them with derivatives.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.affine.endpoint import EndpointDistributions
from loopscope.readout.affine.sources import LogitSource
from loopscope.readout.path import Segments, segment_mean

_FEWEST_CELLS = 4
_ROUNDING = 2.0**-52  # of a scale, however it was computed


@dataclass(frozen=True)
class Query:
    """φ of every token at some scales, derivatives at some of those, and perhaps the endpoint distributions.

    Attributes:
        source: the logits.
        targets_T: reference labels.
        scales: the same scales for every token, or one scale for each token, float64 [T].
        places: indices of the scales with derivatives.
        order: highest derivative there.
        distributions: whether the endpoint distributions are wanted.
    """

    source: LogitSource
    targets_T: Tensor
    scales: tuple[float, ...] | Tensor
    places: tuple[int, ...]
    order: int
    distributions: bool = False

    @property
    def common(self) -> tuple[float, ...] | None:
        """The scales, unless each token has its own."""
        return None if isinstance(self.scales, Tensor) else self.scales

    @property
    def scales_K(self) -> Tensor:  # noqa: N802 - its shape
        """The scales on the source's device: [K], or [T, 1] where each token has its own."""
        if isinstance(self.scales, Tensor):
            return self.scales.double().unsqueeze(1)
        return scales_on(self.scales, self.source.device)

    def some(self, rows: slice) -> Query:
        """The same of some tokens."""
        scales = self.scales[rows] if isinstance(self.scales, Tensor) else self.scales
        return replace(self, targets_T=self.targets_T[rows], scales=scales)


@functools.lru_cache(maxsize=64)
def scales_on(scales: tuple[float, ...], device: torch.device) -> Tensor:
    """Scales on a device, sent there once; not to be written to."""
    return torch.tensor(scales, dtype=torch.float64).to(device)


@functools.lru_cache(maxsize=64)
def _places_on(places: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(places).to(device)


def taken(values: Tensor, places: Sequence[int]) -> Tensor:
    """values[..., places], without sending the places to the device at every call, which would wait for it."""
    count = len(places)
    if tuple(places) == tuple(range(count)):
        return values[..., :count]
    return values.index_select(-1, _places_on(tuple(places), values.device))


@dataclass(frozen=True)
class Survey:
    """An update seen at some scales; float64 throughout, of N examples or of T tokens.

    Attributes:
        alpha: the scales, [K].
        gains: φ at each of them, [N, K].
        moments_at: the scales with derivatives, [M].
        derivatives: φ, φ', … there, [order+1, N, M].
        initial: U(H), [N].
        spread: the range of the displacement, max v − min v; of an example its tokens' largest, [N].
        ends: the two divergences and entropies, [N] each; None where they were not requested.
    """

    alpha: Tensor
    gains: Tensor
    moments_at: Tensor
    derivatives: Tensor
    initial: Tensor
    spread: Tensor
    ends: EndpointDistributions | None

    @property
    def distributions(self) -> EndpointDistributions:
        """The two divergences and entropies."""
        assert self.ends is not None, "the query left them out"
        return self.ends

    @classmethod
    def of(
        cls,
        query: Query,
        gains: Tensor,
        derivatives: Tensor,
        initial: Tensor,
        spread: Tensor,
        ends: EndpointDistributions | None,
    ) -> Survey:
        """The answer to a query: `derivatives` are φ', φ'', … [order, T, M] of the scales with derivatives."""
        scales = query.scales_K
        derivatives = torch.cat([taken(gains, query.places).unsqueeze(0), derivatives])
        return cls(scales, gains, taken(scales, query.places), derivatives, initial, spread, ends)

    def averaged(self, segments: Segments) -> Survey:
        """Means over each example's tokens, without the example axis where there is a single one."""
        drop = 0 if segments.single else slice(None)

        def mean(values_T: Tensor) -> Tensor:
            return segment_mean(segments, values_T)[drop]

        ends = self.ends
        spread = self.spread.new_zeros(segments.examples).scatter_reduce_(0, segments.index, self.spread, "amax")
        return Survey(
            self.alpha,
            mean(self.gains),
            self.moments_at,
            segment_mean(segments, self.derivatives.transpose(0, 1)).transpose(0, 1)[:, drop],
            mean(self.initial),
            spread[drop],
            None if ends is None else EndpointDistributions(*(mean(field) for field in ends.fields())),
        )


def joined(parts: Sequence[Survey]) -> Survey:
    """Surveys of tokens that follow each other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    ends = [part.ends.stacked() for part in parts if part.ends is not None]
    return Survey(
        first.alpha,
        torch.cat([part.gains for part in parts]),
        first.moments_at,
        torch.cat([part.derivatives for part in parts], 1),
        torch.cat([part.initial for part in parts]),
        torch.cat([part.spread for part in parts]),
        EndpointDistributions(*torch.cat(ends, 1)) if ends else None,
    )


class Backend(ABC):
    """One way to evaluate φ and its derivatives.

    Attributes:
        name: what `impl=` calls it.
        max_order: the highest derivative.
    """

    name: str
    max_order = 4

    @abstractmethod
    def not_supported_reasons(self, query: Query) -> list[str]:
        """Why this back end cannot answer, one line each; none where it can."""

    @abstractmethod
    def evaluate(self, query: Query) -> Survey:
        """The answer, of every token."""


def grid(count: int) -> tuple[float, ...]:
    """`count` evenly spaced scales from 0 to 1."""
    if count < 2:
        raise LoopscopeError(f"{count} scales are not a grid from 0 to 1: give at least 2")
    return tuple(k / (count - 1) for k in range(count))


def places_on(count: int, scales: Sequence[float]) -> tuple[int, ...]:
    """Where some scales are on the grid.

    >>> places_on(21, [0.0, 0.25, 1.0])
    (0, 5, 20)
    """
    cells = count - 1
    places = tuple(round(alpha * cells) for alpha in scales)
    for alpha, place in zip(scales, places, strict=True):
        if not 0 <= place <= cells or abs(alpha * cells - place) > 1e-9:
            raise LoopscopeError(f"{alpha} is not one of the {count} evenly spaced scales from 0 to 1")
    return places


def spacing(scales: Sequence[float]) -> float | None:
    """The distance of evenly spaced scales from 0 to 1; None of any others, and of too few to share anything.

    >>> spacing([0.0, 0.25, 0.5, 0.75, 1.0]), spacing([0.0, 0.25, 0.6, 0.75, 1.0]), spacing([0.0, 1.0])
    (0.25, None, None)
    """
    cells = len(scales) - 1
    even = cells >= _FEWEST_CELLS and all(abs(alpha - k / cells) <= _ROUNDING for k, alpha in enumerate(scales))
    return 1.0 / cells if even else None
