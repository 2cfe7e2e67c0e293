"""What a table study returns: typed rows, and how its columns are headed and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from loopscope.frames import to_pandas
from loopscope.stats import Estimate
from loopscope.studies.conditions import Condition

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

Value: TypeAlias = Estimate | float | int | str | None


@dataclass(frozen=True)
class Row:
    """One row; studies add their own fields (numbers in natural units: nats, fractions, counts)."""

    condition: Condition
    key: str
    """Which of a condition's rows this is: a population, a signal, an action; empty where there is one."""

    def value(self, path: str) -> Value:
        """A field, or a property of the condition by a dotted path."""
        found: Any = self
        for name in path.split("."):
            found = getattr(found, name)
        result: Value = found
        return result

    @classmethod
    def measures(cls) -> tuple[str, ...]:
        """The names of the study's own fields."""
        return tuple(entry.name for entry in fields(cls) if entry.name not in ("condition", "key"))


R_co = TypeVar("R_co", bound=Row, covariant=True)


@dataclass(frozen=True)
class Style:
    """How one number is printed."""

    decimals: int | None = None
    """Digits after the point; None prints integers and text as they are."""
    factor: float = 1.0
    """Printed number = quantity × factor: 1e3 for a column in units of 10⁻³."""
    scientific: bool = False
    sign: bool = False
    """Whether positive numbers carry a plus sign."""
    interval: bool = False
    """Whether the interval follows in brackets."""


COUNT = Style()
TEXT = Style()


def fixed(decimals: int, factor: float = 1.0, *, sign: bool = False, interval: bool = False) -> Style:
    """A decimal number."""
    return Style(decimals, factor, sign=sign, interval=interval)


def percent(decimals: int, *, interval: bool = False, sign: bool = False) -> Style:
    """A fraction in per cent."""
    return Style(decimals, 100.0, interval=interval, sign=sign)


def scientific(decimals: int) -> Style:
    """A number with its power of ten."""
    return Style(decimals, scientific=True)


@dataclass(frozen=True)
class Column:
    """One printed column: one field, or several woven into one cell such as `179/364`."""

    fields: tuple[str, ...]
    head: str
    """Plain head; a line break where the paper has one."""
    styles: tuple[Style, ...]
    latex: str = ""
    """LaTeX head where it differs from the plain one."""
    group: str = ""
    """Head that spans neighbouring columns of the same group."""
    template: str = "{}"
    text: bool = False
    """Left-aligned."""


def column(path: str, head: str, style: Style, *, latex: str = "", group: str = "") -> Column:
    """A column of one number."""
    return Column((path,), head, (style,), latex, group)


def label(path: str, head: str) -> Column:
    """A left-aligned column of text."""
    return Column((path,), head, (TEXT,), text=True)


MODEL = label("condition.model_title", "Model")
TASK = label("condition.set_title", "Task")
UPDATE = label("condition.update", "Transition")
QUESTIONS = column("condition.n", "N", COUNT, latex="$N$")
IDENTITY = (MODEL, TASK, UPDATE)


@dataclass(frozen=True)
class Panel:
    """One grid of a table; most tables have one."""

    columns: tuple[Column, ...]
    title: str = ""
    across: str = ""
    """Field whose values become columns, as the paper prints models or conditions side by side; empty: none."""


@dataclass(frozen=True)
class TableResult(Generic[R_co]):
    """A finished table."""

    study: str
    label: str
    """LaTeX label, the paper's where the table is the paper's."""
    title: str
    caption: str
    rows: tuple[R_co, ...]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    key_names: Mapping[str, str] = field(default_factory=dict)
    """How keys are printed."""

    def to_text(self) -> str:
        """Aligned plain text."""
        from loopscope.studies.render.text import as_text

        return as_text(self)

    def to_markdown(self) -> str:
        """A Markdown pipe table."""
        from loopscope.studies.render.text import as_markdown

        return as_markdown(self)

    def to_latex(self) -> str:
        """A booktabs table with the paper's heads."""
        from loopscope.studies.render.latex import as_latex

        return as_latex(self)

    def to_csv(self) -> str:
        """Long form, full precision, one line per row, intervals in columns of their own."""
        from loopscope.studies.render.csv_json import as_csv

        return as_csv(self)

    def to_json(self) -> str:
        """Everything, full precision."""
        from loopscope.studies.render.csv_json import as_json

        return as_json(self)

    def to_html(self) -> str:
        """What a notebook shows, at most 60 lines of each panel."""
        from loopscope.studies.render.html import as_html

        return as_html(self)

    def to_polars(self) -> pl.DataFrame:
        """Long form, full precision, one row per row, intervals in columns of their own."""
        from loopscope.studies.render.csv_json import as_frame

        return as_frame(self)

    def to_pandas(self) -> pd.DataFrame:
        """The same for pandas."""
        return to_pandas(self.to_polars())

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        rows = "1 row" if len(self.rows) == 1 else f"{len(self.rows)} rows"
        return f"<Table {self.study}: {rows}; print() shows it, .to_polars() has the numbers>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.to_text())  # IPython in a terminal

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """The fields of the rows."""
        return self.rows[0].measures() if self.rows else ()

    def key_title(self, key: str) -> str:
        """A key as it is printed."""
        return self.key_names.get(key, key)
