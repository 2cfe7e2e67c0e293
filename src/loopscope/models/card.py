"""Where a loaded model came from and what it is: everything a run's manifest says about it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelCard:
    """The provenance of a loaded model.

    Attributes:
        spec: what the user wrote.
        name: what tables call it.
        family: "ouro", "huginn", …
        kind: hub, folder, embedded, random or entry point.
        location: the hub name, the folder or the entry point.
        revision: the full commit hash, for a hub model.
        stored_dtype: the dtype of most of the checkpoint's bytes; None without a checkpoint.
        dtype: the dtype it was loaded in.
        device: where it was loaded to.
        parameters: unique parameters.
        trained_depth: the number of loops it was trained for.
        boundary: where the state is taken.
        random: whether the weights are random.
        seed: the seed of random weights.
        files: what was read.
    """

    spec: str
    name: str
    family: str
    kind: str
    location: str
    revision: str | None
    stored_dtype: str | None
    dtype: str
    device: str
    parameters: int
    trained_depth: int
    boundary: str
    random: bool = False
    seed: int | None = None
    files: tuple[Path, ...] = ()

    @cached_property
    def sha256(self) -> dict[str, str]:
        """The hash of every file read, by file name; computed when first asked for, since it reads them all."""
        return {path.name: _hash(path) for path in self.files}

    def as_dict(self, *, hashes: bool = True) -> dict[str, Any]:
        """Plain values for a manifest, with the files' sizes and, unless declined, their hashes."""
        fields = {name: value for name, value in vars(self).items() if name not in ("files", "sha256")}
        files = [{"name": path.name, "bytes": path.stat().st_size} for path in self.files]
        if hashes:
            for entry in files:
                entry["sha256"] = self.sha256[str(entry["name"])]
        return fields | {"files": files}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
