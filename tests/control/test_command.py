"""`ls.control` and the policy of the documents, on small runs."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import loopscope as ls
from loopscope.control import heads as heads_module
from loopscope.control.heads import Training
from loopscope.control.policies import RULES
from loopscope.errors import LoopscopeError
from loopscope.studies import table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    asked: Any = {
        "transitions": "4,2>4",
        "depths": "1-5",
        "scales_to": 2,
        "trace": True,
        "limit": 2,
        "dtype": "float32",
    }
    for split in ("train", "test"):
        ls.measure("toy-ouro", f"arithmetic:{split}", output=folder / split, **asked)
    return [folder / "train", folder / "test"]


@pytest.fixture(autouse=True)
def _few_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have their own tests."""
    monkeypatch.setattr("loopscope.control.comparison.RULES", {name: RULES[name] for name in ("KL", "Ouro gate")})


def test_rules_the_documents_policy_and_heads_stand_in_one_table(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = partial(Training, epochs=1, hidden=4)
    for name in ("train_exit_head", "train_scale_head"):
        learn = getattr(heads_module, name)
        monkeypatch.setattr(heads_module, name, lambda *given, learn=learn: learn(*given, training=quick()))
    page = (ROOT / "docs" / "control.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- policy -->\n```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    assert len([line for line in code.group(1).splitlines() if line.strip()]) <= 10
    mine, heads = tmp_path / "mine.py", tmp_path / "heads"
    mine.write_text(code.group(1))
    found = ls.control(runs, policies=[f"{mine}:Settled"], heads=heads)
    rows = {row.key: row for row in found.table.rows}
    assert {"settled", "exit head", "scale head at 4→5", "KL", "fixed 4", "oracle: quadratic by question"} <= set(rows)
    assert rows["fixed 4"].condition.n == 2
    best = rows["oracle: best depth by token"]["utility"].value
    assert all(best + 1e-9 >= row["utility"].value for row in rows.values() if row["kind"] in ("rule", "depth"))
    files = [heads / f"toy-ouro-arithmetic-{kind}.safetensors" for kind in ("exit", "scale")]
    assert sorted(heads.iterdir()) == files
    held = files[0].read_bytes()
    files[1].unlink()  # as if it had been killed between the two
    again = {row.key: row for row in ls.control(runs, heads=heads).table.rows}
    assert files[0].read_bytes() == held
    assert again["exit head"]["utility"] == rows["exit head"]["utility"]
    assert again["scale head at 4→5"]["utility"] == rows["scale head at 4→5"]["utility"]
    assert found.figure().save(tmp_path / "control.png").stat().st_size > 10_000


def test_policies_act_as_the_trace_says_where_nothing_moves(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ls.control(runs, tier="acting")
    assert "toy-ouro: acting: 30/30 policies" in capsys.readouterr().err
    rows = {row.key: row for row in found.table.rows}
    for depth in range(1, 6):
        assert rows[f"fixed {depth}"]["loops"] == depth
    still = [row for row in rows.values() if row["kind"] in ("depth", "readout")]
    assert len(still) == 5 + 4 * 4 + 3  # the chord has no temperature of its own
    assert max(abs(row["over_trace"].value) for row in still) < 1e-6
    assert rows["scale 0.75 from 3→4"]["over_trace"].value is None
    assert rows["TAPS"]["loops"] == 5
    assert rows["fixed 2"]["utility"].value != rows["scaled 1>2"]["utility"].value
    assert rows["scaled 1>2"]["cost"] == pytest.approx(2 + 2 * (rows["fixed 2"]["cost"] - 2), abs=0.01)
    scales = {row.key: row for row in found.scales.rows}
    for row in scales.values():  # the table of fitted scales and that of acting policies say the same
        name = row.key.replace("chord", "scaled") if row["kind"] != "orthogonal" else row.key.replace(
            "orthogonal", "scaled") + ", orthogonal"  # fmt: skip
        gain = rows[name]["utility"].value - rows[f"fixed {row['depth']}"]["utility"].value
        assert row["gain"].value == pytest.approx(gain, abs=1e-6), row.key
    assert found.figure("fitted-scale").save(tmp_path / "scales.png").stat().st_size > 10_000
    assert "Fitted scale" in str(found)


def test_fitted_scales_of_records_are_those_of_the_logits(runs: list[Path]) -> None:
    """Under an affine readout a path is a chord: the run's own longer steps against lines that the model gave."""
    stored = {row.key: row for row in table("fitted-scale", runs).rows}
    lines = {row.key: row for row in ls.control(runs, tier="readouts").scales.rows}
    assert set(stored) == {"path 2>4", "path 4>5"}
    for name in ("2>4", "4>5"):
        path, chord = stored[f"path {name}"], lines[f"chord {name}"]
        assert path["fitted"].value == pytest.approx(chord["fitted"].value)
        assert path["gain"].value == pytest.approx(chord["gain"].value, abs=2e-6)
        assert path["over_temperature"].value is None
        assert path["trained_depth"] == 4


def test_the_study_divides_the_questions_of_a_single_split(runs: list[Path]) -> None:
    for name in ("control", "fitted-scale"):
        found = ls.Run(runs[1]).table(name)
        assert {row.condition.n for row in found.rows} == {1}
        assert any("every second question" in note for note in found.notes)


def test_mistakes_are_said_in_one_line(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match="there is no policy 'entropy'"):
        ls.control(runs, policies=["entropy"])
    with pytest.raises(LoopscopeError, match="is not a policy: derive"):
        ls.control(runs, policies=[object()])  # type: ignore[list-item]
    needy = tmp_path / "needy.py"
    needy.write_text("from loopscope.control import ScaledReadout as Needy")
    (tmp_path / "file").touch()
    for wrong, message in (
        ({"check_cost": float("inf")}, "check_cost=inf"),
        ({"tier": "online"}, "tier='online' is not known"),
        ({"policies": [f"{needy}:Needy"]}, "is made without arguments"),
        ({"heads": tmp_path / "file"}, "is not a folder"),
    ):
        with pytest.raises(LoopscopeError, match=message):
            ls.control(runs, **wrong)  # type: ignore[arg-type]
    bare = ls.measure("toy-ouro", "arithmetic:test", transitions=[4], limit=2, output=tmp_path / "bare")
    with pytest.raises(LoopscopeError, match="no run holds a trace"):
        ls.control(bare)
    with pytest.raises(LoopscopeError, match="heads are trained on a train split"):
        ls.control(runs[1], heads=tmp_path / "none")


def test_costs_that_cannot_be_counted_are_an_error_and_no_other_number(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = ls.control(runs)
    again = ls.control(runs, outside_cost=0.25, check_cost=0.5)
    rows = {row.key: row for row in again.table.rows}
    assert rows["fixed 4"]["cost"] == pytest.approx(4.25)

    def unreadable(*_: Any) -> Any:
        raise LoopscopeError("the log is damaged")

    monkeypatch.setattr("loopscope.control.runs.config_of", unreadable)
    for given in ({}, {"outside_cost": 0.25}):
        with pytest.raises(LoopscopeError, match="the log is damaged"):
            ls.control(runs, **given)
    assert ls.control(runs, outside_cost=0.25, check_cost=0.5).table == again.table
    assert {row.key: row["cost"] for row in counted.table.rows}["fixed 4"] > 4
