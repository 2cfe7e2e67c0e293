"""Beside the paper: what counts as the same setting, the verdicts, and that nothing else is called a reproduction."""

import dataclasses

import numpy as np
import pytest

from loopscope.stats import Bootstrap
from loopscope.studies.comparison import compare
from loopscope.studies.paper import cells, tables
from loopscope.studies.records import Records
from loopscope.studies.registry import TABLES, Study
from loopscope.studies.verdicts import Verdict, setting_differences

QUICK = Bootstrap(resamples=200)
PUBLISHED = {"name": "Ouro-1.4B", "spec": "ByteDance/Ouro-1.4B", "toy": False, "revision": "574fa66c"}


def matrix_paths(synthetic, finite_step=179, harmful=364, n=500):
    """Paths with the outcome counts of a row of the mechanism matrix."""
    progressing = n - harmful
    slope = np.concatenate(
        [np.full(finite_step, 0.01), np.full(harmful - finite_step, -0.01), np.full(progressing, 0.02)]
    )
    curve = np.concatenate(
        [np.full(finite_step, -0.03), np.full(harmful - finite_step, -0.01), np.full(progressing, -0.01)]
    )
    return synthetic.Paths.of(slope * np.linspace(0.9, 1.1, n), curve)


@pytest.fixture(scope="module")
def same(tmp_path_factory, synthetic):
    """A run in the very setting of tab:mechanism-matrix, Ouro-1.4B on MATH-500, with its outcome counts."""
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)})
    run = synthetic.write_run(tmp_path_factory.mktemp("same") / "same", [task], model=PUBLISHED)
    return Records([run])


@pytest.fixture(scope="module")
def condition(same):
    return same.updates[0].condition


@pytest.fixture(scope="module")
def setting():
    (table,) = (table for table in tables() if table.label == "tab:mechanism-matrix")
    return table.rows[0].setting


def lines_of(comparison, column):
    return [row for row in comparison.rows if row.column == column]


def test_the_same_setting_has_no_differences(condition, setting):
    assert setting_differences(condition, setting) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": "random"}, "random weights"),
        ({"weights": "toy", "model": "toy-ouro"}, "toy model toy-ouro"),
        ({"weights": "other"}, "weights not fetched from the hub"),
        ({"model": "Ouro-2.6B"}, "model Ouro-2.6B"),
        ({"task": "gsm8k"}, "task gsm8k"),
        ({"split": "train"}, "split train"),
        ({"subset": "first100"}, "subset first100"),
        ({"n": 100}, "N=100"),
        ({"transition": 3}, "transition 3→4"),
        ({"states": "float32"}, "float32 states"),
        ({"readout": "bfloat16"}, "bfloat16 readout"),
        ({"template_sha256": "0" * 64}, "another template"),
        ({"exit_threshold": 0.3}, "exit threshold 0.3"),
    ],
)
def test_every_difference_is_named(condition, setting, change, said):
    from loopscope.studies.conditions import Weights

    if "weights" in change:
        change = {**change, "weights": Weights(change["weights"])}
    assert setting_differences(dataclasses.replace(condition, **change), setting) == (said,)


def test_fp64_numbers_do_not_depend_on_the_readout_of_the_pass(condition, setting):
    fp64 = dataclasses.replace(setting, readout="float64")
    assert setting_differences(dataclasses.replace(condition, readout="float64"), fp64) == ()


@pytest.fixture(scope="module")
def matched(same):
    return compare(same, QUICK, study="mechanism")


def test_counts_of_the_same_setting_agree_to_the_printed_digits(matched):
    here = [row for row in matched.rows if row.setting == "Ouro-1.4B math500/test 4→5"]
    verdicts = {row.column: row.outcome for row in here}
    assert {column for column, outcome in verdicts.items() if outcome is Verdict.DIGITS} >= {
        "finite_step", "harmful", "share", "sign_slope",
    }  # fmt: skip
    share = next(row for row in here if row.column == "share")
    assert (share.paper, share.own_text.split(" ")[0]) == ("49.18", "49.18")
    assert share.covers
    assert share.difference == pytest.approx(179 / 364 - 0.4918)


