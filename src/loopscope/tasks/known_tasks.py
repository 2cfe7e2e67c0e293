"""What tasks there are, by name: the paper's seven benchmarks (`benchmarks.toml`), their rows, and the embedded ones.

A benchmark's rows are a file in a data directory, or the pinned data set on the Hugging Face hub. A file is found by
any spelling of the benchmark and its split: NAME_SPLIT, NAME-SPLIT, NAME/SPLIT, a name that the split alone has, or the
hub repository's own layout (REPOSITORY/CONFIG/SPLIT-00000-of-00001), with .jsonl.gz, .jsonl or .parquet. `HF_HOME`,
`HF_TOKEN` and `HF_HUB_OFFLINE` act on the hub as everywhere; `datasets` runs no code of a repository.

The rows of `arithmetic`, `arithmetic-mc` and `stories` are files of this package: `arithmetic` scores the worked
solution of a word problem after `Solution:`; `arithmetic-mc` scores four bare answers to the same problem after
`Answer:`, without showing them; `stories` scores the last three of a document's four stories. A wording belongs to one
split alone.
`research/data` has the programs that wrote the files.
"""

from __future__ import annotations

import difflib
import gzip
import importlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from pydantic import Field

from loopscope.errors import LoopscopeError, setting
from loopscope.tasks.encoding import Kind, Row, Scalar
from loopscope.tasks.source_rows import SUFFIXES, Columns, Selection, SourceRow, is_data_file

SPLIT_ALIASES = {"val": "validation", "valid": "validation", "dev": "validation"}

FOLDER = Path(__file__).parent / "embedded"


Question: TypeAlias = tuple[str, tuple[str, ...], int | None, dict[str, Scalar]]
"""A stored row in words: context, continuations, answer, metadata."""


class EmbeddedTask(NamedTuple):
    """A task whose rows are in `FOLDER`, in files FILE-SPLIT.jsonl.gz; the first split is meant when none is named."""

    kind: Kind
    summary: str
    file: str
    splits: dict[str, int]
    word: Callable[[Mapping[str, Any]], Question]

    def rows(self, split: str, selection: Selection) -> tuple[Row, ...]:
        """The chosen rows of a split."""
        kept: list[Row] = []
        with gzip.open(FOLDER / f"{self.file}-{split}.jsonl.gz") as lines:
            for index, line in enumerate(lines):
                if len(kept) == selection.limit:
                    break
                if selection.keeps(index, len(kept)):
                    context, continuations, answer, metadata = self.word(json.loads(line))
                    known = MappingProxyType(metadata)
                    kept.append(Row(f"{split}-{index}", index, context, continuations, answer, known))
        return tuple(kept)


def _facts(row: Mapping[str, Any]) -> dict[str, Scalar]:
    found = {"difficulty": row["solution"].count("\n"), "family": row["family"], "remark": row["remark"]}
    return found | {"result": row["options"][row["answer"]]}


def _solution(row: Mapping[str, Any]) -> Question:
    question = f"{row['story']} {row['request']}".rstrip()
    return (f"Problem: {question}\nSolution:\n", (row["solution"],), None, _facts(row))


def _options(row: Mapping[str, Any]) -> Question:
    options = tuple(f" {option}" for option in row["options"])
    return (f"Problem: {row['story']}\nAnswer:", options, row["answer"], _facts(row))


def _stories(row: Mapping[str, Any]) -> Question:
    return (row["context"], (row["continuation"],), None, {"stories": row["continuation"].count("\n") + 1})


_PROBLEMS = {"test": 5_000, "validation": 2_000, "train": 10_000}
_DOCUMENTS = {"test": 2_000, "validation": 500, "train": 500}
_SOLVE, _CHOOSE, _CONTINUE = (
    "word problems of two to six operations with worked solutions",
    "the same problems with four answers, the wrong ones from typical slips",
    "documents of four stories, the last three to be continued with",
)
EMBEDDED_TASKS = {
    "arithmetic": EmbeddedTask("solution", _SOLVE, "arithmetic", _PROBLEMS, _solution),
    "arithmetic-mc": EmbeddedTask("options", _CHOOSE, "arithmetic", _PROBLEMS, _options),
    "stories": EmbeddedTask("solution", _CONTINUE, "stories", _DOCUMENTS, _stories),
}


class HubSource(NamedTuple):
    """A data set on the hub, at a commit; a local folder in the same layout works as well."""

    repository: str
    revision: str
    config: str | None = None

    def __str__(self) -> str:
        config = f" ({self.config})" if self.config else ""
        return f"{self.repository}@{self.revision[:8]}{config}"


class Subset(NamedTuple):
    """`rows` rows of a split, in source order from its first: neighbours, or one in `every`."""

    split: str
    rows: int
    every: int = 1


