"""A benchmark's file in a data directory: which names it may have, and whether its bytes are the listed ones.

Looked for, in this order, with NAME any spelling of the benchmark and SPLIT any of the split:
NAME_SPLIT, NAME-SPLIT, NAME/SPLIT, then the hub repository's own layout (REPOSITORY/CONFIG/SPLIT-00000-of-00001).
Each with .jsonl.gz, .jsonl or .parquet. A `SHA256SUMS` file beside the data is checked where it lists the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from loopscope._errors import LoopscopeError
from loopscope.tasks.benchmarks import SPLIT_ALIASES, Benchmark
from loopscope.tasks.rows import SUFFIXES, is_data_file


def find_file(benchmark: Benchmark, split: str, data_dir: str | Path) -> Path:
    """The file that holds a split.

    Raises:
        LoopscopeError: there is no such directory or file, or the file is not the one that SHA256SUMS lists.
    """
    folder = Path(data_dir)
    if not os.path.isdir(folder):  # unlike Path.is_dir also for names that are too long
        raise LoopscopeError(f"data directory {folder} does not exist; give the folder that holds the data files")
    for candidate in candidates(benchmark, split):
        path = folder / candidate
        if path.is_file():
            _check_sum(path, folder)
            return path
    found = sorted(path.name for path in folder.iterdir() if is_data_file(path.name))
    listed = f"; it has {', '.join(found[:8])}{' …' if len(found) > 8 else ''}" if found else ""
    expected = f"{benchmark.name}_{split}.jsonl.gz"
    raise LoopscopeError(
        f"no {benchmark.name} {split} file in {folder}; expected {expected} (or .jsonl, .parquet){listed}"
    )


def candidates(benchmark: Benchmark, split: str) -> Iterator[str]:
    """The names a split's file may have within a data directory, in the order they are tried."""
    names = _unique(
        spelling
        for name in (benchmark.name, benchmark.title, *benchmark.aliases)
        for spelling in (name, name.lower(), name.lower().replace("-", "_"), name.lower().replace("_", ""))
    )
    splits = [split, *(alias for alias, meant in SPLIT_ALIASES.items() if meant == split)]
    for join in ("_", "-", "/"):
        for name in names:
            for spelled in splits:
                for suffix in SUFFIXES:
                    yield f"{name}{join}{spelled}{suffix}"
    repository, config = benchmark.hub.repository, benchmark.hub.config
    short = repository.split("/")[-1]
    for root in _unique([repository, short, *names]):
        for folder in [config] if config else ["data", "."]:
            yield f"{root}/{folder}/{split}-00000-of-00001.parquet"


def _unique(names: Iterator[str] | list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _check_sum(path: Path, folder: Path) -> None:
    listing = folder / "SHA256SUMS"
    if not listing.is_file():
        return
    wanted = str(path.relative_to(folder))
    for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
        digest, _, name = line.strip().partition(" ")
        if name.strip().removeprefix("*").removeprefix("./") == wanted:
            with path.open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != digest.lower():
                raise LoopscopeError(f"{path} is not the file that {listing} lists (SHA-256 differs); fetch it again")
