"""The words in which tables are declared: level, column type, column, table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """What a pass computes for every question and transition.

    The order of declaration is the order of effort; a column that belongs to a level is filled at that level
    and at every later one.

    >>> Level.FULL.includes(Level.GRID), Level.QUICK.includes(Level.GRID)
    (True, False)
    """

    QUICK = "quick"
    """U at both ends, A, Q, ΔU, the outcome and the quadratic scale (Sections 3.1 and 3.3)."""
    GRID = "grid"
    """Also the 21-point grid, curvature at five points, the KL correction, the state and output
    diagnostics and the rounded interventions (Appendices E.2 to E.4)."""
    FULL = "full"
    """Also the FP64 path analysis: envelopes, partition sums, refined optimum, safe scale."""

    def includes(self, other: Level) -> bool:
        """Whether a run at this level fills the columns of `other`."""
        order = list(Level)
        return order.index(other) <= order.index(self)


class ColumnType(StrEnum):
    """The types a shard may hold: plain Parquet, nothing that a reader would have to know about."""

    STRING = "string"
    BOOL = "bool"
    INT8 = "int8"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32_LIST = "list<int32>"
    FLOAT32_LIST = "list<float32>"
    FLOAT64_LIST = "list<float64>"
    STRING_LIST = "list<string>"

    @property
    def element(self) -> ColumnType:
        """The element type of a list, the type itself otherwise.

        >>> ColumnType.FLOAT64_LIST.element.value
        'float64'
        """
        return _ELEMENTS.get(self, self)

    @property
    def is_list(self) -> bool:
        """Whether a cell holds a list."""
        return self in _ELEMENTS

    @property
    def is_float(self) -> bool:
        """Whether a cell holds floating-point numbers, alone or in a list."""
        return self.element in (ColumnType.FLOAT32, ColumnType.FLOAT64)


_ELEMENTS = {
    ColumnType.INT32_LIST: ColumnType.INT32,
    ColumnType.FLOAT64_LIST: ColumnType.FLOAT64,
    ColumnType.FLOAT32_LIST: ColumnType.FLOAT32,
    ColumnType.STRING_LIST: ColumnType.STRING,
}


@dataclass(frozen=True)
class Column:
    """One column, declared once: the writer, the reader, `verify` and the documentation all read this."""

    name: str
    type: ColumnType
    unit: str
    """Unit of a cell; an empty string where there is none."""
    meaning: str
    """One line for the documentation."""
    level: Level = Level.QUICK
    """The first level that fills the column; at earlier levels every cell is null."""
    nullable: bool = False
    """Whether a cell may be null even at a level that fills the column."""
    length: int | None = None
    """The number of elements of every list, where it is fixed."""

    @property
    def optional(self) -> bool:
        """Whether the Parquet field is optional, which does not depend on the level of one run."""
        return self.nullable or self.level is not Level.QUICK

    def required_at(self, level: Level) -> bool:
        """Whether a run at `level` must fill every cell."""
        return level.includes(self.level) and not self.nullable


@dataclass(frozen=True)
class Table:
    """One table of the run directory: a folder of shards with the same columns."""

    name: str
    per: str
    """What one row stands for."""
    key: tuple[str, ...]
    """The columns that name a row, in sorting order; the first is always `row`."""
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) != len(names):
            raise ValueError(f"table {self.name}: a column is declared twice")
        if self.key[0] != "row" or not set(self.key) <= set(names):
            raise ValueError(f"table {self.name}: key {self.key} does not fit its columns")

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in file order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The declaration of one column."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name} has no column {name}")
