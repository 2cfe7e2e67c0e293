"""`as_in_paper`: the paper's envelope, brackets, FP32 residuals and adaptive extremes, each by a plain calculation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import loopscope as ls
from loopscope.api import measure_with
from loopscope.measuring.batching import collate, encode_task
from loopscope.measuring.fp64 import path_columns, state_gap
from loopscope.measuring.update import Layout, Update
from loopscope.models.walk import read
from loopscope.path import search_optimum
from loopscope.readout.path import UtilityPath
from loopscope.store import StoredRun

TRANSITION, QUESTIONS = 1, 5
WIDTH = 2.0**-14


@pytest.fixture(scope="module")
def folder(checkpoint: Callable[[str], str]) -> str:
    return checkpoint("ouro")


@pytest.fixture(scope="module")
def runs(folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredRun]:
    """The same updates under both protocols, in one arithmetic and layout."""
    place = tmp_path_factory.mktemp("protocols")
    same = {"dtype": "float32", "batch_size": 2, "device": "cpu"}
    return {
        name: measure_with(
            folder,
            ["arithmetic"],
            output=place / name,
            transitions=[TRANSITION],
            level="full",
            paths=True,
            limit=QUESTIONS,
            protocol=name,
            **same,
        )
        for name in ("loopscope", "paper")
    }


@pytest.fixture(scope="module")
def paper(runs: dict[str, StoredRun]) -> pl.DataFrame:
    return runs["paper"].read("questions")


def test_the_envelope_by_hand(folder: str, runs: dict[str, StoredRun], paper: pl.DataFrame, plain: Any) -> None:
    """M, L_D and C̄ from logits that are written out, at the 257 nodes."""
    nodes, h = np.arange(257) / 256, 1 / 256
    for row, update in enumerate(plain.plain_updates(folder, "arithmetic", TRANSITION, QUESTIONS)):
        [sequence] = update.example.sequences
        places = torch.tensor([[0, place] for place in sequence.positions])
        z, after = (
            read(update.model, state, places, torch.float64).double() for (state,) in (update.before, update.after)
        )
        v = after - z
        second, third = [], []
        for alpha in nodes:
            p = torch.softmax(z + alpha * v, -1)
            centred = v - (p * v).sum(-1, keepdim=True)
            second.append(-(p * centred**2).sum(-1).mean())
            third.append(-(p * centred**3).sum(-1).mean())
        V, third = -np.array(second), np.abs(np.array(third))
        R = (v.amax(-1) - v.amin(-1)).numpy()
        reach = (third[:-1] + third[1:] + h * np.mean(R**4) / 8) / 2
        L = np.minimum(reach, np.mean(R**3) / (6 * np.sqrt(3)))
        assert paper["fp64_M"][row] == pytest.approx(L.max(), rel=1e-8)
        upper = np.minimum((V[:-1] + V[1:] + L * h) / 2, np.mean(R**2) / 4)
        assert paper["fp64_L_D"][row] == pytest.approx(upper.max(), rel=1e-8)
        g = np.abs(V - V[0])
        assert paper["fp64_C_upper"][row] == pytest.approx(np.sum(h / 2 * (g[:-1] + g[1:]) + L * h**2 / 4), rel=1e-8)


def test_brackets_are_halved_to_less_than_a_ten_thousandth(runs: dict[str, StoredRun], paper: pl.DataFrame) -> None:
    ours = runs["loopscope"].read("questions")
    assert paper["fp64_optimum_kind"].to_list() == ours["fp64_optimum_kind"].to_list()
    inside = np.array(paper["fp64_optimum_kind"].to_list()) == "interior"
    low, high, exact = (
        frame[f"fp64_optimum_{end}"].to_numpy()[inside]
        for frame, end in ((paper, "low"), (paper, "high"), (ours, "low"))
    )
    assert len(low)
    np.testing.assert_array_equal(high - low, WIDTH)
    np.testing.assert_array_equal(low / WIDTH, np.round(low / WIDTH))
    assert ((low <= exact) & (exact <= high)).all()
    assert (paper["fp64_optimum_slope"].list.get(0).to_numpy()[inside] > 0).all()
    assert (paper["fp64_optimum_slope"].list.get(1).to_numpy()[inside] <= 0).all()
    best = ours["fp64_optimum_gain_high"].to_numpy()
    assert (paper["fp64_optimum_gain_low"].to_numpy() <= best + 1e-15).all()
    assert (paper["fp64_optimum_gain_high"].to_numpy() >= best - 1e-15).all()


def test_the_kl_correction_in_float32(folder: str, runs: dict[str, StoredRun], paper: pl.DataFrame, plain: Any) -> None:
    for row, update in enumerate(plain.plain_updates(folder, "arithmetic", TRANSITION, QUESTIONS)):
        [sequence], [start], [plus] = update.example.sequences, update.before, update.after
        places = torch.tensor([[0, place] for place in sequence.positions])
        targets = torch.tensor(sequence.targets)[:, None]
        start = start.float().requires_grad_()
        before = torch.log_softmax(read(update.model, start, places, torch.float32), -1)
        after = torch.log_softmax(read(update.model, plus.float(), places, torch.float32), -1).detach()
        before.gather(1, targets).mean().backward()
        slope = float((start.grad * (plus.float() - start.detach())).sum())
        gain = float(after.gather(1, targets).double().mean() - before.detach().gather(1, targets).double().mean())
        divergence = torch.nn.functional.kl_div(after, before.detach(), reduction="none", log_target=True).sum(-1)
        found = paper.row(row, named=True)
        assert found["kl_slope"] == pytest.approx(slope, abs=1e-5)
        assert found["kl_gain"] == pytest.approx(gain, abs=1e-5)
        assert found["kl_correction"] == pytest.approx(float(divergence.double().mean()), abs=1e-5)
    rounding = runs["paper"].table("exact-kl").rows[0]["max_residual"]
    assert rounding == (paper["kl_gain"] - (paper["kl_slope"] - paper["kl_correction"])).abs().max()
    assert 1e-10 < rounding < 1e-4
    assert runs["loopscope"].table("exact-kl").rows[0]["max_residual"] < 1e-3 * rounding


def test_endpoints_are_read_again(folder: str, runs: dict[str, StoredRun], paper: pl.DataFrame, plain: Any) -> None:
    ours = runs["loopscope"].read("questions")
    largest = paper["endpoint_replay"].max()
    assert runs["paper"].table("derivative-checks").rows[0]["endpoint_reread"] == largest < 1e-6
    for row, update in enumerate(plain.plain_updates(folder, "arithmetic", TRANSITION, QUESTIONS)):
        for name, state in (("utility_before", update.before), ("utility_after", update.after)):
            assert float(update.utility(state)) == pytest.approx(ours[name][row], abs=1e-5)


def test_the_state_gap_is_that_of_its_arithmetic(folder: str) -> None:
    model, task = ls.load_model(folder), ls.load_task("arithmetic", limit=1)
    questions = list(encode_task(task, ls.load_tokenizer(folder), None, "error").questions)
    batch = collate(questions).batch
    shape = (*batch.input_ids.shape, model.hidden_size)
    before, after = torch.ones(shape, dtype=torch.bfloat16), torch.full(shape, 2.0**-30, dtype=torch.bfloat16)
    update = Update(Layout.of(questions, batch, torch.device("cpu")), before, after)
    # 1 + (2⁻³⁰ − 1) is 0 in float32, whose 24 bits do not hold the difference, and 2⁻³⁰ in float64.
    assert state_gap(update, torch.float32).tolist() == [2.0**-30]
    assert state_gap(update, torch.float64).tolist() == [0.0]


class Wave(UtilityPath):
    """φ(α) = sin(wα + ½) − sin ½ for a few w, with every derivative in closed form."""

    max_order = 4

    def __init__(self, *speeds: float) -> None:
        self._speed = torch.tensor(speeds, dtype=torch.float64)

    @property
    def examples(self) -> int:
        return len(self._speed)

    @property
    def single(self) -> bool:
        return False

    def at_scales(self, scales: list[float], order: int) -> torch.Tensor:
        alpha = torch.tensor(scales, dtype=torch.float64).expand(self.examples, -1)
        return torch.stack([self.order(alpha, k) for k in range(order + 1)])

    def at_own(self, scales_N: torch.Tensor, order: int) -> torch.Tensor:
        return torch.stack([self.order(scales_N[:, None], k)[:, 0] for k in range(order + 1)])

    @functools.cached_property
    def initial_N(self) -> torch.Tensor:  # noqa: N802
        return torch.zeros(self.examples, dtype=torch.float64)

    def order(self, alpha_NK: torch.Tensor, k: int) -> torch.Tensor:
        speed = self._speed[:, None]
        found = speed**k * torch.sin(speed * alpha_NK + 0.5 + k * torch.pi / 2)
        return found if k else found - np.sin(0.5)


def test_extremes_are_those_of_the_adaptive_locations() -> None:
    speeds = np.array([2.0, 9.0, 14.0])
    wave = Wave(*speeds)
    (found, _), (ours, _) = path_columns(wave, 1e-4), path_columns(wave)
    predicted = ours["predicted_scale"]

    def at(order: int, locations: int) -> np.ndarray:
        search = search_optimum(
            lambda alpha, rows: np.sin(speeds[rows] * alpha + 0.5),
            lambda alpha, rows: speeds[rows] * np.cos(speeds[rows] * alpha + 0.5),
            predicted,
            locations=locations,
        )
        assert search.searched.shape == (3, locations)
        return wave.order(torch.tensor(search.searched), order).numpy()

    third, coarse = (np.abs(at(3, count)).max(1) for count in (257, 129))
    curved, coarse_curved = (np.maximum(-at(2, count), 0).max(1) for count in (257, 129))
    np.testing.assert_allclose(found["sampled_third"], third, rtol=1e-12)
    np.testing.assert_allclose(found["sampled_curvature"], (-at(2, 257)).max(1), rtol=1e-12)
    np.testing.assert_allclose(found["sampled_convexity"], at(2, 257).max(1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["refined_change"][:, 3], np.abs(third - coarse), atol=1e-9)
    np.testing.assert_allclose(found["refined_change"][:, 2], np.abs(curved - coarse_curved), atol=1e-9)
    assert not np.array_equal(found["sampled_third"], ours["sampled_third"])
