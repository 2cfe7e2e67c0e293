"""U at a depth is the same number whoever says it: the update that starts there, the one that ends there, a reading."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from loopscope.measuring.batching import Layout, collate
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.readouts import AffineReadout, Readings
from loopscope.models import load_model, load_tokenizer
from loopscope.store import StoredRun
from loopscope.tasks.load import load_task

EXACT = {"dtype": "float64", "readout_dtype": "float64"}


@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_whoever_reads_a_depth(family: str, task: str, measured: Callable[..., StoredRun]) -> None:
    runs = [
        measured(family, task, transitions=transitions, depths=range(5), limit=3, level="quick", **EXACT)
        for transitions in ([], [1], [0, 1, 2, 3], [3])
    ]
    first, *others = (run.depths for run in runs)
    for other in others:
        assert other["depth"].equals(first["depth"])
        np.testing.assert_allclose(other["utility"], first["utility"], rtol=1e-12, atol=1e-13)
        if task == "arithmetic-mc":
            assert other["chosen_option"].equals(first["chosen_option"])


@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_both_tables_tell_the_same_utility(task: str, measured: Callable[..., StoredRun]) -> None:
    run = measured("ouro", task, transitions=[1], depths=[], limit=4)
    for depth, column in ((1, "utility_before"), (2, "utility_after")):
        stored = run.depths.filter(run.depths["depth"] == depth)["utility"].to_numpy()
        told = run.records[column].to_numpy()
        if column == "utility_before":
            np.testing.assert_array_equal(stored, told)
        np.testing.assert_allclose(stored, told, rtol=1e-14, atol=1e-15)


@torch.no_grad()
def test_two_depths_at_a_time_are_each_by_itself(checkpoint: Callable[[str], str]) -> None:
    model = load_model(checkpoint("ouro"), dtype="float64")
    task = load_task("arithmetic-mc", limit=3)
    questions = QuestionEncoder(load_tokenizer(checkpoint("ouro")), None, "error").questions(task, task.rows, 0)
    batch = collate(questions).batch
    layout = Layout.of(questions, batch, model.device)
    assert model.head is not None
    readout = AffineReadout(model, model.head, torch.float64)
    in_pairs = AffineReadout(model, model.head, torch.float64)
    in_pairs.reads_pairs = True
    alone, paired = Readings(readout, layout), Readings(in_pairs, layout)
    for depth, state in model.states(batch, range(5)).items():
        alone.read(depth, state)
        paired.read(depth, state)
    assert set(paired.found) == {0, 1, 2, 3}, "the last one waits for another"
    paired.finish()
    assert set(paired.found) == set(alone.found) == set(range(5))
    for depth, found in alone.found.items():
        for name in ("log_p_N", "sums_R", "scores_R", "utility_B"):
            torch.testing.assert_close(getattr(paired.found[depth], name), getattr(found, name), rtol=1e-12, atol=1e-13)
