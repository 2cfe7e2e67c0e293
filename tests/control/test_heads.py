"""Heads learn what is there to be learnt, survive a round trip to disk, and act alike on states and over a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from control_synthetic import Made

import loopscope as ls
from loopscope.api import measure_with
from loopscope.control.act import Questions, costs_of, live
from loopscope.control.heads import (
    ExitHead,
    Gathered,
    ScaleHead,
    Training,
    annotate,
    features,
    gather,
    load_head,
    save_head,
    train_exit_head,
    train_scale_head,
)
from loopscope.control.offline import follow, score
from loopscope.control.policies import STATE_SIGNALS, Seen, exit_rule
from loopscope.control.trace import Trace

QUICK = Training(hidden=16, epochs=12, batch=256, dropout=0.0)


def made(part: int = 0) -> Gathered:
    """Steps that help where the first entry of the state is positive, and harm elsewhere; a third of the questions."""
    one = Made(questions=300, tokens=20, loops=4)
    helps = (one.states[2][:, 0] > 0).double() * 2 - 1
    toward = one.weight_VD[one.targets]
    for depth in (3, 4):
        one.states[depth] = one.states[depth - 1] + 0.3 * helps[:, None] * toward
    states = np.stack([state.numpy() for state in one.states]).astype(np.float16)
    rows = np.arange(6000) // 2000 == part
    trace = Trace.of(one.frame().filter(pl.col("row").is_between(100 * part, 100 * part + 99)))
    return Gathered(trace, states[:, rows], "made", "here")


@pytest.fixture(scope="module")
def learnt() -> tuple[Gathered, ScaleHead, ExitHead]:
    gathered = made()
    return gathered, train_scale_head(gathered, 3, QUICK), train_exit_head(gathered, first=2, training=QUICK)


def test_a_scale_head_gets_most_of_what_the_state_tells(learnt: tuple[Gathered, ScaleHead, ExitHead]) -> None:
    _, head, _ = learnt
    test = made(1)
    trace = annotate(test, head)
    worth = score(follow(head, trace), trace).utility_Q.mean()
    ends = [trace.utility(trace.log_prob(depth)) for depth in (2, 3)]
    known = np.where(test.states[2][:, 0] > 0, trace.log_prob(3), trace.log_prob(2))
    best, constant = trace.utility(known).mean(), max(end.mean() for end in ends)
    assert worth - constant > 0.6 * (best - constant) > 0


def test_an_exit_head_stops_where_going_on_harms(learnt: tuple[Gathered, ScaleHead, ExitHead]) -> None:
    _, _, head = learnt
    test = made(2)
    trace = annotate(test, head)
    exits = follow(head, trace)
    helps = test.states[2][:, 0] > 0
    assert exits.depth_R[helps].mean() > exits.depth_R[~helps].mean() + 0.5
    known = trace.utility(np.where(helps, trace.log_prob(4), trace.log_prob(2))).mean()
    constant = max(trace.utility(trace.log_prob(depth)).mean() for depth in (2, 3, 4))
    assert score(exits, trace).utility_Q.mean() - constant > 0.3 * (known - constant) > 0


def test_heads_decide_on_states_as_over_a_trace(learnt: tuple[Gathered, ScaleHead, ExitHead]) -> None:
    gathered, scale, leave = learnt
    trace = annotate(gathered, scale, leave)

    def nothing(name: str) -> torch.Tensor:
        raise AssertionError(f"{name} was read: heads see states alone")

    found = scale.decide(Seen(3, tuple(gathered.at(3)), nothing), None)
    np.testing.assert_allclose(found.scale, trace.signal("scale_head", 3), atol=1e-6)
    stopped = leave.decide(Seen(2, tuple(gathered.at(2)), nothing), {})
    np.testing.assert_array_equal(stopped.stop, trace.signal("exit_head", 2) < leave.threshold)


def test_heads_come_back_from_disk(learnt: tuple[Gathered, ScaleHead, ExitHead], tmp_path: Path) -> None:
    gathered, scale, leave = learnt
    for head in (scale, leave):
        again = load_head(save_head(head, tmp_path / f"{head.signals[0]}.safetensors"))
        assert again.card == head.card
        column = head.signals[0]
        np.testing.assert_array_equal(
            annotate(gathered, again).columns[column], annotate(gathered, head).columns[column]
        )


def test_features_do_not_depend_on_the_size_of_states() -> None:
    states = [torch.randn(5, 8) for _ in range(3)]
    first, second = features(states), features([4 * state for state in states])
    changed = (first - second).abs().amax(dim=0) > 1e-5
    assert changed.nonzero()[:, 0].tolist() == [16, 17, 19]  # the logarithms of three norms, nothing else


def test_gathered_states_are_those_of_the_trace_and_the_gate_decides_as_stored(tmp_path: Path) -> None:
    asked: Any = {"limit": 3, "dtype": "float32"}
    run = measure_with(
        "toy-ouro", "arithmetic:test", transitions=[4], depths="1-5", trace=True, output=tmp_path / "run", **asked
    )
    stored = Trace.of(run.trace.collect())
    model = ls.load_model("toy-ouro", dtype="float32")
    examples = list(ls.load_task("arithmetic:test", limit=3).encode(ls.load_tokenizer("toy-ouro")))
    gathered = gather(model, Questions.of(examples), stored)
    for depth in range(1, 6):
        seen = live(depth, gathered.at(depth), lambda _: None)
        for name in STATE_SIGNALS:
            expected = stored.signal(name, depth)
            np.testing.assert_allclose(seen.signal(name), expected, rtol=5e-3, atol=5e-3, err_msg=name)
    told = measure_with(
        "toy-ouro", "arithmetic:test", transitions=[1], tokens=True, exit_threshold=0.6, output=tmp_path / "t", **asked
    )
    depths = told.tokens.sort("row", "option", "token").collect()["exit_depth"].to_list()
    assert follow(exit_rule("Ouro gate", 0.6, budget=model.trained_depth), stored).depth_R.tolist() == depths


def test_costs_of_a_model_by_hand() -> None:
    model = ls.load_model("toy-ouro")
    head = model.head.weight_VD.numel()
    looped = sum(p.numel() for name, p in model.named_parameters() if "layers" in name and p.dim() == 2)
    assert costs_of(model).check == pytest.approx(head / looped, rel=0.02)
    assert costs_of(model).outside == pytest.approx(head / looped, rel=0.02)
