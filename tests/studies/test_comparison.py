"""Next to the paper: what counts as the same setting, the verdicts, and that nothing else is called a reproduction."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loopscope.stats import Bootstrap
from loopscope.store.manifest import BatchInfo
from loopscope.studies.comparison import compare
from loopscope.studies.conditions import Weights, place_of
from loopscope.studies.paper import PaperCell, cells, claims, data_hashes, models, tables, templates
from loopscope.studies.records import Records
from loopscope.studies.verdicts import UNVERIFIED, Verdict, judge, setting_differences
from loopscope.tasks.load import load_task
from loopscope.tasks.template import builtin_template

QUICK = Bootstrap(resamples=200)
PUBLISHED = {"name": "Ouro-1.4B", "spec": "ByteDance/Ouro-1.4B", "toy": False, "revision": "574fa66c"}
HUGINN = {"name": "huginn-0125", "family": "huginn", "affine_readout": False, "toy": False, "revision": "bb6621b6"}
PAPER = {"protocol": "paper"}


def matrix_paths(synthetic, finite_step=179, harmful=364, n=500):
    """Paths with the outcome counts of a row of the mechanism matrix."""
    counts = [finite_step, harmful - finite_step, n - harmful]
    slope, curve = np.repeat([0.01, -0.01, 0.02], counts), np.repeat([-0.03, -0.01, -0.01], counts)
    return synthetic.Paths.of(slope * np.linspace(0.9, 1.1, n), curve)


@pytest.fixture(scope="module")
def same(tmp_path_factory, synthetic):
    """A run in the very setting of tab:mechanism-matrix, Ouro-1.4B on MATH-500, with its outcome counts."""
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)})
    run = synthetic.write_run(tmp_path_factory.mktemp("same") / "same", [task], model=PUBLISHED, settings=PAPER)
    return Records([run])


@pytest.fixture(scope="module")
def setting():
    (table,) = (table for table in tables() if table.label == "tab:mechanism-matrix")
    return table.rows[0].setting


@pytest.fixture(scope="module")
def matched(same):
    return compare(same, QUICK, study="mechanism")


def changed(condition, *, settings=None, info=None, **fields):
    """The condition of a run whose manifest says something else."""
    given = {**condition.manifest.settings, **(settings or {})}
    manifest = condition.manifest.model_copy(update={"settings": given, **fields})
    return replace(condition, manifest=manifest, info=condition.info.model_copy(update=info or {}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": Weights.RANDOM}, "its weights are random"),
        ({"weights": Weights.TOY, "model": "toy-ouro"}, "toy-ouro is a toy model"),
        ({"weights": Weights.OTHER}, "its weights were not fetched from the hub"),
        ({"model": "Ouro-2.6B"}, "the model is Ouro-2.6B (paper: Ouro-1.4B)"),
        ({"task": "gsm8k"}, "the task is gsm8k (paper: math500)"),
        ({"split": "train"}, "the split is train (paper: test)"),
        ({"subset": "first100"}, "the subset is first100 (paper: none)"),
        ({"n": 100}, "N is 100 (paper: 500)"),
        ({"transition": 3}, "the update is 3→4 (paper: 4→5)"),
        ({"states": "float32"}, "states are float32 (paper: bfloat16)"),
        ({"readout": "bfloat16"}, "the readout is bfloat16 (paper: float32)"),
        ({"info": {"data_sha256": "0" * 64}}, "its data file holds other rows than the published one"),
        ({"info": {"template_sha256": "0" * 64}}, "another template words its questions"),
        ({"batch": BatchInfo(policy="paper", size=8)}, "the batch size is 8 (paper: 2)"),
        ({"batch": BatchInfo(policy="tokens")}, "the batch size is by length (paper: 2)"),
        ({"settings": {"exit_threshold": 0.3}}, "the exit threshold is 0.3 (paper: 1.0)"),
        ({"settings": {"protocol": "loopscope"}}, "the protocol is loopscope (paper: paper)"),
        ({"settings": {"num_fewshot": 3}}, "examples before each question are 3 (paper: 0)"),
        ({"settings": {"apply_chat_template": True}}, "its questions are asked in a chat template"),
        ({"settings": {"share_context": True}}, "options share a row"),
        ({"settings": {"long": "truncate-left"}}, "long sequences were cut"),
        ({"info": {"data_sha256": "0" * 64, "data_revision": "a1b2c3"}}, None),  # fetched from the hub
        ({}, None),
    ],
)
def test_every_difference_is_named(same, setting, change, said):
    condition = same.updates[0].condition
    of_run = change.keys() & {"settings", "info", "batch"}
    other = changed(condition, **change) if of_run else replace(condition, **change)
    assert setting_differences(other, setting) == (() if said is None else (said,))


def test_the_draw_of_the_first_state_belongs_to_the_setting(tmp_path, synthetic):
    task = synthetic.Task("gsm8k", {19: matrix_paths(synthetic, 102, 702, 1319)})
    settings, seeds = {**PAPER, "initial_state": "paper"}, {"initial_state": 20260904}
    run = synthetic.write_run(tmp_path / "run", [task], model=HUGINN, settings=settings, seeds=seeds, level="quick")
    condition = Records([run]).updates[0].condition
    matrix, separate = (
        next(cell.setting for cell in cells("mechanism") if cell.setting.measurement == name and cell.setting.n == 1319
             and cell.setting.model == "Huginn")
        for name in ("matrix", "separate")
    )  # fmt: skip
    assert setting_differences(condition, matrix) == ()
    # The paper does not say how its second evaluation of the same questions was run.
    assert setting_differences(condition, separate)[-1].endswith("are not published")
    for change, said in (
        ({"settings": {"initial_state": "question"}}, "H₀ is drawn by the rule question (paper: paper)"),
        ({"seeds": {"initial_state": 1}}, "the seed of H₀ is 1 (paper: 20260904)"),
    ):
        assert setting_differences(changed(condition, **change), matrix) == (said,)


def test_counts_of_the_same_setting_agree_to_the_printed_digits(matched):
    assert {row.setting for row in matched.rows} == {"Ouro-1.4B math500/test 4→5"}
    verdicts = {row.cell.column: row.outcome for row in matched.rows}
    reproduced = {column for column, outcome in verdicts.items() if outcome is Verdict.REPRODUCES}
    assert reproduced >= {"finite_step", "harmful", "share", "sign_slope"}
    share = next(row for row in matched.rows if row.cell.column == "share")
    assert (share.cell.text, share.own_text.split(" ")[0]) == ("49.18", "49.18")
    other = next(row for row in matched.rows if row.cell.column == "mae_slope")
    assert other.verdict == f"differs by {other.difference / 1e-4:+.3g} ({other.difference / 139.41e-4:+.1%})"
    assert len(matched.rows) + matched.uncompared == len(cells("mechanism"))


def published(text, quantity, unit=1.0, relation=""):
    return PaperCell("tab:t", "s", None, "", "c", text, unit, quantity, relation=relation)


@pytest.mark.parametrize(
    ("quantity", "printed", "value", "verdict"),
    [
        ("questions", "431", 431, "reproduces"),
        ("questions", "431", 429, "within"),  # the paper's own two counts, and the next
        ("questions", "431", 428, "differs"),
        ("questions", "683", 682, "within"),
        ("questions", "107", 102, "within"),
        ("questions", "13", 11, "differs"),
        ("depths", "4", 5, "differs"),
        ("share", "49.18", 179 / 364, "reproduces"),
        ("share", "49.18", 178 / 364, "differs"),
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
    cell = published(printed, quantity, unit)
    assert judge(cell, value, "bfloat16")[0].startswith(verdict)
    if (quantity, verdict) == ("nats", "within"):  # states with more digits leave less room
        assert judge(cell, value, "float32")[0] is Verdict.DIFFERS


@pytest.mark.parametrize(("lost", "outcome"), [(0, Verdict.REPRODUCES), (2, Verdict.WITHIN), (4, Verdict.DIFFERS)])
def test_an_estimate_is_within_where_intervals_overlap_and_counts_are_those_of_the_paper(
    tmp_path, synthetic, lost, outcome
):
    """Four failures fewer of 179 are more than the paper's own counts differ by, wherever intervals lie."""
    task = synthetic.Task("math500", {4: matrix_paths(synthetic, 179 - lost)})
    run = synthetic.write_run(tmp_path / "run", [task], model=PUBLISHED, settings=PAPER, level="quick")
    rows = {row.cell.column: row for row in compare(Records([run]), QUICK, "mechanism").rows}
    assert rows["finite_step"].outcome is rows["share"].outcome is outcome


