"""The numbers of a pass against independent calculations: a plain forward, autograd, the interpolated state itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from loopscope.api import measure_with as measure
from loopscope.store import StoredRun

CASES = [("ouro", "arithmetic"), ("ouro", "arithmetic-mc"), ("huginn", "arithmetic"), ("huginn", "arithmetic-mc")]
T = 2


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def case(
    request: pytest.FixtureRequest,
    checkpoint: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
    plain: Any,
) -> tuple[StoredRun, Callable[[int], list[Any]]]:
    """A float64 run of two questions in one batch, and the update after some loops of each by itself."""
    family, task = request.param
    run = measure(
        checkpoint(family),
        [task],
        output=tmp_path_factory.mktemp("numbers") / "run",
        transitions=[T],
        depths=[0, 5],
        tokens=True,
        limit=2,
        dtype="float64",
        readout_dtype="float64",
        device="cpu",
    )
    return run, partial(plain.plain_updates, checkpoint(family), task, count=2, dtype="float64")


Case = tuple[StoredRun, Callable[[int], list[Any]]]


def close(stored: Any, expected: Any, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(np.asarray(stored), np.asarray(expected), rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_utilities_scores_and_choices_at_every_depth(case: Case) -> None:
    run, plain = case
    for depth, group in run.depths.group_by("depth"):
        for update, row in zip(plain(depth[0]), group.sort("row").iter_rows(named=True), strict=True):
            close(row["utility"], update.utility(update.before))
            if update.example.answer is None:
                assert row["option_scores"] is None
                continue
            scores = update.scores(update.before)
            close(row["option_scores"], scores)
            close(row["option_logliks"], scores.numpy() * [len(s.targets) for s in update.example.sequences])
            assert row["chosen_option"] == int(scores.argmax())


def test_gains_and_derivatives_along_the_path(case: Case) -> None:
    run, plain = case
    for update, row in zip(plain(T), run.records.iter_rows(named=True), strict=True):
        start, direct = float(update.utility(update.before)), [update.gain(k / 20) for k in range(21)]
        close(row["grid_gain"], direct)
        close((row["utility_before"], row["utility_after"], row["gain"]), (start, start + direct[-1], direct[-1]))
        slope, curvature = update.derivatives(0.0)
        close((row["slope"], row["quadratic"]), (slope, 0.5 * curvature))
        close(row["curvature_path"], [update.derivatives(alpha)[1] for alpha in (0.0, 0.25, 0.5, 0.75, 1.0)])
        close(row["quadratic_gain"], update.gain(row["quadratic_scale"]))
        for name, alpha in (("quarter", 0.25), ("quadratic", row["quadratic_scale"])):
            # The pass interpolates in FP32, so rarely an entry falls to the other side of a BF16 rounding.
            close(row[f"bf16_{name}_gain"], update.gain(alpha, torch.bfloat16), 2e-4)


@torch.no_grad()
def test_state_and_output_diagnostics(case: Case) -> None:
    run, plain = case
    for update, row in zip(plain(T), run.records.iter_rows(named=True), strict=True):
        flat, flat_plus = (torch.cat([x.reshape(-1) for x in states]) for states in (update.before, update.after))
        norm = float((flat_plus - flat).norm())
        close(row["update_norm"], norm, 1e-5)
        close(row["relative_change"], norm / (float(flat.norm()) + 1e-12), 1e-5)
        cosine = torch.nn.functional.cosine_similarity(flat, flat_plus, 0)
        close(row["cosine_change"], 1.0 - float(cosine), 1e-5)
        ends = list(zip(update.log_p(update.before), update.log_p(update.after), strict=True))
        divergences = [float((p.exp() * (p - q)).sum(-1).mean()) for p, q in ends]
        close(row["output_kl"], np.mean(divergences))
        entropies = [float(((p.exp() * p).sum(-1) - (q.exp() * q).sum(-1)).mean()) for p, q in ends]
        close(row["entropy_change"], np.mean(entropies))
        if update.example.answer is None and update.model.head is not None:
            close(row["kl_correction"], divergences[0])
            assert abs(row["gain"] - (row["slope"] - row["kl_correction"])) < 1e-13


def test_token_rows_add_up_to_their_question(case: Case) -> None:
    run, plain = case
    examples = [update.example for update in plain(T)]
    tokens = run.read("tokens")
    assert tokens.height == sum(example.prediction_count for example in examples)
    for example, row in zip(examples, run.records.iter_rows(named=True), strict=True):
        own = tokens.filter(tokens["row"] == row["row"])
        assert own["token_id"].to_list() == [y for s in example.sequences for y in s.targets]
        assert own["position"].to_list() == [p for s in example.sequences for p in s.positions]
        if example.answer is not None:
            continue
        close(own["utility_before"].mean(), row["utility_before"])
        for name in ("gain", "slope", "quadratic"):
            close(own[name].mean(), row[name])
        grid = np.stack(own["grid_gain"].to_list())
        close(grid.mean(0), row["grid_gain"], 1e-5)
        close(own["quarter_gain"].mean(), row["grid_gain"][5])
