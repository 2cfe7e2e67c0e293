"""The benchmark runs at tiny sizes, and docs/performance.md shows what is on record."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"


def python(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_cpu_row_is_measured_printed_and_written(tmp_path: Path) -> None:
    text = python(FOLDER / "run.py", "--rows", "cpu", "--quick", "--output", tmp_path / "new.json")
    rows = json.loads((tmp_path / "new.json").read_text(encoding="utf-8"))["rows"]
    assert [row["name"] for row in rows] == ["cpu:geometry", "cpu:huginn"]
    for row in rows:
        assert row["name"] in text
        assert all(ratio > 0 and name in text for name, ratio in row["ratios"].items())
    # The references answer the same question.
    geometry, huginn = (row["figures"] for row in rows)
    assert max(geometry.values()) < 1e-4
    assert max(huginn.values()) < 1e-4


def test_rows_of_a_gpu_run_at_tiny_sizes_anywhere(tmp_path: Path) -> None:
    rows = "geometry,full,layers"
    python(FOLDER / "run.py", "--rows", rows, "--device", "cpu", "--quick", "--output", tmp_path / "new.json")
    names = [row["name"] for row in json.loads((tmp_path / "new.json").read_text(encoding="utf-8"))["rows"]]
    assert [name for name in names if ":" not in name] == rows.split(",")


@pytest.mark.parametrize("record", ["h200", "cpu"])
def test_the_page_shows_the_record(record: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    table = importlib.import_module("run").table(json.loads((FOLDER / f"{record}.json").read_text(encoding="utf-8")))
    machine, rows = table.split("\n\n")[:2]
    assert f"{machine}\n\n{rows}" in (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
