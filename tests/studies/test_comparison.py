"""Beside the paper: what counts as the same setting, the verdicts, and that nothing else is called a reproduction."""

import dataclasses

import numpy as np
import pytest

from loopscope.stats import Bootstrap, Estimate, Interval
from loopscope.store import BatchInfo
from loopscope.studies.comparison import compare
from loopscope.studies.declare import TABLES, Table
from loopscope.studies.paper.numbers import Printed, Quantity, cells, claims, tables
from loopscope.studies.records import Records
from loopscope.studies.verdicts import Verdict, judge, setting_differences

QUICK = Bootstrap(resamples=200)
PUBLISHED = {"name": "Ouro-1.4B", "spec": "ByteDance/Ouro-1.4B", "toy": False, "revision": "574fa66c"}
HUGINN = {"name": "huginn-0125", "family": "huginn", "affine_readout": False, "toy": False, "revision": "bb6621b6"}
PAPER = {"protocol": "paper"}


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
    run = synthetic.write_run(tmp_path_factory.mktemp("same") / "same", [task], model=PUBLISHED, settings=PAPER)
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
        ({"weights": "random"}, "its weights are random"),
        ({"weights": "toy", "model": "toy-ouro"}, "toy-ouro is a toy model"),
        ({"weights": "other"}, "its weights were not fetched from the hub"),
        ({"model": "Ouro-2.6B"}, "the model is Ouro-2.6B (paper: Ouro-1.4B)"),
        ({"task": "gsm8k"}, "the task is gsm8k (paper: math500)"),
        ({"split": "train"}, "the split is train (paper: test)"),
        ({"subset": "first100"}, "the subset is first100 (paper: none)"),
        ({"data_sha256": "0" * 64}, "its data file holds other rows than the published one"),
        ({"n": 100}, "N is 100 (paper: 500)"),
        ({"transition": 3}, "the update is 3→4 (paper: 4→5)"),
        ({"states": "float32"}, "states are float32 (paper: bfloat16)"),
        ({"readout": "bfloat16"}, "the readout is bfloat16 (paper: float32)"),
        ({"template_sha256": "0" * 64}, "another template words its questions"),
        ({"exit_threshold": 0.3}, "the exit threshold is 0.3 (paper: 1)"),
        ({"protocol": "loopscope"}, "the protocol is loopscope (paper: paper)"),
        ({"batch_size": 8}, "the batch size is 8 (paper: 2)"),
        ({"batch_size": None}, "the batch size is by length (paper: 2)"),
        ({"fewshot": 3}, "3 examples stand before each question (paper: none)"),
        ({"chat_template": True}, "its questions are asked in a chat template"),
        ({"share_context": True}, "options share a row"),
        ({"long": "truncate-left"}, "long sequences were cut"),
    ],
)
def test_every_difference_is_named(condition, setting, change, said):
    from loopscope.studies.conditions import Weights

    if "weights" in change:
        change = {**change, "weights": Weights(change["weights"])}
    assert setting_differences(dataclasses.replace(condition, **change), setting) == (said,)


def test_rows_fetched_from_the_hub_are_the_published_ones(condition, setting):
    fetched = dataclasses.replace(condition, data_sha256="0" * 64, data_revision="a1b2c3")
    assert setting_differences(fetched, setting) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ()),
        ({"initial_state": "question"}, ("H₀ is drawn by the rule question (paper: paper)",)),
        ({"initial_seed": 1}, ("the seed of H₀ is 1 (paper: 20260904)",)),
    ],
)
def test_the_draw_of_the_first_state_belongs_to_the_setting(tmp_path, synthetic, changes, said):
    task = synthetic.Task("gsm8k", {19: matrix_paths(synthetic, 102, 702, 1319)})
    settings = {**PAPER, "initial_state": "paper"}
    run = synthetic.write_run(
        tmp_path / "run", [task], model=HUGINN, settings=settings, seeds={"initial_state": 20260904}, level="quick"
    )
    condition = dataclasses.replace(Records([run]).updates[0].condition, **changes)
    by_measurement = {
        cell.setting.measurement: cell.setting
        for cell in cells("mechanism")
        if (cell.setting.model, cell.setting.evaluation_set) == ("Huginn", "gsm8k/test")
    }
    assert setting_differences(condition, by_measurement["matrix"]) == said
    # The paper does not say how its second evaluation of the same questions was run.
    assert setting_differences(condition, by_measurement["separate"])[-1].endswith("are not published")


