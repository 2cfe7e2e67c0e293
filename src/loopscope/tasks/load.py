"""`load_task`: from what the user writes to a task with its rows chosen, worded and hashed.

`gsm8k`, `gsm8k:train256` (a benchmark), `my.jsonl`, `mine=data/my.jsonl` (a file of one's own), `arithmetic`,
`arithmetic-mc`, `stories` (embedded: no file, no template, no network), `lm_eval:arc_easy` (a task of
lm-evaluation-harness), or a `Task` made in Python.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from loopscope.errors import LoopscopeError, choice, optional_text, setting
from loopscope.errors import text as checked_text
from loopscope.tasks.collect import collect, load_rows
from loopscope.tasks.embedded_tasks import EMBEDDED_TASKS
from loopscope.tasks.encoding import LoadedTask, canonical
from loopscope.tasks.items import Item
from loopscope.tasks.known_tasks import (
    BENCHMARKS,
    SPLIT_ALIASES,
    Benchmark,
    embedded_name,
    find_benchmark,
    unknown_task,
)
from loopscope.tasks.lm_eval_requests import is_lm_eval, load_requests
from loopscope.tasks.local_and_hub import find_file, read_hub
from loopscope.tasks.own_task import Task
from loopscope.tasks.prompting import FEWSHOT_SEED, POOL_ROWS, Chat, prompted
from loopscope.tasks.selection import Selection
from loopscope.tasks.source_rows import SUFFIXES, SourceRow, is_data_file, read_rows
from loopscope.tasks.template import Template, builtin_template, read_template

RowCount = Literal["error", "warn"]


def load_task(
    spec: str | Task,
    *,
    data_dir: str | Path | None = None,
    split: str | None = None,
    subset: str | None = None,
    limit: int | None = None,
    ids: Iterable[int] | None = None,
    template: str | Path | None = None,
    row_count: RowCount = "error",
    num_fewshot: int | None = None,
    fewshot_split: str | None = None,
    fewshot_seed: int = FEWSHOT_SEED,
    chat: Chat | None = None,
) -> LoadedTask:
    """A task with its rows.

    Args:
        spec: a task's name, `name:split` or `name:subset`; a data file, `path` or `name=path`; `lm_eval:NAME`; or a
            `Task`.
        data_dir: folder with local copies of the benchmarks; left out, they come from the hub.
        split: the split, if `spec` does not say.
        subset: the named subset, if `spec` does not say.
        limit: at most this many rows.
        ids: these source rows only, counted from 0 in the split.
        template: a template file instead of the task's own.
        row_count: what to do when a benchmark's split does not have its published number of rows: refuse, or
            warn and go on.
        num_fewshot: examples before each question; None is none, or what a task of lm-evaluation-harness says.
        fewshot_split: the split, or the data file, that examples come from.
        fewshot_seed: what they are drawn from.
        chat: a tokenizer's `chat_template`, to ask the questions as a conversation.

    Raises:
        LoopscopeError: with one line that says what is wrong and what to do.
    """
    data_dir, template = optional_text("data_dir", data_dir), optional_text("template", template)
    split, subset = optional_text("split", split), optional_text("subset", subset)
    choice("row_count", row_count, get_args(RowCount))
    fewshot_split = optional_text("fewshot_split", fewshot_split)
    if not isinstance(spec, Task):
        spec = checked_text("spec", spec)
        if is_lm_eval(spec):
            for name, given in (("template", template), ("fewshot_split", fewshot_split), ("split", split)):
                if given is not None:
                    raise LoopscopeError(f"{spec} says that itself: leave out {setting(name, given)}")
            selection = Selection.make(ids=ids, limit=limit)
            return load_requests(spec, selection, num_fewshot, fewshot_seed, chat)
    source = _Source(data_dir, template, row_count)
    task = source.load(spec, split, subset, limit, ids)
    pool = source.pool(spec, task, fewshot_split) if num_fewshot else None
    return prompted(task, pool, num_fewshot or 0, fewshot_seed, chat)


class _Source(NamedTuple):
    """Where rows are read from and how they are worded, for a task and for its examples."""

    data_dir: str | None
    template: str | None
    row_count: RowCount

    def load(
        self,
        spec: str | Task,
        split: str | None = None,
        subset: str | None = None,
        limit: int | None = None,
        ids: Iterable[int] | None = None,
    ) -> LoadedTask:
        """The rows that a specification and a selection name."""
        file = None if isinstance(spec, Task) else _file(spec)
        if isinstance(spec, Task) or file is not None:
            what = spec.name if isinstance(spec, Task) else spec
            if split or subset:
                raise LoopscopeError(f"{what}: a data file has no split or subset; choose rows with limit or ids")
            selection = Selection.make(ids=ids, limit=limit)
            if isinstance(spec, Task):
                return _load_object(spec, selection, self.template)
            assert file is not None
            return _load_file(file, selection, self.template)
        name, colon, part = spec.partition(":")
        if colon and not part:
            raise LoopscopeError(f"{spec} names no split after its colon; write {name} or {name}:SPLIT")
        embedded = embedded_name(name)
        if embedded is not None:
            if self.template is not None:
                raise LoopscopeError(f"{name} is stored in its words and takes no template; leave it out")
            if subset is not None:
                raise LoopscopeError(f"{name} has no subset {subset!r}; choose a split, or rows with limit or ids")
            return _load_embedded(embedded, _agree(spec, part, split), Selection.make(ids=ids, limit=limit))
        benchmark = find_benchmark(name)
        if benchmark is None:
            raise unknown_task(name)
        part_of = _choose(benchmark, spec, part, split, subset)
        selection = Selection.make(part_of.first, ids, limit, part_of.every)
        return _load_benchmark(benchmark, part_of, selection, self.data_dir, self.template, self.row_count)

    def pool(self, spec: str | Task, task: LoadedTask, split: str | None) -> LoadedTask:
        """The rows that a task's examples are drawn from."""
        if isinstance(spec, Task):
            if split not in (None, "train") or (split and not spec.train):
                raise LoopscopeError(
                    f"the task {spec.name!r} has no split {split!r}: give it rows with `train=` when you make it, and"
                    f" leave out {setting('fewshot_split')}"
                )
            return _load_object(spec, Selection.make(limit=POOL_ROWS), self.template, train=bool(spec.train))
        file = _file(spec)
        if file is not None:
            if split is not None and not is_data_file(split):
                raise LoopscopeError(
                    f"{spec} is a file without splits: {setting('fewshot_split')} takes another data file"
                )
            path = file.path if split is None else Path(split)
            return _load_file(_File(file.name, path), Selection.make(limit=POOL_ROWS), self.template)
        splits = (EMBEDDED_TASKS.get(task.name) or BENCHMARKS[task.name]).splits
        wanted = SPLIT_ALIASES.get(split or "train", split or "train")
        if wanted not in splits:
            raise LoopscopeError(
                f"{task.name} has no split {wanted!r} for examples; name one with {setting('fewshot_split')}:"
                f" {', '.join(splits)}"
            )
        return self.load(f"{task.name}:{wanted}", limit=POOL_ROWS)


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


