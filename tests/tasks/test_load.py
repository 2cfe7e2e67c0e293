from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks import load_task
from loopscope.tasks.known_tasks import BENCHMARKS


@pytest.fixture
def small(jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a few made-up rows, as if the splits had no more."""
    monkeypatch.setitem(BENCHMARKS["gsm8k"].splits, "test", 5)
    monkeypatch.setitem(BENCHMARKS["gsm8k"].splits, "train", 300)
    folder = jsonl([{"question": f"{n}+1?", "answer": f"#### {n + 1}"} for n in range(5)], "gsm8k_test.jsonl").parent
    jsonl([{"question": f"{n}+2?", "answer": f"#### {n + 2}"} for n in range(300)], "gsm8k_train.jsonl.gz")
    return folder


@pytest.mark.parametrize("spec", [f"{name}:{split}" for name, one in BENCHMARKS.items() for split in one.splits])
def test_complete_splits_have_the_published_number_of_rows(data_dir: Path, spec: str) -> None:
    name, split = spec.split(":")
    task = load_task(spec, data_dir=data_dir)
    assert len(task) == task.source_rows == BENCHMARKS[name].splits[split]
    assert [row.source_row for row in task.rows] == list(range(len(task)))
    assert len({row.id for row in task.rows}) == len(task)


@pytest.mark.parametrize(
    ("spec", "split", "rows"),
    [
        ("gsm8k:train256", "train", 256),
        ("hellaswag:validation1000", "validation", 1000),
        ("commonsense_qa:train1024", "train", 1024),
    ],
)
def test_the_papers_subsets_are_the_first_rows(data_dir: Path, spec: str, split: str, rows: int) -> None:
    task = load_task(spec, data_dir=data_dir)
    assert (task.split, task.spec, len(task)) == (split, spec, rows)
    assert task.rows == load_task(f"{spec.split(':')[0]}:{split}", data_dir=data_dir, limit=rows).rows


def test_the_math_pilot_is_spread_over_the_training_problems(data_dir: Path) -> None:
    task = load_task("math500:train128", data_dir=data_dir)
    assert (task.split, task.subset, len(task)) == ("train", "train128", 128)
    assert [row.source_row for row in task.rows] == list(range(0, 11812, 93))
    ids = [row.metadata["source_id"] for row in load_task("math500", data_dir=data_dir).rows]
    own = [row.metadata["source_id"] for row in task.rows]
    assert not set(ids) & set(own), "no test question is in the pilot"
    assert len({str(name).split("/")[1] for name in own}) == 7, "every subject is"
    assert [row.source_row for row in load_task("math500:train128", data_dir=data_dir, ids=[93, 186]).rows] == [93, 186]
    with pytest.raises(LoopscopeError, match=r"ids= names row 94, but .* has rows 0, 93, … 11811"):
        load_task("math500:train128", data_dir=data_dir, ids=[94])


@pytest.mark.parametrize("spec", ["gsm8k", "GSM8K:test", "gsm-8k"])
def test_names_may_be_spelled_loosely(small: Path, spec: str) -> None:
    task = load_task(spec, data_dir=small)
    assert (task.name, task.spec, task.source) == ("gsm8k", "gsm8k:test", "gsm8k_test.jsonl")


def test_another_number_of_rows_is_refused(jsonl: Callable[..., Path]) -> None:
    path = jsonl([{"question": "1+1?", "answer": "2"}], "gsm8k_test.jsonl")
    with pytest.raises(LoopscopeError, match=r"gsm8k test has 1 rows in gsm8k_test\.jsonl, not the published 1319"):
        load_task("gsm8k", data_dir=path.parent, limit=2)


def test_ids_and_limit_choose_source_rows(small: Path) -> None:
    task = load_task("gsm8k:train256", data_dir=small, ids=[9, 4, 200], limit=2)
    assert [(row.source_row, row.id) for row in task.rows] == [(4, "train-4"), (9, "train-9")]


def test_a_row_beyond_the_subset_is_refused(small: Path) -> None:
    with pytest.raises(LoopscopeError, match=r"names row 256, but .* has rows 0 to 255"):
        load_task("gsm8k:train256", data_dir=small, ids=[256])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"spec": "gsm8k:dev"}, "gsm8k has no split 'validation'; there is: test, train, train256"),
        ({"spec": "gsm8k:train2"}, "gsm8k has no split 'train2'; there is: test, train, train256"),
        ({"spec": "gsm8k", "limit": 0}, "limit=0 is not a whole number of at least 1"),
        ({"spec": "arithmetic", "template": "x.toml"}, "does not exist"),
        ({"spec": "arithmetic:dev7"}, "arithmetic has no split 'dev7'; there is: test, validation, train"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(arguments: dict, complaint: str) -> None:
    with pytest.raises(LoopscopeError, match=complaint):
        load_task(**arguments)


@pytest.mark.parametrize(
    ("name", "near"),
    [("gms8k", "gsm8k"), ("helaswag", "hellaswag"), ("arc-chalenge", "arc_challenge"), ("aritmetic", "arithmetic")],
)
def test_an_unknown_task_gets_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(LoopscopeError, match=f"unknown task '{name}': did you mean .*{near}"):
        load_task(name)


def test_a_name_like_nothing_lists_all_tasks() -> None:
    with pytest.raises(LoopscopeError, match=r"choose one of arithmetic, .*commonsense_qa \(a file of your own"):
        load_task("zzzz")


def test_a_users_template_changes_wording_and_hash(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('kind = "options"\ncontext = "Goal: {goal}\\nDo:"\n')
    own = load_task("piqa", data_dir=data_dir, template=tmp_path / "t.toml", limit=1)
    usual = load_task("piqa", data_dir=data_dir, limit=1)
    assert own.rows[0].context.startswith("Goal: ")
    assert own.rows[0].continuations == usual.rows[0].continuations
    assert own.template_hash != usual.template_hash
    assert own.data_hash == usual.data_hash


def test_a_template_of_the_other_kind_or_with_other_fields_is_refused(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "kind.toml").write_text('kind = "solution"\nprompt = "{goal}"\nsolution = "x"\n')
    with pytest.raises(LoopscopeError, match=r"is for solution, but piqa has options"):
        load_task("piqa", data_dir=data_dir, template=tmp_path / "kind.toml")
    (tmp_path / "field.toml").write_text('kind = "options"\ncontext = "{question}"\n')
    with pytest.raises(LoopscopeError, match=r"line 1: field 'question' is missing, .*there is: choices, goal"):
        load_task("piqa", data_dir=data_dir, template=tmp_path / "field.toml")


def test_an_embedded_task_is_loaded_like_the_others() -> None:
    task = load_task("arithmetic", ids=[7, 2])
    assert [row.id for row in task.rows] == ["test-2", "test-7"]
    assert (task.source, task.spec, task.kind) == ("generated", "arithmetic:test", "solution")
    assert len(load_task("arithmetic_mc:validation", limit=3)) == 3
    assert load_task("arithmetic", limit=3).data_hash != load_task("arithmetic", limit=4).data_hash
