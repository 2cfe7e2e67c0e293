"""What goes into a shard comes out of it: for every table, by property."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.store import TABLES, Column, Table
from loopscope.store.arrow import arrow_schema, encode, to_arrow

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


@st.composite
def frames(draw: st.DrawFn, table: Table) -> list[dict[str, Any]]:
    count = draw(st.integers(0, 4))
    rows = [{column.name: draw(cells(column)) for column in table.columns} for _ in range(count)]
    for index, row in enumerate(rows):
        row |= dict.fromkeys(table.key, index)
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
    assert metadata == {b"loopscope.table": b"paths", b"loopscope.schema": b"1"}
