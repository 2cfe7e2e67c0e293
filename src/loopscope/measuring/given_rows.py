"""Rows that were given in Python, from the run itself: what `verify` measures again without the caller's objects."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from loopscope.store.run import StoredRun
from loopscope.tasks.encoding import GivenIds, LoadedTask, Row

_IDS = ("prompt_ids", "continuation_ids")


def given_task(run: StoredRun, name: str) -> LoadedTask:
    """The measured rows of a task as the run stores them, few-shot examples and chat template included."""
    (info,) = (task for task in run.manifest.tasks if task.name == name)
    examples = run.examples.filter(pl.col("task") == name).sort("row")
    pieces = _pieces(run, name) if run.manifest.tokens else {}
    rows = tuple(_row(entry, pieces) for entry in examples.iter_rows(named=True))
    texts = "separate" if info.kind == "solution" else "joint"
    return LoadedTask(
        name=name,
        spec=name,
        kind=info.kind,
        split=info.split,
        subset=info.subset,
        source="the run",
        source_rows=info.rows_available,
        data_hash=info.data_sha256,
        template="as stored",
        template_hash=info.template_sha256,
        encoding="ids" if rows[0].ids is not None else texts,  # type: ignore[arg-type]
        rows=rows,
        special_tokens=not run.manifest.settings.get("apply_chat_template"),
        given=True,
    )


def _row(entry: dict[str, Any], pieces: dict[tuple[int, int], tuple[str, ...]]) -> Row:
    texts = tuple(entry["options"] or [entry["reference"]])
    metadata = json.loads(entry["metadata"] or "{}")
    given = [metadata.pop(name, None) for name in _IDS]
    ids = None
    if given[0] is not None:
        prompt, continuations = given
        shown = tuple(pieces.get((entry["row"], option), ()) for option in range(len(continuations)))
        ids = GivenIds(tuple(prompt), tuple(map(tuple, continuations)), shown)
    return Row(
        entry["example_id"],
        entry["source_row"],
        entry["prompt"],
        texts,
        entry["correct_option"],
        metadata,
        ids=ids,
    )


def _pieces(run: StoredRun, name: str) -> dict[tuple[int, int], tuple[str, ...]]:
    """A text as long as each scored token's, by question and option: places are all that is asked of it."""
    first = run.manifest.transitions[0]
    tokens = run.tokens.filter(pl.col("task") == name, pl.col("transition") == first)
    columns = tokens.select("row", "option", "token", "text_start", "text_end").collect().sort("row", "option", "token")
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    for (row, option), group in columns.drop_nulls().group_by(["row", "option"], maintain_order=True):
        lengths = (group["text_end"] - group["text_start"]).to_list()
        found[int(str(row)), int(str(option))] = tuple("x" * length for length in lengths)
    return found
