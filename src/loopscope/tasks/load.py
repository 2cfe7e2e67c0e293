"""`load_task`: from what the user writes to a task with its rows chosen, worded and hashed.

`gsm8k`, `gsm8k:train256` (a benchmark), `my.jsonl`, `mine=data/my.jsonl` (a file of one's own), `arithmetic`,
`arithmetic-mc` (generated: no file, no template, no network).

A `Selection` says which rows of a split are used: a named subset, chosen rows, the first few. Rows keep their source
order and their source index, whatever is chosen.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import operator
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from loopscope.errors import LoopscopeError, choice, optional_text, parse_ranges, setting, shown
from loopscope.errors import text as checked_text
from loopscope.tasks.arithmetic.task import SIZES
from loopscope.tasks.encoding import LoadedTask, Row, canonical
from loopscope.tasks.items import DataHash, Item, own_normaliser
from loopscope.tasks.known_tasks import SPLIT_ALIASES, Benchmark, find_benchmark, get_task, is_generated, unknown_task
from loopscope.tasks.local_and_hub import find_file, read_hub
from loopscope.tasks.source_rows import SUFFIXES, SourceRow, read_rows
from loopscope.tasks.template import Template, builtin_template, own_template, read_template

LARGEST_ROW = 1_000_000_000
"""The last source row that can be named."""
MOST_ROWS = 1_000_000
"""The most source rows that can be named one by one."""


def parse_ids(given: str) -> tuple[int, ...]:
    """Source rows as written on the command line: numbers and ranges, ends included.

    >>> parse_ids("0,5,10-12")
    (0, 5, 10, 11, 12)
    """
    return parse_ranges(given, "ids", largest=LARGEST_ROW, most=MOST_ROWS)


@dataclass(frozen=True)
class Selection:
    """Rows to use.

    Attributes:
        first: only this many rows from the start of the split (a named subset).
        ids: only these source rows.
        limit: at most this many of the rows that remain.
    """

    first: int | None = None
    ids: frozenset[int] | None = None
    limit: int | None = None

    @classmethod
    def make(cls, first: int | None = None, ids: Iterable[int] | None = None, limit: int | None = None) -> Selection:
        """A checked selection."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise LoopscopeError(f"{setting('limit', limit)} is not a whole number")
        if limit is not None and limit < 1:
            raise LoopscopeError(f"{setting('limit', limit)} is too small: it must be at least 1")
        if ids is None:
            return cls(first, None, limit)
        listed = _listed(ids)
        chosen = frozenset(listed)
        if not listed:
            raise LoopscopeError(
                f"{setting('ids')} is empty; name at least one source row, or leave it out for all rows"
            )
        if len(chosen) != len(listed):
            twice = Counter(listed).most_common(1)[0][0]
            raise LoopscopeError(f"{setting('ids')} names row {twice} twice; name each row once")
        if min(chosen) < 0:
            raise LoopscopeError(f"{setting('ids')} names row {min(chosen)}; source rows count from 0")
        return cls(first, chosen, limit)

    def keeps(self, index: int, kept: int) -> bool:
        """Whether row `index` is used when `kept` rows before it were."""
        if self.first is not None and index >= self.first:
            return False
        if self.ids is not None and index not in self.ids:
            return False
        return self.limit is None or kept < self.limit

    def check(self, total: int, where: str) -> None:
        """Whether a source with `total` rows has what was asked for."""
        if self.first is not None and total < self.first:
            raise LoopscopeError(f"{where} has {total} rows, fewer than the {self.first} of the subset")
        available = total if self.first is None else self.first
        beyond = [row for row in sorted(self.ids or ()) if row >= available]
        if beyond:
            raise LoopscopeError(f"{setting('ids')} names row {beyond[0]}, but {where} has rows 0 to {available - 1}")


