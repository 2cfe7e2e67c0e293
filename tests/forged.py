"""A run whose numbers were changed together with their hashes, as a careful forger would."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from loopscope.store import StoredRun, sha256_bytes
from loopscope.store.manifest import WorkUnit
from loopscope.store.run import Shard
from loopscope.store.schema import TABLES
from loopscope.store.shards import encode


def forge(run: StoredRun, table: str, unit: WorkUnit, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite a shard together with its record: only the contents differ."""
    shard = run.layout.shard(table, unit)
    data = change(pq.ParquetFile(shard).read())
    contents = encode(TABLES[table], data)
    shard.write_bytes(contents)
    forged = Shard(table=table, rows=len(data), bytes=len(contents), sha256=sha256_bytes(contents))
    record = run.unit_records[unit.index]
    shards = tuple(forged if each.table == table else each for each in record.shards)
    run.layout.record(unit).write_bytes(record.model_copy(update={"shards": shards}).encode())


def with_column(data: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """The rows with another column."""
    place = data.schema.get_field_index(name)
    return data.set_column(place, data.schema.field(place), values)
