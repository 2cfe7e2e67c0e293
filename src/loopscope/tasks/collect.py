"""One pass over a source: every row is checked and hashed, the chosen ones are worded and kept.

For a benchmark's rows, for a user's file and for rows given in Python, which hold texts or token ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from loopscope.tasks.encoding import LoadedTask, Row
from loopscope.tasks.items import DataHash, Item, own_normaliser
from loopscope.tasks.selection import Selection
from loopscope.tasks.source_rows import SourceRow
from loopscope.tasks.template import Template, own_template
from loopscope.tasks.token_ids import IdRows, kind_of_ids


class Chosen(NamedTuple):
    """The chosen rows of a source, how many rows it has, and the hash of them all."""

    rows: tuple[Row, ...]
    total: int
    data_hash: str


def collect(
    rows: Iterator[SourceRow],
    normalise: Callable[[SourceRow], Item],
    template: Template,
    selection: Selection,
    where: str,
) -> Chosen:
    """One pass over a source: every row is checked and hashed, the chosen ones are worded and kept."""
    data_hash = DataHash()

    def read(row: SourceRow) -> Item:
        item = normalise(row)
        data_hash.add(item)
        return item

    kept, total = _keep(rows, read, selection, where, template.word)
    return Chosen(kept, total, data_hash.hexdigest())


def _keep(
    rows: Iterator[SourceRow],
    read: Callable[[SourceRow], Any],
    selection: Selection,
    where: str,
    finish: Callable[[Any], Row] = lambda row: row,
) -> tuple[tuple[Row, ...], int]:
    """Read every row and finish the chosen ones; also how many there were."""
    kept: list[Row] = []
    total = 0
    for row in rows:
        made = read(row)
        total += 1
        if selection.keeps(row.index, len(kept)):
            kept.append(finish(made))
    selection.check(total, where)
    return tuple(kept), total


def load_rows(
    name: str,
    rows: Iterator[SourceRow],
    where: str,
    selection: Selection,
    wording: Template | None,
    decode: Any = None,
) -> LoadedTask:
    """A user's rows, of texts or of token ids."""
    first = next(rows)
    rows = itertools.chain([first], rows)
    kind = kind_of_ids(first.fields) if wording is None else None
    if kind is not None:
        read = IdRows(kind, decode)
        kept, total = _keep(rows, read.read, selection, where)
        chosen = Chosen(kept, total, read.data_hash)
        worded, hashed = read.template, read.template_hash
    else:
        wording = wording or own_template(first)
        kind = wording.kind
        chosen = collect(rows, own_normaliser(wording.names, kind), wording, selection, where)
        worded, hashed = wording.name, wording.hash
    return LoadedTask(
        name=name,
        spec=name,
        kind=kind,
        split="all",
        subset=None,
        source="given in Python",
        source_rows=chosen.total,
        data_hash=chosen.data_hash,
        template=worded,
        template_hash=hashed,
        encoding="ids" if wording is None else "separate" if kind == "solution" else "joint",
        rows=chosen.rows,
    )