def test_runs_from_before_there_was_a_choice_are_loopscopes(tmp_path, synthetic):
    run = synthetic.write_run(tmp_path / "run", [synthetic.Task("math500", {4: matrix_paths(synthetic)})], settings={})
    assert Records([run]).updates[0].condition.protocol == "loopscope"


def test_fp64_numbers_do_not_depend_on_the_readout_of_the_pass(condition, setting):
    fp64 = dataclasses.replace(setting, readout="float64")
    assert setting_differences(dataclasses.replace(condition, readout="float64"), fp64) == ()


@pytest.fixture(scope="module")
def matched(same):
    return compare(same, QUICK, study="mechanism")


def test_counts_of_the_same_setting_agree_to_the_printed_digits(matched):
    here = [row for row in matched.rows if row.setting == "Ouro-1.4B math500/test 4→5"]
    verdicts = {row.column: row.outcome for row in here}
    assert {column for column, outcome in verdicts.items() if outcome is Verdict.REPRODUCES} >= {
        "finite_step", "harmful", "share", "sign_slope",
    }  # fmt: skip
    share = next(row for row in here if row.column == "share")
    assert (share.paper, share.own_text.split(" ")[0]) == ("49.18", "49.18")
    assert share.covers
    assert share.difference == pytest.approx(179 / 364 - 0.4918)


def test_another_number_differs_by_as_much_and_in_which_unit(matched):
    row = next(row for row in lines_of(matched, "mae_slope") if row.same_setting)
    assert row.outcome is Verdict.DIFFERS
    assert row.verdict == f"differs by {row.difference:+.3g} nats ({row.difference / 139.41e-4:+.1%})"


def test_verdicts_are_these_four(same):
    found = {row.verdict for row in (*compare(same, QUICK).rows, *compare(same, QUICK).claims)}
    for verdict in found:
        assert verdict == "reproduces" or verdict.startswith(("within re-", "differs", "not comparable", "not checked"))
    assert "reproduces" in found


@pytest.mark.parametrize(
    ("quantity", "printed", "value", "verdict"),
    [
        ("questions", "431", 431, "reproduces"),
        ("questions", "431", 429, "within"),  # the paper's own two counts, and the next
        ("questions", "431", 428, "differs"),
        ("questions", "107", 102, "within"),
        ("questions", "13", 11, "differs"),
        ("depths", "4", 5, "differs"),
        ("share", "49.18", 179 / 364, "reproduces"),
        ("share", "49.18", 178 / 364, "differs"),
        ("share", "49.18", Estimate(178 / 364, 364, Interval(0.45, 0.53)), "within"),
        ("share", "49.18", Estimate(178 / 364, 364, Interval(0.45, 0.49)), "differs"),
        ("nats", "1.831e-5", 1.831e-5, "reproduces"),
        ("nats", "1.831e-5", 1.826008e-5, "within"),  # the paper's own two measurements
        ("nats", "1.831e-5", 1.81e-5, "differs"),
        ("rank", "0.9929", 0.99294, "reproduces"),
        ("rank", "0.9929", 0.9931, "differs"),
        ("nats at most", "2.661e-6", 3e-17, "reproduces"),
        ("nats at most", "2.661e-6", 2.7e-6, "differs"),
        ("nats at most", "8.89e-16", 1.2e-15, "reproduces"),  # float64 sums in another order
        ("nats at most", "8.89e-16", 9e-8, "differs"),
    ],
)
def test_what_each_verdict_means(quantity, printed, value, verdict):
    unit = 1e-2 if quantity == "share" else 1.0
    about = (Quantity(quantity), Printed(printed), printed, unit, value)
    assert judge(*about, "bfloat16")[0].startswith(verdict)
    if (quantity, verdict) == ("nats", "within"):  # states with more digits leave less room
        assert judge(*about, "float32")[0] is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("relation", "value", "holds"), [("above", 0.9951, True), ("above", 0.9949, False), ("below", 0.9949, True)]
)
def test_a_bound_in_the_text_holds_or_does_not(relation, value, holds):
    verdict, _ = judge(Quantity("rank"), Printed("0.995"), "0.995", 1.0, value, "bfloat16", relation=relation)
    assert verdict is (Verdict.REPRODUCES if holds else Verdict.DIFFERS)


