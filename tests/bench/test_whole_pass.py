"""The row of a whole pass: when it can run, and what it says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from loopscope.bench import whole_pass
from loopscope.bench.benchmark import ROWS, run_bench
from loopscope.bench.row import Setting
from loopscope.bench.sizes import CPU, QUICK
from loopscope.errors import LoopscopeError

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
HERE = torch.device("cpu")


def test_without_a_tokenizer_and_data_it_is_left_out_and_refused_when_named(capsys, monkeypatch):
    monkeypatch.setattr("loopscope.bench.benchmark.ROWS", {"pass": ROWS["pass"]})
    report = run_bench("cpu")
    assert (report.rows, report.failed) == ([], {})
    assert "pass: left out, it needs tokenizer= (a folder with Ouro's) and data_dir= (a" in capsys.readouterr().err
    with pytest.raises(LoopscopeError, match="the row pass cannot be measured: it needs tokenizer="):
        run_bench("cpu", "pass", progress=False)


def test_a_missing_library_is_named():
    rows = ROWS["pass"]._replace(libraries=("json", "no_such_library"))
    assert rows.unavailable(Setting(HERE, QUICK)) == "it needs no_such_library"
    assert ROWS["pass"].unavailable(Setting(HERE, QUICK)) is None


def test_a_pass_needs_no_library_of_the_studies_or_the_command_line(tmp_path):
    output = tmp_path / "bench.json"
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('polars', 'typer', 'rich', 'matplotlib', 'huggingface_hub')))\n"
        "from loopscope.bench.__main__ import main\n"
        f"sys.exit(main(['--device', 'cpu', '--quick', '--rows', 'pass', '--output', {str(output)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(output.read_text())["rows"]
    stages = {"forward", "survey", "own scale", "rounded", "diagnostics", "gate", "scalar checks"}
    stages |= {"encode", "launch", "finish", "commit"}
    assert {f"host_{name}" for name in stages} <= set(row["figures"])


def test_the_quick_pass_counts_its_questions_and_times_its_parts(quick_report):
    report, _ = quick_report
    (row,) = (row for row in report.rows if row.name == "pass")
    assert row.size["questions"] == 8
    assert row.size["reference_tokens"] < row.size["tokens"] <= row.size["padded_tokens"]
    assert {"once_load", "once_plan", "host_survey", "host_forward"} <= set(row.figures)
    assert row.goals[0].measured == pytest.approx(row.measured.value / whole_pass.BEFORE)
    assert row.goals[0].met is None


def test_a_pass_with_a_trace_beside_one_without():
    (row,) = whole_pass.trace_rows(Setting(HERE, QUICK))
    assert row.size["depths"] == 5
    assert row.goals[0].measured == row.ratio(whole_pass.UNTRACED)
    assert row.goals[0].met is None
    assert "host_trace" in row.figures


def test_a_real_task_and_tokenizer_make_real_batches(monkeypatch):
    tokenizer, data = SHARED / "tokenizers" / "ouro", SHARED / "data"
    if not (tokenizer.is_dir() and data.is_dir()):
        pytest.skip("the folder shared beside the repository is not there")
    monkeypatch.setattr(whole_pass, "CPU_QUESTIONS", 2)
    sizes = dataclasses.replace(CPU, slow_repeats=1)
    monkeypatch.setattr("loopscope.bench.whole_pass.SMALL", _tiny_but_for_the_vocabulary())
    (row,) = whole_pass.rows(Setting(HERE, sizes, str(tokenizer), str(data)))
    assert row.size["questions"] == 2
    assert row.size["reference_tokens"] > 50
    assert row.goals[0].met is None


def _tiny_but_for_the_vocabulary():
    from loopscope.bench.whole_pass import OURO, TINY

    return TINY | {"vocab_size": OURO["vocab_size"]}
