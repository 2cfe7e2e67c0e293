"""The bodies of `loopscope tables`, `figures`, `compare` and `studies`."""

import subprocess
import sys
from pathlib import Path

import pytest

from loopscope.cli.app import exit_code
from loopscope.cli.runs import figures, studies, tables
from loopscope.errors import LoopscopeError, command_line_words
from loopscope.studies import FIGURES, TABLES


@pytest.fixture(scope="module")
def run(tmp_path_factory, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25, -0.5], [-1.0, -0.1, -0.1])})
    return str(synthetic.write_run(tmp_path_factory.mktemp("cli") / "run", [task], level="grid").path)


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25], [-1.0, -0.1])})
    return str(synthetic.write_run(tmp_path_factory.mktemp("cli") / "quick", [task], level="quick").path)


def test_all_tables_and_what_is_missing(run, capsys):
    tables([run])
    assert "further tables of these runs: " in capsys.readouterr().out
    tables([run], all=True)
    written = capsys.readouterr().out
    assert "Quarter-step recovery" in written
    assert "nothing in these runs for: shared-questions" in written


def test_what_the_run_cannot_fill_says_what_to_do(quick_run, tmp_path):
    with command_line_words(), pytest.raises(LoopscopeError, match=r"oracles: .*--level grid"):
        tables([quick_run], name="oracles")
    with command_line_words(), pytest.raises(LoopscopeError, match=r"contraction: .*measure with --level grid"):
        figures([quick_run], str(tmp_path), name="contraction")


def test_a_run_of_depths_alone_is_not_told_to_go_on(tmp_path, capsys):
    """It is finished, and the same command again would change nothing."""
    import loopscope as ls
    from loopscope.report.write import write_report

    where = str(tmp_path / "depths")
    given = ["--model", "toy-ouro", "--tasks", "arithmetic", "--limit", "2", "--depths", "1-3", "--device", "cpu"]
    assert exit_code(["measure", *given, "--output", where]) == 0
    assert capsys.readouterr().out.endswith(f"{where}. Next: loopscope figures {where} --name depth-curves\n")
    with command_line_words(), pytest.raises(LoopscopeError, match="hold no updates: measure with --transitions"):
        tables([where])
    with pytest.raises(LoopscopeError, match="has no update: measure again with "):
        write_report([where], tmp_path / "x.html")
    shown = ls.Run(where)._repr_html_()
    mean = ls.Run(where).depths.filter(depth=3)["utility"].mean()
    assert f"{mean:.5f}" in shown


@pytest.mark.parametrize(("command", "choices"), [("tables", "text"), ("figures", "pdf"), ("compare", "text")])
def test_unknown_formats_are_the_users_mistake(run, tmp_path, capsys, command, choices):
    output = ["--output", str(tmp_path)] if command == "figures" else []
    assert exit_code([command, run, "--format", "html", *output]) == 2
    assert f"choose {choices}" in capsys.readouterr().err


def test_figures_are_written_into_a_new_folder(run, tmp_path, capsys):
    figures([run], str(tmp_path / "new"), format="svg")
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.stem for path in written} == set(FIGURES) - {"families", "fitted-scale"}
    assert all(path.with_suffix(".json").exists() for path in written)


def test_studies_are_listed_with_what_they_need(capsys):
    studies()
    listing = capsys.readouterr().out
    for name in (*TABLES, *FIGURES):
        assert f"  {name} " in listing


def test_figures_without_matplotlib_are_one_line_with_the_remedy(run, tmp_path):
    call = f"from loopscope.cli.runs import figures; figures([{run!r}], {str(tmp_path)!r})"
    program = f"import sys; sys.modules['matplotlib'] = None; {call}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = result.stderr.strip().splitlines()[-1]
    needed = "figures need matplotlib: pip install '.[studies]' in loopscope's folder"
    assert last == f"loopscope.errors.LoopscopeError: {needed}"


def test_tables_and_comparison_need_no_optional_library(run, capsys):
    blocked = ("scipy", "matplotlib", "datasets", "ray", "triton", "torch")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}));"  # None makes an import fail
        f"from loopscope.cli.runs import compare, tables; tables([{run!r}]); compare([{run!r}])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    tables([run])
    assert result.stdout.startswith(capsys.readouterr().out)
