"""Everything that one sweep over the vocabulary tells about an update: what a pass over a benchmark stores.

The two logit products H Wᵀ and H⁺ Wᵀ cost far more than what is done with their entries, so a pass asks all its
questions at once: φ on an even grid of scales, derivatives at some of them, U(H), and how the two output
distributions differ.

Shapes: N examples (or tokens), K scales of the grid, M of them with derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.affine.endpoint import EndpointDistributions


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
