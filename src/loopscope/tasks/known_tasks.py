"""What tasks there are, by name: the paper's seven benchmarks (`benchmarks.toml`) and the embedded ones."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

from pydantic import Field

from loopscope.errors import LoopscopeError
from loopscope.tasks.embedded_tasks import EMBEDDED_TASKS
from loopscope.tasks.encoding import Kind
from loopscope.tasks.items import Columns

SPLIT_ALIASES = {"val": "validation", "valid": "validation", "dev": "validation"}


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


@dataclass(frozen=True)
class TaskSummary:
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
