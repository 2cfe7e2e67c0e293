"""The tables of a run directory, declared column by column in `columns.txt`, and the version of this schema.

`examples` holds the texts, so that a run can be read without its data set; `questions` one update of one example
(Sections 3 and 4 of the paper; the `fp64_` columns: Appendices E.5 and E.9); `depths` the reference utility at every
requested depth (Appendix E.1); `tokens` the quantities of each reference token alone (E.8); `paths` φ and three
derivatives at the 257 nodes of the FP64 analysis (E.5); `certificates` enclosures and verdicts that include rounding;
`trace` every reference position after every loop; `longer_steps` steps longer than the proposed one.
docs/run-directory.md lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib import resources
from typing import Any

from loopscope.errors import LoopscopeError, parse_number, parse_ranges, setting, shown

SCHEMA_VERSION = 3
"""Raised by one whenever a column or a table is added, dropped, renamed or given another meaning.

A run of an older version is read as it is: columns that are newer than it are null, tables that are newer are missing,
and what this version no longer declares is left out. A run of a newer version is refused.
"""


CHORD = 100_000
"""A transition k → R is stored as k + CHORD · (R − k − 1): an ordinary update t → t+1 as t."""


def transition_of(before: int, after: int) -> int:
    """The stored number of the update from one state to a later one.

    >>> transition_of(4, 5), transition_of(1, 3)
    (4, 100001)
    """
    return before + CHORD * (after - before - 1)


def ends_of(transition: Any) -> tuple[Any, Any]:
    """The loops before and after an update, of a number, an array or a polars expression.

    >>> ends_of(4), ends_of(100001)
    ((4, 5), (1, 3))
    """
    before = transition % CHORD
    return before, before + transition // CHORD + 1


def parse_transitions(text: str, *, largest: int) -> tuple[int, ...]:
    """Updates as they are stored: t and ranges of it for t → t+1, k>R for the chord from state k to state R.

    >>> parse_transitions("1-2, 1>3", largest=100)
    (100001, 1, 2)
    """
    entries, name, found = text.split(","), "transitions", []
    plain = ",".join(entry for entry in entries if ">" not in entry)
    for entry in (entry for entry in entries if ">" in entry):
        before, after = (parse_number(end) for end in entry.split(">", 1))
        if before is not None and after is not None and after < before <= largest:
            raise LoopscopeError(f"{setting(name, text)}: {shown(entry)} runs backwards: write {after}>{before}")
        if before is None or after is None or not before < after <= largest:
            raise LoopscopeError(f"{setting(name, text)}: {shown(entry)} is not a chord up to {largest:,}, e.g. 1>3")
        found.append(transition_of(before, after))
    return (*found, *(parse_ranges(plain, name, largest=largest, most=largest + 1) if plain or not found else ()))


def update_name(transition: int) -> str:
    """`4→5`, or `1→3` for a chord.

    >>> update_name(4), update_name(100001)
    ('4→5', '1→3')
    """
    return "{}→{}".format(*ends_of(transition))


class Level(StrEnum):
    """What a pass computes for every question and transition.

    The order of declaration is the order of effort; a column that belongs to a level is filled at that level
    and at every later one.

    >>> Level.FULL.includes(Level.GRID), Level.QUICK.includes(Level.GRID)
    (True, False)

    Attributes:
        QUICK: U at both ends, A, Q, ΔU, the outcome and the quadratic scale (Sections 3.1 and 3.3).
        GRID: Also the 21-point grid, curvature at five points, the KL correction, the state and output diagnostics
            and the rounded interventions (Appendices E.2 to E.4).
        FULL: Also the FP64 path analysis: envelopes, partition sums, refined optimum, safe scale.
    """

    QUICK = "quick"
    GRID = "grid"
    FULL = "full"

    def includes(self, other: Level) -> bool:
        """Whether a run at this level fills the columns of `other`."""
        order = list(Level)
        return order.index(other) <= order.index(self)


@dataclass(frozen=True)
class Column:
    """One column: the writer, the reader, `verify` and the documentation all read this.

    Attributes:
        type: As Arrow names it: `string`, `bool`, `int32`, `float64`, …, or a list of these, `list<float64>`.
        unit: Unit of a cell; an empty string where there is none.
        meaning: One line for the documentation.
        level: The first level that fills the column; at earlier levels every cell is null.
        nullable: Whether a cell may be null even at a level that fills the column.
        length: The number of elements of every list, where it is fixed.
        since: The schema version that added the column; runs of earlier ones have nulls.
    """

    name: str
    type: str
    unit: str
    meaning: str
    level: Level = Level.QUICK
    nullable: bool = False
    length: int | None = None
    since: int = 1

    @cached_property
    def is_list(self) -> bool:
        """Whether a cell holds a list."""
        return self.type.startswith("list<")

    @cached_property
    def element(self) -> str:
        """The type of a cell, or of what is in its list."""
        return self.type.removeprefix("list<").removesuffix(">")

    @cached_property
    def optional(self) -> bool:
        """Whether the Parquet field is optional, which does not depend on the level of one run."""
        return self.nullable or self.level is not Level.QUICK or self.since > 1

    def required(self, level: Level, version: int) -> bool:
        """Whether a run at `level` and of schema version `version` must fill every cell."""
        return level.includes(self.level) and not self.nullable and self.since <= version


@dataclass(frozen=True)
class Table:
    """One table of the run directory: a folder of shards with the same columns.

    Attributes:
        per: What one row stands for.
        key: The columns that name a row, in sorting order; the first is always `row`.
        since: The schema version that added the table; runs of earlier ones do not have it.
    """

    name: str
    per: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    since: int = 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names, in file order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The declaration of one column."""
        return self.columns[self.names.index(name)]


def _read() -> Iterator[Table]:
    declared: dict[str, Column] = {}
    text = (resources.files("loopscope.store") / "columns.txt").read_text(encoding="utf-8")
    for block in text.strip().split("\n\n")[1:]:
        head, *lines = block.splitlines()
        columns: list[Column] = []
        for line in lines:
            if " | " in line:
                column, kind, unit, given, meaning = line.split(" | ", 4)
                type_, _, length = kind.removesuffix("]").partition("[")
                flags = {flag: value for flag, _, value in (each.partition("=") for each in given.split())}
                level = next((level for level in Level if level in flags), Level.QUICK)
                facts = level, "null" in flags, int(length) if length else None, int(flags.get("since", 1))
                columns.append(Column(column, type_, unit, meaning, *facts))
                declared.setdefault(column, columns[-1])
            else:
                columns += (declared[name] for name in line.split(", "))
        name, per, key, *since = head.split(": ")
        yield Table(name, per, tuple(key.split()), tuple(columns), *map(int, since))


TABLES: dict[str, Table] = {table.name: table for table in _read()}
"""Every table by name; those after `depths` are written only when a run asks for them."""

_TRACE = TABLES["trace"]
TRACE_COLUMNS = _TRACE.columns[_TRACE.names.index("log_prob") :]
"""The columns of `trace` about one loop at one position: H_t is the state after loop t, D_t = H_t − H_{t−1} its step,
z_t the logits, p_t their softmax, v = z_t − z_{t−1}, y the reference token. What needs a loop before the first is null
at depth 1, but H_0 counts as the state before it.
"""
GAIN_SCALES = (0.25, 0.5, 0.75)
"""Where the column `gains` of `trace` has φ of a token."""
MIN_P = 0.1
"""Probabilities below this share of the largest are set to 1/V in `kl_min_p`."""
