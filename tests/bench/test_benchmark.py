"""Every row runs on a CPU at the test's size; the file has what the page and other programs read."""

from __future__ import annotations

import json

import pytest
import torch

from loopscope.bench.benchmark import ROWS, chosen_device, chosen_rows, run_bench
from loopscope.errors import LoopscopeError


def test_every_row_ran_and_none_broke(quick_report):
    report, _ = quick_report
    assert report.failed == {}
    assert {row.name.partition(":")[0] for row in report.rows} == {name for name in ROWS if ROWS[name].default}


def test_the_file_holds_machine_and_rows_with_references_and_goals(quick_report):
    _, written = quick_report
    assert (written["schema"], written["quick"], written["failed"]) == (1, True, {})
    assert {"device", "cpu", "cores", "threads", "torch", "triton", "python", "date"} <= set(written["machine"])
    for row in written["rows"]:
        assert set(row) == {
            "name",
            "what",
            "size",
            "unit",
            "measured",
            "references",
            "goals",
            "figures",
            "errors",
        }
        assert {"value", "low", "high", "repeats"} <= set(row["measured"])
        for reference in row["references"]:
            assert {"name", "floor", "ratio", "value", "low", "high", "repeats"} <= set(reference)
        for goal in row["goals"]:
            assert set(goal) == {"text", "bound", "at_most", "measured", "against", "judged", "met"}
            assert goal["met"] is None


def test_every_goal_of_a_ratio_names_one_of_its_rows_references(quick_report):
    report, _ = quick_report
    for row in report.rows:
        for goal in row.goals:
            if goal.against:
                assert goal.measured == row.ratio(goal.against)


def test_the_numbers_compared_in_passing_agree(quick_report):
    report, _ = quick_report
    rows = {row.name: row for row in report.rows}
    assert all(value < 1e-4 for name, value in rows["geometry"].figures.items() if name.startswith("largest"))
    assert all(value < 1e-4 for value in rows["huginn"].figures.values())
    assert all(value < 1e-9 for name, value in rows["fp64"].figures.items() if name.startswith("largest"))


def test_the_text_shows_every_row_and_every_quantity(quick_report):
    report, _ = quick_report
    text = report.text()
    for row in report.rows:
        assert row.name in text
        assert all(error.quantity in text for error in row.errors)
    assert "torch" in text


def test_a_row_that_breaks_is_on_record_and_the_others_run(monkeypatch, tmp_path, capsys):
    def broken(setting):
        raise ValueError("no luck")

    monkeypatch.setattr("loopscope.bench.affine_memory.rows", broken)
    output = tmp_path / "bench.json"
    report = run_bench("cpu", "memory,fp64", quick=True, output=str(output), progress=False)
    assert report.failed == {"memory": "ValueError: no luck"}
    assert [row["name"] for row in json.loads(output.read_text())["rows"]] == ["fp64", "fp64:envelope"]
    assert "memory failed: ValueError: no luck" in report.text()
    assert "no luck" in capsys.readouterr().err


def test_rows_are_chosen_by_name():
    assert chosen_rows("") == ["geometry", "memory", "accuracy", "fp64", "huginn", "pass"]
    assert chosen_rows(" fp64, geometry ") == ["geometry", "fp64"]
    with pytest.raises(LoopscopeError, match="did you mean geometry"):
        chosen_rows("geometri")
    with pytest.raises(LoopscopeError, match="choose from geometry, memory"):
        chosen_rows("qqq")
    assert chosen_rows("loops,pass") == ["pass", "loops"]


@pytest.mark.parametrize("given", [",", " ", " , "])
def test_a_list_without_a_name_is_refused(given):
    with pytest.raises(LoopscopeError, match="names no row: choose from geometry, memory"):
        run_bench("cpu", given, progress=False)


def test_devices_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert chosen_device("auto").type == "cpu"
    for name, reason in (("cuda", "no CUDA device"), ("meta", "does not run on meta"), ("gpu9", "no device 'gpu9'")):
        with pytest.raises(LoopscopeError, match=reason):
            chosen_device(name)


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path):
    with pytest.raises(LoopscopeError, match="is a folder"):
        run_bench("cpu", "fp64", quick=True, output=str(tmp_path), progress=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["geometry", "memory", "accuracy", "fp64", "huginn", "loops", "mathematics"])
def test_a_row_runs_on_a_gpu(name):
    report = run_bench("cuda", name, quick=True, progress=False)
    assert report.failed == {}
    assert {row.name.partition(":")[0] for row in report.rows} == {name}
    assert "cuda" in report.machine


@pytest.mark.parametrize("name", ["tokenizer", "data_dir"])
def test_a_folder_that_is_not_there_is_refused_before_anything_is_measured(tmp_path, name):
    with pytest.raises(LoopscopeError, match=f"{name}='.*none' is not a folder"):
        run_bench("cpu", "pass", quick=True, progress=False, **{name: str(tmp_path / "none")})