def test_a_bound_in_the_text_holds_or_does_not():
    for relation, value, holds in (("above", 0.9951, True), ("above", 0.9949, False), ("below", 0.9949, True)):
        verdict, _ = judge(published("0.995", "rank", relation=relation), value, "bfloat16")
        assert verdict is (Verdict.REPRODUCES if holds else Verdict.DIFFERS)


def test_weights_that_are_not_from_the_hub_are_never_called_a_reproduction(tmp_path, synthetic):
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)})
    folder = synthetic.write_run(tmp_path / "run", [task], model={**PUBLISHED, "revision": None}, settings=PAPER)
    comparison = compare(Records([folder]), QUICK)
    assert {row.outcome for row in (*comparison.rows, *comparison.claims)} == {Verdict.NOT_COMPARABLE}
    text = comparison.to_text()
    assert not any(word in text for word in ("reproduces\n", "differs by", "✓", "✗"))
    assert "cells have a counterpart: 0 reproduces, 0 within re-measurement, 0 differs" in comparison.summary()


@pytest.mark.parametrize("layout", ["nothing", "snapshot", "local", "other commit", "other weights", "hash", "no hash"])
def test_a_folder_of_known_commit_or_hash_needs_no_caveat(tmp_path, synthetic, layout):
    """Hub snapshots link to files named by their SHA-256; `hf download --local-dir` notes commit and SHA-256; the user
    may give the SHA-256 of all weight files.
    """
    commit, digest = models()["Ouro-1.4B"].revision, synthetic.digest("weights")
    folder = tmp_path / "snapshots" / commit if layout == "snapshot" else tmp_path / "weights"
    folder.mkdir(parents=True)
    if layout == "snapshot":
        (tmp_path / digest).write_bytes(b"")
        (folder / "model.safetensors").symlink_to(tmp_path / digest)
    elif layout in ("local", "other commit", "other weights"):
        said = "0" * 40 if layout == "other commit" else commit
        etag = "0" * 64 if layout == "other weights" else digest
        note = folder / ".cache" / "huggingface" / "download" / "model.safetensors.metadata"
        note.parent.mkdir(parents=True)
        note.write_text(f"{said}\n{etag}\n1700000000.0\n")
    model = {**PUBLISHED, "name": "weights", "spec": str(folder), "revision": None}
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)})
    run = synthetic.write_run(tmp_path / "run", [task], model=model, settings=PAPER)
    given = {"hash": f"@sha256:{digest.upper()}", "no hash": f"@sha256:{'0' * 64}+{digest}"}.get(layout, "")
    comparison = compare(Records([run], models={place_of(run): f"ouro-1.4b{given}"}), QUICK, "failure-shares")
    assert [row.outcome for row in comparison.rows].count(Verdict.REPRODUCES) >= 2
    assert {row.caveat for row in comparison.rows} == {"" if layout in ("snapshot", "local", "hash") else UNVERIFIED}


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
    assert (comparison.rows, comparison.uncompared) == ((), len(cells()))
    (line,) = comparison.to_text().splitlines()
    assert line.startswith("nothing to compare: not in the paper, so not compared: ")
    assert "`loopscope diff A B` compares two of your own runs" in line
    for format in ("text", "markdown", "latex", "csv", "json"):
        getattr(comparison.table(), f"to_{format}")()


