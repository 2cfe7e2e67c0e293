"""Shards: from measured columns to an Arrow table in the declared schema, its checks, and the bytes of the file.

The bytes depend on the rows alone: rows are sorted by the table's key, compression and encodings are fixed, and no time
or path is embedded. `table_problems` is what must hold for the rows of a unit in one table; the writer refuses what
`verify` would report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from loopscope.store.manifest import Manifest, WorkUnit
from loopscope.store.schema import SCHEMA_VERSION, Column, Table

LARGEST = 1e100
"""No stored number is larger than this: it was never measured, or the model overflowed."""

TableData: TypeAlias = Mapping[str, Any] | Any
"""Columns by name (lists, NumPy arrays; masked or None = null; a matrix for a list column of fixed length), or an Arrow
table."""


@cache
def arrow_schema(table: Table) -> pa.Schema:
    """The Arrow schema of a table, which is also what its shards say when they are opened."""
    fields = []
    for column in table.columns:
        element = pa.type_for_alias(column.element)
        kind = pa.list_(pa.field("element", element)) if column.is_list else element
        fields.append(pa.field(column.name, kind, nullable=column.optional))
    return pa.schema(fields)


def to_arrow(table: Table, data: TableData, fixed: Mapping[str, Any]) -> pa.Table:
    """Bring `data` into the declared columns, in key order.

    Args:
        table: the declaration.
        data: the measured columns; a column left out is null, or the constant of its name.
        fixed: values that are the same in every row (the model, the task).

    Raises:
        ValueError: a column is not declared, or columns differ in length.
    """
    given = dict(zip(data.column_names, data.columns, strict=True)) if isinstance(data, pa.Table) else dict(data)
    unknown = sorted(set(given) - set(table.names))
    if unknown:
        raise ValueError(f"table {table.name} has no column {', '.join(unknown)}")
    schema, rows, arrays = arrow_schema(table), len(next(iter(given.values()), ())), []
    for name, kind in zip(schema.names, schema.types, strict=True):
        values = given.get(name)
        if values is None:
            arrays.append(pa.repeat(pa.scalar(fixed.get(name), kind), rows))
        elif isinstance(values, pa.ChunkedArray):
            arrays.append(values.cast(kind).combine_chunks())
        elif isinstance(values, np.ndarray) and values.ndim == 2:
            offsets = pa.array(np.arange(len(values) + 1) * values.shape[1], pa.int32())
            flat = pa.array(values.reshape(-1), kind.value_type)
            arrays.append(pa.ListArray.from_arrays(offsets, flat, type=kind))
        else:
            arrays.append(pa.array(values, kind))
    whole = pa.Table.from_arrays(arrays, schema=schema)
    if any(whole.column(name).null_count for name in table.key):
        raise ValueError(f"table {table.name}: the key {table.key} holds a null")
    return whole.take(pa.array(np.lexsort(_keys(table, whole).T[::-1]))).combine_chunks()


def _keys(table: Table, data: pa.Table) -> np.ndarray[Any, Any]:
    return np.stack([data.column(name).to_numpy() for name in table.key], axis=1)


def encode(table: Table, data: pa.Table) -> bytes:
    """The bytes of the shard that holds `data`: plain Parquet, zstd, no Arrow schema inside."""
    sink = pa.BufferOutputStream()
    texts = [column.name for column in table.columns if column.type == "string"]
    options = {"version": "2.6", "compression": "zstd", "compression_level": 3, "store_schema": False}
    with pq.ParquetWriter(sink, data.schema, use_dictionary=texts, **options) as writer:
        writer.write_table(data, row_group_size=max(1, len(data)))
        writer.add_key_value_metadata({"loopscope.table": table.name, "loopscope.schema": str(SCHEMA_VERSION)})
    contents: bytes = sink.getvalue().to_pybytes()
    return contents


def decode(table: Table, contents: bytes, version: int = SCHEMA_VERSION) -> pa.Table:
    """The rows of a shard that was written under a schema version, in the columns of this one.

    Columns that are newer than the shard are null; columns that are gone since are left out.

    Args:
        table: the declaration.
        contents: the file, whose bytes must have matched their hash.
        version: the schema version of the run.

    Raises:
        ValueError: a column is missing, has another type, or holds what no measurement gives.
        pyarrow.ArrowException: the file is not a Parquet file.
    """
    data = pq.ParquetFile(pa.BufferReader(contents)).read(use_threads=False)
    schema, arrays = arrow_schema(table), []
    for column, field in zip(table.columns, schema, strict=True):
        if column.since > version:
            arrays.append(pa.nulls(len(data), field.type))
            continue
        if column.name not in data.column_names or data.column(column.name).type != field.type:
            raise ValueError(f"{table.name}.{column.name} is missing or has another type than declared")
        arrays.append(data.column(column.name))
        if problem := _range_problem(table, column, arrays[-1]):
            raise ValueError(problem.message)
    return pa.Table.from_arrays(arrays, schema=schema)


class Problem(NamedTuple):
    """One thing that is wrong with a table of a unit.

    Attributes:
        kind: `value`: a number that is not finite; `rows`: other rows or cells than the run has.
    """

    kind: Literal["value", "rows"]
    message: str


def _range_problem(table: Table, column: Column, values: pa.ChunkedArray) -> Problem | None:
    """A number that is not finite or absurd, or a list of another length than declared."""
    elements = values
    if column.is_list:
        lengths, elements = pc.list_value_length(values), pc.list_flatten(values)
        if elements.null_count or (
            column.length is not None and pc.any(pc.not_equal(lengths, column.length), min_count=0).as_py()
        ):
            return Problem("rows", f"{table.name}.{column.name}: a list does not have {column.length} numbers")
    if column.element.startswith("float") and not pc.all(pc.less_equal(pc.abs(elements), LARGEST), min_count=0).as_py():
        return Problem("value", f"{table.name}.{column.name} is not finite")
    return None


def table_problems(manifest: Manifest, unit: WorkUnit, table: Table, data: pa.Table) -> Iterator[Problem]:
    """What is wrong with the rows of a unit in one table: cells, then coverage."""
    for column in table.columns:
        values = data.column(column.name)
        if values.null_count and column.required(manifest.level, manifest.schema_version):
            yield Problem("rows", f"{table.name}.{column.name}: {values.null_count} of {len(values)} cells are missing")
        if problem := _range_problem(table, column, values):
            yield problem if problem.kind == "rows" else _with_example(problem, column, data)
    keys = _keys(table, data)
    if len(np.unique(keys, axis=0)) != len(keys) or not np.array_equal(keys, keys[np.lexsort(keys.T[::-1])]):
        yield Problem("rows", f"{table.name}: a row occurs twice or out of order")
        return
    # How many token rows there are is not known from the manifest, but each update or depth has some.
    second: Sequence[int] = manifest.transitions if len(table.key) > 1 else (0,)
    if table.key[1:2] == ("depth",):
        second = manifest.depths if len(table.key) == 2 else range(1, manifest.depths[-1] + 1)
    stored, count = np.unique(keys[:, :2], axis=0), (unit.stop - unit.start) * len(second)
    if len(stored) == count:
        expected = np.stack(np.meshgrid(np.arange(unit.start, unit.stop), second, indexing="ij"), -1).reshape(-1, 2)
    if len(stored) != count or not np.array_equal(stored, expected[:, : stored.shape[1]]):
        yield Problem("rows", f"{table.name}: its {len(stored)} rows are not the {count} of the unit")


def _with_example(problem: Problem, column: Column, data: pa.Table) -> Problem:
    """The problem with the first example that has it."""
    named = "example_id" if "example_id" in data.column_names else "row"
    for example, value in zip(data.column(named).to_pylist(), data.column(column.name).to_pylist(), strict=True):
        if value is not None and not np.all(np.abs(value) <= LARGEST):
            return problem._replace(message=f"{problem.message} for {named.removesuffix('_id')} {example!r}")
    return problem
