"""The experiments run, go on where they stopped, and print the tables of their pages from what they kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.experiments import control, training

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_training_experiment_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*more: str) -> str:
        ways = ["--ways", "last depth", "geometry", "--seeds", "0", *more]
        training.main(["--size", "tiny", "--questions", "2", "--keep", str(tmp_path), *ways])
        return capsys.readouterr().out

    first, again = run(), run()
    assert "seed 0: utility" in first
    assert again in first
    for row in ("| last depth | — |", "| geometry | 4→5 |", "| geometry | 15→16 |", "the goal: "):
        assert row in again
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(len(entry["utility"]) == 16 and len(entry["updates"]) == 5 for entry in results.values())


def test_the_page_shows_the_table_of_the_stored_results(capsys: pytest.CaptureFixture[str]) -> None:
    training.main(["--show", str(ROOT / "research" / "experiments" / "results_large.json")])
    table = capsys.readouterr().out.split("\n\n")[1]
    assert "| geometry | 6, 4 |" in table
    assert table.strip() in (ROOT / "research" / "training-experiment.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_control_experiment_prints_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        control.main(["--tasks", "arithmetic", "--train", "8", "--test", "4", "--keep", str(tmp_path)])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    for row in (
        "| exit head |",
        "| scale head at 4→5 |",
        "| boosted scale at 4→5 |",
        "| oracle: quadratic by question |",
    ):
        assert row in printed[0]