def test_the_nearest_condition_is_chosen_and_others_are_named(tmp_path, synthetic):
    paths = synthetic.Paths.of([0.5, 0.2], [-1.0, -0.1])
    tasks = [synthetic.Task("gsm8k", {3: paths, 4: paths}), synthetic.Task("sums", {3: paths, 4: paths})]
    folder = synthetic.write_run(tmp_path / "folder", tasks, model={**PUBLISHED, "revision": None})
    hub = synthetic.write_run(tmp_path / "hub", tasks[:1], model=PUBLISHED)
    comparison = compare(Records([folder, hub]), QUICK, study="mechanism")
    chosen = {row.setting: (row.condition.run, row.condition.update) for row in comparison.rows}
    assert chosen == {"Ouro-1.4B gsm8k/test 4→5": ("hub", "4→5")}
    assert "not compared: Ouro-1.4B on sums test (its" in comparison.notes[-1]


@pytest.mark.parametrize("depths", [(1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32), (1, 2, 3, 4, 5)])
def test_depth_sweeps_need_the_papers_depths(tmp_path, synthetic, depths):
    utility = np.random.default_rng(0).normal(size=(500, 1)) - 0.1 * np.abs(np.arange(len(depths)) - 3)
    task = synthetic.Task("math500", {4: matrix_paths(synthetic)}, utility=utility)
    run = synthetic.write_run(tmp_path / "run", [task], level="quick", depths=depths, model=PUBLISHED, settings=PAPER)
    rows = compare(Records([run]), QUICK, study="depth-coverage").rows
    same = {row.cell.column: row.outcome for row in rows if row.same_setting}
    assert same == (dict.fromkeys(("n", "peak", "decline"), Verdict.REPRODUCES) if len(depths) > 5 else {})
    said = "its depths are 1,2,3,4,5 (paper: 1,2,3,4,5,6,7,8,12,16,24,32)"
    assert (said in rows[0].verdict) is (len(depths) == 5)


