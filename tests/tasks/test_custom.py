from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks import load_task

SOLUTIONS = [{"prompt": f"{n} plus one?\n", "solution": f"It is {n + 1}."} for n in range(5)]
CHOICES = [{"context": f"After {n} comes", "options": [str(n + 1), str(n + 7)], "answer": 0} for n in range(3)]


def test_prompt_and_solution_are_used_as_written(jsonl: Callable[..., Path]) -> None:
    path = jsonl(SOLUTIONS)
    task = load_task(str(path))
    assert (task.name, task.kind, task.split, task.encoding) == ("mine", "solution", "all", "separate")
    assert [(row.context, row.continuations) for row in task.rows] == [
        (row["prompt"], (row["solution"],)) for row in SOLUTIONS
    ]
    assert [row.id for row in task.rows] == [f"row-{n}" for n in range(5)]


def test_options_get_one_blank(jsonl: Callable[..., Path]) -> None:
    task = load_task(f"counting={jsonl(CHOICES, 'x.jsonl.gz')}")
    assert (task.name, task.kind, task.encoding) == ("counting", "options", "joint")
    assert task.rows[1].continuations == (" 2", " 8")
    assert task.rows[1].answer == 0


def test_own_ids_name_the_rows(jsonl: Callable[..., Path]) -> None:
    path = jsonl([{**row, "id": f"q{n}"} for n, row in enumerate(SOLUTIONS)])
    assert [row.id for row in load_task(str(path), ids=[1, 3]).rows] == ["q1", "q3"]


def test_a_template_may_use_other_fields(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    path = jsonl([{"ask": "one?", "say": "two", "note": 3}])
    (tmp_path / "t.toml").write_text('kind = "solution"\nprompt = "Q: {ask}\\n"\nsolution = "{say}."\n')
    row = load_task(str(path), template=tmp_path / "t.toml").rows[0]
    assert (row.context, row.continuations) == ("Q: one?\n", ("two.",))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"prompt": "p"}], r"line 1: a task of your own needs the fields prompt and solution, or context, options"),
        ([{"question": "p", "answer": "a"}], r"line 1: .*\(this row has: answer, question\).*data_dir="),
        ([SOLUTIONS[0], {"prompt": "p"}], "line 2: field 'solution' is missing"),
        ([SOLUTIONS[0], CHOICES[0]], "line 2: field 'prompt' is missing"),
        ([{"prompt": "p", "solution": ""}], "line 1: field 'solution' is empty"),
        ([{"prompt": "p", "solution": 4}], "line 1: field 'solution' must be text, not a number"),
        ([{**CHOICES[0], "answer": 2}], r"line 1: field 'answer' is 2, but the row has 2 options \(0 to 1\)"),
        ([{**CHOICES[0], "answer": -1}], "line 1: field 'answer' is -1"),
        ([{**CHOICES[0], "answer": "B"}], "line 1: field 'answer' must be the number of the right option"),
        ([{**CHOICES[0], "options": "ab"}], "line 1: field 'options' must be a list of texts"),
        ([{**CHOICES[0], "options": ["a", 2]}], "line 1: field 'options' must be a list of texts"),
        ([{**CHOICES[0], "options": []}], "line 1: field 'options' has 0 entries; a choice has 2 to 1000"),
        ([{**CHOICES[0], "options": ["a"], "answer": 0}], "line 1: field 'options' has 1 entries"),
        ([{**CHOICES[0], "options": ["a"] * 1001, "answer": 0}], "line 1: field 'options' has 1001 entries"),
        ([{**CHOICES[0], "answer": "9" * 5000}], "line 1: field 'answer' must be the number of the right option"),
        ([{**SOLUTIONS[0], "id": ""}], "line 1: field 'id' has 0 characters; give it 1 to 200"),
        ([{**SOLUTIONS[0], "id": "x" * 201}], "line 1: field 'id' has 201 characters"),
        ([{**CHOICES[0], "options": ["a", ""]}], "line 1: option 1 of 'options' is empty"),
        ([{**row, "id": "same"} for row in SOLUTIONS], "line 2: id 'same' is already used at .*line 1"),
        ([{**SOLUTIONS[0], "id": [1]}], "line 1: field 'id' must be a text or a whole number, not a list"),
        ([{**SOLUTIONS[0], "id": "row-1"}, SOLUTIONS[1]], "line 2: id 'row-1' is already used"),
    ],
)
def test_a_bad_row_names_file_and_line(jsonl: Callable[..., Path], rows: list[Any], complaint: str) -> None:
    path = jsonl(rows)
    with pytest.raises(LoopscopeError, match=complaint) as caught:
        load_task(str(path), limit=1)
    assert str(caught.value).startswith(f"{path}, line ")
    assert "\n" not in str(caught.value)


def test_a_file_takes_no_name_of_a_benchmark(jsonl: Callable[..., Path]) -> None:
    path = jsonl(SOLUTIONS)
    for taken in ("gsm8k", "ARC-Challenge", "arithmetic"):
        with pytest.raises(LoopscopeError, match=f"{taken} is a task of loopscope; give your file another name"):
            load_task(f"{taken}={path}")


def test_a_missing_file_says_so() -> None:
    with pytest.raises(LoopscopeError, match=r"data file nowhere/x.jsonl does not exist"):
        load_task("mine=nowhere/x.jsonl")


def test_a_file_of_another_kind_is_not_taken_for_a_task(tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match=r"data/my\.json is not a data file loopscope reads; use one of"):
        load_task("data/my.json")
    (tmp_path / "gsm8k.csv").touch()
    with pytest.raises(LoopscopeError, match="is a task of loopscope"):
        load_task(str(tmp_path / "gsm8k.csv"))


def test_a_path_may_hold_an_equals_sign(jsonl: Callable[..., Path]) -> None:
    path = jsonl(SOLUTIONS, "lr=3/x.jsonl")
    assert load_task(str(path)).name == "x"
    assert load_task(f"named={path}").name == "named"


def test_a_file_that_is_there_is_taken_by_its_path(jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(jsonl(SOLUTIONS, "lr=3/x.jsonl").parent.parent)
    assert load_task("lr=3/x.jsonl").name == "x"


def test_an_empty_name_is_refused(jsonl: Callable[..., Path]) -> None:
    with pytest.raises(LoopscopeError, match=r"has no name; write e.g. mine="):
        load_task(f"={jsonl(SOLUTIONS)}")
