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
from loopscope.errors import LoopscopeError
from loopscope.measuring import sequence_groups
from loopscope.measuring.batching import Layout, Question, collate
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.readouts import readout_of
from loopscope.measuring.update import Update
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
    return QuestionEncoder(load_tokenizer("toy-huginn"), None, "error").questions(task.without_rows(), task.rows, 0)


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


def test_what_is_evaluated_has_the_numbers_of_every_scale(runs: dict[str, ls.Run]) -> None:
    rows = both(runs).filter(pl.col("grid_evaluated"))
    few, every = (np.array(rows[name].to_list())[:, 1:-1] for name in ("grid_gain", "grid_gain_every"))
    np.testing.assert_allclose(few, every, rtol=0, atol=1e-10)
    np.testing.assert_allclose(rows["quadratic_gain"], rows["quadratic_gain_every"], rtol=0, atol=1e-10)


def test_everything_else_is_as_with_every_scale(runs: dict[str, ls.Run]) -> None:
    rows = both(runs)
    for name in (
        "utility_before",
        "slope",
        "quadratic",
        "quadratic_scale",
        "output_kl",
        "entropy_change",
        "update_norm",
    ):
        np.testing.assert_allclose(rows[name], rows[f"{name}_every"], rtol=1e-12, err_msg=name)
    for name in ("gain", "quadratic_gain", "bf16_quarter_gain", "bf16_quadratic_gain"):
        np.testing.assert_allclose(rows[name], rows[f"{name}_every"], rtol=0, atol=2e-5, err_msg=name)
    curvature, every = (np.array(rows[name].to_list()) for name in ("curvature_path", "curvature_path_every"))
    np.testing.assert_allclose(curvature, every, rtol=1e-4, atol=1e-5)


def test_gains_of_the_two_ends_are_those_of_the_depths(runs: dict[str, ls.Run]) -> None:
    run = runs["few"]
    depths = {(row, depth): u for row, depth, u in run.depths.select("row", "depth", "utility").iter_rows()}
    for row, transition, gain, grid in run.records.select("row", "transition", "gain", "grid_gain").iter_rows():
        step = depths[row, transition + 1] - depths[row, transition]
        assert gain == grid[-1] == pytest.approx(step, abs=1e-12)
        assert grid[0] == 0.0


def test_tokens_have_the_same_grid(runs: dict[str, ls.Run]) -> None:
    tokens = runs["few"].tokens.collect().filter(pl.col("transition") == SMOOTH)
    grids = np.array(tokens["grid_gain"].to_list())
    np.testing.assert_allclose(grids[:, GRID.index(0.25)], tokens["quarter_gain"], rtol=1e-6, atol=1e-9)
    nearest = np.abs(np.subtract.outer(tokens["quadratic_scale"].to_numpy(), GRID)).argmin(axis=1)
    on_grid = np.isclose(tokens["quadratic_scale"].to_numpy(), np.array(GRID)[nearest], atol=1e-9)
    assert on_grid.any()
    own, at = tokens["quadratic_gain"].to_numpy(), grids[np.arange(len(grids)), nearest]
    inside = on_grid & (nearest < len(GRID) - 1)  # φ(1) of the grid is a reading
    np.testing.assert_allclose(own[inside], at[inside], rtol=1e-6, atol=1e-9)


def test_the_choice_belongs_to_the_run(runs: dict[str, ls.Run], tmp_path: Path) -> None:
    few, every = runs["few"], runs["every"]
    assert few.manifest.settings["interpolate"] is True
    assert "interpolate" not in every.manifest.settings
    with pytest.raises(LoopscopeError, match="resume refused: interpolate was False, is True"):
        measured(every.path)
    paper = measured(tmp_path / "paper", protocol="paper", transitions=[1], limit=2)
    assert "interpolate" not in paper.manifest.settings
    affine = measure_with("toy-ouro", "arithmetic-mc", output=tmp_path / "affine", transitions=[1], limit=1)
    assert "interpolate" not in affine.manifest.settings
    quick = measured(tmp_path / "quick", transitions=[1], limit=1, level="quick")
    assert "interpolate" not in quick.manifest.settings


@torch.no_grad()
def test_groups_of_any_size_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    update = update_of(1)
    readout = readout_of(load_model("toy-huginn", device="cpu"), torch.float32)
    whole = readout.read(update.before_RSD, update.layout).log_p_N
    (group,) = readout.groups(update.layout)
    monkeypatch.setattr(sequence_groups, "_STATES", {"cpu": 1})
    alone = list(readout.groups(update.layout))
    assert [found.rows for found in alone] == [slice(row, row + 1) for row in range(group.rows.stop)]
    assert min(found.width for found in alone) < group.width, "rows are cut to their own length"
    assert torch.equal(readout.read(update.before_RSD, update.layout).log_p_N, whole)