def test_caveats_and_missing_numbers_are_said(tmp_path, synthetic):
    task = synthetic.Task("gsm8k", {19: matrix_paths(synthetic, 18, 120, 256)}, split="train", subset="train256")
    batches = BatchInfo(policy="questions", size=32)
    records = Records([synthetic.write_run(tmp_path / "a", [task], model=HUGINN, settings=PAPER, batch=batches)])
    comparison = compare(records, QUICK, study="contraction")
    assert [row.cell.text for row in comparison.rows if row.same_setting] == ["13", "18", "4"]
    said = "the rows of train256 are not published; nor are the cached depth-eight states that it continues"
    assert f"note: Huginn gsm8k/train256 19→20: {said}" in comparison.to_text()
    harmless = synthetic.Task("math500", {4: synthetic.Paths.of(np.full(500, 0.5), np.full(500, -0.1))})
    run = synthetic.write_run(tmp_path / "b", [harmless], model=PUBLISHED, settings=PAPER)
    found = compare(Records([run]), QUICK, "failure-shares").rows
    (row,) = (row for row in found if row.same_setting and row.cell.column == "share")
    assert row.verdict == "not comparable because nothing in this run defines such a number"


def test_all_formats_hold_all_lines(matched):
    table, lines = matched.table(), len(matched.rows) + len(matched.claims)
    assert len(json.loads(table.to_json())["rows"]) == lines == len(matched.to_polars())
    assert table.to_latex().count(r" \\") >= len(matched.rows)
    assert matched.summary().rstrip(".") in table.to_markdown().replace("\\", "")


def test_every_claim_gets_a_verdict_and_says_what_it_lacks(same):
    comparison = compare(same, QUICK)
    found = {row.cell.column: row for row in comparison.claims}
    assert found.keys() == {claim.cell.column for claim in claims().values()}
    share = found[claims()["share_highest"].cell.column]
    assert (share.cell.text, share.outcome) == ("49.2", Verdict.NOT_COMPARABLE)
    assert share.verdict == "not comparable because no run has Ouro-1.4B gsm8k/test 4→5, the same of 7 more"
    missed = found[claims()["margin_missed"].cell.column]
    assert missed.own == sum(same.updates[0].floats("fp64_safe_gain")[same.updates[0].finite_step] <= 1e-4)
    holding = sum(row.outcome.holds for row in comparison.claims)
    assert f" {holding} of the paper's {len(claims())} conclusions over several conditions hold (" in str(comparison)


def test_the_published_data_are_those_that_the_benchmarks_list():
    """Hashes of the splits, where the files are at hand, and of the wording that ships."""
    assert templates() == {task: builtin_template(task).hash for task in {cell.setting.task for cell in cells()}}
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the benchmarks' files are not beside the repository")
    for task, split in (("math500", "test"), ("arc_challenge", "test"), ("commonsense_qa", "validation")):
        assert load_task(f"{task}:{split}", data_dir=folder).data_hash == data_hashes()[task, split]
