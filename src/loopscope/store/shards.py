"""Shards: from measured columns to an Arrow table in the declared schema, its checks, and the bytes of the file.

The bytes depend on the rows alone: rows are sorted by the table's key, compression and encodings are fixed, and no time
or path is embedded. The shard is plain Parquet, zstd, without an Arrow-specific schema inside. `unit_problems` is what
must hold for the rows of one work unit; the writer refuses what `verify` would complain about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from loopscope.store.manifest import Manifest, WorkUnit
from loopscope.store.schema import LENS_COLUMNS, SCHEMA_VERSION, TABLES, Column, ColumnType, Table

TableData = Mapping[str, Any] | Sequence[Mapping[str, Any]] | Any
"""What a caller hands over: columns by name (lists, NumPy arrays; masked or None = null; a matrix for a list column of
fixed length), a sequence of row mappings, a polars frame or an Arrow table."""


def arrow_type(kind: ColumnType) -> pa.DataType:
    """The Arrow type of a column type."""
    element = pa.type_for_alias(kind.element.value)
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


def _key_order(table: Table, data: pa.Table) -> np.ndarray[Any, np.dtype[np.intp]]:
    if any(data.column(name).null_count for name in table.key):
        raise ValueError(f"table {table.name}: the key {table.key} holds a null")
    keys = [data.column(name).to_numpy() for name in table.key]
    return np.lexsort(keys[::-1])


def decode(table: Table, contents: bytes, version: int, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a shard that was written under a schema version, in the columns of this one.

    Columns that are newer than the shard are null; columns that are gone since are left out.

    Args:
        table: the declaration.
        contents: the file, whose bytes must have matched their hash.
        version: the schema version of the run.
        columns: those to read; left out, all of them.

    Raises:
        SchemaError: a column is missing that should be there, or has another type.
        pyarrow.ArrowException: the file is no Parquet file.
    """
    file = pq.ParquetFile(pa.BufferReader(contents))
    found = file.schema_arrow
    wanted = [column for column in table.columns if columns is None or column.name in columns]
    held = [column for column in wanted if column.since <= version]
    if version == SCHEMA_VERSION and found.names != list(table.names):
        differing = sorted(set(found.names) ^ set(table.names)) or ["their order"]
        raise SchemaError(f"{table.name}: columns differ from the schema: {', '.join(differing)}")
    absent = [column.name for column in held if column.name not in found.names]
    if absent:
        raise SchemaError(f"{table.name}: columns are missing: {', '.join(absent)}")
    wrong = [column.name for column in held if found.field(column.name).type != arrow_type(column.type)]
    if wrong:
        raise SchemaError(f"{table.name}: other type than declared: {', '.join(wrong)}")
    data = file.read([column.name for column in held], use_threads=False)
    newer = set(wanted) - set(held)
    rows = file.metadata.num_rows
    arrays = [
        pa.nulls(rows, arrow_type(column.type)) if column in newer else data.column(column.name) for column in wanted
    ]
    return pa.Table.from_arrays(arrays, names=[column.name for column in wanted])


class SchemaError(Exception):
    """A shard whose columns are not those of its table."""


class Problem(NamedTuple):
    """One thing that is wrong with a table of a unit."""

    kind: Literal["schema", "null", "value", "coverage"]
    message: str


def unit_problems(manifest: Manifest, unit: WorkUnit, tables: Mapping[str, pa.Table]) -> list[Problem]:
    """Everything wrong with the tables of a unit, schema before contents before coverage."""
    problems = []
    for table in manifest.tables():
        data = tables[table.name]
        for column in table.columns:
            problems += _column_problems(table, column, data, manifest)
        problems += _constant_problems(table, data, manifest, unit)
        problems += _key_problems(table, data, manifest, unit)
    if not problems:
        for table in manifest.tables():
            problems += _example_problems(table, tables["examples"], tables[table.name])
        if "tokens" in tables:
            problems += _token_count_problems("questions", tables["questions"], TABLES["tokens"], tables["tokens"])
        if "trace" in tables:
            problems += _token_count_problems("examples", tables["examples"], TABLES["trace"], tables["trace"])
            problems += _lens_problems(tables["trace"], manifest.lens)
    return problems


def _column_problems(table: Table, column: Column, data: pa.Table, manifest: Manifest) -> list[Problem]:
    name, level = f"{table.name}.{column.name}", manifest.level
    values = data.column(column.name)
    if values.null_count and column.required(level, manifest.schema_version):
        return [Problem("null", f"{name}: {values.null_count} of {len(values)} cells are missing")]
    if not level.includes(column.level):
        filled = len(values) - values.null_count
        return [Problem("null", f"{name}: filled at level {level}, belongs to {column.level}")] if filled else []
    if column.type.is_list:
        lengths = pc.list_value_length(values).drop_null()
        if column.length is not None and pc.any(pc.not_equal(lengths, column.length)).as_py():
            return [Problem("schema", f"{name}: a list has not {column.length} elements")]
    elements = pc.list_flatten(values) if column.type.is_list else values
    if column.type.is_list and elements.null_count:
        return [Problem("null", f"{name}: a list holds a null")]
    if column.type.is_float and not pc.all(pc.is_finite(elements), min_count=0).as_py():
        return [Problem("value", f"{name} is not finite for {_first_not_finite(column, values, data)}")]
    return []


