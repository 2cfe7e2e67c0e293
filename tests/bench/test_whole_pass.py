"""The row of a whole pass: when it can run, and what it says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from loopscope.bench import whole_pass
from loopscope.bench.row import Setting
from loopscope.bench.run import run_bench
from loopscope.bench.sizes import CPU, QUICK
from loopscope.errors import LoopscopeError

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
HERE = torch.device("cpu")


def test_without_a_tokenizer_and_data_it_is_left_out_and_refused_when_named(capsys, monkeypatch):
    monkeypatch.setattr("loopscope.bench.run.ROWS", {"pass": whole_pass.rows})
    report = run_bench("cpu")
    assert (report.rows, report.failed) == ([], {})
    assert "pass: left out, a pass needs --tokenizer" in capsys.readouterr().err
    with pytest.raises(LoopscopeError, match="needs --tokenizer"):
        run_bench("cpu", "pass", progress=False)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(whole_pass, "NEEDED", ("json", "no_such_library"))
    assert whole_pass.unavailable(Setting(HERE, QUICK)) == "a pass needs no_such_library"


def test_the_quick_pass_counts_its_questions_and_times_its_parts(quick_report):
    report, _ = quick_report
    (row,) = (row for row in report.rows if row.name == "pass")
    assert row.size["questions"] == 8
    assert row.size["reference_tokens"] < row.size["tokens"] <= row.size["padded_tokens"]
    assert {"once_load", "once_plan", "host_survey", "host_forward"} <= set(row.figures)
    assert row.goals[0].measured == row.ratio(whole_pass.BARE)


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