def _listed(ids: object) -> list[int]:
    """`ids` as a list, which a caller in Python may have given as anything."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise LoopscopeError(f"{setting('ids', ids)} is not a list of source rows: give e.g. [0, 5, 10]")
    listed = list(itertools.islice(ids, MOST_ROWS + 1))
    if len(listed) > MOST_ROWS:
        raise LoopscopeError(f"{setting('ids')} names more than {MOST_ROWS:,} rows: name fewer, each once")
    for row in listed:
        if isinstance(row, bool) or not hasattr(row, "__index__"):
            raise LoopscopeError(f"{setting('ids')} names {shown(row)}, which is not a whole number")
    return [operator.index(row) for row in listed]


RowCount = Literal["error", "warn"]


def load_task(
    spec: str,
    *,
    data_dir: str | Path | None = None,
    split: str | None = None,
    subset: str | None = None,
    limit: int | None = None,
    ids: Iterable[int] | None = None,
    template: str | Path | None = None,
    row_count: RowCount = "error",
) -> LoadedTask:
    """A task with its rows.

    Args:
        spec: a task's name, `name:split` or `name:subset`; or a data file, `path` or `name=path`.
        data_dir: folder with local copies of the benchmarks; left out, they come from the hub.
        split: the split, if `spec` does not say.
        subset: the named subset, if `spec` does not say.
        limit: at most this many rows.
        ids: these source rows only, counted from 0 in the split.
        template: a template file instead of the task's own.
        row_count: what to do when a benchmark's split does not have its published number of rows: refuse, or
            warn and go on.

    Raises:
        LoopscopeError: with one line that says what is wrong and what to do.
    """
    spec = checked_text("spec", spec)
    split, subset = optional_text("split", split), optional_text("subset", subset)
    data_dir, template = optional_text("data_dir", data_dir), optional_text("template", template)
    choice("row_count", row_count, get_args(RowCount))
    file = _file(spec)
    if file is not None:
        if split or subset:
            raise LoopscopeError(f"{spec}: a data file has no split or subset; choose rows with limit or ids")
        return _load_own(file, Selection.make(ids=ids, limit=limit), template)
    name, colon, part = spec.partition(":")
    if colon and not part:
        raise LoopscopeError(f"{spec} names no split after its colon; write {name} or {name}:SPLIT")
    if is_generated(name):
        if template is not None:
            raise LoopscopeError(f"{name} is made by a program and takes no template; leave it out")
        if subset is not None:
            raise LoopscopeError(f"{name} has no subset {subset!r}; choose a split, or rows with limit or ids")
        return _load_generated(name, _agree(spec, part, split), Selection.make(ids=ids, limit=limit))
    benchmark = find_benchmark(name)
    if benchmark is None:
        raise unknown_task(name)
    part_of = _choose(benchmark, spec, part, split, subset)
    selection = Selection.make(part_of.first, ids, limit)
    return _load_benchmark(benchmark, part_of, selection, data_dir, template, row_count)


class _File(NamedTuple):
    name: str
    path: Path


def _file(spec: str) -> _File | None:
    """`path` or `name=path`; a path may hold an equals sign itself. None where the spec is a task's name."""
    before, equals, after = spec.partition("=")
    exists = os.path.isfile(spec)  # unlike Path.is_file also for names that are too long
    if equals and "/" not in before and not exists:
        return _File(before, Path(after))
    if equals or "/" in spec or spec.lower().endswith(SUFFIXES) or exists:
        return _File(Path(spec).name.partition(".")[0], Path(spec))
    return None


class _ChosenSplit(NamedTuple):
    split: str
    subset: str | None
    first: int | None


def _choose(benchmark: Benchmark, spec: str, part: str, split: str | None, subset: str | None) -> _ChosenSplit:
    if part in benchmark.subsets:
        part, subset = "", _agree(spec, part, subset)
    split = _agree(spec, SPLIT_ALIASES.get(part, part), SPLIT_ALIASES.get(split or "", split))
    if subset is not None:
        if subset not in benchmark.subsets:
            known = ", ".join(benchmark.subsets) or "none"
            raise LoopscopeError(f"{benchmark.name} has no subset {subset!r}; there is: {known}")
        chosen = benchmark.subsets[subset]
        return _ChosenSplit(_agree(f"{benchmark.name}:{subset}", chosen.split, split) or "", subset, chosen.rows)
    split = split or benchmark.default_split
    if split not in benchmark.splits:
        known = ", ".join([*benchmark.splits, *benchmark.subsets])
        raise LoopscopeError(f"{benchmark.name} has no split {split!r}; there is: {known}")
    return _ChosenSplit(split, None, None)


def _agree(spec: str, written: str, given: str | None) -> str | None:
    if written and given and written != given:
        raise LoopscopeError(f"{spec} already says {written!r}, which is not {given!r}; name it once")
    return written or given


