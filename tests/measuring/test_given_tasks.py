"""Tasks given in Python: the same records as from a file, ids that stay as they are, resumed, refused, verified."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pytest
from tokenizers import Tokenizer as Backend

import loopscope as ls
from loopscope import load_tokenizer
from loopscope.api import measure_with
from loopscope.cli.runs import verify
from loopscope.measuring.verify import Named, measure_again
from loopscope.store.verification import verify as verified

ROWS = [
    {"prompt": "Problem: 2 plus 2.\nSolution:\n", "solution": "It is 4."},
    {"prompt": "Problem: 3 plus 5.\nSolution:\n", "solution": "That is 8, since 5 and 3 are 8."},
    {"prompt": "Problem: 9 minus 5.\nSolution:\n", "solution": "4."},
]
CHOICES = [
    {"prompt": "2 plus 2 is", "options": ["4", "5", "12"], "answer": 0},
    {"prompt": "3 plus 5 is", "options": ["7", "8"], "answer": 1},
]
QUICK: dict[str, Any] = {"transitions": [1], "level": "quick", "device": "cpu"}


def encode(texts: list[str]) -> list[list[int]]:
    tokenizer = load_tokenizer("toy-ouro")
    return [tokenizer.encode(text) for text in texts]


def id_task(**more: Any) -> ls.Task:
    prompts, solutions = (encode([row[field] for row in ROWS]) for field in ("prompt", "solution"))
    return ls.Task.from_ids(prompts, solutions, name="mine", **more)


def numbers(run: ls.Run) -> pl.DataFrame:
    return run.records.select("task", "row", "gain", "slope", "quadratic", "utility_before")


@pytest.mark.parametrize("rows", [ROWS, CHOICES], ids=["solutions", "options"])
def test_rows_ids_files_and_data_sets_give_the_same_numbers(
    checkpoint: Callable[[str], str], tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    model = checkpoint("ouro")
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = datasets.Dataset.from_list(
        [{"q": r["prompt"], **{k: v for k, v in r.items() if k != "prompt"}} for r in rows]
    )
    texts = ls.load_task(ls.Task.from_rows(rows)).encode(load_tokenizer(model))
    sequences = [[(s.token_ids, s.positions[0] + 1) for s in example.sequences] for example in texts]
    prompts = [list(found[0][0][: found[0][1]]) for found in sequences]
    scored = [[list(ids[start:]) for ids, start in found] for found in sequences]
    by_id = {"solutions": [found[0] for found in scored]} if rows is ROWS else {
        "options": scored, "answers": [row["answer"] for row in rows]}  # fmt: skip
    ways: dict[str, Any] = {
        "file": str(tmp_path / "mine.jsonl"),
        "rows": ls.Task.from_rows(rows, name="mine"),
        "ids": ls.Task.from_ids(np.array(prompts, dtype=object), name="mine", **by_id),
        "dataset": ls.Task.from_dataset(dataset, name="mine", fields={"prompt": "q"}),
        "split": ls.Task.from_dataset(datasets.DatasetDict(test=dataset), split="test", name="mine",
                                      fields={"prompt": "q"}),
    }  # fmt: skip
    found = {
        way: measure_with(model, task, output=tmp_path / way, transitions=[2], device="cpu", tokens=True)
        for way, task in ways.items()
    }
    expected = numbers(found["file"])
    for way, run in found.items():
        assert numbers(run).equals(expected), way
        assert "its task 'mine'" in str(measure_again(run).findings[0])
        assert verified(run.path, partial(measure_again, named=Named(tasks=(ways[way],)))).ok, way
    hashes = {way: run.manifest.tasks[0].data_sha256 for way, run in found.items()}
    assert hashes["rows"] == hashes["file"]
    assert found["ids"].manifest.tokenizer_sha256 is None


def test_the_same_call_resumes_and_other_rows_are_refused(tmp_path: Path) -> None:
    task = id_task(decode=str)
    first = measure_with("toy-ouro", [task, "arithmetic"], output=tmp_path / "run", limit=2, **QUICK)
    said: list[str] = []
    again = measure_with("toy-ouro", [id_task(decode=str), "arithmetic"], output=tmp_path / "run", limit=2,
                       notify=said.append, **QUICK)  # fmt: skip
    assert again.manifest == first.manifest
    assert "finished" in said[0]
    other = ls.Task.from_ids([[1, 2]] * 3, [[3]] * 3, name="mine", decode=str)
    with pytest.raises(ls.LoopscopeError, match=r"another run \(task.mine/all.data is not the same"):
        measure_with("toy-ouro", [other, "arithmetic"], output=tmp_path / "run", limit=2, **QUICK)
    with pytest.raises(ls.LoopscopeError, match=r"template is not the same"):
        measure_with("toy-ouro", [id_task(), "arithmetic"], output=tmp_path / "run", limit=2, **QUICK)


def test_a_task_of_ids_needs_no_tokenizer_and_texts_do(tmp_path: Path, checkpoint: Callable[[str], str]) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((Path(checkpoint("ouro")) / name).read_bytes())
    run = measure_with(bare, id_task(), output=tmp_path / "run", **QUICK)
    assert run.manifest.tokenizer_sha256 is None
    assert run.examples["prompt"][0].startswith("[")
    with pytest.raises(ls.LoopscopeError, match=r"neither tokenizer\.json nor"):
        measure_with(bare, ls.Task.from_rows(ROWS), output=tmp_path / "texts", **QUICK)
    given = Backend.from_file(str(Path(checkpoint("ouro")) / "tokenizer.json"))
    task = ls.Task.from_rows(ROWS, name="mine")
    texts = measure_with(bare, task, output=tmp_path / "texts", tokenizer=given, **QUICK)
    assert numbers(texts).equals(numbers(run))
    shown = measure_with(bare, id_task(), output=tmp_path / "shown", tokenizer=given, **QUICK)
    assert shown.examples["prompt"].to_list() == [row["prompt"] for row in ROWS]
    findings = measure_again(texts).findings
    assert "tokenizer=" in findings[0].message
    assert measure_again(texts, Named(tokenizer=given, tasks=(task,))).findings == ()
    assert texts.verify(tokenizer=given, tasks=[task]).ok
    verify(str(texts.path), replay=False)
