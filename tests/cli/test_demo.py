"""`loopscope demo` end to end, small: runs, summary, report, and a second call that finds everything there."""

import re
from pathlib import Path

import pytest

from loopscope.cli._app import exit_code
from loopscope.store import Run


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    from loopscope.cli import _commands  # noqa: F401 - registers the commands

    folder = tmp_path_factory.mktemp("demo") / "runs"
    assert exit_code(["demo", "--questions", "2", "--output", str(folder), "--progress", "none"]) == 0
    return folder


def test_both_models_measure_both_tasks(demo: Path):
    names = sorted(path.name for path in demo.iterdir() if path.is_dir())
    assert names == [
        "toy-huginn-arithmetic",
        "toy-huginn-arithmetic-mc",
        "toy-ouro-arithmetic",
        "toy-ouro-arithmetic-mc",
    ]
    assert all(Run(demo / name).finished for name in names)


def test_the_report_is_one_file_that_loads_nothing(demo: Path):
    page = (demo / "report.html").read_text(encoding="utf-8")
    assert "toy-ouro" in page
    assert not re.search(r"""(src|href)\s*=\s*["']https?:""", page)


def test_a_second_call_measures_nothing_again(demo: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.stat().st_mtime_ns for path in demo.glob("*/questions/*.parquet")}
    assert exit_code(["demo", "--questions", "2", "--output", str(demo), "--progress", "none"]) == 0
    assert {path: path.stat().st_mtime_ns for path in demo.glob("*/questions/*.parquet")} == before
    printed = capsys.readouterr().out
    assert "best depth" in printed
    assert "report.html" in printed
