"""What holds for all tables: awkward populations, every format, levels of measurement, notes."""

import csv
import io
import json
import re

import numpy as np
import pytest

from loopscope.stats import Bootstrap
from loopscope.studies import TABLES

QUICK = Bootstrap(resamples=40)
AWKWARD = ["no failures", "one question", "one harmless question", "all neutral", "nothing primary"]


@pytest.mark.parametrize("population", AWKWARD)
def test_awkward_populations_never_print_nan(awkward, population):
    for table in TABLES.values():
        result = table.table(awkward[population], QUICK)
        for written in (result.to_text(), result.to_markdown(), result.to_latex(), result.to_csv(), result.to_json()):
            assert not re.search(r"\b(nan|NaN|inf|None)\b", written), written


def test_json_and_csv_hold_every_row_and_value(awkward, lively):
    from loopscope.studies.records import Records

    for records in (awkward["no failures"], Records([lively])):
        for name, table in TABLES.items():
            result = table.table(records, QUICK)
            read = json.loads(result.to_json())
            assert read["study"] == name
            lines = list(csv.DictReader(io.StringIO(result.to_csv())))
            assert len(lines) == len(result.rows) == len(read["rows"])
            heads = result.to_csv().partition("\n")[0].split(",")
            assert len(set(heads)) == len(heads)
            for row, line, made in zip(read["rows"], lines, result.rows, strict=True):
                assert set(made.values) <= set(row) == set(line)
                assert line["task"] == made.condition.task


def test_latex_lines_have_equally_many_cells(awkward):
    for table in TABLES.values():
        latex = table.table(awkward["no failures"], QUICK).to_latex()
        assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == latex.count(r"\bottomrule")
        for body in re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}(.*?)\\end\{tabular\}", latex, re.DOTALL):
            alignment, lines = body
            for line in lines.splitlines():
                if line.endswith(r"\\") and r"\multicolumn" not in line:
                    assert line.count("&") == len(alignment) - 1, line
        assert not re.search(r"\\\\\s*\[", latex), "a bracket after a line break is read as its argument"


@pytest.mark.parametrize("level", ["quick", "grid"])
def test_lower_levels_fill_what_they_can_and_say_what_is_missing(records, synthetic, level):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25], [-1.0, -0.5])})
    made, order = records(task, level=level, settings={}), ["quick", "grid", "full"]
    for name in TABLES.keys() - {"transitions", "option-responses", "shared-questions"}:
        result, needs = TABLES[name].table(made, QUICK), TABLES[name].needs
        if needs in order and order.index(needs) <= order.index(level):
            assert result.rows
        else:
            assert result.rows == ()
            assert any("measure with" in note for note in result.notes)


def test_reasons_do_not_ask_for_what_the_run_has(records, synthetic):
    nothing = {"scalar_quadratic": np.ma.masked_array([0.0, 0.0], mask=True), "scalar_check_passed": [None, None]}
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25], [-1.0, -0.5])}, columns=nothing)
    made = records(task, level="grid", settings={"scalar_checks": 0})
    checks, transitions = (TABLES[name].table(made, QUICK) for name in ("derivative-checks", "transitions"))
    assert checks.rows == transitions.rows == ()
    assert transitions.notes == ("this study is about option tasks, and these runs hold none",)
    assert "no scalar check or FP64 path" in checks.notes[-1]


def test_a_run_without_records_is_not_told_to_measure_more(tmp_path, synthetic):
    from loopscope.store import StoredRun
    from loopscope.store.writer import open_or_create
    from loopscope.studies.records import Records

    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])})
    open_or_create(tmp_path / "begun", synthetic.manifest([task])).close()
    for table in TABLES.values():
        assert "hold no records yet" in table.table(Records([StoredRun(tmp_path / "begun")]), QUICK).notes[-1]


def test_random_weights_and_unfinished_runs_are_said(records, synthetic, tmp_path):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25], [-1.0, -0.5])})
    model = {"name": "ouro-1.4b", "toy": False, "random_weights": True, "weights": {}}
    result = TABLES["mechanism"].table(records(task, level="quick", model=model))
    assert "ouro-1.4b (random weights)" in result.to_text()
    assert any("random weights" in note for note in result.notes)
