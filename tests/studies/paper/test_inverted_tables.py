"""The published tables inverted into runs and given to `reproduce`: every count comes out, one changed question shows.

`Reproduction.write` gets the runs under the names of its own plan; what is checked is what it writes.
"""

import dataclasses
import itertools
import json

import numpy as np
import polars as pl
import pytest
from inverted_tables import Kind, Maker, paths

from loopscope.reproduction import reproduce
from loopscope.reproduction.reproduce import paper_runs
from loopscope.run import Run
from loopscope.stats import Bootstrap
from loopscope.studies.paper import EXACT, cells, claims

FEW = Bootstrap(resamples=25)  # intervals decide nothing but where a decline is sure, and there the questions agree
PLAN = {run.name: run for run in paper_runs()}
REMADE = {"Ouro-1.4B gsm8k/test 4→5", "Ouro-1.4B math500/test 4→5", "Ouro-2.6B math500/test 4→5"}
"""Conditions that the paper counts in two or three measurements, which one run stands for here."""


def reproduction(folder, runs, studies=()):
    """A reproduction of some runs of the plan, for all that they are for or some of it, and the opened runs."""
    planned = [PLAN[name] for name in runs]
    if studies:
        planned = [dataclasses.replace(run, studies=tuple(studies)) for run in planned]
    work = reproduce.Reproduction(planned, folder, notify=lambda line: None, bootstrap=FEW)
    return work, [Run(work.directory(run)) for run in planned]


@pytest.fixture(scope="module")
def written(tmp_path_factory, synthetic):
    """The folder that `write` filled from the whole plan, without the page and with one figure."""
    folder = tmp_path_factory.mktemp("reproduced")
    made = Maker(synthetic, folder / "runs").plan()
    work, runs = reproduction(folder, made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "write_report", lambda runs, page: page)
        patch.setattr(reproduce, "FIGURES", {"scale-prediction": reproduce.FIGURES["scale-prediction"]})
        for path in work.write(runs):
            assert path.is_file() or path.name == "report.html"
    return folder


@pytest.fixture(scope="module")
def lines(written):
    """Every published cell and claim with its verdict, as `compare.json` has them."""
    return pl.DataFrame(json.loads((written / "compare.json").read_text())["rows"], infer_schema_length=None)


COUNTED = [*EXACT, "share"]


def counted(frame):
    """What follows from counts alone."""
    return frame.filter(pl.col("quantity").is_in(COUNTED))


PLACE = ("table", "study", "setting", "key", "column")


def test_exactly_six_cells_are_not_comparable(lines):
    """107 of another evaluation, three numbers of Huginn's own program, and the exception to the KL inequality, which
    belongs to a measurement of Ouro-2.6B that the plan's runs do not repeat.
    """
    found = lines.filter(pl.col("measurement") != "", pl.col("outcome") == "not comparable")
    assert sorted(found.select("study", "column").rows()) == [
        *(("derivative-checks", name) for name in ("coda_bridge", "replay_after", "replay_before")),
        *(("exact-kl", name) for name in ("exception_gain", "exception_residual")),
        ("mechanism", "finite_step"),
    ]
    assert found.filter(pl.col("study") == "mechanism").select("paper", "own").rows() == [("107", 102.0)]
    assert lines.filter(pl.col("measurement") != "").height == len(cells())


def test_every_other_count_and_share_holds(lines):
    found = counted(lines).filter(pl.col("measurement") != "", pl.col("outcome") != "not comparable")
    assert found.height > 330
    assert found.filter(~pl.col("outcome").is_in(["reproduces", "within re-measurement"])).rows() == []
    # One run cannot have 429 and 431 failures.
    assert set(found.filter(pl.col("outcome") != "reproduces")["setting"]) <= REMADE


def test_every_counted_claim_holds(lines):
    stated = {
        claim.cell.column for claim in claims().values() if claim.cell.quantity in COUNTED and not claim.of_verification
    }
    found = counted(lines).filter(pl.col("measurement") == "", pl.col("column").is_in(list(stated)))
    assert set(found["column"]) == stated
    assert set(found["outcome"]) <= {"reproduces", "within re-measurement"}
    unchecked = lines.filter(pl.col("verdict").str.starts_with("not checked"))
    assert unchecked.height == sum(claim.of_verification for claim in claims().values())


