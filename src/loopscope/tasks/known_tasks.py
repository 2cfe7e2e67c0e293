"""What tasks there are, by name: the paper's seven benchmarks and the embedded ones.

The benchmarks are those of the paper's table "Depth-sweep coverage". Hub revisions are pinned commits. Row counts are
those of the complete splits; a copy with another count is refused (see `load_task`). The named subsets are the paper's
evaluation sets that are smaller than a split; the paper gives their sizes but not their rows, so here they are the
first rows in source order, of MATH's training problems evenly spaced ones: these are sorted by subject.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from loopscope.errors import LoopscopeError
from loopscope.tasks import items
from loopscope.tasks.embedded_tasks import EMBEDDED_TASKS
from loopscope.tasks.encoding import Kind
from loopscope.tasks.items import Item
from loopscope.tasks.source_rows import SourceRow


@dataclass(frozen=True)
class HubSource:
    """A data set on the hub.

    Attributes:
        repository: "openai/gsm8k"; a local folder in the same layout works as well.
        revision: the commit that is read.
        config: the configuration within the repository, if it has several.
    """

    repository: str
    revision: str
    config: str | None = None

    def __str__(self) -> str:
        config = f" ({self.config})" if self.config else ""
        return f"{self.repository}@{self.revision[:8]}{config}"


@dataclass(frozen=True)
class Subset:
    """`rows` rows of a split, in source order from its first: neighbours, or one in `every`."""

    split: str
    rows: int
    every: int = 1


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name: as on the command line; also its template's name.
        title: as in the paper.
        summary: one line.
        kind: reference "solution" or joint "options".
        hub: the pinned data set on the hub.
        splits: rows of each complete split; the first is the one meant when none is named.
        normalise: source row to question.
        subsets: the paper's named evaluation sets.
        aliases: further names, also of local files.
        elsewhere: splits that another data set on the hub holds.
        files: further names of a split's local file, without its ending.
    """

    name: str
    title: str
    summary: str
    kind: Kind
    hub: HubSource
    splits: dict[str, int]
    normalise: Callable[[SourceRow], Item]
    subsets: dict[str, Subset] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    elsewhere: dict[str, HubSource] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def hub_of(self, split: str) -> HubSource:
        """The data set on the hub that holds a split."""
        return self.elsewhere.get(split, self.hub)

    @property
    def default_split(self) -> str:
        """The split meant when none is named: the one the paper's depth sweep uses."""
        return next(iter(self.splits))


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="gsm8k",
            title="GSM8K",
            summary="grade-school word problems with worked solutions",
            kind="solution",
            hub=HubSource("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", "main"),
            splits={"test": 1319, "train": 7473},
            normalise=items.gsm8k,
            subsets={"train256": Subset("train", 256)},
        ),
        Benchmark(
            name="math500",
            title="MATH-500",
            summary="competition mathematics with full derivations",
            kind="solution",
            hub=HubSource("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
            splits={"test": 500, "train": 12000},
            normalise=items.math500,
            subsets={"train128": Subset("train", 128, every=93)},
            elsewhere={
                "train": HubSource("nlile/hendrycks-MATH-benchmark", "b2d17b56c4299a255acb1d4bc14ce920eb15f4fc")
            },
            files={"train": "math_train12k"},
        ),
        Benchmark(
            name="hellaswag",
            title="HellaSwag",
            summary="which of four endings continues the scene",
            kind="options",
            hub=HubSource("Rowan/hellaswag", "218ec52e09a7e7462a5400043bb9a69a41d06b76"),
            splits={"validation": 10042},
            normalise=items.hellaswag,
            subsets={"validation1000": Subset("validation", 1000)},
        ),
        Benchmark(
            name="arc_challenge",
            title="ARC-Challenge",
            summary="grade-school science, three to five options",
            kind="options",
            hub=HubSource("allenai/ai2_arc", "210d026faf9955653af8916fad021475a3f00453", "ARC-Challenge"),
            splits={"test": 1172},
            normalise=items.arc,
            aliases=("arc_c",),
        ),
        Benchmark(
            name="piqa",
            title="PIQA",
            summary="which of two ways reaches a physical goal",
            kind="options",
            hub=HubSource("baber/piqa", "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1"),
            splits={"validation": 1838},
            normalise=items.piqa,
        ),
        Benchmark(
            name="boolq",
            title="BoolQ",
            summary="yes/no questions about a passage",
            kind="options",
            hub=HubSource("google/boolq", "35b264d03638db9f4ce671b711558bf7ff0f80d5"),
            splits={"validation": 3270},
            normalise=items.boolq,
        ),
        Benchmark(
            name="commonsense_qa",
            title="CommonsenseQA",
            summary="everyday questions with five lettered options",
            kind="options",
            hub=HubSource("tau/commonsense_qa", "94630fe30dad47192a8546eb75f094926d47e155"),
            splits={"validation": 1221, "train": 9741},
            normalise=items.commonsense_qa,
            subsets={"train1024": Subset("train", 1024)},
            aliases=("csqa",),
        ),
    )
}

SPLIT_ALIASES = {"val": "validation", "valid": "validation", "dev": "validation"}


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
    benchmarks = [
        TaskSummary(
            name,
            benchmark.title,
            benchmark.summary,
            benchmark.kind,
            dict(benchmark.splits),
            {subset: chosen.rows for subset, chosen in benchmark.subsets.items()},
            str(benchmark.hub),
        )
        for name, benchmark in BENCHMARKS.items()
    ]
    return (*embedded, *benchmarks)


def task_names() -> dict[str, str]:
    """Every task's name with one line about it."""
    return {task.name: task.summary for task in list_tasks()}


def embedded_name(name: str) -> str | None:
    """The embedded task of that name, however it is spelled; None if there is none."""
    return next((known for known in EMBEDDED_TASKS if squash(known) == squash(name)), None)


def unknown_task(name: str) -> LoopscopeError:
    """The error for a name that no task has, with the nearest ones."""
    if find_benchmark(name) is not None:
        return LoopscopeError(f"{name} is a benchmark: load it with load_task, which reads its rows")
    names = {squash(known): known for known in task_names()}
    near = [names[found] for found in difflib.get_close_matches(squash(name), names, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(names.values())}"
    return LoopscopeError(f"unknown task {name!r}: {hint} (a file of your own is named by its path, e.g. my.jsonl)")
