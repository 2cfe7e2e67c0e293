"""The whole of `train-toy` through its command, with a tiny recipe."""

import json
from pathlib import Path

import pytest

from loopscope.errors import LoopscopeError
from loopscope.toys import train_toy as module
from loopscope.toys.__main__ import main
from loopscope.toys.recipe import RECIPES


@pytest.fixture
def tiny(recipes, monkeypatch):
    monkeypatch.setitem(RECIPES, "toy-ouro", recipes["ouro"])


def test_command_trains_exports_and_solves(tiny, tmp_path, capsys):
    flags = ["--device", "cpu", "--workers", "0", "--problems", "2", "--output", str(tmp_path)]
    assert main(["toy-ouro", *flags]) == 0
    result = json.loads((tmp_path / "accuracy.json").read_text())
    assert result["steps"] >= 1
    assert result["seconds"] >= 60 * RECIPES["toy-ouro"].minutes  # which nothing was said about
    assert set(result["accuracy"]) == {
        f"depth {depth}, {form}" for depth in (3, 1, 2, 6) for form in ("worked solutions", "bare answers")
    }
    assert {"config.json", "curves.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert "loss by depth" in capsys.readouterr().out


def test_user_mistakes_are_one_line(capsys):
    assert main(["toy-llama"]) == 2
    assert capsys.readouterr().err == "unknown embedded model 'toy-llama': choose one of toy-ouro, toy-huginn\n"


@pytest.mark.parametrize("minutes", [0, -1.0, float("nan"), float("inf"), 1e308])
def test_minutes_must_end(minutes, tmp_path):
    with pytest.raises(LoopscopeError, match=r"minutes=.* must be above 0 and at most 43200"):
        module.train_toy("toy-ouro", minutes=minutes, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"seed": -1}, "seed=-1 must be from 0 to 9223372036854775807"),
        ({"seed": 2**64}, "seed=.* must be from 0"),
        ({"seed": 10**5000}, "seed=.* must be from 0"),
        ({"problems": 0}, "problems=0 must be from 1 to 1000000"),
        ({"workers": -1}, "workers=-1 must be from 0 to 64"),
        ({"workers": 10**6}, "workers=1000000 must be from 0 to 64"),
        ({"device": "meta"}, "device"),
        ({"device": "x" * 5000}, "there is no device"),
        ({"output": Path(__file__)}, "cannot be made: File exists"),
        ({"output": Path("x" * 5000)}, "cannot be made: File name too long"),
    ],
)
def test_every_number_is_checked_in_one_line(given, complaint, tmp_path):
    with pytest.raises(LoopscopeError, match=complaint) as caught:
        module.train_toy("toy-ouro", **{"output": tmp_path, "minutes": 0.001, "device": "cpu"} | given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
