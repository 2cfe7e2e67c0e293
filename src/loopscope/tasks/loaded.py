"""A task made ready: split and rows chosen, wording applied, hashes taken. What `load_task` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from loopscope.tasks.encoding import Encoder, Split, encode_row
from loopscope.tasks.example import Example, Row
from loopscope.tasks.protocol import Kind


@dataclass(frozen=True)
class LoadedTask:
    """Rows of one task, in source order.

    Attributes:
        name: of the task: "gsm8k".
        spec: what loads the same rows again, up to `limit` and `ids`: "gsm8k:train256".
        kind: "solution" or "options".
        split: "test", "train", "validation"; "all" for a file of one's own.
        subset: the named subset, if one was chosen.
        source: the file or the hub's repository and commit.
        source_rows: how many rows the whole split has.
        data_hash: SHA-256 of the whole split's questions, whichever source they came from.
        template: the template's name or path.
        template_hash: SHA-256 of its content.
        encoding: how context and continuation meet, "separate" or "joint".
        rows: the chosen rows as text.
    """

    name: str
    spec: str
    kind: Kind
    split: str
    subset: str | None
    source: str
    source_rows: int
    data_hash: str
    template: str
    template_hash: str
    encoding: Split
    rows: tuple[Row, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def encode(self, tokenizer: Encoder) -> Iterator[Example]:
        """The rows as examples, one at a time."""
        return (encode_row(tokenizer, row, self.encoding) for row in self.rows)

    def without_rows(self) -> LoadedTask:
        """What the task is, without its texts: what a worker needs that is handed rows one unit at a time."""
        return dataclasses.replace(self, rows=())

    def describe(self) -> dict[str, Any]:
        """What a run's manifest records about the task; chosen rows as ranges of source rows."""
        names = ("name", "spec", "kind", "split", "subset", "source", "source_rows")
        hashes = ("data_hash", "template", "template_hash", "encoding")
        described = {name: getattr(self, name) for name in names + hashes}
        return {**described, "rows": ranges([row.source_row for row in self.rows]), "count": len(self.rows)}


def ranges(numbers: list[int]) -> str:
    """Ascending row numbers as `parse_ids` reads them.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