def test_the_summary_counts_the_conclusions_that_hold(lines, written):
    stated = lines.filter(pl.col("measurement") == "")
    holding = stated.filter(pl.col("outcome").is_in(["reproduces", "within re-measurement"])).height
    last = (written / "compare.txt").read_text().splitlines()[-1]
    assert f" {holding} of the paper's {stated.height} conclusions over several conditions hold (" in last


def test_the_figure_of_scale_prediction_shows_the_papers_conditions_from_fp64_paths(written):
    shown = json.loads((written / "figures" / "scale-prediction.json").read_text())["shown"]["conditions"]
    assert [one["condition"] for one in shown] == ["Ouro-1.4B MATH-500 test 4→5", "Huginn GSM8K train256 19→20"]
    assert [one["example"]["path"] for one in shown] == ["257 stored FP64 nodes"] * 2


def test_a_table_of_the_paper_has_exactly_its_rows(written):
    frame = pl.read_csv(written / "paper" / "interventions-main.csv")
    assert frame["set"].to_list() == ["Ouro-1.4B gsm8k/test 4→5", "", "Ouro-1.4B math500/test 4→5", ""]
    assert [str(value) for value in frame["failures"]] == ["429", "431", "179", "179"]


def test_the_order_of_runs_changes_no_verdict(written):
    names = ("ouro-1.4b-matrix", "ouro-1.4b-bounds", "huginn-gsm8k-train256")
    found = set()
    for order in itertools.permutations(names):
        work, runs = reproduction(written, order)
        rows = work.compare(runs, work.tables(runs)).rows
        found.add(tuple((row.cell, row.condition.run, row.verdict) for row in rows))
    assert len(found) == 1


STUDIES = ("mechanism", "failure-shares")


def test_one_changed_question_is_found_in_every_cell_that_counts_it_and_in_no_other(tmp_path, synthetic):
    """A finite-step failure of Ouro-1.4B on MATH-500 begins downhill instead: one failure less, as many harmful."""
    task = Maker(synthetic, tmp_path).matrix_task("Ouro-1.4B", "math500/test", 500, 4, (4, 5))
    task.utility = None
    made, found = task.paths[4], []
    for folder in (tmp_path / "same", tmp_path / "changed"):
        Maker(synthetic, folder / "runs").run("Ouro-1.4B", [task], name="ouro-1.4b-matrix", level="quick")
        work, runs = reproduction(folder, ["ouro-1.4b-matrix"], STUDIES)
        rows = (row for row in work.compare(runs, work.tables(runs)).rows if row.cell.study in STUDIES)
        found.append({(row.cell.study, row.cell.column): row.verdict for row in rows if row.cell.quantity in COUNTED})
        changed = int(np.flatnonzero((made.A == 0.05) & (made.value(1.0) < 0) & (made.A + made.Q < 0))[0])
        made.A[changed], made.Q[changed] = -made.A[changed], made.Q[changed] + 2 * made.A[changed]
    same, other = found
    assert {place: verdict for place, verdict in other.items() if verdict != same[place]} == {
        ("mechanism", "finite_step"): "within re-measurement: -1 (-0.6%)",
        ("mechanism", "share"): "within re-measurement: -0.279 (-0.6%)",
        ("mechanism", "sign_slope"): "within re-measurement: +0.2 (+0.3%)",
        ("failure-shares", "share"): "within re-measurement: -0.279 (-0.6%)",
        ("failure-shares", "beyond_margin"): "within re-measurement: +1 (+0.6%)",
    }


def test_a_path_of_each_kind_does_what_its_kind_says(synthetic):
    """Root, prediction and signs in closed form; NumPy's roots agree."""
    for slope, root, predicted in ((0.01, 0.62, 0.72), (-0.02, 0.62, 0.62), (0.05, 0.95, 1.02), (0.02, 1.05, 0.97)):
        made = paths(synthetic, [Kind(1, slope, root, predicted)])
        assert min(abs(np.roots([made.R[0], made.Q[0], made.A[0]]) - root)) < 1e-9
        assert -made.A[0] / made.Q[0] == pytest.approx(predicted)
        assert np.sign(made.value(1.0)[0]) == np.sign(slope) * (1 if root > 1 else -1)