def _first_not_finite(column: Column, values: pa.ChunkedArray, data: pa.Table) -> str:
    for index, value in enumerate(values.to_pylist()):
        numbers = value if column.type.is_list else [value]
        if value is not None and not np.all(np.isfinite(numbers)):
            return f"example {data.column('example_id')[index].as_py()!r}"
    raise AssertionError("no such cell")


def _constant_problems(table: Table, data: pa.Table, manifest: Manifest, unit: WorkUnit) -> list[Problem]:
    problems = []
    for name, expected in constants(manifest, unit).items():
        if name in table.names and not pc.all(pc.equal(data.column(name), expected), min_count=0).as_py():
            problems.append(Problem("coverage", f"{table.name}.{name} is not everywhere {expected!r}"))
    return problems


def constants(manifest: Manifest, unit: WorkUnit) -> dict[str, Any]:
    """The columns that are the same in every row of a unit."""
    task = manifest.task(unit.task, unit.split)
    return {"model": manifest.model.name, "task": unit.task, "split": unit.split, "kind": task.kind}


def _key_problems(table: Table, data: pa.Table, manifest: Manifest, unit: WorkUnit) -> list[Problem]:
    keys = np.stack([data.column(name).to_numpy() for name in table.key], axis=1)
    rows = range(unit.start, unit.stop)
    if len(table.key) > 2:
        # Token rows: how many there are is not known from the manifest, but each update or depth has some.
        if not _increases(keys):
            return [Problem("coverage", f"{table.name}: a row occurs twice or out of order")]
        keys = keys[_beginnings(keys), :2]
    found = [tuple(key) for key in keys.tolist()]
    match table.key:
        case ("row",):
            expected: list[tuple[int, ...]] = [(row,) for row in rows]
        case ("row", "transition"):
            expected = list(product(rows, manifest.transitions))
        case ("row", "depth"):
            expected = list(product(rows, manifest.depths))
        case ("row", "depth", *_):
            expected = list(product(rows, range(1, manifest.depths[-1] + 1)))
        case _:
            expected = list(product(rows, manifest.transitions))
    if found == expected:
        return []
    return [Problem("coverage", f"{table.name}: {_coverage_message(found, expected, table.key)}")]


def _increases(keys: np.ndarray[Any, Any]) -> bool:
    """Whether every row comes after the one before it, column by column."""
    steps = np.diff(keys, axis=0)
    first = np.take_along_axis(steps, (steps != 0).argmax(axis=1)[:, None], axis=1)
    return bool((first > 0).all())


def _beginnings(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Where, in rows that are in order, the first two columns are not those of the row before.

    >>> _beginnings(np.array([[4, 1, 0], [4, 1, 1], [4, 2, 0], [5, 2, 0]]))
    array([0, 2, 3])
    """
    changes = (keys[1:, :2] != keys[:-1, :2]).any(axis=1)
    return np.flatnonzero(np.concatenate([[len(keys) > 0], changes]))


def _coverage_message(found: list[tuple[int, ...]], expected: list[tuple[int, ...]], key: tuple[str, ...]) -> str:
    missing = sorted(set(expected) - set(found))
    if missing:
        return f"{len(missing)} of {len(expected)} rows are missing, first {_named(key, missing[0])}"
    extra = sorted(set(found) - set(expected))
    if extra:
        return f"{len(extra)} rows do not belong to the unit, first {_named(key, extra[0])}"
    return "a row occurs twice or out of order"


def _named(key: tuple[str, ...], values: tuple[int, ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(key, values, strict=False))


def _example_problems(table: Table, examples: pa.Table, data: pa.Table) -> list[Problem]:
    """Every table must speak of the same examples as `examples` does."""
    first = examples.column("row")[0].as_py() if len(examples) else 0
    index = pa.array(data.column("row").to_numpy() - first)
    for name in ("example_id", "source_row"):
        if name in table.names and not examples.column(name).take(index).equals(data.column(name)):
            return [Problem("coverage", f"{table.name}.{name} differs from examples.{name} of the same row")]
    return []


def _token_count_problems(owner: str, counted: pa.Table, table: Table, data: pa.Table) -> list[Problem]:
    """Every update or depth must have a row for each reference token that the owner's table counts."""
    keys = np.stack([data.column(name).to_numpy() for name in table.key[:2]], axis=1)
    found = np.diff(_beginnings(keys), append=len(keys))
    # In the order of the owner's rows, each of which has one or, where depths follow from it, several.
    each = len(found) // max(1, len(counted))
    expected = np.repeat(counted.column("n_tokens").to_numpy(), each)
    for wrong in np.flatnonzero(expected != found)[:1]:
        example = counted.column("example_id")[int(wrong) // each].as_py()
        said = f"{found[wrong]} token rows where {owner}.n_tokens says {expected[wrong]}"
        return [Problem("coverage", f"{table.name}: example {example!r} has {said}")]
    return []


def _lens_problems(trace: pa.Table, candidates: int) -> list[Problem]:
    """A run with a lens has every candidate in every row, one without has none."""
    problems = []
    for column in LENS_COLUMNS:
        values = trace.column(column.name)
        filled, expected = len(values) - values.null_count, len(values) if candidates else 0
        if filled != expected:
            problems.append(Problem("null", f"trace.{column.name}: {filled} cells are filled, not {expected}"))
        elif filled and column.type.is_list and set(pc.list_value_length(values).unique().to_pylist()) != {candidates}:
            problems.append(Problem("schema", f"trace.{column.name}: a list has not {candidates} elements"))
    return problems
