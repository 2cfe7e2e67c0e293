"""A benchmark's file in a data directory: which names it may have, and whether its bytes are the listed ones.

Looked for, in this order, with NAME any spelling of the benchmark and SPLIT any of the split:
NAME_SPLIT, NAME-SPLIT, NAME/SPLIT, a name that the split alone has, then the hub repository's own layout
(REPOSITORY/CONFIG/SPLIT-00000-of-00001).
Each with .jsonl.gz, .jsonl or .parquet. A `SHA256SUMS` file beside the data is checked where it lists the file.

Benchmarks from the Hugging Face hub, at pinned revisions, through `datasets` (extra `[hub]`).

`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` act as in every program that uses `datasets`. Only data
files are read: `datasets` runs no repository code.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError, setting
from loopscope.tasks.known_tasks import SPLIT_ALIASES, Benchmark, HubSource
from loopscope.tasks.source_rows import SUFFIXES, SourceRow, is_data_file


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
    if split in benchmark.files:
        yield from (f"{benchmark.files[split]}{suffix}" for suffix in SUFFIXES)
    repository, config = benchmark.hub_of(split).repository, benchmark.hub_of(split).config
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


def read_hub(source: HubSource, split: str) -> Iterator[SourceRow]:
    """The rows of a split on the hub, in the repository's order.

    Raises:
        LoopscopeError: `datasets` is not installed, or the split cannot be fetched.
    """
    data = _load(source, split)
    for index, fields in enumerate(data):
        yield SourceRow(index, f"{source} {split}, row {index}", dict(fields))


def _load(source: HubSource, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise LoopscopeError(
            f"reading {source.repository} from the hub needs the hub extra: pip install 'loopscope[hub]', "
            f"or give local files with {setting('data_dir')}"
        ) from error
    try:
        return datasets.load_dataset(source.repository, source.config, split=split, revision=source.revision)
    except Exception as error:  # whatever the network, the hub or its cache did wrong; no code of ours runs here
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise LoopscopeError(
            f"cannot load {source} {split} from the hub ({reason}); check the network, or give local files "
            f"with {setting('data_dir')}"
        ) from error
