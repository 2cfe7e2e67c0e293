"""The objectives against independent formulas."""

import math

import numpy as np
import pytest
import torch

from loopscope.models.batch import Batch
from loopscope.toys.build import new_model
from loopscope.toys.data import BARE, STORY, WORKED
from loopscope.toys.objective import (
    draw_recurrence,
    draw_state,
    expected_loss,
    huginn_loss,
    ouro_loss,
    supervise,
    weighted_loss,
)


@pytest.fixture
def asked():
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 512, (4, 12), generator=generator)
    start, length = torch.tensor([4, 6, 9, 1]), torch.tensor([12, 10, 11, 7])
    form = torch.tensor([WORKED, WORKED, BARE, STORY])
    return supervise(tokens, start, length, form, prompt_weight=0.1, direct_weight=2.0, vocabulary=512)


def test_weights_by_hand(asked):
    assert asked.weights[0].tolist() == pytest.approx([0.1] * 3 + [1.0] * 8 + [0.0])
    assert asked.weights[1].tolist() == pytest.approx([0.1] * 5 + [1.0] * 4 + [0.0] * 3)
    assert asked.weights[2].tolist() == pytest.approx([0.1] * 8 + [2.0] * 2 + [0.0] * 2)
    assert asked.weights[3].tolist() == pytest.approx([1.0] * 6 + [0.0] * 6)
    assert asked.solution.sum(dim=1).tolist() == [8, 4, 0, 0]
    assert asked.story.sum(dim=1).tolist() == [0, 0, 0, 6]
    assert torch.equal(asked.targets[:, :-1], asked.batch.input_ids[:, 1:])
    assert asked.batch.attention_mask.sum(dim=1).tolist() == [12, 10, 11, 7]


def test_expected_loss_is_the_mean_over_exits_less_the_entropy():
    losses, chances = [0.3, 1.1, 2.0], [0.2, 0.5, 0.3]
    by_hand = sum(p * loss for p, loss in zip(chances, losses, strict=True))
    by_hand -= 0.07 * -sum(p * math.log(p) for p in chances)
    given = expected_loss(torch.tensor(losses)[:, None, None], torch.tensor(chances)[:, None, None], 0.07)
    assert given.item() == pytest.approx(by_hand, rel=1e-6)


def test_expected_loss_is_least_at_the_softmax_of_the_losses():
    """min over p of Σ p ℓ − β H(p) is −β log Σ exp(−ℓ/β), at p ∝ exp(−ℓ/β)."""
    losses, weight = torch.tensor([0.3, 0.5, 0.1, 0.4], dtype=torch.float64), 0.2
    best = torch.softmax(-losses / weight, dim=0)
    value = expected_loss(losses[:, None, None], best[:, None, None], weight).item()
    assert value == pytest.approx(-weight * torch.logsumexp(-losses / weight, dim=0).item(), rel=1e-12)
    for _ in range(20):
        other = torch.softmax(torch.randn(4, dtype=torch.float64), dim=0)
        assert expected_loss(losses[:, None, None], other[:, None, None], weight).item() >= value


def test_ouro_loss_against_a_walk_token_by_token(recipes, asked):
    model = new_model(recipes["ouro"], 1).double()
    with torch.no_grad():
        model.model.early_exit_gate.weight.normal_()
        found = ouro_loss(model, asked, 0.05)
        states = model.states(asked.batch, range(1, model.trained_depth + 1))
        total = weights = 0.0
        for row in range(4):
            for position in range(12):
                weight = asked.weights[row, position].item()
                if weight == 0:
                    continue
                left, token_loss, entropy = 1.0, 0.0, 0.0
                for depth, state in states.items():
                    logits = model.readout(state)[row, position]
                    loss = -torch.log_softmax(logits, dim=0)[asked.targets[row, position]].item()
                    gate = torch.sigmoid(model.gate_logits(state)[row, position]).item()
                    chance = left if depth == model.trained_depth else left * gate
                    left -= chance
                    token_loss += chance * loss
                    entropy -= chance * math.log(chance)
                total += weight * (token_loss - 0.05 * entropy)
                weights += weight
    assert found.total.item() == pytest.approx(total / weights, rel=1e-5)
    assert found.exits.sum().item() == pytest.approx(1.0, abs=1e-5)


def test_weighted_loss_is_the_sum_over_the_loops_and_logs_both_kinds_of_text(recipes, asked):
    model = new_model(recipes["ouro"], 1).double()
    with torch.no_grad():
        found = weighted_loss(model, asked, (0.0, 0.3, 0.7))
        states = model.states(asked.batch, [2, 3])
        total = 0.0
        for depth, weight in ((2, 0.3), (3, 0.7)):
            chances = torch.log_softmax(model.readout(states[depth]), dim=-1)
            losses = -chances.gather(-1, asked.targets[..., None])[..., 0]
            total += weight * ((losses * asked.weights).sum() / asked.weights.sum()).item()
            told = losses[3, :6].sum().item()
            assert found.by_depth[depth].tolist()[2:] == pytest.approx([told, 6], rel=1e-5)
    assert set(found.by_depth) == {2, 3}
    assert found.total.item() == pytest.approx(total, rel=1e-5)


def test_recurrence_has_the_mean_and_the_spread_of_its_formula():
    rng = np.random.default_rng(0)
    drawn = np.array([draw_recurrence(rng, 8.0, 0.5) for _ in range(40_000)])
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(9.0, abs=0.1)
    # A Poisson number with a random rate: the mean rate plus the rate's own variance.
    assert drawn.var() == pytest.approx(8 + 64 * (math.exp(0.25) - 1), rel=0.05)


def test_initial_state_is_a_normal_cut_at_three_deviations(recipes):
    model = new_model(recipes["huginn"], 0)
    drawn = draw_state(model, (50, 60), torch.Generator().manual_seed(0))
    scale = model.config.state_std * model.config.embed_scale
    assert drawn.abs().max() <= 3 * scale * (1 + 1e-6)
    # The variance of a standard normal cut at ±3: 1 − 6 φ(3) / (2 Φ(3) − 1).
    density = math.exp(-4.5) / math.sqrt(2 * math.pi)
    variance = 1 - 6 * density / math.erf(3 / math.sqrt(2))
    assert drawn.var().item() == pytest.approx(variance * scale**2, rel=0.02)


def test_huginn_loss_is_that_of_the_readout_after_all_loops(recipes, asked):
    model = new_model(recipes["huginn"], 1)
    state = draw_state(model, (4, 12), torch.Generator().manual_seed(0))
    found = huginn_loss(model, asked, state, 5, 2)
    batch = Batch(asked.batch.input_ids, asked.batch.attention_mask, initial_state=state)
    logits = model.readout(model.states(batch, [5])[5])
    losses = -torch.log_softmax(logits, dim=-1).gather(-1, asked.targets[..., None])[..., 0]
    by_hand = (losses * asked.weights).sum() / asked.weights.sum()
    assert found.total.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_huginn_gradients_stop_at_the_last_loops(recipes, asked):
    """With more loops than gradients reach, H_0 gets none; with fewer it does."""
    model = new_model(recipes["huginn"], 1)
    for recurrence, reached in ((2, True), (3, False)):
        state = draw_state(model, (4, 12), torch.Generator().manual_seed(0)).requires_grad_()
        huginn_loss(model, asked, state, recurrence, 2).total.backward()
        assert (state.grad is not None) == reached