def test_a_number_outside_the_interval_is_not_reproduced(matched):
    row = next(row for row in lines_of(matched, "mae_slope") if row.same_setting)
    assert row.outcome is Verdict.OUTSIDE
    assert row.verdict.startswith("not reproduced")


def test_rows_of_other_models_and_tasks_are_not_shown(matched):
    assert {row.setting for row in matched.rows} == {"Ouro-1.4B math500/test 4→5"}


def test_weights_that_are_not_from_the_hub_are_never_called_a_reproduction(tmp_path, synthetic):
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)})
    folder = synthetic.write_run(tmp_path / "run", [task], model={**PUBLISHED, "revision": None})
    comparison = compare(Records([folder]), QUICK)
    assert comparison.rows
    assert set(comparison.counts()) == {Verdict.OTHER}
    text = comparison.to_text()
    for word in ("reproduced", "consistent", "✓", "agrees"):
        assert word not in text
    assert "reproduce nothing" in comparison.summary()


@pytest.mark.parametrize(
    ("model", "task"),
    [
        ({"name": "toy-ouro", "toy": True, "revision": None}, "math500"),
        ({**PUBLISHED, "random_weights": True}, "math500"),
        ({**PUBLISHED, "name": "Ouro-1.4B-Thinking"}, "math500"),
        (PUBLISHED, "sums"),
    ],
)
def test_models_and_tasks_that_the_paper_does_not_have_are_one_line(tmp_path, synthetic, model, task):
    run = synthetic.write_run(tmp_path / "run", [synthetic.Task(task, {4: matrix_paths(synthetic)})], model=model)
    comparison = compare(Records([run]), QUICK)
    assert comparison.rows == ()
    assert comparison.uncompared == len(cells())
    (line,) = comparison.to_text().splitlines()
    assert line.startswith("nothing to compare: not in the paper, so not compared: ")
    assert "Ouro-1.4B, Ouro-2.6B, Huginn" in line
    for format in ("text", "markdown", "latex", "csv", "json"):
        getattr(comparison.table(), f"to_{format}")()


def test_what_the_paper_lacks_is_named_beside_what_it_has(tmp_path, synthetic):
    tasks = [synthetic.Task(name, {4: matrix_paths(synthetic)}) for name in ("math500", "sums")]
    comparison = compare(Records([synthetic.write_run(tmp_path / "run", tasks, model=PUBLISHED)]), QUICK, "mechanism")
    assert {row.condition.task for row in comparison.rows} == {"math500"}
    assert "not compared: Ouro-1.4B on sums test (its" in comparison.notes[-1]


@pytest.mark.parametrize("how", ["template", "exit threshold"])
def test_another_protocol_gets_no_verdict(tmp_path, synthetic, monkeypatch, how):
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)})
    settings = {"exit_threshold": 0.3} if how == "exit threshold" else {}
    if how == "template":
        monkeypatch.setattr(synthetic, "templates", dict)
    run = synthetic.write_run(tmp_path / "run", [task], model=PUBLISHED, settings=settings)
    comparison = compare(Records([run]), QUICK, study="mechanism")
    assert comparison.rows
    assert {row.outcome for row in comparison.rows} == {Verdict.OTHER}
    said = {"template": "another template", "exit threshold": "exit threshold 0.3"}[how]
    assert all(row.verdict.startswith("not comparable because of ") and said in row.verdict for row in comparison.rows)


def test_the_papers_wording_is_the_one_that_ships():
    from loopscope.studies.paper.published_numbers import templates
    from loopscope.tasks.template import builtin_template

    assert templates() == {task: builtin_template(task).hash for task in templates()}
    assert set(templates()) == {cell.setting.task for cell in cells()}


