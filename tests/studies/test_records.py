"""From run directories to conditions and arrays."""

import csv
import io
import re

import numpy as np
import pytest

from loopscope.errors import LoopscopeError
from loopscope.studies import TABLES, open_records, table
from loopscope.studies.conditions import Weights
from loopscope.studies.records import Records
from loopscope.studies.topics.mechanism import mechanism


def test_arrays_follow_the_rows_of_each_task_and_transition(records, synthetic):
    paths = {t: synthetic.Paths.of([0.5, 0.1], [-1.0, 0.2]) for t in (1, 4)}
    more = synthetic.Task("commonsense_qa", paths, kind="options", split="train", subset="train1024")
    made = records(synthetic.Task("gsm8k", paths), more)
    found = [(u.condition.task, u.condition.transition, len(u)) for u in made.updates]
    assert found == [("gsm8k", 1, 2), ("gsm8k", 4, 2), ("commonsense_qa", 1, 2), ("commonsense_qa", 4, 2)]
    updates = made.updates[0]
    np.testing.assert_array_equal(updates.slope, [0.5, 0.1])
    assert updates.grid_gain.shape == (2, 21)
    np.testing.assert_allclose(updates.grid_gain[:, -1], updates.gain)
    np.testing.assert_array_equal(updates.primary, [True, False])


@pytest.mark.parametrize(
    ("model", "weights", "title"),
    [
        ({"name": "Ouro-1.4B", "toy": False, "revision": "574fa66c"}, Weights.PUBLISHED, "Ouro-1.4B"),
        ({"name": "ByteDance/Ouro-1.4B", "toy": False, "revision": "574fa66c"}, Weights.PUBLISHED, "Ouro-1.4B"),
        ({"name": "huginn-0125", "toy": False, "revision": "bb6621b6"}, Weights.PUBLISHED, "Huginn"),
        ({"name": "Ouro-1.4B", "toy": False, "revision": None}, Weights.OTHER, "Ouro-1.4B"),
        ({"name": "Ouro-1.4B-Thinking", "toy": False, "revision": "3aaa"}, Weights.OTHER, "Ouro-1.4B-Thinking"),
        ({"name": "toy-ouro", "toy": True}, Weights.TOY, "toy-ouro"),
        (
            {"name": "Ouro-1.4B", "toy": False, "revision": "574f", "random_weights": True},
            Weights.RANDOM,
            "Ouro-1.4B (random weights)",
        ),
        (
            {"name": "toy-ouro (random weights)", "toy": False, "random_weights": True},
            Weights.RANDOM,
            "toy-ouro (random weights)",
        ),
    ],
)
def test_where_weights_come_from(records, synthetic, model, weights, title):
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])}), level="quick", model=model)
    condition = made.updates[0].condition
    assert (condition.weights, condition.model_title) == (weights, title)


@pytest.mark.parametrize("format", ["text", "markdown", "latex", "csv", "json"])
def test_every_format_of_an_unfinished_run_says_so(unfinished_run, format):

    result = mechanism.table(Records([unfinished_run]))
    assert result.rows[0].condition.n == 2
    written = getattr(result, f"to_{format}")()
    if format == "csv":
        (line,) = csv.DictReader(io.StringIO(written))
        assert (line["measured_questions"], line["expected_questions"], line["finished"]) == ("2", "4", "false")
    else:
        assert "2 of 4 questions" in written


def test_two_runs_of_one_folder_name_are_told_apart(tmp_path, synthetic):
    """Each condition finds the rows of its own run, and labels are as short as they can be."""

    def run(where, slope):
        task = synthetic.Task("sums", {4: synthetic.Paths.of([slope, slope], [-1.0, -1.0])})
        return synthetic.write_run(tmp_path / where, [task], paths=True)

    records = Records([run("a/run", 0.5), run("b/run", 0.25), run("b/other", 0.125)])
    assert [updates.condition.run for updates in records.updates] == ["a/run", "b/run", "other"]
    for updates, slope in zip(records.updates, (0.5, 0.25, 0.125), strict=True):
        scales, gains = records.path(updates.condition, 0)
        assert (scales[0], scales[-1], gains[-1]) == pytest.approx((0.0, 1.0, slope - 1.0))
        assert records.other_table("certificates", updates.condition)["slope"][0][0] == pytest.approx(slope)
        sweep = next(sweep for sweep in records.sweeps if sweep.condition.same_set(updates.condition))
        assert sweep.utility[0, 1] - sweep.utility[0, 0] == pytest.approx(slope - 1.0)
    assert [entry["run"] for entry in records.inputs()] == ["a/run", "b/run", "other"]


def test_labels_of_runs_are_unique_and_never_a_whole_path(tmp_path, synthetic):
    from loopscope.studies.conditions import run_labels

    class At:
        def __init__(self, *parts):
            self.path = tmp_path.joinpath(*parts)

    assert run_labels([At("x", "y", "run"), At("z", "y", "run"), At("z", "w", "run")]) == [
        "x/y/run",
        "z/y/run",
        "w/run",
    ]
    assert run_labels([At("run"), At("run")]) == ["run (1)", "run (2)"]
    assert run_labels([At("a  b"), At("a b")]) == ["a b (1)", "a b (2)"]


@pytest.fixture
def checkpoints(tmp_path, synthetic):
    """Two runs of models of one name, one of whose tasks both have."""
    runs = []
    for name, tasks in (("young", ("sums", "more")), ("trained", ("sums",))):
        made = [synthetic.Task(task, {4: synthetic.realistic(12, len(name))}, split="all") for task in tasks]
        runs.append(synthetic.write_run(tmp_path / name, made, model={"name": "mine", "toy": False}))
    return Records(runs)


def test_runs_of_one_model_name_their_run(checkpoints, quick):
    """Only where two of them stand in one table; a task without a split has its name alone."""
    result = mechanism.table(checkpoints, quick)
    cells = [re.split(r"  +", line)[:3] for line in result.to_text().splitlines() if "4→5" in line]
    assert cells == [
        ["mine (young)", "sums", "4→5"],
        ["mine (young)", "more", "4→5"],
        ["mine (trained)", "sums", "4→5"],
    ]
    for written in (
        result.to_latex(),
        result.to_markdown(),
        TABLES["failure-shares"].table(checkpoints, quick).to_text(),
    ):
        assert "mine (young)" in written
        assert "mine (trained)" in written
    assert set(result.to_polars()["model"]) == {"mine"}
    alone = mechanism.table(Records(checkpoints.runs[:1]), quick)
    assert {row.condition.model_title for row in alone.rows} == {"mine"}


def test_a_path_a_run_and_a_list_are_the_same(tmp_path, synthetic, quick):
    run = synthetic.write_run(tmp_path / "run", [synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])})])
    by_path, by_run, by_list = (table("mechanism", source, quick) for source in (str(run.path), run, [run.path]))
    assert by_path.rows == by_run.rows == by_list.rows
    assert table("Failure_Shares", run, quick).rows
    for form in ("text", "markdown", "latex", "csv", "json"):
        assert str(tmp_path) not in getattr(by_path, f"to_{form}")(), "no table says where a run lies"
    with pytest.raises(LoopscopeError, match="at least one"):
        open_records([])
    with pytest.raises(LoopscopeError, match="is not a run"):
        table("mechanism", tmp_path / "nowhere")
