"""docs/performance.md says what the files under benchmarks/ hold."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "figures" / "performance.py"

if not SCRIPT.exists():
    pytest.skip("the page is not beside the tests", allow_module_level=True)


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("performance_page", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_files_numbers(script):
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.write(page, script.tables()) == page, "run python docs/figures/performance.py --write"


def test_what_is_on_record_was_measured_at_full_size_and_whole(script):
    for name, report in script.reports().items():
        if report is None:
            continue
        assert not report["quick"], name
        assert report["failed"] == {}, name


def test_every_table_follows_from_a_file(script, quick_report, tmp_path, monkeypatch):
    report, written = quick_report
    (tmp_path / "bench_cpu.json").write_text(json.dumps(written), encoding="utf-8")
    monkeypatch.setattr(script, "BENCHMARKS", tmp_path)
    made = script.tables()
    assert made["goals h200"] == script.NOTHING
    for row in report.rows:
        assert f"`{row.name}`" in made["what cpu"]
        if row.unit:
            assert f"`{row.name}`" in made["times cpu"]
            assert all(reference.name in made["times cpu"] for reference in row.references)
        for goal in row.goals:
            assert goal.text in made["goals cpu"]
        for error in row.errors:
            assert error.quantity in made["errors cpu"]
    assert report.machine["torch"] in made["machine cpu"]
    for table in ("what cpu", "goals cpu", "times cpu", "errors cpu"):
        heads, *lines = made[table].splitlines()
        assert {line.replace("\\|", "").count("|") for line in lines} == {heads.count("|")}


def test_a_page_without_its_markers_is_refused(script):
    with pytest.raises(SystemExit, match="0 places for the table"):
        script.write("no markers", {"goals cpu": ""})


def test_printed_numbers_and_verdicts_agree(script):
    for name, report in script.reports().items():
        goals = [goal for row in report["rows"] for goal in row["goals"]]
        lines = script.tables()[f"goals {name}"].splitlines()[2:]
        for goal, line in zip(goals, lines, strict=True):
            *_, printed, verdict = (cell.strip() for cell in line.strip("|").split("|"))
            number = float(printed)
            met = number <= goal["bound"] if goal["at_most"] else number >= goal["bound"]
            assert verdict == "not judged" or met == (verdict == "yes"), line
