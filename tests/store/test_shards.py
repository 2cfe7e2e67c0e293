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

from loopscope.store import SCHEMA_VERSION, TABLES, Column, ColumnType, Manifest, Table, WorkUnit
from loopscope.store.shards import (
    Problem,
    SchemaError,
    arrow_schema,
    constants,
    decode,
    encode,
    to_arrow,
    unit_problems,
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
    values = SCALARS[column.type.element.value]
    if column.type.is_list:
        size = {} if column.length is None else {"min_size": 3, "max_size": 3}
        values = st.lists(values, **({"max_size": 3} | size))
    return st.none() | values if column.optional else values


def _key(table: Table, name: str, index: int) -> int | bool:
    """Keys that grow with the index; a switch among them stays off."""
    kind = next(column.type for column in table.columns if column.name == name)
    return False if kind is ColumnType.BOOL else index


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
    stored = encode(table, to_arrow(table, shuffled, {}))
    read = pq.read_table(io.BytesIO(stored))
    assert read.schema.equals(arrow_schema(table))
    assert read.to_pylist() == rows
    assert pl.read_parquet(io.BytesIO(stored)).to_dicts() == rows
    assert encode(table, to_arrow(table, rows, {})) == stored


def test_missing_columns_become_nulls_or_the_constant() -> None:
    data = to_arrow(TABLES["examples"], {"row": [1, 0]}, {"model": "m"})
    assert data.column("row").to_pylist() == [0, 1]
    assert data.column("model").to_pylist() == ["m", "m"]
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


def test_a_column_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="table examples has no column colour"):
        to_arrow(TABLES["examples"], {"row": [0], "colour": ["red"]}, {})


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        to_arrow(TABLES["examples"], {"row": [0, 1], "prompt": ["a"]}, {})


def test_a_value_of_the_wrong_type_names_its_column() -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        to_arrow(TABLES["examples"], {"row": [0], "source_row": ["first"]}, {})
    assert "in column source_row of table examples" in caught.value.__notes__[0]


def test_a_key_without_value_is_refused() -> None:
    with pytest.raises(ValueError, match="holds a null"):
        to_arrow(TABLES["examples"], {"row": [0, None]}, {})


def test_a_shard_says_what_it_is(undisturbed: Path) -> None:
    metadata = pq.ParquetFile(undisturbed / "paths" / "000000.parquet").metadata.metadata
    assert metadata == {b"loopscope.table": b"paths", b"loopscope.schema": str(SCHEMA_VERSION).encode()}


Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture
def problems(make_manifest: Make, make_tables: Tables) -> Callable[..., list[Problem]]:
    """The problems of the first unit after its rows were spoilt."""

    def check(spoil: Callable[[Rows], object], index: int = 0, **changes: Any) -> list[Problem]:
        manifest = make_manifest(**changes)
        unit = manifest.units()[index]
        rows = make_tables(manifest, unit)
        spoil(rows)
        fixed = constants(manifest, unit)
        arrow = {table.name: to_arrow(table, rows[table.name], fixed) for table in manifest.tables()}
        return unit_problems(manifest, unit, arrow)

    return check


Check = Callable[..., list[Problem]]


def test_a_sound_unit_has_no_problem(problems: Check) -> None:
    assert problems(lambda rows: None) == []
    assert problems(lambda rows: None, index=3) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("table", "column"), [("questions", "fp64_M"), ("depths", "utility"), ("tokens", "gain")])
def test_a_number_that_is_not_finite_is_found(problems: Check, value: float, table: str, column: str) -> None:
    (found,) = problems(lambda rows: rows[table][-1].update({column: value}))
    assert found == Problem("value", f"{table}.{column} is not finite for example 'sums-00006'")


def test_a_nan_inside_a_list_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["questions"][0].update(grid_gain=[0.0] * 20 + [float("nan")]))
    assert found == Problem("value", "questions.grid_gain is not finite for example 'sums-00000'")


def test_a_missing_cell_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["questions"][0].pop("slope"))
    assert found == Problem("null", "questions.slope: 1 of 6 cells are missing")