def _load_benchmark(
    benchmark: Benchmark,
    part: _ChosenSplit,
    selection: Selection,
    data_dir: str | Path | None,
    template: str | Path | None,
    row_count: RowCount,
) -> LoadedTask:
    wording = _wording(benchmark.name, benchmark.kind, template)
    if data_dir is None:
        source, rows = str(benchmark.hub), read_hub(benchmark.hub, part.split)
    else:
        path = find_file(benchmark, part.split, data_dir)
        source, rows = path.name, read_rows(path)

    def normalise(row: SourceRow) -> Item:
        return dataclasses.replace(benchmark.normalise(row), id=f"{part.split}-{row.index}")

    chosen = _collect(rows, normalise, wording, selection, source)
    expected = benchmark.splits[part.split]
    if chosen.total != expected:
        message = (
            f"{benchmark.name} {part.split} has {chosen.total} rows in {source}, not the published {expected}; "
            "get the complete file, or accept it with row_count='warn'"
        )
        if row_count == "error":
            raise LoopscopeError(message)
        warnings.warn(message, stacklevel=3)
    return LoadedTask(
        name=benchmark.name,
        spec=f"{benchmark.name}:{part.subset or part.split}",
        kind=benchmark.kind,
        split=part.split,
        subset=part.subset,
        source=source,
        source_rows=chosen.total,
        data_hash=chosen.data_hash,
        template=wording.name,
        template_hash=wording.hash,
        encoding="separate" if benchmark.kind == "solution" else "joint",
        rows=chosen.rows,
    )


def _load_generated(name: str, split: str | None, selection: Selection) -> LoadedTask:
    """The chosen rows of a generated task; its hash covers these rows, since the generator has no end."""
    task = get_task(name)
    split = SPLIT_ALIASES.get(split or "test", split or "test")
    if split not in SIZES:
        raise LoopscopeError(f"{task.name} has no split {split!r}; there is: {', '.join(SIZES)}")
    selection.check(SIZES[split], f"{task.name} {split}")
    if selection.ids is None:
        rows = tuple(task.rows(split, limit=min(selection.limit or SIZES[split], SIZES[split])))
    else:
        wanted = sorted(selection.ids)[: selection.limit]
        rows = tuple(task.rows(split, ids=[f"{split}-{row}" for row in wanted]))
    digest = hashlib.sha256()
    for row in rows:
        digest.update(canonical([row.source_row, row.context, row.continuations, row.answer]) + b"\n")
    return LoadedTask(
        name=task.name,
        spec=f"{task.name}:{split}",
        kind=task.kind,
        split=split,
        subset=None,
        source="generated",
        source_rows=SIZES[split],
        data_hash=digest.hexdigest(),
        template="generated",
        template_hash=hashlib.sha256(b"").hexdigest(),
        encoding="joint",
        rows=rows,
    )


def _load_own(file: _File, selection: Selection, template: str | Path | None) -> LoadedTask:
    name, path = file
    if not name:
        raise LoopscopeError(f"the task of {path} has no name; write e.g. mine={path}")
    if find_benchmark(name) or is_generated(name):
        raise LoopscopeError(f"{name} is a task of loopscope; give your file another name: mine={path}")
    rows = read_rows(path)
    first = next(rows)
    wording = own_template(first) if template is None else read_template(template)
    rows = itertools.chain([first], rows)
    chosen = _collect(rows, own_normaliser(wording.names, wording.kind), wording, selection, str(path))
    return LoadedTask(
        name=name,
        spec=f"{name}={path}",
        kind=wording.kind,
        split="all",
        subset=None,
        source=path.name,
        source_rows=chosen.total,
        data_hash=chosen.data_hash,
        template=wording.name,
        template_hash=wording.hash,
        encoding="separate" if wording.kind == "solution" else "joint",
        rows=chosen.rows,
    )


def _wording(name: str, kind: str, given: str | Path | None) -> Template:
    template = builtin_template(name) if given is None else read_template(given)
    if template.kind != kind:
        raise LoopscopeError(f"template {template.name} is for {template.kind}, but {name} has {kind}; change its kind")
    return template


class _Chosen(NamedTuple):
    rows: tuple[Row, ...]
    total: int
    data_hash: str


def _collect(
    rows: Iterator[SourceRow],
    normalise: Callable[[SourceRow], Item],
    template: Template,
    selection: Selection,
    where: str,
) -> _Chosen:
    """One pass over a source: every row is checked and hashed, the chosen ones are worded and kept."""
    kept: list[Row] = []
    data_hash = DataHash()
    total = 0
    for row in rows:
        item = normalise(row)
        data_hash.add(item)
        total += 1
        if selection.keeps(row.index, len(kept)):
            kept.append(template.word(item))
    selection.check(total, where)
    return _Chosen(tuple(kept), total, data_hash.hexdigest())
