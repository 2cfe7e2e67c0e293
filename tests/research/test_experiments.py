"""The experiments run, go on where they stopped, and print the tables of their pages from what they kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.experiments import control, fitted_scale, fitted_scale_figure, generation, short_training, training

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


def test_a_fitted_scale_is_measured_tabulated_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, picture = tmp_path / "stored.json", tmp_path / "docs" / "picture.png"
    monkeypatch.setattr(fitted_scale_figure, "STORED", stored)
    monkeypatch.setattr(fitted_scale_figure, "PICTURE", picture)
    chosen = ["--train", "2", "--test", "2", "--points", "5", "--longest", "1", "--output", str(tmp_path / "one.json")]
    fitted_scale.main(["--models", "toy-ouro", "--tasks", "stories", *chosen])
    fitted_scale_figure.main([str(tmp_path / "one.json"), "--write"])
    assert picture.stat().st_size > 10_000
    (result,) = json.loads(stored.read_text())
    rows = {row["name"]: row for row in result["rows"]}
    assert rows["chord 2>3"]["fitted"][0] > 1 > rows["chord 4>5"]["fitted"][0]


@pytest.mark.slow
def test_answers_are_generated_under_scaled_readouts(tmp_path: Path) -> None:
    chosen = ["--questions", "2", "--train", "1", "--fixed", "3", "4", "--depths", "3"]
    generation.main([*chosen, "--output", str(tmp_path / "answers.json")])
    found = json.loads((tmp_path / "answers.json").read_text())["policies"]
    assert set(found) == {"fixed 3", "fixed 4", "scaled 2>3", "margin-scaled 2>3"}
    assert found["fixed 4"]["accuracy"][0] == 1


@pytest.mark.slow
def test_a_short_training_writes_a_model(tmp_path: Path) -> None:
    chosen = ["--steps", "2", "--batch-tokens", "1216", "--workers", "0", "--device", "cpu"]
    short_training.main(["toy-ouro-drawn", *chosen, "--output", str(tmp_path / "made")])
    assert (tmp_path / "made" / "model.safetensors").exists()
