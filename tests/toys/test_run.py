"""The whole of `train-toy` through its command, with a tiny recipe."""

import json

import pytest

from loopscope._errors import LoopscopeError
from loopscope.toys import run as module
from loopscope.toys.__main__ import main
from loopscope.toys.recipe import RECIPES


@pytest.fixture
def tiny(recipes, monkeypatch):
    monkeypatch.setitem(RECIPES, "toy-ouro", recipes["ouro"])


def test_command_trains_exports_and_solves(tiny, tmp_path, capsys):
    flags = ["--device", "cpu", "--minutes", "0.02", "--workers", "0", "--problems", "2", "--output", str(tmp_path)]
    assert main(["toy-ouro", *flags]) == 0
    result = json.loads((tmp_path / "accuracy.json").read_text())
    assert result["steps"] >= 1
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


def test_minutes_must_be_positive():
    with pytest.raises(LoopscopeError, match="--minutes must be positive"):
        module.train_toy("toy-ouro", minutes=0)
