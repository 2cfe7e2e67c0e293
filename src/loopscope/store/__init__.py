"""The run directory: Parquet shards, manifest, atomic writes, schema versions.

Names are looked up when they are first used, so that importing this package costs nothing: pydantic comes in with the
manifest, pyarrow with the writer, polars with the first table that is read.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopscope.store.hashing import ids_sha256, sha256_bytes
    from loopscope.store.manifest import BatchInfo, Dtypes, Manifest, ModelInfo, TaskInfo, WorkUnit
    from loopscope.store.run import StoredRun
    from loopscope.store.schema import SCHEMA_VERSION, TABLES, Column, Level, Table
    from loopscope.store.verification import Finding, Verification, verify
    from loopscope.store.writer import RunWriter, open_or_create

__all__ = [
    "SCHEMA_VERSION",
    "TABLES",
    "BatchInfo",
    "Column",
    "Dtypes",
    "Finding",
    "Level",
    "Manifest",
    "ModelInfo",
    "RunWriter",
    "StoredRun",
    "Table",
    "TaskInfo",
    "Verification",
    "WorkUnit",
    "ids_sha256",
    "open_or_create",
    "sha256_bytes",
    "verify",
]


def __getattr__(name: str) -> Any:
    # From light to heavy: each of them imports most of those before it.
    for module in ("schema", "hashing", "manifest", "run", "writer", "verification") if name in __all__ else ():
        value = getattr(import_module(f"{__name__}.{module}"), name, None)
        if value is not None:
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
