"""`loopscope demo` end to end, small: runs, summary, report, and a second call that finds everything there."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import numpy as np
import pytest

from loopscope import Run
from loopscope.cli.app import exit_code
from loopscope.store import StoredRun
from loopscope.studies.records import Records
from research.toys import card as card_program


@pytest.fixture(scope="module", autouse=True)
def _without_figures() -> Iterator[None]:
    """The report's figures have their own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loopscope.report.study_pages.FIGURES", {})
        yield


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "runs"
    assert exit_code(["demo", "--all", "--questions", "2", "--output", str(folder)]) == 0
    return folder


def test_every_model_measures_its_task(demo: Path):
    names = sorted(path.name for path in demo.iterdir() if path.is_dir())
    assert names == ["toy-huginn-stories", "toy-ouro-arithmetic", "toy-ouro-inside-3-stories", "toy-ouro-stories"]
    assert all(StoredRun(demo / name).finished for name in names)


def test_the_demo_opens_with_the_finding_of_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_code(["demo", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    run = Run(tmp_path / "toy-ouro-stories")
    harm = run.table("mechanism").rows[0]
    rule = next(row for row in run.table("quadratic-intervention").rows if row.key == "quadratic")
    assert f"loop 4→5 goes too far on {harm['finite_step']} of 16 questions" in printed
    assert f"It makes {harm['harmful']} of 16 references less likely" in " ".join(printed.split())
    assert f"{rule['recovered']} of {rule['failures']}\n" in printed
    assert len(printed.splitlines()) <= 14
    assert max(map(len, printed.splitlines()[:8])) <= 90
    # Document by document what the card's table was made from: central differences in float64.
    updates, there = Records([run]).updates[0], card_program.updates()["toy-ouro 4"][:16]
    here = np.stack([updates.slope, updates.quadratic, updates.gain, updates.quarter_gain], axis=1)
    np.testing.assert_allclose(here, there[:, :4], rtol=0, atol=1e-6)


def test_the_report_is_one_file_that_loads_nothing(demo: Path):
    page = (demo / "report.html").read_text(encoding="utf-8")
    assert "toy-ouro" in page
    assert not re.search(r"""(src|href)\s*=\s*["']https?:""", page)


def test_a_second_call_measures_nothing_again(demo: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.stat().st_mtime_ns for path in demo.glob("*/questions/*.parquet")}
    assert exit_code(["demo", "--all", "--questions", "2", "--output", str(demo)]) == 0
    assert {path: path.stat().st_mtime_ns for path in demo.glob("*/questions/*.parquet")} == before
    printed = capsys.readouterr().out
    assert "toy-huginn-stories" in printed
    assert "report.html" in printed


def test_a_negative_number_of_questions_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_code(["demo", "--questions", "-5", "--output", str(tmp_path / "runs")]) == 2
    assert "Input should be greater than or equal to 1" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_base_install_runs_the_demo_with_the_same_numbers(demo: Path, tmp_path: Path):
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    blocked = sorted(set(packages_distributions()) - modules_of_the_base_install(project["project"]["dependencies"]))
    assert {"scipy", "matplotlib", "pandas", "ray", "datasets"} <= set(blocked)
    code = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class WithoutTheExtras(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, *rest):\n"
        f"        return None if name.partition('.')[0] in {blocked!r} else super().find_spec(name, *rest)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTheExtras\n"
        "from loopscope.cli import main\n"
        f"sys.argv = ['loopscope', 'demo', '--questions', '2', '--output', {str(tmp_path)!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "goes too far" in done.stdout or "goes the wrong way" in done.stdout
    assert "pip install '.[studies]'" in done.stdout
    assert "toy-ouro" in (tmp_path / "report.html").read_text(encoding="utf-8")
    (shard,) = demo.glob("toy-ouro-stories/questions/*.parquet")
    assert (tmp_path / shard.relative_to(demo)).read_bytes() == shard.read_bytes()


def modules_of_the_base_install(dependencies: list[str]) -> set[str]:
    """Top-level modules of the dependencies, of what they need in turn, and of loopscope itself."""
    wanted, pending = {"loopscope"}, [_name(requirement) for requirement in dependencies]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            try:
                needed = requires(name) or []
            except ModuleNotFoundError:  # for another platform or version of Python
                continue
            pending += [_name(requirement) for requirement in needed if "extra ==" not in requirement]
    return {
        module
        for module, distributions in packages_distributions().items()
        if any(_name(distribution) in wanted for distribution in distributions)
    }


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()
