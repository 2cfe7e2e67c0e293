"""The experiment of docs/control.md runs, and prints its tables again from what it kept."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "control_experiment.py"


def test_the_experiment_prints_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--models", "toy-ouro", "--tasks", "arithmetic", "--train", "8", "--test", "4", "--keep", str(tmp_path)]
    printed = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *flags])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    for row in (
        "| exit head |",
        "| scale head at 4→5 |",
        "| boosted scale at 4→5 |",
        "| oracle: quadratic by question |",
    ):
        assert row in printed[0]