def test_the_nearest_condition_is_chosen(tmp_path, synthetic):
    paths = synthetic.Paths.of([0.5, 0.2], [-1.0, -0.1])
    folder = synthetic.write_run(
        tmp_path / "folder",
        [synthetic.Task("gsm8k", {3: paths, 4: paths})],
        model={**PUBLISHED, "revision": None},
    )
    hub = synthetic.write_run(tmp_path / "hub", [synthetic.Task("gsm8k", {3: paths, 4: paths})], model=PUBLISHED)
    comparison = compare(Records([folder, hub]), QUICK, study="mechanism")
    beside = {row.setting: (row.condition.run, row.condition.update) for row in comparison.rows}
    assert beside == {"Ouro-1.4B gsm8k/test 4→5": ("hub", "4→5")}


def test_depth_sweeps_need_the_papers_depths(tmp_path, synthetic):
    def sweep(name, depths):
        rng = np.random.default_rng(0)
        utility = rng.normal(size=(500, 1)) - 0.1 * np.abs(np.arange(len(depths)) - 3)
        task = synthetic.Task("math500", {4: matrix_paths(synthetic)}, utility=utility)
        run = synthetic.write_run(tmp_path / name, [task], level="quick", depths=depths, model=PUBLISHED)
        return compare(Records([run]), QUICK, study="depth-coverage").rows

    paper = sweep("paper", (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32))
    here = {row.column: row for row in paper if row.same_setting}
    assert {column: row.outcome for column, row in here.items()} == dict.fromkeys(
        ("n", "peak", "decline"), Verdict.DIGITS
    )
    assert here["decline"].verdict == "reproduced"
    assert not any(row.same_setting for row in sweep("other", (1, 2, 3, 4, 5)))


def test_unpublished_subsets_carry_a_caveat(tmp_path, synthetic):
    paths = matrix_paths(synthetic, 18, 120, 256)
    task = synthetic.Task("gsm8k", {19: paths}, split="train", subset="train256")
    model = {"name": "huginn-0125", "family": "huginn", "affine_readout": False, "toy": False, "revision": "bb6621b6"}
    run = synthetic.write_run(tmp_path / "run", [task], model=model)
    rows = [row for row in compare(Records([run]), QUICK, study="contraction").rows if row.same_setting]
    assert rows
    assert all("rows of train256 are not published" in row.verdict for row in rows)


def test_an_undefined_number_is_said_to_be_undefined(tmp_path, synthetic):
    task = synthetic.Task("math500", {4: synthetic.Paths.of(np.full(500, 0.5), np.full(500, -0.1))})
    run = synthetic.write_run(tmp_path / "run", [task], model=PUBLISHED)
    (row,) = (row for row in lines_of(compare(Records([run]), QUICK, "failure-shares"), "share") if row.same_setting)
    assert (row.outcome, row.own_text, row.difference) == (Verdict.UNDEFINED, "", None)


def test_every_published_cell_is_accounted_for(matched):
    assert len(matched.rows) + matched.uncompared == len(cells("mechanism"))


def test_all_formats_hold_all_lines(matched):
    import csv
    import io
    import json

    table = matched.table()
    assert len(json.loads(table.to_json())["rows"]) == len(matched.rows)
    assert len(list(csv.DictReader(io.StringIO(table.to_csv())))) == len(matched.rows)
    assert table.to_latex().count(r" \\") >= len(matched.rows)
    assert matched.summary().rstrip(".") in table.to_markdown().replace("\\", "")


def test_tables_that_are_there_already_are_not_computed_again(same, monkeypatch):
    expected = compare(same, QUICK)
    computed = {name: study.table(same, QUICK) for name, study in TABLES.items()}

    def again(*_):
        raise AssertionError("a table was computed twice")

    monkeypatch.setattr(Study, "table", again)
    assert compare(same, QUICK, computed=computed) == expected
    with pytest.raises(AssertionError, match="twice"):
        compare(same, QUICK, computed={})
