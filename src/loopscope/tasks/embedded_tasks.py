"""The tasks `arithmetic`, `arithmetic-mc` and `stories`, whose rows are files of this package.

`arithmetic` scores the worked solution of a word problem after `Solution:`; `arithmetic-mc` scores four bare answers to
the same problem after `Answer:`, without showing them. `stories` scores the last three of a document's four stories. A
wording belongs to one split alone. `research/data` has the programs that wrote the files.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from loopscope.tasks.encoding import Kind, Row, Scalar
from loopscope.tasks.selection import Selection

FOLDER = Path(__file__).parent / "embedded"


class Question(NamedTuple):
    """A stored row in words."""

    context: str
    continuations: tuple[str, ...]
    answer: int | None
    metadata: dict[str, Scalar]


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
    result = row["options"][row["answer"]]
    steps = row["solution"].count("\n")
    return {"difficulty": steps, "family": row["family"], "remark": row["remark"], "result": result}


def _solution(row: Mapping[str, Any]) -> Question:
    question = f"{row['story']} {row['request']}".rstrip()
    return Question(f"Problem: {question}\nSolution:\n", (row["solution"],), None, _facts(row))


def _options(row: Mapping[str, Any]) -> Question:
    options = tuple(f" {option}" for option in row["options"])
    return Question(f"Problem: {row['story']}\nAnswer:", options, row["answer"], _facts(row))


def _stories(row: Mapping[str, Any]) -> Question:
    return Question(row["context"], (row["continuation"],), None, {"stories": row["continuation"].count("\n") + 1})


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
