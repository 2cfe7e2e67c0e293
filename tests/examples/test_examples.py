"""The scripts in `examples/` run and print their figures."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
CALLS = {
    "renormalised_path": (["--task", "arithmetic"], "same outcome: "),
    "trajectories": (["--task", "arithmetic", "--deepest", "5", "--transitions", "3", "4"], "4→5 onwards: "),
    "own_reference": (["--task", "arithmetic", "--output", "runs"], "same sign of A: "),
    "initial_draws": (["--output", "runs", "--draws", "2"], "mean gain (0.001 nats): "),
}


@pytest.mark.parametrize("name", CALLS)
def test_example_prints_its_figures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = CALLS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--limit", "2", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert expected in capsys.readouterr().out


def test_own_choice_of_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_reference", "--limit", "2", "--task", "arithmetic-mc", "--output", "runs"])
    runpy.run_path(str(EXAMPLES / "own_reference.py"), run_name="__main__")
    assert "same answer: " in capsys.readouterr().out
