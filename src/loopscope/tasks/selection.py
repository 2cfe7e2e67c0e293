"""Which rows of a split are used: a named subset, chosen rows, the first few; in source order, whatever is chosen."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from loopscope.errors import LoopscopeError, parse_ranges, setting, shown

LARGEST_ROW = 1_000_000_000
"""The last source row that can be named."""
MOST_ROWS = 1_000_000
"""The most source rows that can be named one by one."""


def parse_ids(given: str) -> tuple[int, ...]:
    """Source rows as written on the command line: numbers and ranges, ends included.

    >>> parse_ids("0,5,10-12")
    (0, 5, 10, 11, 12)
    """
    return parse_ranges(given, "ids", largest=LARGEST_ROW, most=MOST_ROWS)


@dataclass(frozen=True)
class Selection:
    """Rows to use.

    Attributes:
        first: only this many rows from the start of the split (a named subset).
        every: of a subset, how far apart its rows are.
        ids: only these source rows.
        limit: at most this many of the rows that remain.
    """

    first: int | None = None
    ids: frozenset[int] | None = None
    limit: int | None = None
    every: int = 1

    @classmethod
    def make(
        cls, first: int | None = None, ids: Iterable[int] | None = None, limit: int | None = None, every: int = 1
    ) -> Selection:
        """A checked selection."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise LoopscopeError(f"{setting('limit', limit)} is not a whole number")
        if limit is not None and limit < 1:
            raise LoopscopeError(f"{setting('limit', limit)} is too small: it must be at least 1")
        if ids is None:
            return cls(first, None, limit, every)
        listed = _listed(ids)
        chosen = frozenset(listed)
        if not listed:
            raise LoopscopeError(
                f"{setting('ids')} is empty; name at least one source row, or leave it out for all rows"
            )
        if len(chosen) != len(listed):
            twice = Counter(listed).most_common(1)[0][0]
            raise LoopscopeError(f"{setting('ids')} names row {twice} twice; name each row once")
        if min(chosen) < 0:
            raise LoopscopeError(f"{setting('ids')} names row {min(chosen)}; source rows count from 0")
        return cls(first, chosen, limit, every)

    def keeps(self, index: int, kept: int) -> bool:
        """Whether row `index` is used when `kept` rows before it were."""
        if not self._has(index):
            return False
        if self.ids is not None and index not in self.ids:
            return False
        return self.limit is None or kept < self.limit

    def _has(self, index: int) -> bool:
        """Whether a row is one of the subset's, where there is one."""
        return self.first is None or (index % self.every == 0 and index // self.every < self.first)

    def check(self, total: int, where: str) -> None:
        """Whether a source with `total` rows has what was asked for."""
        reach = total if self.first is None else (self.first - 1) * self.every + 1
        if total < reach:
            raise LoopscopeError(f"{where} has {total} rows, fewer than the {reach} that the subset reaches over")
        beyond = [row for row in sorted(self.ids or ()) if row >= reach or not self._has(row)]
        if beyond:
            there = f"rows 0 to {reach - 1}" if self.every == 1 else f"rows 0, {self.every}, … {reach - 1}"
            raise LoopscopeError(f"{setting('ids')} names row {beyond[0]}, but {where} has {there}")


def _listed(ids: object) -> list[int]:
    """`ids` as a list, which a caller in Python may have given as anything."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise LoopscopeError(f"{setting('ids', ids)} is not a list of source rows: give e.g. [0, 5, 10]")
    listed = list(itertools.islice(ids, MOST_ROWS + 1))
    if len(listed) > MOST_ROWS:
        raise LoopscopeError(f"{setting('ids')} names more than {MOST_ROWS:,} rows: name fewer, each once")
    for row in listed:
        if isinstance(row, bool) or not hasattr(row, "__index__"):
            raise LoopscopeError(f"{setting('ids')} names {shown(row)}, which is not a whole number")
    return [operator.index(row) for row in listed]
