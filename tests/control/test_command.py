"""`ls.control` and the policy of the documents, on small runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import loopscope as ls
from loopscope.errors import LoopscopeError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    asked: Any = {"transitions": [4], "depths": "1-5", "trace": True, "limit": 6, "progress_style": "none"}
    for split in ("train", "test"):
        ls.measure("toy-ouro", f"arithmetic:{split}", output=folder / split, **asked)
    return [folder / "train", folder / "test"]


def test_rules_a_policy_of_the_documents_and_heads_stand_in_one_table(runs: list[Path], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "control.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- policy -->\n```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    body = code.group(1)[code.group(1).index("class") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10
    mine = tmp_path / "mine.py"
    mine.write_text(code.group(1))
    found = ls.control(runs, policies=[f"{mine}:Settled"], heads=tmp_path / "heads")
    rows = {row.key: row for row in found.table.rows}
    assert {"settled", "exit head", "scale head at 4→5", "KL", "fixed 4", "oracle: quadratic by question"} <= set(rows)
    assert rows["fixed 4"].condition.n == 6
    best = rows["oracle: best depth by token"].utility.value
    assert all(best + 1e-9 >= row.utility.value for row in rows.values() if row.kind in ("rule", "depth"))
    assert sorted(path.name for path in (tmp_path / "heads").iterdir()) == [
        f"toy-ouro-arithmetic-{kind}.{ending}" for kind in ("exit", "scale") for ending in ("md", "safetensors")
    ]
    again = ls.control(runs, heads=tmp_path / "heads")
    assert {row.key: row.utility for row in again.table.rows}["exit head"] == rows["exit head"].utility
    drawn = found.figure().save(tmp_path / "control.png")
    assert drawn.stat().st_size > 10_000


def test_the_study_divides_the_questions_of_a_single_split(runs: list[Path]) -> None:
    table = ls.Run(runs[1]).table("control")
    assert {row.condition.n for row in table.rows} == {3}
    assert any("every second question" in note for note in table.notes)


def test_mistakes_are_said_in_one_line(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match="there is no policy 'entropy'"):
        ls.control(runs, policies=["entropy"])
    with pytest.raises(LoopscopeError, match="is no policy: it needs name"):
        ls.control(runs, policies=[object()])  # type: ignore[list-item]
    with pytest.raises(LoopscopeError, match="floor"):
        ls.control(runs, floor=0)
    bare = ls.measure(
        "toy-ouro", "arithmetic:test", transitions=[4], limit=2, output=tmp_path / "bare", progress_style="none"
    )
    with pytest.raises(LoopscopeError, match="no run holds a trace"):
        ls.control(bare)
    with pytest.raises(LoopscopeError, match="heads are trained on a train split"):
        ls.control(runs[1], heads=tmp_path / "none")


def test_costs_that_cannot_be_counted_are_an_error_and_no_other_number(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted = ls.control(runs)
    again = ls.control(runs, outside_cost=0.25, check_cost=0.5)
    rows = {row.key: row for row in again.table.rows}
    assert rows["fixed 4"].cost == pytest.approx(4.25)

    def unreadable(*_: Any) -> Any:
        raise LoopscopeError("the log is damaged")

    monkeypatch.setattr("loopscope.control.rerun.request_of", unreadable)
    with pytest.raises(LoopscopeError, match=r"cannot be counted: the log is damaged; or give outside_cost"):
        ls.control(runs)
    with pytest.raises(LoopscopeError, match="cannot be counted"):
        ls.control(runs, outside_cost=0.25)
    assert ls.control(runs, outside_cost=0.25, check_cost=0.5).table == again.table
    assert {row.key: row.cost for row in counted.table.rows}["fixed 4"] > 4
