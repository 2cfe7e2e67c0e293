"""The numbers of a pass against independent calculations: a plain forward, autograd, the interpolated state itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from loopscope import Batch, load_model, load_tokenizer
from loopscope.readout.autograd import differentiable_attention
from loopscope.store import StoredRun
from loopscope.tasks.encoding import Example, encode_row
from loopscope.tasks.load import load_task

CASES = [("ouro", "arithmetic"), ("ouro", "arithmetic-mc"), ("huginn", "arithmetic"), ("huginn", "arithmetic-mc")]
T = 2


class Alone:
    """Each question by itself, unpadded, in float64, with nothing but the model and torch."""

    def __init__(self, folder: str, task: str, count: int) -> None:
        self.model: Any = load_model(folder, dtype="float64")
        tokenizer = load_tokenizer(folder)
        loaded = load_task(task, limit=count)
        self.examples = [encode_row(tokenizer, row, loaded.encoding) for row in loaded.rows]

    def states(self, example: Example, depth: int) -> list[torch.Tensor]:
        """H of every sequence, each [1, S, D]."""
        return [
            self.model.states(Batch.from_rows([s.token_ids], source_rows=[example.source_row]), [depth])[depth]
            for s in example.sequences
        ]

    def scores(self, example: Example, states: list[torch.Tensor]) -> torch.Tensor:
        """Mean log probability of each sequence's reference."""
        found = []
        for sequence, state in zip(example.sequences, states, strict=True):
            log_p = torch.log_softmax(self.model.readout(state, dtype=torch.float64)[0].double(), -1)
            found.append(
                torch.stack([log_p[p, y] for p, y in zip(sequence.positions, sequence.targets, strict=True)]).mean()
            )
        return torch.stack(found)

    def utility(self, example: Example, states: list[torch.Tensor]) -> float:
        return float(self._utility(example, states))

    def _utility(self, example: Example, states: list[torch.Tensor]) -> torch.Tensor:
        scores = self.scores(example, states)
        return scores[0] if example.answer is None else torch.log_softmax(scores, 0)[example.answer]

    def derivatives(self, example: Example, alpha: float) -> tuple[float, float]:
        """The first two derivatives of φ by torch's reverse mode."""
        scale = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        pairs = zip(self.states(example, T), self.states(example, T + 1), strict=True)
        with torch.enable_grad(), differentiable_attention():
            utility = self._utility(example, [h + scale * (p - h) for h, p in pairs])
            (first,) = torch.autograd.grad(utility, scale, create_graph=True)
            (second,) = torch.autograd.grad(first, scale)
        return first.item(), second.item()

    def mixed(self, example: Example, alpha: float, rounding: torch.dtype | None = None) -> list[torch.Tensor]:
        """H + αD, rounded if asked."""
        pairs = zip(self.states(example, T), self.states(example, T + 1), strict=True)
        return [(h + alpha * (p - h)).to(rounding or h.dtype).to(h.dtype) for h, p in pairs]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def case(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[StoredRun, Alone]:
    """A float64 run of two questions in one batch, and the same questions alone."""
    from loopscope.api import measure_with as measure

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
    return run, Alone(checkpoint(family), task, 2)


def close(stored: Any, expected: Any, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(np.asarray(stored), np.asarray(expected), rtol=tolerance, atol=tolerance)


def test_utility_at_every_depth(case: tuple[StoredRun, Alone]) -> None:
    run, alone = case
    for example, group in zip(alone.examples, run.depths.partition_by("row"), strict=True):
        expected = [alone.utility(example, alone.states(example, depth)) for depth in group["depth"]]
        close(group["utility"], expected)


def test_option_scores_and_choice(case: tuple[StoredRun, Alone]) -> None:
    run, alone = case
    for example, group in zip(alone.examples, run.depths.partition_by("row"), strict=True):
        if example.answer is None:
            assert group["option_scores"].null_count() == group.height
            continue
        for row in group.iter_rows(named=True):
            scores = alone.scores(example, alone.states(example, row["depth"]))
            close(row["option_scores"], scores)
            lengths = np.array([len(s.targets) for s in example.sequences])
            close(row["option_logliks"], scores.numpy() * lengths)
            assert row["chosen_option"] == int(scores.argmax())


def test_slope_and_quadratic_by_autograd(case: tuple[StoredRun, Alone]) -> None:
    run, alone = case
    for example, row in zip(alone.examples, run.records.iter_rows(named=True), strict=True):
        slope, curvature = alone.derivatives(example, 0.0)
        close(row["slope"], slope)
        close(row["quadratic"], 0.5 * curvature)


def test_grid_is_the_utility_of_the_interpolated_state(case: tuple[StoredRun, Alone]) -> None:
    run, alone = case
    for example, row in zip(alone.examples, run.records.iter_rows(named=True), strict=True):
        start = alone.utility(example, alone.mixed(example, 0.0))
        direct = [alone.utility(example, alone.mixed(example, k / 20)) - start for k in range(21)]
        close(row["grid_gain"], direct)
        close(row["gain"], direct[-1])
        close(row["utility_before"], start)
        close(row["utility_after"], start + direct[-1])


def test_curvature_along_the_path(case: tuple[StoredRun, Alone]) -> None:
    run, alone = case
    for example, row in zip(alone.examples, run.records.iter_rows(named=True), strict=True):
        expected = [alone.derivatives(example, alpha)[1] for alpha in (0.0, 0.25, 0.5, 0.75, 1.0)]
        close(row["curvature_path"], expected)


def test_interventions_on_rounded_states(case: tuple[StoredRun, Alone]) -> None:
    run, alone = case
    for example, row in zip(alone.examples, run.records.iter_rows(named=True), strict=True):
        start = alone.utility(example, alone.mixed(example, 0.0))
        for name, alpha in (("quarter", 0.25), ("quadratic", row["quadratic_scale"])):
            # The pass interpolates in FP32, so rarely an entry falls to the other side of a BF16 rounding.
            state = alone.mixed(example, alpha, torch.bfloat16)
            close(row[f"bf16_{name}_gain"], alone.utility(example, state) - start, 2e-4)
        state = alone.mixed(example, row["quadratic_scale"])
        close(row["quadratic_gain"], alone.utility(example, state) - start)


def test_state_and_output_diagnostics(case: tuple[StoredRun, Alone]) -> None:
    run, alone = case
    for example, row in zip(alone.examples, run.records.iter_rows(named=True), strict=True):
        h, h_plus = alone.states(example, T), alone.states(example, T + 1)
        flat, flat_plus = torch.cat([x.reshape(-1) for x in h]), torch.cat([x.reshape(-1) for x in h_plus])
        norm = float((flat_plus - flat).norm())
        close(row["update_norm"], norm, 1e-5)
        close(row["relative_change"], norm / (float(flat.norm()) + 1e-12), 1e-5)
        cosine = torch.nn.functional.cosine_similarity(flat, flat_plus, 0)
        close(row["cosine_change"], 1.0 - float(cosine), 1e-5)
        divergences, changes = [], []
        for sequence, x, y in zip(example.sequences, h, h_plus, strict=True):
            places = list(sequence.positions)
            p, q = (
                torch.log_softmax(alone.model.readout(s, dtype=torch.float64)[0, places].double(), -1) for s in (x, y)
            )
            divergences.append(float((p.exp() * (p - q)).sum(-1).mean()))
            changes.append(float(((p.exp() * p).sum(-1) - (q.exp() * q).sum(-1)).mean()))
        close(row["output_kl"], np.mean(divergences))
        close(row["entropy_change"], np.mean(changes))
        if example.answer is None and alone.model.head is not None:
            close(row["kl_correction"], divergences[0])
            assert abs(row["gain"] - (row["slope"] - row["kl_correction"])) < 1e-13


def test_token_rows_add_up_to_their_question(case: tuple[StoredRun, Alone]) -> None:
    run, alone = case
    tokens = run.read("tokens")
    assert tokens.height == sum(example.prediction_count for example in alone.examples)
    for example, row in zip(alone.examples, run.records.iter_rows(named=True), strict=True):
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
