"""A benchmark's rows: a file in a data directory, or the pinned data set on the Hugging Face hub.

A file is found by any spelling of the benchmark and its split: NAME_SPLIT, NAME-SPLIT, NAME/SPLIT, a name that the
split alone has, or the hub repository's own layout (REPOSITORY/CONFIG/SPLIT-00000-of-00001), with .jsonl.gz, .jsonl or
.parquet. A `SHA256SUMS` file beside the data is checked where it lists the file. `HF_HOME`, `HF_TOKEN` and
`HF_HUB_OFFLINE` act on the hub as everywhere; `datasets` runs no code of a repository.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

from loopscope.errors import LoopscopeError, setting
from loopscope.tasks.known_tasks import SPLIT_ALIASES, Benchmark, HubSource, squash
from loopscope.tasks.source_rows import SUFFIXES, SourceRow, is_data_file


def find_file(benchmark: Benchmark, split: str, data_dir: str | Path) -> Path:
    """The file that holds a split.

    Raises:
        LoopscopeError: there is no such directory or file, or the file is not the one that SHA256SUMS lists.
    """
    folder = Path(data_dir)
    if not os.path.isdir(folder):  # unlike Path.is_dir also for names that are too long
        raise LoopscopeError(f"data directory {folder} does not exist; give the folder that holds the data files")
    # To the depth of a hub repository: ORGANISATION/NAME/CONFIG/FILE.
    found = (path for pattern in ("*", "*/*", "*/*/*", "*/*/*/*") for path in folder.glob(pattern))
    # In order: more usual endings first, then shorter paths.
    there = sorted(
        (path for path in found if is_data_file(path.name) and path.is_file()),
        key=lambda path: (_ending(path), len(path.parts), path),
    )
    wanted = _spellings(benchmark, split)
    for path in there:
        name = str(path.relative_to(folder))[: -len(SUFFIXES[_ending(path)])]
        if squash(name.replace(os.sep, "_")) in wanted:
            _check_sum(path, folder)
            return path
    names = [path.name for path in there if path.parent == folder]
    listed = f"; it has {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else ""
    raise LoopscopeError(
        f"no {benchmark.name} {split} file in {folder}; expected {benchmark.name}_{split}.jsonl.gz (or .jsonl, "
        f".parquet){listed}"
    )


def _ending(path: Path) -> int:
    return next(place for place, suffix in enumerate(SUFFIXES) if path.name.lower().endswith(suffix))


def _spellings(benchmark: Benchmark, split: str) -> set[str]:
    names = [benchmark.name, benchmark.title, *benchmark.aliases]
    splits = [split, *(alias for alias, meant in SPLIT_ALIASES.items() if meant == split)]
    found = [f"{name}_{spelled}" for name in names for spelled in splits]
    hub = benchmark.hub_of(split)
    roots = [hub.repository.replace("/", "_"), hub.repository.split("/")[-1], *names]
    inner = [hub.config] if hub.config else ["data", ""]
    found += [f"{root}_{part}_{split}-00000-of-00001" for root in roots for part in inner]
    return {squash(name) for name in (*found, *([benchmark.files[split]] if split in benchmark.files else []))}


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
    try:
        datasets = importlib.import_module("datasets")
        rows = datasets.load_dataset(source.repository, source.config, split=split, revision=source.revision)
    except ImportError as error:
        raise LoopscopeError(
            f"reading {source.repository} from the hub needs the hub extra: pip install 'loopscope[hub]', "
            f"or give local files with {setting('data_dir')}"
        ) from error
    except Exception as error:  # whatever the network, the hub or its cache did wrong; no code of ours runs here
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise LoopscopeError(
            f"cannot load {source} {split} from the hub ({reason}); check the network, or give local files "
            f"with {setting('data_dir')}"
        ) from error
    for index, fields in enumerate(rows):
        yield SourceRow(index, f"{source} {split}, row {index}", dict(fields))
