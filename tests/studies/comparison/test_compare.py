"""Beside the paper: what counts as the same setting, the verdicts, and that nothing else is called a reproduction."""

import dataclasses

import numpy as np
import pytest

from loopscope.stats import Bootstrap
from loopscope.studies.comparison import compare, setting_differences
from loopscope.studies.comparison.verdicts import Verdict
from loopscope.studies.paper import cells, tables
from loopscope.studies.records import Records
from loopscope.studies.registry import TABLES, Study

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


def test_other_rows_of_the_paper_are_only_shown_beside(matched):
    others = [row for row in matched.rows if not row.same_setting]
    assert others
    for row in others:
        assert row.outcome is Verdict.OTHER
        assert "not the paper's setting" in row.verdict


@pytest.mark.parametrize("kind", ["toy", "random", "folder", "other model"])
def test_nothing_but_the_published_weights_is_called_a_reproduction(tmp_path, synthetic, kind):
    model = {
        "toy": {"name": "toy-ouro", "toy": True, "revision": None},
        "random": {**PUBLISHED, "random_weights": True},
        "folder": {**PUBLISHED, "revision": None},
        "other model": {**PUBLISHED, "name": "Ouro-1.4B-Thinking"},
    }[kind]
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)})
    comparison = compare(Records([synthetic.write_run(tmp_path / "run", [task], model=model)]), QUICK)
    assert comparison.rows
    assert not any(row.same_setting for row in comparison.rows)
    assert set(comparison.counts()) == {Verdict.OTHER}
    text = comparison.to_text()
    for word in ("reproduced", "consistent", "✓", "agrees"):
        assert word not in text
    assert "reproduce nothing" in comparison.summary()


def test_options_are_never_shown_beside_solutions(tmp_path, synthetic):
    task = synthetic.Task("choices", {4: synthetic.Paths.of([0.5, 0.2], [-1.0, -0.1])}, kind="options")
    comparison = compare(Records([synthetic.write_run(tmp_path / "run", [task])]), QUICK, study="mechanism")
    assert {row.setting.split(" ")[1] for row in comparison.rows} == {"hellaswag/validation"}


def test_the_nearest_condition_is_chosen(tmp_path, synthetic):
    paths = synthetic.Paths.of([0.5, 0.2], [-1.0, -0.1])
    tasks = [
        synthetic.Task("sums", {3: paths, 4: paths}),
        synthetic.Task("gsm8k", {3: paths, 4: paths}),
    ]
    huginn = {"name": "toy-huginn", "family": "huginn", "affine_readout": False}
    records = Records(
        [
            synthetic.write_run(tmp_path / "ouro", tasks),
            synthetic.write_run(tmp_path / "huginn", tasks, model=huginn),
        ]
    )
    comparison = compare(records, QUICK, study="mechanism")
    beside = {row.setting: str(row.condition) for row in comparison.rows}
    assert beside["Ouro-2.6B gsm8k/test 4→5"] == "toy-ouro GSM8K test 4→5"
    assert beside["Huginn gsm8k/test 19→20"] == "toy-huginn GSM8K test 3→4"
    assert beside["Ouro-1.4B math500/test 4→5"] == "toy-ouro sums test 4→5"


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
