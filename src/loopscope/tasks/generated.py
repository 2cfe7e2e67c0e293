"""Tasks that a program makes (`arithmetic`, `arithmetic-mc`) as loaded tasks: no file, no template, no network."""

from __future__ import annotations

import hashlib

from loopscope._errors import LoopscopeError
from loopscope.tasks.arithmetic.task import SIZES
from loopscope.tasks.benchmarks import SPLIT_ALIASES
from loopscope.tasks.item import canonical
from loopscope.tasks.loaded import LoadedTask
from loopscope.tasks.registry import get_task
from loopscope.tasks.selection import Selection


def load_generated(name: str, split: str | None, selection: Selection) -> LoadedTask:
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