def test_a_cell_of_a_higher_level_is_found(problems: Check) -> None:
    (found,) = problems(
        lambda rows: rows["questions"][0].update(fp64_gain=1.0), level="grid", paths=False, tokens=False
    )
    assert found == Problem("null", "questions.fp64_gain: filled at level grid, belongs to full")


def test_a_list_of_the_wrong_length_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["questions"][0].update(grid_gain=[0.0] * 20))
    assert found == Problem("schema", "questions.grid_gain: a list has not 21 elements")


def test_a_null_inside_a_list_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["questions"][0].update(grid_gain=[0.0] * 20 + [None]))
    assert found == Problem("null", "questions.grid_gain: a list holds a null")


@pytest.mark.parametrize("table", ["examples", "questions", "depths", "paths"])
def test_a_lost_row_is_found(problems: Check, table: str) -> None:
    found = problems(lambda rows: rows[table].pop())
    assert [problem.kind for problem in found] == ["coverage"]
    assert "1 of" in found[0].message
    assert "row 2" in found[0].message


@pytest.mark.parametrize("table", ["examples", "questions", "depths", "tokens", "paths"])
def test_a_duplicated_row_is_found(problems: Check, table: str) -> None:
    found = problems(lambda rows: rows[table].append(rows[table][0]))
    assert found == [Problem("coverage", f"{table}: a row occurs twice or out of order")]


def test_a_row_of_another_unit_is_found(problems: Check) -> None:
    found = problems(lambda rows: rows["depths"].append(rows["depths"][0] | {"row": 3}))
    assert found == [Problem("coverage", "depths: 1 rows do not belong to the unit, first row 3, depth 1")]


def test_a_lost_token_is_found(problems: Check) -> None:
    def lose(rows: Rows) -> None:
        rows["tokens"] = [row for row in rows["tokens"] if not (row["row"] == 1 and row["token"] == 0)]
        rows["tokens"] += [{**rows["tokens"][0], "row": 1, "transition": t, "token": 7} for t in (1, 4)]
        for row in rows["questions"]:
            row["n_tokens"] += row["row"] == 1 and row["transition"] == 1
        for row in rows["tokens"]:
            row["example_id"] = f"sums-{row['row'] * 3:05d}"

    (found,) = problems(lose)
    assert found.kind == "coverage"
    assert "token rows where questions.n_tokens says" in found.message


def test_an_update_without_tokens_is_found(problems: Check) -> None:
    def lose(rows: Rows) -> None:
        rows["tokens"] = [row for row in rows["tokens"] if row["row"] != 1]

    (found,) = problems(lose)
    assert found == Problem("coverage", "tokens: 2 of 6 rows are missing, first row 1, transition 1")


def test_an_identifier_that_differs_between_tables_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["depths"][0].update(example_id="another"))
    assert found == Problem("coverage", "depths.example_id differs from examples.example_id of the same row")


def test_another_model_name_is_found(problems: Check) -> None:
    found = problems(lambda rows: [row.update(model="another") for row in rows["depths"]])
    assert found == [Problem("coverage", "depths.model is not everywhere 'looped-model'")]


def test_another_schema_is_found(undisturbed: Path) -> None:
    shard = pq.read_table(undisturbed / "depths" / "000000.parquet")
    depths = TABLES["depths"]
    assert decode(depths, encode(depths, shard), SCHEMA_VERSION).to_pylist() == shard.to_pylist()
    with pytest.raises(SchemaError, match=r"^depths: columns differ from the schema: utility$"):
        decode(depths, encode(depths, shard.drop_columns(["utility"])), SCHEMA_VERSION)
    with pytest.raises(SchemaError, match=r"^depths: columns are missing: utility$"):
        decode(depths, encode(depths, shard.drop_columns(["utility"])), 1)
    wrong = shard.set_column(shard.column_names.index("depth"), "depth", shard.column("depth").cast(pa.int64()))
    with pytest.raises(SchemaError, match=r"^depths: other type than declared: depth$"):
        decode(depths, encode(depths, wrong), SCHEMA_VERSION)
