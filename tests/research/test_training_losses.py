"""The losses on a loop against the readout's own A and ΔU, autograd in float64, and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

import loopscope as ls
from research.experiments.training_losses import (
    Geometry,
    fixed_point_loss,
    geometry_loss,
    jacobian_penalty,
    question_means,
    update_geometry,
)

B, S, D, V = 3, 5, 6, 11


@pytest.fixture
def drawn():
    """States, targets and weights of three questions of different lengths, and a head."""
    generator = torch.Generator().manual_seed(3)
    state, moved = (torch.randn(B, S, D, generator=generator, dtype=torch.float64) for _ in range(2))
    head = torch.randn(V, D, generator=generator, dtype=torch.float64)
    targets = torch.randint(V, (B, S), generator=generator)
    weights = (torch.arange(S)[None] < torch.tensor([5, 3, 1])[:, None]).to(torch.float64)
    return state, state + 0.4 * moved, head, targets, weights


def test_slope_and_curvature_are_those_of_the_readout(drawn) -> None:
    state, after, head, targets, weights = drawn
    found = update_geometry(lambda h: h @ head.T, state, after, targets, weights)
    kept = weights.bool()
    path = ls.affine_path_from_states(
        state[kept], after[kept], head, None, targets[kept], examples=torch.where(kept)[0], impl="reference"
    )
    torch.testing.assert_close(found.slope_B, path.slope, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.gain_B, path.gain, rtol=1e-10, atol=1e-12)
    p, q = (torch.log_softmax(end @ head.T, dim=-1) for end in (state, after))
    divergence = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(found.curvature_B, question_means(divergence, weights), rtol=1e-10, atol=1e-12)


def test_slope_and_curvature_through_a_readout_that_is_not_affine(drawn) -> None:
    state, after, head, targets, weights = drawn

    def read(h):
        return torch.tanh(h @ head.T) * 3

    found = update_geometry(read, state, after, targets, weights)
    kept = weights.bool()
    path = ls.nonlinear_path_from_states(
        read, state[kept], after[kept], targets[kept], examples=torch.where(kept)[0], dtype=torch.float64
    )
    torch.testing.assert_close(found.slope_B, path.slope, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.gain_B, path.gain, rtol=1e-9, atol=1e-11)

    scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    logits = read(state + scale * (after - state))
    utility = question_means(logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0], weights)
    (slope,) = torch.autograd.grad(utility[0], scale)
    torch.testing.assert_close(found.slope_B[0], slope, rtol=1e-10, atol=1e-12)


def test_gradients_reach_the_end_of_the_update_alone(drawn) -> None:
    state, after, head, targets, weights = drawn
    state.requires_grad_()
    after = after.detach().requires_grad_()

    def geometry(end):
        return update_geometry(lambda h: torch.tanh(h @ head.T), state, end, targets, weights)

    found = geometry_loss(geometry(after), margin=4.0)
    (gradient,) = torch.autograd.grad(found, after, retain_graph=True)
    assert bool(gradient.abs().sum() > 0)
    assert torch.autograd.grad(found, state, allow_unused=True) == (None,)
    assert torch.autograd.gradcheck(lambda end: geometry(end).curvature_B, (after,))
    assert torch.autograd.gradcheck(lambda end: geometry(end).slope_B, (after,))


def test_a_step_that_is_too_long_becomes_shorter_and_gains() -> None:
    """One token of two: v = (s, 0) from even odds has A = s/2 > 0 and KL above it, once the other is often right."""
    state = torch.zeros(1, 4, 1, dtype=torch.float64)
    after = torch.full_like(state, 4.0).requires_grad_()
    targets, weights = torch.tensor([[0, 0, 0, 1]]), torch.ones(1, 4, dtype=torch.float64)

    def geometry():
        return update_geometry(
            lambda h: torch.cat([h, torch.zeros_like(h)], dim=-1), state, after.mean() + 0 * after, targets, weights
        )

    first = geometry()
    assert first.slope_B > 0 > first.gain_B
    for _ in range(400):
        (gradient,) = torch.autograd.grad(geometry_loss(geometry()), after)
        after = (after - 0.5 * gradient).detach().requires_grad_()
    last = geometry()
    # A parabola's best step has A = 2C; the best of this one is log 3, and the loss is content a little beyond it.
    assert last.slope_B > 0
    assert last.gain_B > 0
    assert 0.9 < after.mean().item() < 1.5


def test_updates_that_gain_enough_cost_nothing() -> None:
    slope = torch.tensor([0.4, 0.4, -0.1], requires_grad=True)
    found = geometry_loss(Geometry(slope, torch.tensor([0.1, 0.3, 0.0])))
    found.backward()
    torch.testing.assert_close(found, torch.tensor((0.0 + math.log(1.2) + math.log(1.1)) / 3))
    torch.testing.assert_close(slope.grad, torch.tensor([0.0, -1 / 3.6, -1 / 3.3]))


def test_the_fixed_point_loss_in_closed_form() -> None:
    state = torch.tensor([[[1.0, 0.0], [5.0, 5.0]]])
    after = torch.tensor([[[1.0, 1.0], [9.0, 9.0]]])
    found = fixed_point_loss(state, after, torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor(0.5))


def test_the_jacobian_penalty_is_the_mean_square_of_a_linear_step() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(D, D, generator=generator, dtype=torch.float64)
    state = torch.zeros(200, 20, D, dtype=torch.float64)
    mask = torch.ones(200, 20, dtype=torch.bool)
    mask[:, 15:] = False
    found = jacobian_penalty(lambda h: h @ matrix, state, mask, generator)
    # 3,000 draws of v: the mean is within a few percent of the Frobenius norm over the width.
    torch.testing.assert_close(found, matrix.square().sum() / D, rtol=0.1, atol=0.0)


def test_the_jacobian_penalty_has_the_gradient_of_differences() -> None:
    model = ls.load_model("toy-ouro", dtype="float64", device="cpu").requires_grad_(True)
    batch = ls.Batch.from_rows([[5, 6, 7, 8], [9, 10]])
    walk = ls.Walk.of(model, batch).to(2)
    state = walk.state.detach()
    weight = model.model.layers[0].mlp.up_proj.weight

    def penalty():
        generator = torch.Generator().manual_seed(1)
        return jacobian_penalty(lambda h: model.step(h, walk.context), state, batch.attention_mask, generator)

    (gradient,) = torch.autograd.grad(penalty(), weight)
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values = []
    for size in (1e-4, -1e-4):
        with torch.no_grad():
            weight.add_(size * direction)
        values.append(penalty().item())
        with torch.no_grad():
            weight.sub_(size * direction)
    assert (gradient * direction).sum().item() == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-4)
