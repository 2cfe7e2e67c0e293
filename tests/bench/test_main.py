"""Both entrances: the command line's, and the one that needs torch and NumPy only."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loopscope.bench.__main__ import main

pytest.importorskip("typer")

from loopscope.cli.app import exit_code


@pytest.mark.parametrize("entrance", [main, exit_code])
def test_an_unknown_row_is_one_line_and_exit_code_two(entrance, capsys):
    prefix = ["bench"] if entrance is exit_code else []
    assert entrance([*prefix, "--device", "cpu", "--rows", "nothing"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "there is no row 'nothing'" in captured.err


@pytest.mark.parametrize("entrance", [main, exit_code])
def test_a_row_is_measured_printed_and_written(entrance, tmp_path, capsys):
    prefix = ["bench"] if entrance is exit_code else []
    output = tmp_path / "bench.json"
    flags = ["--device", "cpu", "--rows", "fp64", "--quick", "--output", str(output)]
    assert entrance([*prefix, *flags]) == 0
    assert "node by node" in capsys.readouterr().out
    assert [row["name"] for row in json.loads(output.read_text())["rows"]] == ["fp64", "fp64:envelope"]


def test_it_runs_without_the_command_lines_libraries():
    blocked = (
        "typer",
        "rich",
        "polars",
        "pyarrow",
        "pydantic",
        "safetensors",
        "tokenizers",
        "huggingface_hub",
        "scipy",
    )
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"  # None in sys.modules makes an import fail
        "from loopscope.bench.__main__ import main\n"
        "sys.exit(main(['--device', 'cpu', '--quick', '--rows', 'geometry,accuracy,fp64,huginn,loops,mathematics']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "geometry:peaked" in done.stdout
