"""The run directory: Parquet shards, manifest, atomic writes, schema versions.

Names are looked up when they are first used, so that importing this package costs nothing: pydantic comes in with the
manifest, pyarrow with the writer, polars with the first table that is read.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopscope.store.column_types import Column, ColumnType, Level, Table
    from loopscope.store.hashing import code_sha256, ids_sha256, sha256_bytes, sha256_file
    from loopscope.store.manifest import (
        LAYOUT_MARGINS,
        BatchInfo,
        Dtypes,
        LayoutMargin,
        Manifest,
        ModelInfo,
        TaskInfo,
        layout_margin,
    )
    from loopscope.store.records import UnitRecord
    from loopscope.store.run import StoredRun
    from loopscope.store.run_directory import WorkUnit
    from loopscope.store.tables import SCHEMA_VERSION, TABLES
    from loopscope.store.verification import Finding, Replay, Verification, verify
    from loopscope.store.writer import RunWriter, open_or_create

_HOMES = {
    "column_types": ("Column", "ColumnType", "Level", "Table"),
    "hashing": ("code_sha256", "ids_sha256", "sha256_bytes", "sha256_file"),
    "manifest": (
        "LAYOUT_MARGINS",
        "BatchInfo",
        "Dtypes",
        "LayoutMargin",
        "Manifest",
        "ModelInfo",
        "TaskInfo",
        "layout_margin",
    ),
    "records": ("UnitRecord",),
    "run": ("StoredRun",),
    "run_directory": ("WorkUnit",),
    "tables": ("SCHEMA_VERSION", "TABLES"),
    "verification": ("Finding", "Replay", "Verification", "verify"),
    "writer": ("RunWriter", "open_or_create"),
}

__all__ = [
    "LAYOUT_MARGINS",
    "SCHEMA_VERSION",
    "TABLES",
    "BatchInfo",
    "Column",
    "ColumnType",
    "Dtypes",
    "Finding",
    "LayoutMargin",
    "Level",
    "Manifest",
    "ModelInfo",
    "Replay",
    "RunWriter",
    "StoredRun",
    "Table",
    "TaskInfo",
    "UnitRecord",
    "Verification",
    "WorkUnit",
    "code_sha256",
    "ids_sha256",
    "layout_margin",
    "open_or_create",
    "sha256_bytes",
    "sha256_file",
    "verify",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
