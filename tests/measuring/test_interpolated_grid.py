"""The grid through a nonlinear readout: interpolated where its measured error is below the rounding, else evaluated."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import loopscope as ls
from loopscope.api import measure_with
from loopscope.measuring import readouts
from loopscope.measuring.batching import Question, collate, encode_task
from loopscope.measuring.readouts import readout_of
from loopscope.measuring.update import Layout, Update
from loopscope.models.load import load_model
from loopscope.models.tokenizer import load_tokenizer
from loopscope.models.walk import Walk
from loopscope.path import GRID
from loopscope.tasks.load import load_task

ROUGH, SMOOTH = 2, 12
"""Updates of toy-huginn: one of its first, and one of a loop that has nearly come to rest."""
QUESTIONS = 2


def measured(output: Path, **given: Any) -> ls.Run:
    options: dict[str, Any] = {"transitions": [ROUGH, SMOOTH], "scalar_checks": 0, "limit": QUESTIONS}
    return measure_with("toy-huginn", "arithmetic-mc", output=output, **{**options, **given})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ls.Run]:
    folder = tmp_path_factory.mktemp("grids")
    return {"few": measured(folder / "few", tokens=True), "every": measured(folder / "every", interpolate=False)}


def both(runs: dict[str, ls.Run]) -> pl.DataFrame:
    """The questions of both runs side by side, with how the grid came about."""
    keys = ["row", "transition"]
    return runs["few"].records.join(runs["every"].records, on=keys, suffix="_every").sort(keys)


@cache
def few_questions() -> list[Question]:
    task = load_task("arithmetic-mc", limit=QUESTIONS)
    return list(encode_task(task, load_tokenizer("toy-huginn"), None, "error").questions)


@torch.no_grad()
def update_of(transition: int) -> Update:
    """The update that the runs measure, in one batch."""
    model, questions = load_model("toy-huginn", device="cpu"), few_questions()
    packing = collate(questions)
    walk = Walk.of(model, packing.batch).to(transition)
    before = walk.state
    layout = Layout.of(questions, packing.batch, model.device)
    return Update(layout, before, walk.advance())


@torch.no_grad()
def fp64_grid(transition: int) -> np.ndarray[Any, Any]:
    """φ of every question at all scales of the grid, every one evaluated in FP64."""
    readout = readout_of(load_model("toy-huginn", device="cpu"), torch.float32)
    return readout.fp64_path(update_of(transition)).at_scales(list(GRID), 0)[0].numpy()


def test_a_smooth_update_is_interpolated_and_a_rough_one_evaluated(runs: dict[str, ls.Run]) -> None:
    found = both(runs)
    assert not found.filter(pl.col("transition") == SMOOTH)["grid_evaluated"].any()
    assert found.filter(pl.col("transition") == ROUGH)["grid_evaluated"].any()
    # The utility of options is at most the score of the right one; the scores are about as large.
    fitting = found.filter(~pl.col("grid_evaluated"))
    assert (fitting["interpolation_error"] < 8 * 2.0**-23 * 20).all()
    assert found["interpolation_error_every"].null_count() == found["grid_evaluated_every"].null_count() == len(found)


@pytest.mark.parametrize("transition", [ROUGH, SMOOTH])
def test_the_grid_is_that_of_fp64_to_less_than_the_readouts_rounding(runs: dict[str, ls.Run], transition: int) -> None:
    rows = both(runs).filter(pl.col("transition") == transition)
    exact = fp64_grid(transition)
    few, every = (np.array(rows[name].to_list()) for name in ("grid_gain", "grid_gain_every"))
    rounded = np.abs(every - exact).max()
    inner = slice(1, -1)  # the ends are readings
    interpolated = ~rows["grid_evaluated"].to_numpy()
    off = np.abs(few - exact)[:, inner].max(axis=1)
    assert (off[interpolated] <= 8 * 2.0**-23 * 20).all()
    assert (off <= 2 * rounded).all()
    if transition == SMOOTH:
        assert off.max() < rounded / 10, "derivatives know a small gain better than the difference of two readings"


@torch.no_grad()
def test_groups_of_any_size_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    update = update_of(1)
    readout = readout_of(load_model("toy-huginn", device="cpu"), torch.float32)
    whole = readout.read(update.before_RSD, update.layout).log_p_N
    (group,) = readout.groups(update.layout, torch.float32)
    monkeypatch.setattr(readouts, "_STATES", {"cpu": 1})
    alone = list(readout.groups(update.layout, torch.float32))
    assert [found.rows for found in alone] == [slice(row, row + 1) for row in range(group.rows.stop)]
    assert min(found.width for found in alone) < group.width, "rows are cut to their own length"
    assert torch.equal(readout.read(update.before_RSD, update.layout).log_p_N, whole)