def test_rows_of_other_models_and_tasks_are_not_shown(matched):
    assert {row.setting for row in matched.rows} == {"Ouro-1.4B math500/test 4→5"}


def test_weights_that_are_not_from_the_hub_are_never_called_a_reproduction(tmp_path, synthetic):
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)})
    folder = synthetic.write_run(tmp_path / "run", [task], model={**PUBLISHED, "revision": None}, settings=PAPER)
    comparison = compare(Records([folder]), QUICK)
    assert comparison.rows
    assert set(comparison.counts()) == {Verdict.NOT_COMPARABLE}
    assert {row.outcome for row in comparison.claims} == {Verdict.NOT_COMPARABLE}
    text = comparison.to_text()
    for word in ("reproduces\n", "differs by", "✓", "✗"):
        assert word not in text
    assert "cells have a counterpart: 0 reproduce, 0 lie within re-measurement, 0 differ" in comparison.summary()


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
    assert "`loopscope diff A B` compares two of your own runs" in line
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
    settings = {**PAPER, "exit_threshold": 0.3} if how == "exit threshold" else PAPER
    if how == "template":
        monkeypatch.setattr(synthetic, "templates", dict)
    run = synthetic.write_run(tmp_path / "run", [task], model=PUBLISHED, settings=settings)
    comparison = compare(Records([run]), QUICK, study="mechanism")
    assert comparison.rows
    assert {row.outcome for row in comparison.rows} == {Verdict.NOT_COMPARABLE}
    said = {"template": "another template", "exit threshold": "exit threshold is 0.3"}[how]
    assert all(row.verdict.startswith("not comparable because ") and said in row.verdict for row in comparison.rows)


def test_the_papers_wording_is_the_one_that_ships():
    from loopscope.studies.paper.numbers import templates
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
        run = synthetic.write_run(
            tmp_path / name, [task], level="quick", depths=depths, model=PUBLISHED, settings=PAPER
        )
        return compare(Records([run]), QUICK, study="depth-coverage").rows

    paper = sweep("paper", (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32))
    here = {row.column: row for row in paper if row.same_setting}
    assert {column: row.outcome for column, row in here.items()} == dict.fromkeys(
        ("n", "peak", "decline"), Verdict.REPRODUCES
    )
    assert here["decline"].verdict == "reproduces"
    assert not any(row.same_setting for row in sweep("other", (1, 2, 3, 4, 5)))
    assert "its depths are 1,2,3,4,5 (paper: 1,2,3,4,5,6,7,8,12,16,24,32)" in sweep("again", (1, 2, 3, 4, 5))[0].verdict


def test_unpublished_subsets_carry_a_caveat(tmp_path, synthetic):
    paths = matrix_paths(synthetic, 18, 120, 256)
    task = synthetic.Task("gsm8k", {19: paths}, split="train", subset="train256")
    batches = BatchInfo(policy="questions", size=32)
    run = synthetic.write_run(tmp_path / "run", [task], model=HUGINN, settings=PAPER, batch=batches)
    comparison = compare(Records([run]), QUICK, study="contraction")
    assert [row.paper for row in comparison.rows if row.same_setting] == ["13", "18", "4"]
    said = "the rows of train256 are not published; nor are the cached depth-eight states that it continues"
    assert {row.caveat for row in comparison.rows if row.same_setting} == {said}
    assert f"note: Huginn gsm8k/train256 19→20: {said}" in comparison.to_text()


