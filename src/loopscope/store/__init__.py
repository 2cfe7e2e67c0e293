"""The run directory: Parquet shards, manifest, atomic writes, schema versions.

Names are looked up when they are first used, so that importing this package costs nothing: pydantic comes in with the
manifest, pyarrow and polars with a run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopscope.store.manifest import Manifest, TaskInfo, sha256_bytes
    from loopscope.store.run import StoredRun
    from loopscope.store.schema import Level
    from loopscope.store.verification import verify

__all__ = ["Level", "Manifest", "StoredRun", "TaskInfo", "sha256_bytes", "verify"]


def __getattr__(name: str) -> Any:
    # From light to heavy: each of them imports most of those before it.
    for module in ("schema", "manifest", "run", "verification") if name in __all__ else ():
        value = getattr(import_module(f"{__name__}.{module}"), name, None)
        if value is not None:
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