class Benchmark(Columns):
    """One benchmark, as `benchmarks.toml` describes it; its template has its name.

    Attributes:
        title: as in the paper.
        summary: one line.
        splits: rows of each complete split; the first is the one meant when none is named.
        hub: the pinned data set on the hub.
        elsewhere: that of splits that another one holds.
        subsets: the paper's named evaluation sets.
        aliases: further names, also of local files.
        files: further names of a split's local file, without its ending.
    """

    name: str
    title: str
    summary: str
    kind: Kind
    splits: dict[str, int]
    hub: HubSource
    elsewhere: dict[str, HubSource] = Field({})
    subsets: dict[str, Subset] = Field({})
    aliases: tuple[str, ...] = ()
    files: dict[str, str] = Field({})

    @property
    def default_split(self) -> str:
        """The split meant when none is named: the one the paper's depth sweep uses."""
        return next(iter(self.splits))

    def hub_of(self, split: str) -> HubSource:
        """The data set that holds a split."""
        return self.elsewhere.get(split, self.hub)


_FILE = resources.files("loopscope.tasks") / "benchmarks.toml"
BENCHMARKS: dict[str, Benchmark] = {
    name: Benchmark(name=name, **entry) for name, entry in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()
}


def squash(name: str) -> str:
    """A name without case, dashes, underscores and spaces.

    >>> squash("ARC-Challenge") == squash("arc_challenge")
    True
    """
    return re.sub(r"[-_ ]", "", name).lower()


def find_benchmark(name: str) -> Benchmark | None:
    """The benchmark of that name or alias, however it is spelled; None if there is none."""
    wanted = squash(name)
    for benchmark in BENCHMARKS.values():
        if wanted in {squash(known) for known in (benchmark.name, benchmark.title, *benchmark.aliases)}:
            return benchmark
    return None


class TaskSummary(NamedTuple):
    """One task as `loopscope tasks` lists it.

    Attributes:
        name: on the command line.
        title: as the paper writes it.
        summary: one line.
        kind: "solution" or "options".
        splits: rows of each split, the one meant when none is named first.
        subsets: rows of each named subset.
        source: the pinned hub data set, or "in the package".
    """

    name: str
    title: str
    summary: str
    kind: Kind
    splits: dict[str, int]
    subsets: dict[str, int]
    source: str


def list_tasks() -> tuple[TaskSummary, ...]:
    """Every task there is."""
    embedded = [
        TaskSummary(name, name, task.summary, task.kind, dict(task.splits), {}, "in the package")
        for name, task in EMBEDDED_TASKS.items()
    ]
    benchmarks = []
    for name, known in BENCHMARKS.items():
        subsets = {subset: chosen.rows for subset, chosen in known.subsets.items()}
        source = str(known.hub_of(known.default_split))
        benchmarks.append(TaskSummary(name, known.title, known.summary, known.kind, known.splits, subsets, source))
    return (*embedded, *benchmarks)


def embedded_name(name: str) -> str | None:
    """The embedded task of that name, however it is spelled; None if there is none."""
    return next((known for known in EMBEDDED_TASKS if squash(known) == squash(name)), None)


def unknown_task(name: str) -> LoopscopeError:
    """The error for a name that no task has, with the nearest ones."""
    names = {squash(task.name): task.name for task in list_tasks()}
    near = [names[found] for found in difflib.get_close_matches(squash(name), names, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(names.values())}"
    return LoopscopeError(f"unknown task {name!r}: {hint} (a file of your own is named by its path, e.g. my.jsonl)")


def find_file(benchmark: Benchmark, split: str, data_dir: str | Path) -> Path:
    """The file that holds a split.

    Raises:
        LoopscopeError: there is no such directory or file.
    """
    folder = Path(data_dir)
    if not os.path.isdir(folder):  # unlike Path.is_dir also for names that are too long
        raise LoopscopeError(f"data directory {folder} does not exist; give the folder that holds the data files")
    wanted = _spellings(benchmark, split)
    # In order: more usual endings first, then shorter paths, to the depth of ORGANISATION/NAME/CONFIG/FILE.
    for suffix in SUFFIXES:
        for path in (path for depth in range(4) for path in sorted(folder.glob("*/" * depth + "*"))):
            name = str(path.relative_to(folder))
            if name.lower().endswith(suffix) and squash(name[: -len(suffix)].replace(os.sep, "_")) in wanted:
                return path
    names = sorted(path.name for path in folder.iterdir() if is_data_file(path.name))
    listed = f"; it has {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else ""
    raise LoopscopeError(
        f"no {benchmark.name} {split} file in {folder}; expected {benchmark.name}_{split}.jsonl.gz (or .jsonl, "
        f".parquet){listed}"
    )


def _spellings(benchmark: Benchmark, split: str) -> set[str]:
    names = [benchmark.name, benchmark.title, *benchmark.aliases]
    splits = [split, *(alias for alias, meant in SPLIT_ALIASES.items() if meant == split)]
    found = [f"{name}_{spelled}" for name in names for spelled in splits]
    hub = benchmark.hub_of(split)
    roots = [hub.repository.replace("/", "_"), hub.repository.split("/")[-1], *names]
    inner = [hub.config] if hub.config else ["data", ""]
    found += [f"{root}_{part}_{split}-00000-of-00001" for root in roots for part in inner]
    return {squash(name) for name in (*found, *([benchmark.files[split]] if split in benchmark.files else []))}


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
            f"reading {source.repository} from the hub needs datasets: pip install '.[hub]' in loopscope's folder, "
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
