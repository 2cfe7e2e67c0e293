"""How a table is declared, and what it is when it is finished.

A table is one function from a population (the updates of one condition, a depth sweep, its tokens) to the statistics of
its columns, under the decorator `table`, which names it and says how the columns are headed and printed. The
function's docstring is the table's caption. A statistic is one of `loopscope.stats`, to be resampled, or a plain value.

    @table(
        "decline", "Harmful updates", updates_with("gain"),
        *IDENTITY,
        Column("Mean gain (1e-3)", "{gain:+.2f}", per=1e-3, ci=True),
        Column("Harmful", "{harmful}/{condition.n}"),
    )
    def decline(updates):
        return {"gain": Mean(updates.gain), "harmful": updates.harmful.sum()}
"""

from __future__ import annotations

import inspect
import json
import math
import string
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from loopscope.display import to_pandas
from loopscope.stats import Bootstrap, Estimate, Statistic
from loopscope.studies.conditions import Condition, told_apart

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    from loopscope.studies.populations import Population
    from loopscope.studies.records import Records

Value: TypeAlias = Estimate | float | int | str | None
Values: TypeAlias = Mapping[str, Any]  # statistics and plain values by column


@dataclass(frozen=True)
class Column:
    """One printed column.

    Attributes:
        head: its head; a line break where the paper has one.
        cell: a format string over the row's values, such as "{failures}/{harmful}" or "{share:.2%}".
        per: the unit that numbers are printed in: 1e-3 for thousandths.
        ci: whether the interval follows in brackets.
        group: a head that spans neighbouring columns of the same group.
        left: whether it holds words, which are set left.
    """

    head: str
    cell: str
    per: float = 1.0
    ci: bool = False
    group: str = ""
    left: bool = False

    @cached_property
    def parts(self) -> tuple[tuple[str, str | None, str], ...]:
        """Literal text, the name of the value after it, and its format."""
        return tuple((text, name, spec or "") for text, name, spec, _ in string.Formatter().parse(self.cell))


def words(head: str, cell: str) -> Column:
    """A left-aligned column of text."""
    return Column(head, cell, left=True)


MODEL = words("Model", "{condition.model_title}")
TASK = words("Task", "{condition.set_title}")
UPDATE = words("Transition", "{condition.update}")
KEY = "{key}"
IDENTITY = (MODEL, TASK, UPDATE)


@dataclass(frozen=True)
class Panel:
    """One grid of a table; `across` names a value whose values become columns side by side, as the paper sets some."""

    columns: tuple[Column, ...]
    title: str = ""
    across: str = ""


def panel(title: str, *columns: Column, across: str = "") -> Panel:
    """A panel of these columns."""
    return Panel(columns, title, across)


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        condition: what it is about.
        key: which of a condition's rows this is: a population, a signal, an action; empty where there is one.
        values: in natural units (nats, fractions, counts).
    """

    condition: Condition
    key: str
    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> Any:
        """A value, the key, or a property of the condition by a dotted name."""
        if name.startswith("condition."):
            return getattr(self.condition, name.partition(".")[2])
        return self.key if name == "key" else self.values[name]


@dataclass(frozen=True)
class TableResult:
    """A finished table: `print` shows it, `.to_polars()` has the numbers.

    Attributes:
        study: its name.
        label: LaTeX label, the paper's where the table is the paper's.
        title: above it.
        caption: what its columns are.
        rows: in order.
        panels: what is printed.
        notes: what a reader must know.
        key_names: how keys are printed.
    """

    study: str
    label: str
    title: str
    caption: str
    rows: tuple[Row, ...]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    key_names: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Aligned plain text."""
        from loopscope.studies.render import as_text

        return as_text(self)

    def to_markdown(self) -> str:
        """A Markdown pipe table."""
        from loopscope.studies.render import as_markdown

        return as_markdown(self)

    def to_latex(self) -> str:
        """A booktabs table with the paper's heads."""
        from loopscope.studies.render import as_latex

        return as_latex(self)

    def to_csv(self) -> str:
        """The frame as CSV without control characters; what a spreadsheet would compute gets an apostrophe."""
        texts = pl.col(pl.String).str.replace_all(r"\p{Cc}", "\ufffd").str.replace(r"^[=+\-@]", "'${0}")
        return self.to_polars().with_columns(texts).write_csv()

    def to_json(self) -> str:
        """The frame's rows with title, caption and notes; undefined numbers are null."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Plain values of everything."""
        about = {name: getattr(self, name) for name in ("study", "label", "title", "caption")}
        return {**about, "rows": self.to_polars().to_dicts(), "notes": list(self.notes)}

    def to_polars(self) -> pl.DataFrame:
        """One row per row in full precision, with `_low` and `_high` next to every estimate."""
        columns: dict[str, Any] = {
            "table": [self.study] * len(self.rows),
            **{head: [getattr(row.condition, name) for row in self.rows] for name, head in _CONDITION.items()},
            "key": [row.key for row in self.rows],
        }
        for name in self.rows[0].values if self.rows else ():
            values = [row.values[name] for row in self.rows]
            columns[name] = [_number(value) for value in values]
            if any(isinstance(value, Estimate) for value in values):
                for end in ("low", "high"):
                    columns[f"{name}_{end}"] = [getattr(getattr(each, "interval", None), end, None) for each in values]
        return pl.DataFrame(columns, strict=False)

    def to_pandas(self) -> pd.DataFrame:
        """The same for pandas."""
        return to_pandas(self.to_polars())

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        rows = "1 row" if len(self.rows) == 1 else f"{len(self.rows)} rows"
        return f"<Table {self.study}: {rows}; print() shows it, .to_polars() has the numbers>"

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.to_text())  # IPython in a terminal


