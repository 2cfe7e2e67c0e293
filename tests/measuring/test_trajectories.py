"""`measure --trajectories`: against loops written out, against the stored path, and what can be said of it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

import loopscope as ls
from loopscope.errors import LoopscopeError

SCALES = (0.0, 0.25, 1.0)


@pytest.fixture(scope="module", params=["toy-ouro", "toy-huginn"])
def measured(request, tmp_path_factory):
    model = ls.load_model(request.param, dtype="float32")
    run = ls.measure(
        request.param, dtype="float32", tasks=["arithmetic"], transitions=[2, 3], depths=[5], limit=2,
        trajectories=SCALES, output=tmp_path_factory.mktemp("run") / "run",
    )  # fmt: skip
    return model, run


def utility(model, state, example):
    (sequence,) = example.sequences
    where = torch.tensor([[0, place] for place in sequence.positions])
    log_p = torch.log_softmax(model.readout(state, where, torch.float32).double(), -1)
    return float(log_p.gather(1, torch.tensor(sequence.targets)[:, None]).mean())


def test_against_loops_written_out(measured):
    model, run = measured
    tokenizer = ls.load_tokenizer(model.name)
    found = run.trajectories.collect()
    with torch.no_grad():
        for row, example in enumerate(ls.load_task("arithmetic", limit=2).encode(tokenizer)):
            ids = list(example.sequences[0].token_ids)
            context = model.embed(ls.Batch.from_rows([ids], source_rows=[example.source_row]))
            own = found.filter(pl.col("row") == row)
            for (first, onwards, scale), rows in own.group_by("transition", "onwards", "scale"):
                state, expected = context.state, {}
                for depth in range(5):
                    full = model.step(state, context, depth)
                    changed = depth == first or (onwards and depth > first)
                    state = state + scale * (full - state) if changed else full
                    if depth >= first:
                        expected[depth + 1] = utility(model, state, example)
                stored = dict(rows.select("depth", "utility").iter_rows())
                assert stored.keys() == expected.keys()
                for depth, value in expected.items():
                    assert stored[depth] == pytest.approx(value, abs=5e-6)


def test_right_after_the_update_it_is_the_path(measured):
    _, run = measured
    found = run.trajectories.collect()
    for onwards in (False, True):
        for first in (2, 3):
            after = found.filter(
                (pl.col("transition") == first) & (pl.col("depth") == first + 1) & (pl.col("onwards") == onwards)
            )
            questions = run.records.filter(pl.col("transition") == first).sort("row")
            quarter = after.filter(pl.col("scale") == 0.25).sort("row")["utility"].to_numpy()
            grid = np.array(questions["grid_gain"].to_list())
            expected = questions["utility_before"].to_numpy() + grid[:, grid.shape[1] // 4]
            np.testing.assert_allclose(quarter, expected, rtol=0, atol=1e-5)


def test_a_full_step_changes_nothing(measured):
    _, run = measured
    full = run.trajectories.filter(pl.col("scale") == 1.0).collect()
    kept = full.join(run.depths, on=["row", "depth"], suffix="_kept")
    np.testing.assert_allclose(kept["utility"], kept["utility_kept"], rtol=0, atol=2e-6)
    assert set(full["transition"]) == {0, 2, 3}


def test_the_run_verifies(measured):
    _, run = measured
    assert run.manifest.settings["trajectories"] == list(SCALES)
    assert ls.Run(run.path).verify().findings == ()


def test_what_cannot_be_is_one_line(tmp_path):
    for wrong in ("0.5,x", [-1.0], [], 5.0, [index / 16 for index in range(17)]):
        with pytest.raises(LoopscopeError, match="no list of scales: give up to 16 from 0 to 4"):
            ls.measure("toy-ouro", tasks=["arithmetic"], depths=[2], trajectories=wrong, output=tmp_path / "run")
