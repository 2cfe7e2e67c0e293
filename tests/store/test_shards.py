"""What goes into a shard comes out of it, for every table; and what may not go in."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.store import Manifest
from loopscope.store.manifest import WorkUnit
from loopscope.store.schema import SCHEMA_VERSION, TABLES, Column, Table
from loopscope.store.shards import (
    Problem,
    arrow_schema,
    decode,
    encode,
    table_problems,
    to_arrow,
)

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8"), max_size=12),
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
}


def cells(column: Column) -> st.SearchStrategy[Any]:
    values = SCALARS[column.element]
    if column.is_list:
        size = {} if column.length is None else {"min_size": 3, "max_size": 3}
        values = st.lists(values, **({"max_size": 3} | size))
    return st.none() | values if column.optional else values


def _key(table: Table, name: str, index: int) -> int | bool:
    """Keys that grow with the index; a switch among them stays off."""
    kind = next(column.type for column in table.columns if column.name == name)
    return False if kind == "bool" else index


@st.composite
def frames(draw: st.DrawFn, table: Table) -> list[dict[str, Any]]:
    count = draw(st.integers(0, 4))
    rows = [{column.name: draw(cells(column)) for column in table.columns} for _ in range(count)]
    for index, row in enumerate(rows):
        row |= {name: _key(table, name, index) for name in table.key}
    return rows


@pytest.mark.parametrize("name", list(TABLES))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_table_survives_the_round_trip(name: str, data: st.DataObject) -> None:
    table = TABLES[name]
    rows = data.draw(frames(table))
    shuffled = data.draw(st.permutations(rows))
    names = table.names

    def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
        return {name: [row[name] for row in rows] for name in names}

    stored = encode(table, to_arrow(table, columns(shuffled), {}))
    read = pq.read_table(io.BytesIO(stored))
    assert read.schema.equals(arrow_schema(table))
    assert read.to_pylist() == rows
    assert pl.read_parquet(io.BytesIO(stored)).to_dicts() == rows
    assert encode(table, to_arrow(table, columns(rows), {})) == stored


def test_missing_columns_become_nulls_or_the_constant() -> None:
    data = to_arrow(TABLES["examples"], {"row": [1, 0]}, {"task": "m"})
    assert data.column("row").to_pylist() == [0, 1]
    assert data.column("task").to_pylist() == ["m", "m"]
    assert data.column("prompt").null_count == 2


def test_masked_arrays_and_matrices_are_taken() -> None:
    grid = np.arange(42.0).reshape(2, 21)
    data = {
        "row": np.array([0, 0]),
        "transition": np.array([2, 1]),
        "grid_gain": grid,
        "kl_correction": np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    }
    table = to_arrow(TABLES["questions"], data, {})
    assert table.column("grid_gain").to_pylist() == [grid[1].tolist(), grid[0].tolist()]
    assert table.column("kl_correction").to_pylist() == [2.0, None]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"row": [0], "colour": ["red"]}, "table examples has no column colour"),
        ({"row": [0, 1], "prompt": ["a"]}, "expected length 2 but got length 1"),
        ({"row": [0, None]}, "holds a null"),
    ],
)
def test_columns_that_are_not_of_the_table_are_refused(columns: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        to_arrow(TABLES["examples"], columns, {})


def test_a_shard_says_what_it_is(undisturbed: Path) -> None:
    metadata = pq.ParquetFile(undisturbed / "paths" / "000000.parquet").metadata.metadata
    assert metadata == {b"loopscope.table": b"paths", b"loopscope.schema": str(SCHEMA_VERSION).encode()}


Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Columns = dict[str, dict[str, list[Any]]]
Check = Callable[[Callable[[Columns], object]], list[Problem]]


@pytest.fixture
def problems(make_manifest: Make, make_tables: Tables) -> Check:
    """The problems of the first unit after its columns were changed."""

    def check(change: Callable[[Columns], object]) -> list[Problem]:
        manifest = make_manifest()
        unit = manifest.units()[0]
        columns = make_tables(manifest, unit)
        change(columns)
        fixed = {"task": unit.task, "split": unit.split, "kind": manifest.task(unit.task, unit.split).kind}
        arrow = {table: to_arrow(table, columns[table.name], fixed) for table in manifest.tables()}
        return [problem for table, data in arrow.items() for problem in table_problems(manifest, unit, table, data)]

    return check


def set_cell(table: str, column: str, value: Any) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns[table][column][-1] = value

    return change


def lose_row(table: str, of: int | None = None) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        last = len(columns[table]["row"]) - 1
        kept = [i for i, row in enumerate(columns[table]["row"]) if (row != of if of is not None else i != last)]
        columns[table] = {name: [values[i] for i in kept] for name, values in columns[table].items()}

    return change


def repeat_row(table: str) -> Callable[[Columns], None]:
    return lambda columns: [values.append(values[0]) for values in columns[table].values()]


def test_a_sound_unit_has_no_problem(problems: Check) -> None:
    assert problems(lambda columns: None) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        *[
            (
                set_cell(table, column, value),
                f"value: {table}.{column} is not finite for "
                + ("row 2" if table == "tokens" else "example 'sums-00006'"),
            )
            for table, column, value in (
                ("questions", "fp64_M", float("nan")),
                ("depths", "utility", float("-inf")),
                ("tokens", "gain", 1e101),
            )
        ],
        (
            set_cell("questions", "grid_gain", [0.0] * 20 + [float("nan")]),
            "value: questions.grid_gain is not finite for example 'sums-00006'",
        ),
        (set_cell("questions", "slope", None), "rows: questions.slope: 1 of 6 cells are missing"),
        (set_cell("questions", "grid_gain", [0.0] * 20), "rows: questions.grid_gain: a list does not have 21 numbers"),
        (
            set_cell("questions", "grid_gain", [0.0] * 20 + [None]),
            "rows: questions.grid_gain: a list does not have 21 numbers",
        ),
        *[
            (lose_row(table), f"rows: {table}: its {count - 1} rows are not the {count} of the unit")
            for table, count in (("examples", 3), ("questions", 6), ("depths", 15), ("paths", 6))
        ],
        (lose_row("tokens", of=1), "rows: tokens: its 4 rows are not the 6 of the unit"),
        *[
            (repeat_row(table), f"rows: {table}: a row occurs twice or out of order")
            for table in ("examples", "questions", "depths", "tokens", "paths")
        ],
        (set_cell("depths", "row", 3), "rows: depths: its 15 rows are not the 15 of the unit"),
        (set_cell("questions", "transition", 2), "rows: questions: its 6 rows are not the 6 of the unit"),
    ],
)
def test_what_rows_may_not_be(change: Callable[[Columns], object], expected: str, problems: Check) -> None:
    assert [f"{problem.kind}: {problem.message}" for problem in problems(change)] == [expected]


def test_another_schema_is_refused(undisturbed: Path) -> None:
    shard = pq.read_table(undisturbed / "depths" / "000000.parquet")
    depths = TABLES["depths"]
    assert decode(depths, encode(depths, shard), SCHEMA_VERSION).to_pylist() == shard.to_pylist()
    wrong = shard.set_column(shard.column_names.index("depth"), "depth", shard.column("depth").cast(pa.int64()))
    for version in (1, SCHEMA_VERSION):
        for other, name in ((shard.drop_columns(["utility"]), "utility"), (wrong, "depth")):
            with pytest.raises(ValueError, match=f"^depths.{name} is missing or has another type than declared$"):
                decode(depths, encode(depths, other), version)
