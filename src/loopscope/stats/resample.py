"""A block of resamples as counts, and the midranks of a column in each of them, computed once for all statistics.

With records sorted by value, the midrank of a record in a resample is (records drawn below) + (records drawn at the
same value + 1) / 2, which is a cumulative sum of counts: no resample is ever sorted.

Shapes: B resamples, N records, G groups of equal values.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Ranked(NamedTuple):
    """A column's midranks in a block of resamples, centred at (n + 1)/2."""

    rank_BN: NDArray[np.float64]
    weighted_BN: NDArray[np.float64]
    """Ranks times counts."""
    squares_B: NDArray[np.float64]
    """Σ count · rank²."""


class Column:
    """One value per record, with the ascending groups of equal values."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """Records by ascending value."""
        return np.argsort(self.values, kind="stable")

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """Whether a record is the first of its group, in ascending order."""
        ascending = self.values[self.order]
        first = np.ones(ascending.size, dtype=bool)
        first[1:] = ascending[1:] != ascending[:-1]
        return first

    @cached_property
    def group(self) -> NDArray[np.intp]:
        """The group of every record."""
        groups = np.empty(self.values.size, dtype=np.intp)
        groups[self.order] = np.cumsum(self.first) - 1
        return groups


@dataclass
class Block:
    """Some resamples: how often each record was drawn, and the ranks asked for so far."""

    counts_BN: NDArray[np.float64]

    def __post_init__(self) -> None:
        # Entries keep their column, and with it the array, alive: an identity cannot be taken over by another.
        self._ranked: dict[int, tuple[Column, Ranked]] = {}
        self._cumulative: dict[int, tuple[Column, NDArray[np.float64]]] = {}

    def cumulative(self, column: Column) -> NDArray[np.float64]:
        """How many records were drawn up to each one in ascending order of the column: [B, N]."""
        key = id(column.values)
        if key not in self._cumulative:
            drawn_BN = np.cumsum(np.take(self.counts_BN, column.order, axis=1), axis=1)
            self._cumulative[key] = (column, drawn_BN)
        return self._cumulative[key][1]

    def ranked(self, column: Column) -> Ranked:
        """The midranks of a column; columns over the same array share them."""
        key = id(column.values)
        if key not in self._ranked:
            self._ranked[key] = (column, self._rank(column))
        return self._ranked[key][1]

    def _rank(self, column: Column) -> Ranked:
        sorted_BN = np.take(self.counts_BN, column.order, axis=1)
        starts = np.flatnonzero(column.first)
        totals_BG = np.add.reduceat(sorted_BN, starts, axis=1) if starts.size < column.first.size else sorted_BN
        ranks_BG = np.cumsum(totals_BG, axis=1)
        # Below + (here + 1)/2 - (n + 1)/2, with below = cumulative - here.
        totals_BG *= 0.5
        ranks_BG -= totals_BG
        ranks_BG -= self.counts_BN.shape[1] / 2
        rank_BN = np.take(ranks_BG, column.group, axis=1)
        weighted_BN = self.counts_BN * rank_BN
        return Ranked(rank_BN, weighted_BN, np.einsum("bn,bn->b", weighted_BN, rank_BN))
