"""Which rows of a split are used: a named subset, chosen rows, the first few; in source order, whatever is chosen."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from loopscope.errors import LoopscopeError, index, parse_ranges, setting, shown

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
        ids: only these source rows.
        limit: at most this many of the rows that remain.
        every: of a subset, how far apart its rows are.
    """

    first: int | None = None
    ids: frozenset[int] | None = None
    limit: int | None = None
    every: int = 1

    @classmethod
    def make(cls, ids: Iterable[int] | None = None, limit: int | None = None) -> Selection:
        """A checked selection."""
        if limit is not None and (index(limit) is None or limit < 1):
            raise LoopscopeError(f"{setting('limit', limit)} is not a whole number of at least 1")
        if ids is None:
            return cls(limit=limit)
        given: object = ids
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise LoopscopeError(f"{setting('ids', given)} is not a list of source rows: give e.g. [0, 5, 10]")
        listed = list(itertools.islice(given, MOST_ROWS + 1))
        wrong = next((row for row in listed if index(row) is None or row < 0), None)
        if wrong is not None:
            raise LoopscopeError(f"{setting('ids')} names {shown(wrong)}; source rows are whole numbers from 0")
        if not 0 < len(listed) <= MOST_ROWS:
            raise LoopscopeError(f"{setting('ids')} names {len(listed)} rows: name 1 to {MOST_ROWS:,}, or leave it out")
        row, times = Counter(listed).most_common(1)[0]
        if times > 1:
            raise LoopscopeError(f"{setting('ids')} names row {row} twice; name each row once")
        return cls(ids=frozenset(map(int, listed)), limit=limit)

    def keeps(self, index: int, kept: int) -> bool:
        """Whether row `index` is used when `kept` rows before it were."""
        chosen = self._has(index) and (self.ids is None or index in self.ids)
        return chosen and (self.limit is None or kept < self.limit)

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