# Fields of the condition and their heads; some rows have an `n` of their own.
_CONDITION = {
    **{name: name for name in ("run", "model", "weights", "task", "split", "subset")},
    "n": "measured_questions",
    "expected": "expected_questions",
    "finished": "finished",
    **{name: name for name in ("transition", "states", "readout")},
}


def _number(value: Value) -> float | int | str | None:
    number = value.value if isinstance(value, Estimate) else value
    return None if isinstance(number, float) and math.isnan(number) else number


@dataclass(frozen=True)
class Table:
    """A declared table.

    Attributes:
        name: as `loopscope tables --name` has it.
        title: above the table.
        over: the population that it is about.
        columns: what is printed, or several panels of columns.
        function: fills it. It gets one group of the population, and the bootstrap if it has a second parameter; it
            returns the values of its row, or a mapping from keys to values where a group has several rows, or rows.
        paper: LaTeX label of the table, figure or section of the paper that it reproduces.
        keys: how keys are printed.
        notes: what the finished rows give reason to say.
    """

    name: str
    title: str
    over: Population
    columns: Sequence[Column | Panel]
    function: Callable[..., Any]
    paper: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    notes: Callable[[Sequence[Row], Records], Iterable[str]] = lambda rows, records: ()

    kind = "table"

    @property
    def needs(self) -> str:
        """What a run must hold: a level of measurement, or an option of `measure`."""
        return self.over.needs

    @property
    def panels(self) -> tuple[Panel, ...]:
        """One panel of all columns, or several."""
        panels = tuple(each for each in self.columns if isinstance(each, Panel))
        return panels or (Panel(tuple(each for each in self.columns if isinstance(each, Column))),)

    def table(self, records: Records, bootstrap: Bootstrap | None = None) -> TableResult:
        """The finished table."""
        chosen, settings = self.over.choose(records), bootstrap or Bootstrap()
        rows = [row for group in chosen.kept for row in self.rows(group, settings)]
        return self.finish(rows, (*chosen.notes, *self.notes(rows, records)))

    def rows(self, group: Any, bootstrap: Bootstrap) -> list[Row]:
        """The rows of one group of the population."""
        more = (bootstrap,) if len(inspect.signature(self.function).parameters) == 2 else ()
        return rows_of(group, self.function(group, *more), bootstrap)

    def finish(self, rows: Iterable[Row], notes: Iterable[str] = ()) -> TableResult:
        """A table of rows that were made elsewhere."""
        label = self.paper if self.paper.startswith("tab:") else f"tab:{self.name}"
        caption = " ".join((inspect.getdoc(self.function) or "").split())
        return TableResult(
            self.name, label, self.title, caption, told_apart(rows), self.panels, tuple(notes), self.keys
        )


TABLES: dict[str, Table] = {}  # in the order of declaration


def table(
    name: str, title: str, over: Population, *columns: Column | Panel, paper: str = "", **more: Any
) -> Callable[[Callable[..., Any]], Table]:
    """Declare the table that the decorated function fills; arguments are attributes of `Table`."""
    label = paper or f"tab:{name}"
    return lambda function: TABLES.setdefault(name, Table(name, title, over, columns, function, label, **more))


def rows_of(group: Any, given: Any, bootstrap: Bootstrap) -> list[Row]:
    """The rows of a group with every statistic estimated; those over as many records share their resamples."""
    if not isinstance(given, Mapping):
        found = [(row.condition, row.key, row.values) for row in given]
    elif all(isinstance(values, Mapping) for values in given.values()):
        found = [(group.condition, key, values) for key, values in given.items()]
    else:
        found = [(group.condition, "", given)]
    estimates = estimated(
        {(place, name): value for place, (_, _, values) in enumerate(found) for name, value in values.items()},
        bootstrap,
    )
    return [
        Row(condition, key, {name: estimates[place, name] for name in values})
        for place, (condition, key, values) in enumerate(found)
    ]


def estimated(values: Mapping[Any, Any], bootstrap: Bootstrap) -> dict[Any, Value]:
    """Estimates of the statistics among some values, and the others as plain values."""
    sizes: dict[int, dict[Any, Statistic]] = defaultdict(dict)
    for key, value in values.items():
        if isinstance(value, Statistic):
            sizes[value.size][key] = value
    found = {key: each for group in sizes.values() for key, each in bootstrap.estimate(group).items()}
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    return plain | found
