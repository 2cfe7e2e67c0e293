"""`renormalise=True`: the renormalised path against its definition written out, autograd and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import loopscope as ls
from loopscope.errors import LoopscopeError
from loopscope.measuring.renormalised import Radii
from loopscope.path import classify, predicted_scale

OPTIONS = {"limit": 2, "level": "quick", "readout_dtype": "float64", "renormalise": True, "depths": ""}


def along(update: Any, alpha: torch.Tensor) -> torch.Tensor:
    """U(ĥ(α)), from the definition."""
    gain = update.model.state_gain_D.detach().double()
    u, u_plus = update.before / gain, update.after / gain
    chord = (1 - alpha) * u + alpha * u_plus
    radius = (1 - alpha) * u.norm(dim=-1, keepdim=True) + alpha * u_plus.norm(dim=-1, keepdim=True)
    return update.utility(gain * chord * radius / chord.norm(dim=-1, keepdim=True))


@pytest.mark.parametrize("family", ["ouro", "huginn"])
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_numbers_follow_the_definition(family: str, task: str, measured: Any, checkpoint: Any, plain_updates: Any):
    run = measured(family, task, **OPTIONS)
    stored = run.read("renormalised").sort("row").to_dicts()
    for update, row, full in zip(
        plain_updates(checkpoint(family), run, task, 2), stored, run.records.sort("row").to_dicts(), strict=True
    ):
        alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
        utility = along(update, alpha)
        (slope,) = torch.autograd.grad(utility, alpha, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, alpha)
        assert row["slope"] == pytest.approx(slope.item(), abs=1e-8)
        assert row["quadratic"] == pytest.approx(0.5 * curvature.item(), abs=1e-7)
        start = utility.item()
        with torch.no_grad():
            at = {scale: float(along(update, torch.tensor(scale, dtype=torch.float64))) - start for scale in
                  (0.05, 0.25, 0.5, 0.95, row["quadratic_scale"], 1e-4)}  # fmt: skip
        for scale in (0.05, 0.25, 0.5, 0.95):
            assert row["gains"][round(20 * scale)] == pytest.approx(at[scale], abs=1e-9)
        assert row["quadratic_gain"] == pytest.approx(at[row["quadratic_scale"]], abs=1e-9)
        assert row["slope"] + 1e-4 * row["quadratic"] == pytest.approx(at[1e-4] / 1e-4, abs=1e-6)
        # Both ends are the states themselves.
        assert (row["gains"][0], row["gains"][-1]) == (0.0, full["gain"])
        assert row["outcome"] == classify(row["slope"], full["gain"]).label
        assert row["quadratic_scale"] == predicted_scale(row["slope"], row["quadratic"])


def test_a_normed_state_keeps_its_norm_and_the_chord_loses_some(measured: Any, checkpoint: Any, plain_updates: Any):
    run = measured("ouro", "arithmetic", **OPTIONS)
    for update, row in zip(
        plain_updates(checkpoint("ouro"), run, "arithmetic", 2), run.read("renormalised").to_dicts(), strict=True
    ):
        places = list(update.question.example.sequences[0].positions)
        gain = update.model.state_gain_D.detach().double()
        u, u_plus = ((state / gain)[0, places] for state in (update.before, update.after))
        width = u.shape[-1]
        assert torch.allclose(u.norm(dim=-1), torch.full((len(places),), width**0.5, dtype=torch.float64), rtol=1e-4)
        lost = 1 - (0.5 * (u + u_plus)).norm(dim=-1) / (0.5 * (u.norm(dim=-1) + u_plus.norm(dim=-1)))
        assert row["norm_loss"] == pytest.approx(float(lost.mean()), abs=1e-9)
        assert row["norm_loss"] > 0


def test_a_readout_that_norms_its_input_sees_no_difference(measured: Any):
    """Huginn's readout begins with a norm: positive factors of a position change nothing but an epsilon."""
    run = measured("huginn", "arithmetic", limit=3, readout_dtype="float64", renormalise=True)
    found = run.read("renormalised").join(run.records, on=["row", "transition"], suffix="_straight")
    difference = np.array(found["gains"].to_list()) - np.array(found["grid_gain"].to_list())
    assert np.abs(difference).max() < 1e-5 * np.abs(np.array(found["grid_gain"].to_list())).max() + 1e-7
    assert found["outcome"].equals(found["outcome_straight"])


