"""From measured columns to an Arrow table in the declared schema, and from there to the bytes of a shard.

The bytes depend on the rows alone: rows are sorted by the table's key, compression and encodings are fixed, and no time
or path is embedded. The shard is plain Parquet, zstd, without an Arrow-specific schema inside.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from loopscope.store.tables import SCHEMA_VERSION, Column, ColumnType, Table

TableData = Mapping[str, Any] | Sequence[Mapping[str, Any]] | Any
"""What a caller hands over: columns by name (lists, NumPy arrays; masked or None = null; a matrix for a list column of
fixed length), a sequence of row mappings, a polars frame or an Arrow table."""

_ARROW_TYPES = {
    ColumnType.STRING: pa.string(),
    ColumnType.BOOL: pa.bool_(),
    ColumnType.INT8: pa.int8(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.FLOAT32: pa.float32(),
    ColumnType.FLOAT64: pa.float64(),
}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The Arrow type of a column type."""
    element = _ARROW_TYPES[kind.element]
    return pa.list_(pa.field("element", element)) if kind.is_list else element


def arrow_schema(table: Table) -> pa.Schema:
    """The Arrow schema of a table, which is also what its shards say when they are opened."""
    return pa.schema(
        [pa.field(column.name, arrow_type(column.type), nullable=column.optional) for column in table.columns]
    )


def to_arrow(table: Table, data: TableData, constants: Mapping[str, Any]) -> pa.Table:
    """Bring `data` into the declared columns, in key order.

    Args:
        table: the declaration.
        data: the measured columns; a column left out is null, or the constant of its name.
        constants: values that are the same in every row (the model, the task).

    Raises:
        ValueError: a column is not declared, or columns differ in length.
    """
    given = _columns_of(data)
    unknown = sorted(set(given) - set(table.names))
    if unknown:
        raise ValueError(f"table {table.name} has no column {', '.join(unknown)}")
    lengths = {name: len(values) for name, values in given.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"table {table.name}: columns differ in length: {lengths}")
    rows = next(iter(lengths.values()), 0)
    arrays = []
    for column in table.columns:
        if column.name in given:
            arrays.append(_to_array(table, column, given[column.name]))
        elif column.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[column.name], arrow_type(column.type)), rows))
        else:
            arrays.append(pa.nulls(rows, arrow_type(column.type)))
    result = pa.Table.from_arrays(arrays, schema=arrow_schema(table))
    return result.take(pa.array(_key_order(table, result)))


def encode(table: Table, data: pa.Table) -> bytes:
    """The bytes of the shard that holds `data`."""
    sink = pa.BufferOutputStream()
    texts = [column.name for column in table.columns if column.type is ColumnType.STRING]
    with pq.ParquetWriter(
        sink,
        data.schema,
        version="2.6",
        compression="zstd",
        compression_level=3,
        use_dictionary=texts,
        store_schema=False,
    ) as writer:
        writer.write_table(data, row_group_size=max(1, len(data)))
        writer.add_key_value_metadata({"loopscope.table": table.name, "loopscope.schema": str(SCHEMA_VERSION)})
    contents: bytes = sink.getvalue().to_pybytes()
    return contents


def _columns_of(data: TableData) -> dict[str, Any]:
    if isinstance(data, pa.Table):
        return dict(zip(data.column_names, data.columns, strict=True))
    if hasattr(data, "to_arrow"):
        return _columns_of(data.to_arrow())
    if isinstance(data, Mapping):
        return dict(data)
    names = dict.fromkeys(name for row in data for name in row)
    return {name: [row.get(name) for row in data] for name in names}


def _to_array(table: Table, column: Column, values: Any) -> pa.Array:
    kind = arrow_type(column.type)
    try:
        if isinstance(values, pa.ChunkedArray):
            return values.cast(kind).combine_chunks()
        if hasattr(values, "to_arrow"):
            return values.to_arrow().cast(kind)
        if isinstance(values, np.ndarray) and values.ndim == 2 and column.type.is_list:
            offsets = pa.array(np.arange(len(values) + 1) * values.shape[1], pa.int32())
            flat = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
            return pa.ListArray.from_arrays(offsets, flat, type=kind)
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        error.add_note(f"in column {column.name} of table {table.name}, declared {column.type}")
        raise


def _key_order(table: Table, data: pa.Table) -> "np.ndarray[Any, np.dtype[np.intp]]":
    if any(data.column(name).null_count for name in table.key):
        raise ValueError(f"table {table.name}: the key {table.key} holds a null")
    keys = [data.column(name).to_numpy() for name in table.key]
    return np.lexsort(keys[::-1])
