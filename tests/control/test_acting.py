"""Policies acting on a model, teacher-forced: against a measured run, and against the same policies over a trace."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch

import loopscope as ls
from loopscope.control import FixedDepth, FixedScale, MarginScaled, ScaledReadout, Taps
from loopscope.control.act import Questions, act, act_on, measure_lines
from loopscope.control.offline import Costs, follow, score
from loopscope.control.policies import exit_rule
from loopscope.control.trace import Trace
from loopscope.models.batch import Batch

TASKS = ("arithmetic", "arithmetic-mc")


@pytest.fixture(scope="module")
def toy():
    return ls.load_model("toy-ouro", dtype="float32")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return ls.measure(
        "toy-ouro", tasks=TASKS, transitions=[4], depths="1-5", dtype="float32", limit=2, trace=True,
        output=tmp_path_factory.mktemp("run") / "run",
    )  # fmt: skip


def questions_of(task, limit=2):
    return Questions.of(list(ls.load_task(task, limit=limit).encode(ls.load_tokenizer("toy-ouro"))))


@pytest.mark.parametrize("task", TASKS)
def test_utilities_and_accuracies_are_those_of_the_pass(toy, run, task):
    questions = questions_of(task)
    depths = run.depths.filter(pl.col("task") == task)
    records = run.records.filter(pl.col("task") == task).sort("row")
    examples = run.examples.filter(pl.col("task") == task).sort("row")
    for policy, depth in ((FixedScale(1.0), 5), (FixedDepth(2), 2), (FixedDepth(4), 4)):
        found = score(act(toy, questions, policy, 5), questions)
        stored = depths.filter(pl.col("depth") == depth).sort("row")
        np.testing.assert_allclose(found.utility_Q, stored["utility"], rtol=0, atol=2e-6)
        assert found.loops_Q.tolist() == [float(depth)] * 2
        if task == "arithmetic-mc":
            assert found.accuracy_Q.tolist() == (stored["chosen_option"] == examples["correct_option"]).to_list()
    quarter = score(act(toy, questions, FixedScale(0.25, 5, stop=True), 5), questions)
    expected = np.array(records["utility_before"]) + [
        gains[len(gains) // 4] for gains in records["grid_gain"].to_list()
    ]
    np.testing.assert_allclose(quarter.utility_Q, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_scaled_readouts_are_worth_the_same_over_the_trace(toy, run, task):
    questions, frame = questions_of(task), run.trace.filter(pl.col("task") == task).collect()
    examples = run.examples.filter(pl.col("task") == task)
    right = dict(examples.select("row", "correct_option").iter_rows()) if task == "arithmetic-mc" else None
    lines = measure_lines(toy, questions, [(1, 3), (3, 4)], np.linspace(-1, 1, 41).tolist())
    trace, costs = dataclasses.replace(Trace.of(frame, right), lines=lines), Costs(0.1, 0.1)
    for policy in (
        *(ScaledReadout(3, 1, 0.5), ScaledReadout(4, 3, -0.335), MarginScaled(4, 3, 0.8), MarginScaled(3, 1, -0.4)),
        *(ScaledReadout(4, 3, 0.5, "orthogonal"), ScaledReadout(3, direction="temperature", omega=0.1)),
    ):
        acted, traced = act(toy, questions, policy, 5), follow(policy, trace)
        there, here = score(traced, trace, costs), score(acted, questions, costs)
        np.testing.assert_allclose(here.utility_Q, there.utility_Q, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(here.cost_Q, there.cost_Q)
        np.testing.assert_allclose(acted.omega_R, traced.omega_R, atol=1e-6)


def test_directions_are_their_formulas(toy):
    """In float64 from two plain forward passes: the orthogonal part changes no projection on the centred logits."""
    ids, where = [5, 9, 1, 60, 33, 2, 17], torch.tensor([[0, 3], [0, 6]])
    walk = ls.Walk.of(toy, Batch.from_rows([ids]))
    z2, z3 = (walk.to(depth).read(where).double() for depth in (2, 3))
    centred = z3 - z3.mean(-1, keepdim=True)
    chord = z3 - z2 - (z3 - z2).mean(-1, keepdim=True)
    along = (chord * centred).sum(-1, keepdim=True) / centred.square().sum(-1, keepdim=True)
    for direction, u in (("chord", z3 - z2), ("orthogonal", chord - along * centred), ("temperature", z3)):
        policy = ScaledReadout(3, 2, 0.7, direction)
        read = act_on(toy, Batch.from_rows([ids]), policy, 4).logits(where).double()
        torch.testing.assert_close(read.log_softmax(-1), (z3 + 0.7 * u).log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_scales_move_states_as_their_formulas_say(toy):
    batch = Batch.from_rows([[5, 9, 1, 60, 33, 2, 17]])
    context = toy.embed(batch)
    state, mean, square = context.state, 0.0, 0.0
    for depth in range(3):
        step = toy.step(state, context) - state
        mean, square = 0.8 * mean + 0.2 * step, 0.8 * square + 0.2 * step.square().sum(-1)
        weight = 1 - 0.8 ** (depth + 1)
        ratio = ((mean / weight).square().sum(-1) / (square / weight)).clamp(0, 1)
        state = state + ratio[..., None] * step
    torch.testing.assert_close(act_on(toy, batch, Taps(), 3).state_BSD, state, rtol=1e-4, atol=1e-4)
    half = context.state
    for depth in range(3):
        half = half + (0.5 if depth else 1.0) * (toy.step(half, context) - half)
    torch.testing.assert_close(act_on(toy, batch, FixedScale(0.5, 2), 3).state_BSD, half, rtol=1e-4, atol=1e-4)


def test_batches_change_nothing(toy, monkeypatch):
    together = act(toy, questions_of("arithmetic", 3), exit_rule("entropy", 0.7), 4)
    monkeypatch.setattr("loopscope.control.act.BATCH", 1)
    monkeypatch.setattr("loopscope.control.act.CHUNK", 5)
    alone = act(toy, questions_of("arithmetic", 3), exit_rule("entropy", 0.7), 4)
    assert together.depth_R.tolist() == alone.depth_R.tolist()
    assert len(set(together.depth_R.tolist())) > 1
    assert together.checks_R.tolist() == (together.depth_R - 1).tolist()
    np.testing.assert_allclose(together.log_prob_R, alone.log_prob_R, atol=1e-5)
