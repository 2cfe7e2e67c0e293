"""`load_task`: from what the user writes to a task with its rows chosen, worded and hashed.

`gsm8k`, `gsm8k:train256` (a benchmark), `my.jsonl`, `mine=data/my.jsonl` (a file of one's own), `arithmetic`,
`arithmetic-mc`, `stories` (embedded: no file, no template, no network), `lm_eval:arc_easy` (a task of
lm-evaluation-harness), or a `Task` made in Python. One pass over a source: every row is checked and hashed, the chosen
ones are worded and kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loopscope.errors import LoopscopeError, optional_text, setting
from loopscope.errors import text as checked_text
from loopscope.tasks.encoding import LoadedTask, Row, Split, canonical
from loopscope.tasks.known_tasks import (
    BENCHMARKS,
    EMBEDDED_TASKS,
    SPLIT_ALIASES,
    Benchmark,
    embedded_name,
    find_benchmark,
    find_file,
    read_hub,
    unknown_task,
)
from loopscope.tasks.lm_eval_requests import is_lm_eval, load_requests
from loopscope.tasks.own_task import IdRows, Task, kind_of_ids
from loopscope.tasks.prompting import FEWSHOT_SEED, POOL_ROWS, Chat, prompted
from loopscope.tasks.source_rows import SUFFIXES, Columns, Item, Selection, SourceRow, is_data_file, read_rows, row_id
from loopscope.tasks.template import Template, builtin_template, own_template, read_template


def load_task(
    spec: str | Task,
    *,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    ids: Iterable[int] | None = None,
    template: str | Path | None = None,
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
        limit: at most this many rows.
        ids: these source rows only, counted from 0 in the split.
        template: a template file instead of the task's own.
        num_fewshot: examples before each question; None is none, or what a task of lm-evaluation-harness says.
        fewshot_split: the split, or the data file, that examples come from.
        fewshot_seed: what they are drawn from.
        chat: a tokenizer's `chat_template`, to ask the questions as a conversation.

    Raises:
        LoopscopeError: with one line that says what is wrong and what to do.
    """
    data_dir, template = optional_text("data_dir", data_dir), optional_text("template", template)
    fewshot_split = optional_text("fewshot_split", fewshot_split)
    if not isinstance(spec, Task):
        spec = checked_text("spec", spec)
        if is_lm_eval(spec):
            for name, given in (("template", template), ("fewshot_split", fewshot_split)):
                if given is not None:
                    raise LoopscopeError(f"{spec} says that itself: leave out {setting(name, given)}")
            return load_requests(spec, Selection.make(ids, limit), num_fewshot, fewshot_seed, chat)
    source = _Source(data_dir, None if template is None else read_template(template))
    task = source.load(spec, Selection.make(ids, limit))
    if not num_fewshot and chat is None:
        return task
    pool = source.pool(spec, task, fewshot_split) if num_fewshot else None
    return prompted(task, pool, num_fewshot or 0, fewshot_seed, chat)


class _Source(NamedTuple):
    """Where rows are read from and how they are worded, for a task and for its examples."""

    data_dir: str | None
    template: Template | None

    def load(self, spec: str | Task, selection: Selection, *, train: bool = False) -> LoadedTask:
        """The chosen rows of what a specification names; of a `Task` its rows for examples where `train` says so."""
        if isinstance(spec, Task):
            rows, where = spec.source_rows(train=train), f"the task {spec.name!r}"
            facts = {"name": spec.name, "spec": spec.name, "given": True}
            return _own(rows, self.template or spec.template, selection, where, spec.decode, **facts)
        if (file := _file(spec)) is not None:
            return self._file(*file, selection)
        name, colon, part = spec.partition(":")
        if colon and not part:
            raise LoopscopeError(f"{spec} names no split after its colon; write {name} or {name}:SPLIT")
        part, embedded, benchmark = SPLIT_ALIASES.get(part, part), embedded_name(name), find_benchmark(name)
        if embedded is not None:
            if self.template is not None:
                raise LoopscopeError(f"{name} is stored in its words and takes no template; leave it out")
            return _load_embedded(embedded, part or "test", selection)
        if benchmark is None:
            raise unknown_task(name)
        return self._benchmark(benchmark, part or benchmark.default_split, selection)

    def pool(self, spec: str | Task, task: LoadedTask, split: str | None) -> LoadedTask:
        """The rows that a task's examples are drawn from."""
        first, wanted = Selection(limit=POOL_ROWS), setting("fewshot_split")
        if isinstance(spec, Task):
            if split not in (None, "train") or (split and not spec.train):
                raise LoopscopeError(
                    f"the task {spec.name!r} has no split {split!r}: give it rows with `train=` when you make it, and"
                    f" leave out {wanted}"
                )
            return self.load(spec, first, train=bool(spec.train))
        if (file := _file(spec)) is not None:
            if split is not None and not is_data_file(split):
                raise LoopscopeError(f"{spec} is a file without splits: {wanted} takes another data file")
            return self._file(file[0], file[1] if split is None else Path(split), first)
        splits = (EMBEDDED_TASKS.get(task.name) or BENCHMARKS[task.name]).splits
        named = SPLIT_ALIASES.get(split or "train", split or "train")
        if named not in splits:
            there = ", ".join(splits)
            raise LoopscopeError(f"{task.name} has no split {named!r} for examples; name one with {wanted}: {there}")
        return self.load(f"{task.name}:{named}", first)

    def _benchmark(self, known: Benchmark, part: str, selection: Selection) -> LoadedTask:
        """The rows of a split or of a named subset."""
        subset = known.subsets.get(part)
        split = part if subset is None else subset.split
        if split not in known.splits:
            there = ", ".join([*known.splits, *known.subsets])
            raise LoopscopeError(f"{known.name} has no split {split!r}; there is: {there}")
        wording = builtin_template(known.name) if self.template is None else self.template
        if wording.kind != known.kind:
            raise LoopscopeError(
                f"template {wording.name} is for {wording.kind}, but {known.name} has {known.kind}; change its kind"
            )
        if subset is not None:
            selection = dataclasses.replace(selection, subset=range(0, subset.rows * subset.every, subset.every))
        if self.data_dir is None:
            source, rows = str(known.hub_of(split)), read_hub(known.hub_of(split), split)
        else:
            path = find_file(known, split, self.data_dir)
            source, rows = path.name, read_rows(path)
        reader = TextRows(wording, lambda row: known.read(row, f"{split}-{row.index}"))
        facts = {"name": known.name, "spec": f"{known.name}:{part}", "split": split, "source": source}
        task = _read(rows, reader, selection, source, subset=None if subset is None else part, **facts)
        if task.source_rows != known.splits[split]:
            raise LoopscopeError(
                f"{known.name} {split} has {task.source_rows} rows in {source}, not the published "
                f"{known.splits[split]}: get the complete file, or name yours as a task of your own, mine=FILE"
            )
        return task

    def _file(self, name: str, path: Path, selection: Selection) -> LoadedTask:
        if not name:
            raise LoopscopeError(f"the task of {path} has no name; write e.g. mine={path}")
        if find_benchmark(name) or embedded_name(name):
            raise LoopscopeError(f"{name} is a task of loopscope; give your file another name: mine={path}")
        facts = {"name": name, "spec": f"{name}={path}", "source": path.name}
        return _own(read_rows(path), self.template, selection, str(path), **facts)