def is_task_file(spec: str) -> bool:
    """Whether a specification names a file: rows of the user's, or a task of lm-evaluation-harness in YAML."""
    return spec.endswith((".yaml", ".yml")) if is_lm_eval(spec) else _file(spec) is not None


class _ChosenSplit(NamedTuple):
    split: str
    subset: str | None
    first: int | None
    every: int = 1


def _choose(benchmark: Benchmark, spec: str, part: str, split: str | None, subset: str | None) -> _ChosenSplit:
    if part in benchmark.subsets:
        part, subset = "", _agree(spec, part, subset)
    split = _agree(spec, SPLIT_ALIASES.get(part, part), SPLIT_ALIASES.get(split or "", split))
    if subset is not None:
        if subset not in benchmark.subsets:
            known = ", ".join(benchmark.subsets) or "none"
            raise LoopscopeError(f"{benchmark.name} has no subset {subset!r}; there is: {known}")
        chosen = benchmark.subsets[subset]
        named = _agree(f"{benchmark.name}:{subset}", chosen.split, split) or ""
        return _ChosenSplit(named, subset, chosen.rows, chosen.every)
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
        source, rows = str(benchmark.hub_of(part.split)), read_hub(benchmark.hub_of(part.split), part.split)
    else:
        path = find_file(benchmark, part.split, data_dir)
        source, rows = path.name, read_rows(path)

    def normalise(row: SourceRow) -> Item:
        return dataclasses.replace(benchmark.normalise(row), id=f"{part.split}-{row.index}")

    chosen = collect(rows, normalise, wording, selection, source)
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


def _load_embedded(name: str, split: str | None, selection: Selection) -> LoadedTask:
    """The chosen rows of an embedded task, which its hash covers."""
    task = EMBEDDED_TASKS[name]
    split = SPLIT_ALIASES.get(split or "test", split or "test")
    if split not in task.splits:
        raise LoopscopeError(f"{name} has no split {split!r}; there is: {', '.join(task.splits)}")
    selection.check(task.splits[split], f"{name} {split}")
    rows = task.rows(split, selection)
    digest = hashlib.sha256()
    for row in rows:
        digest.update(canonical([row.source_row, row.context, row.continuations, row.answer]) + b"\n")
    return LoadedTask(
        name=name,
        spec=f"{name}:{split}",
        kind=task.kind,
        split=split,
        subset=None,
        source="generated",
        source_rows=task.splits[split],
        data_hash=digest.hexdigest(),
        template="generated",
        template_hash=hashlib.sha256(b"").hexdigest(),
        encoding="joint",
        rows=rows,
    )


def _load_file(file: _File, selection: Selection, template: str | None) -> LoadedTask:
    name, path = file
    if not name:
        raise LoopscopeError(f"the task of {path} has no name; write e.g. mine={path}")
    if find_benchmark(name) or embedded_name(name):
        raise LoopscopeError(f"{name} is a task of loopscope; give your file another name: mine={path}")
    wording = None if template is None else read_template(template)
    task = load_rows(name, read_rows(path), str(path), selection, wording)
    return dataclasses.replace(task, spec=f"{name}={path}", source=path.name)


def _load_object(task: Task, selection: Selection, template: str | None, *, train: bool = False) -> LoadedTask:
    wording = task.template if template is None else read_template(template)
    where = f"the task {task.name!r}"
    loaded = load_rows(task.name, task.source_rows(train=train), where, selection, wording, task.decode)
    return dataclasses.replace(loaded, given=True)


def _wording(name: str, kind: str, given: str | Path | None) -> Template:
    template = builtin_template(name) if given is None else read_template(given)
    if template.kind != kind:
        raise LoopscopeError(f"template {template.name} is for {template.kind}, but {name} has {kind}; change its kind")
    return template