def test_an_undefined_number_is_said_to_be_undefined(tmp_path, synthetic):
    task = synthetic.Task("math500", {4: synthetic.Paths.of(np.full(500, 0.5), np.full(500, -0.1))})
    run = synthetic.write_run(tmp_path / "run", [task], model=PUBLISHED, settings=PAPER)
    (row,) = (row for row in lines_of(compare(Records([run]), QUICK, "failure-shares"), "share") if row.same_setting)
    assert (row.outcome, row.own_text, row.difference) == (Verdict.NOT_COMPARABLE, "", None)
    assert row.verdict == "not comparable because nothing in this run defines such a number"


def test_every_published_cell_is_accounted_for(matched):
    assert len(matched.rows) + matched.uncompared == len(cells("mechanism"))


def test_all_formats_hold_all_lines(matched):
    import csv
    import io
    import json

    table = matched.table()
    lines = len(matched.rows) + len(matched.claims)
    assert len(json.loads(table.to_json())["rows"]) == lines
    assert len(list(csv.DictReader(io.StringIO(table.to_csv())))) == lines
    assert table.to_latex().count(r" \\") >= len(matched.rows)
    assert matched.summary().rstrip(".") in table.to_markdown().replace("\\", "")


def test_tables_that_are_there_already_are_not_computed_again(same, monkeypatch):
    expected = compare(same, QUICK)
    computed = {name: study.table(same, QUICK) for name, study in TABLES.items()}

    def again(*_):
        raise AssertionError("a table was computed twice")

    monkeypatch.setattr(Table, "table", again)
    assert compare(same, QUICK, computed=computed) == expected
    with pytest.raises(AssertionError, match="twice"):
        compare(same, QUICK, computed={})


def test_every_claim_gets_a_verdict_and_says_what_it_lacks(same):
    found = {row.column: row for row in compare(same, QUICK).claims}
    assert found.keys() == {claim.says for claim in claims().values()}
    share = found[claims()["share_highest"].says]
    assert (share.paper, share.outcome) == ("49.2", Verdict.NOT_COMPARABLE)
    assert share.verdict == "not comparable because no run has Ouro-1.4B gsm8k/test 4→5 and 7 more"
    missed = found[claims()["margin_missed"].says]
    assert missed.own == sum(same.updates[0].floats("fp64_safe_gain")[same.updates[0].finite_step] <= 1e-4)


def test_a_number_that_loopscope_does_not_have_says_why(tmp_path, synthetic):
    task = synthetic.Task("gsm8k", {19: matrix_paths(synthetic, 18, 120, 256)}, split="train", subset="train256")
    batches = BatchInfo(policy="questions", size=32)
    run = synthetic.write_run(tmp_path / "run", [task], model=HUGINN, settings=PAPER, batch=batches)
    rows = compare(Records([run]), QUICK, study="derivative-checks").rows
    (row,) = (row for row in rows if row.column == "coda_bridge")
    assert row.verdict == "not comparable because loopscope differentiates the coda itself and has no second one"


def test_the_published_data_are_those_that_the_benchmarks_list():
    """Hashes of the splits, where the files are at hand."""
    from pathlib import Path

    from loopscope.studies.paper.numbers import data_hashes
    from loopscope.tasks.load import load_task

    folder = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the benchmarks' files are not beside the repository")
    for task, split in (("math500", "test"), ("arc_challenge", "test"), ("commonsense_qa", "validation")):
        assert load_task(f"{task}:{split}", data_dir=folder).data_hash == data_hashes()[task, split]