def _file(spec: str) -> tuple[str, Path] | None:
    """Name and path of `path` or `name=path`; a path may hold an equals sign itself. None where it is a task's name."""
    before, equals, after = spec.partition("=")
    exists = os.path.isfile(spec)  # unlike Path.is_file also for names that are too long
    if equals and "/" not in before and not exists:
        return before, Path(after)
    if equals or "/" in spec or spec.lower().endswith(SUFFIXES) or exists:
        return Path(spec).name.partition(".")[0], Path(spec)
    return None


def is_task_file(spec: str) -> bool:
    """Whether a specification names a file: rows of the user's, or a task of lm-evaluation-harness in YAML."""
    return spec.endswith((".yaml", ".yml")) if is_lm_eval(spec) else _file(spec) is not None


class TextRows:
    """Source rows to worded rows, hashed on the way.

    The hash covers what is asked and what is right, not the file it came from: the hub's copy and a local one have the
    same where they hold the same questions.
    """

    def __init__(self, template: Template, normalise: Callable[[SourceRow], Item]) -> None:
        self.kind, self.template, self.template_hash = template.kind, template.name, template.hash
        self.encoding: Split = "separate" if self.kind == "solution" else "joint"
        self.word = template.word
        self._normalise, self._digest = normalise, hashlib.sha256()

    def read(self, row: SourceRow) -> Item:
        """The next question, checked."""
        item = self._normalise(row)
        self._digest.update(canonical([item.index, item.fields, item.options, item.answer]) + b"\n")
        return item

    @property
    def data_hash(self) -> str:
        """SHA-256 of the questions so far."""
        return self._digest.hexdigest()


def _own(
    rows: Iterator[SourceRow],
    wording: Template | None,
    selection: Selection,
    where: str,
    decode: Any = None,
    **facts: Any,
) -> LoadedTask:
    """A user's rows, read by what the first of them holds: texts or token ids."""
    first = next(rows)
    rows = itertools.chain([first], rows)
    kind = kind_of_ids(first.fields) if wording is None else None
    if kind is not None:
        return _read(rows, IdRows(kind, decode), selection, where, **facts)
    wording = wording or own_template(first)
    options: dict[str, Any] = {} if wording.kind == "solution" else {"options": "options", "answer": ("answer",)}
    own, seen = Columns(columns={name: (name,) for name in sorted(wording.names)}, **options), dict[str, str]()
    return _read(rows, TextRows(wording, lambda row: own.read(row, row_id(row, seen))), selection, where, **facts)


def _read(
    rows: Iterator[SourceRow], reader: TextRows | IdRows, selection: Selection, where: str, **facts: Any
) -> LoadedTask:
    """Read and hash every row, and word the chosen ones."""
    kept: list[Row] = []
    total = 0
    for row in rows:
        made: Any = reader.read(row)
        total += 1
        if selection.keeps(row.index, len(kept)):
            kept.append(reader.word(made))
    selection.check(total, where)
    facts |= {name: getattr(reader, name) for name in ("kind", "data_hash", "template", "template_hash", "encoding")}
    return LoadedTask(source_rows=total, rows=tuple(kept), **facts)


def _load_embedded(name: str, split: str, selection: Selection) -> LoadedTask:
    """The chosen rows of an embedded task, which its hash covers."""
    task = EMBEDDED_TASKS[name]
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
        source="generated",
        source_rows=task.splits[split],
        data_hash=digest.hexdigest(),
        template="generated",
        template_hash=hashlib.sha256(b"").hexdigest(),
        encoding="joint",
        rows=rows,
    )