@pytest.mark.parametrize("with_gain", [False, True])
def test_derivatives_of_the_factor(with_gain: bool):
    chance = torch.Generator().manual_seed(7)
    h, d = (torch.randn(6, 5, dtype=torch.float64, generator=chance) for _ in range(2))
    gain = torch.rand(5, dtype=torch.float64, generator=chance) + 0.5 if with_gain else None
    radii = Radii.of(h, d, gain)

    def factor(alpha: torch.Tensor) -> torch.Tensor:
        u, v = (h, d) if gain is None else (h / gain, d / gain)
        radius = (1 - alpha) * u.norm(dim=-1) + alpha * (u + v).norm(dim=-1)
        return radius / (u + alpha * v).norm(dim=-1)

    for scale in (0.0, 0.3, 1.0):
        expected = factor(torch.tensor(scale, dtype=torch.float64))
        assert torch.allclose(radii.factor(scale)[:, 0], expected, rtol=1e-12)
    first, second = radii.derivatives()
    for row in range(6):
        alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(factor(alpha)[row], alpha, create_graph=True)
        (bend,) = torch.autograd.grad(slope, alpha)
        assert first[row].item() == pytest.approx(slope.item(), rel=1e-12)
        assert second[row].item() == pytest.approx(bend.item(), rel=1e-10)


def test_where_there_is_no_direction_to_scale_the_state_stays():
    h = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    d = torch.tensor([[1.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    radii = Radii.of(h, d, None)
    assert radii.factor(0.0)[0] == 1.0  # a state of zero
    assert radii.factor(0.5)[1] == 1.0  # a chord through zero
    assert all(torch.isfinite(value).all() for value in radii.derivatives())
    wiped = Radii.of(h, d, torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert torch.isfinite(wiped.factor(0.3)).all()


def test_a_gain_of_another_size_is_refused(tmp_path: Any):
    words, turn = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 8)
    model: Any = ls.wrap(embed=words, step=lambda h: h + torch.tanh(turn(h)), head=words.weight)
    task = ls.Task.from_rows([{"prompt_ids": [1, 2], "solution_ids": [3, 4]}])
    for gain, said in ((torch.ones(4), r"\[4\]"), (1.0, "float")):
        model.state_gain_D = gain
        with pytest.raises(LoopscopeError, match=rf"wrapped: state_gain_D must be a tensor \[8\], not {said}"):
            ls.measure(model, task, output=tmp_path / said, transitions=1, renormalise=True)


def test_it_belongs_to_the_run_and_changes_nothing_else(measured: Any, contents: Any):
    run = measured(limit=2, renormalise=True)
    plain = measured(limit=2)
    assert run.manifest.settings["renormalise"] is True
    kept = {n: d for n, d in contents(run.path).items() if n.endswith("parquet") and not n.startswith("renormalised")}
    assert kept == {name: data for name, data in contents(plain.path).items() if name.endswith("parquet")}
    assert ls.Run(run.path).verify(replay=True).ok
    with pytest.raises(LoopscopeError, match=r"settings\.renormalise was absent, is now True"):
        measured(limit=2, renormalise=True, output=plain.path)
    with pytest.raises(LoopscopeError, match="renormalise=True is about updates"):
        measured(transitions=(), depths=[1, 2], renormalise=True)
    assert run.read("renormalised").select(pl.col("gains").list.len()).to_series().unique().to_list() == [21]
