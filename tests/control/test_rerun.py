"""Teacher-forced re-runs and scored answers: against a measured run, depth by depth and scale by scale."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import loopscope as ls
from loopscope.control.offline import Costs
from loopscope.control.rerun import acted, answer, rerun
from loopscope.control.rules import exit_rule, fixed_depth, fixed_scale, substeps
from loopscope.errors import LoopscopeError


@pytest.fixture(scope="module")
def toy():
    return ls.load_model("toy-ouro", dtype="float32")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return ls.measure(
        "toy-ouro", tasks=["arithmetic", "arithmetic-mc"], transitions=[4], depths=[2, 4, 5], dtype="float32", limit=2,
        output=tmp_path_factory.mktemp("run") / "run",
    )  # fmt: skip


@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_utilities_are_those_of_the_pass(toy, run, task):
    policies = [fixed_scale(1.0), fixed_depth(2), fixed_depth(4), fixed_scale(0.25, 5, stop=True)]
    found = rerun(toy, ls.load_task(task, limit=2), policies, loops=5)
    depths = run.depths.filter(pl.col("task") == task)
    for policy, depth in zip(policies, (5, 2, 4), strict=False):
        own = found.filter(pl.col("policy") == policy.name)
        stored = depths.filter(pl.col("depth") == depth).sort("row")["utility"]
        np.testing.assert_allclose(own["utility"], stored, rtol=0, atol=2e-6)
        assert own["loops"].to_list() == own["calls"].to_list() == [float(depth)] * 2
    question = run.records.filter(pl.col("task") == task).sort("row")
    quarter = [row[len(row) // 4] for row in question["grid_gain"].to_list()]
    own = found.filter(pl.col("policy") == policies[3].name)
    expected = np.array(question["utility_before"]) + quarter
    np.testing.assert_allclose(own["utility"], expected, rtol=0, atol=1e-5)


def test_accuracies_and_costs(toy, run):
    tasks = {name: ls.load_task(name, limit=2) for name in ("arithmetic", "arithmetic-mc")}
    costs = Costs(outside=0.5, check=0.25)
    found = rerun(toy, tasks["arithmetic-mc"], [fixed_depth(4), exit_rule("entropy", 0.7)], loops=5, costs=costs)
    depths = run.depths.filter((pl.col("task") == "arithmetic-mc") & (pl.col("depth") == 4)).sort("row")
    right = run.records.filter(pl.col("task") == "arithmetic-mc").sort("row")["correct_option"]
    own = found.filter(pl.col("policy") == "fixed 4")
    assert own["accuracy"].to_list() == [float(a == b) for a, b in zip(depths["chosen_option"], right, strict=True)]
    rule = found.filter(pl.col("policy") == "entropy")
    np.testing.assert_allclose(rule["cost"], 0.5 + rule["calls"].to_numpy() + 0.25 * rule["checks"].to_numpy())
    np.testing.assert_allclose(rule["checks"], rule["loops"] - 1)
    assert 1 < rule["loops"].mean() < 5
    twice = rerun(toy, tasks["arithmetic"], [substeps(2)], loops=5, costs=costs)
    assert set(twice["prompt_loops"]) == {5.0}
    assert set(twice["prompt_cost"]) == {10.5}
    assert set(twice["calls"]) == {10.0}


def test_the_questions_of_a_run_again(run):
    frame = acted(run, "arithmetic", "test", [fixed_depth(4), fixed_depth(2)], "rerun", loops=4, ids=["test-1"])
    stored = run.depths.filter((pl.col("task") == "arithmetic") & (pl.col("row") == 1))
    for depth in (4, 2):
        (utility,) = stored.filter(pl.col("depth") == depth)["utility"]
        found = frame.filter(pl.col("policy") == f"fixed {depth}")
        np.testing.assert_allclose(found["utility"], [utility], rtol=0, atol=2e-6)
        assert found["loops"].to_list() == found["cost"].to_list() == [depth]
    answers = acted(run, "arithmetic", "test", [fixed_depth(1)], "generate", loops=4, ids=["test-1"])
    assert answers["loops"].to_list() == [1.0]
    with pytest.raises(LoopscopeError, match="has no task arithmetic of the split train"):
        acted(run, "arithmetic", "train", [fixed_depth(1)], "rerun", loops=4)


def test_batches_change_nothing(toy):
    task = ls.load_task("arithmetic", limit=3)
    together, alone = (rerun(toy, task, [exit_rule("entropy", 0.7)], loops=4, batch_size=size) for size in (3, 1))
    assert together["loops"].to_list() == alone["loops"].to_list()
    np.testing.assert_allclose(together["utility"], alone["utility"], atol=1e-6)


def test_answers_are_scored_and_kept(toy):
    task = ls.load_task("arithmetic", limit=2)
    found = answer(toy, task, [None, fixed_scale(1.0), fixed_depth(1)], loops=4, max_new_tokens=40)
    plain, full, once = (
        found.filter(pl.col("policy") == name) for name in ("full depth 4", "scale 1 from 0→1", "fixed 1")
    )
    assert plain["text"].to_list() == full["text"].to_list() != once["text"].to_list()
    assert set(once["loops"]) == {1.0}
    for row, text, right in zip(task.rows, plain["text"], plain["exact"], strict=True):
        assert right == (f"Answer: {row.metadata['result']}" in text.split("\n"))
    assert plain["accuracy"].to_list() == plain["exact"].cast(float).to_list()


def test_what_cannot_be_is_one_line(toy):
    task = ls.load_task("arithmetic", limit=1)
    for call, message in (
        (lambda: rerun(toy, task, [], loops=2), "at least one policy"),
        (lambda: rerun(toy, task, [fixed_depth(1)] * 2, loops=2), "a name of its own"),
        (lambda: answer(toy, ls.load_task("stories", limit=1), [None], loops=2, max_new_tokens=2), "cannot be scored"),
        (lambda: answer(toy, ls.load_task("arithmetic-mc", limit=1), [None], loops=2, max_new_tokens=2), "an option"),
    ):
        with pytest.raises(LoopscopeError, match=message):
            call()
