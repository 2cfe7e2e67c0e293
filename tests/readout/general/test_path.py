"""Taylor mode through a nonlinear readout, against Hessian–vector products, the chord, nesting and differences."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope.models.families.huginn import Huginn, HuginnConfig
from loopscope.readout import (
    affine_path,
    autograd_coefficients,
    chord_curvature,
    nonlinear_path,
    nonlinear_path_from_states,
    option_path,
)

SIZES = {
    "n_embd": 24, "n_heads": 3, "intermediate_size": 32, "n_layers_in_prelude": 1, "n_layers_in_recurrent_block": 1,
    "n_layers_in_coda": 2, "vocab_size": 41, "block_size": 32, "mean_recurrence": 4,
}  # fmt: skip
HIDDEN, LENGTH, VOCABULARY = 24, 9, 41


def made():
    """A small Huginn: norm, two blocks of attention and a gated map with their norms, norm, tied head."""
    model = Huginn(HuginnConfig.read(SIZES))
    g = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            deviation = 0.3 if parameter.ndim == 1 else 2.0 * parameter.shape[-1] ** -0.5
            parameter.normal_(float(parameter.ndim == 1), deviation, generator=g)
    model.prepare()
    return model


MODEL = made()


def readout(state, positions):
    return MODEL.readout(state, positions, dtype=state.dtype)


POSITIONS = torch.tensor([[0, 3], [0, 4], [0, 8], [1, 0], [1, 7], [2, 5], [2, 6], [2, 7]])
EXAMPLES = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
TARGETS = torch.tensor([1, 5, 36, 0, 20, 7, 7, 30])


def _states(dtype):
    g = torch.Generator().manual_seed(4)
    state = torch.randn(3, LENGTH, HIDDEN, generator=g, dtype=torch.float64)
    return state.to(dtype), (0.2 * torch.randn(3, LENGTH, HIDDEN, generator=g, dtype=torch.float64)).to(dtype)


def _path(dtype=torch.float64, impl="taylor", **more):
    state, displacement = _states(dtype)
    return nonlinear_path(readout, state, displacement, TARGETS, POSITIONS, examples=EXAMPLES, impl=impl, **more)


def _example_utility(example):
    rows = example == EXAMPLES

    def utility(state):
        logits = readout(state, POSITIONS[rows]).double()
        return torch.log_softmax(logits, -1)[range(int(rows.sum())), TARGETS[rows]].mean().reshape(1)

    return utility


def _by_autograd(dtype, alpha=0.0):
    """A and φ'' of every example by a Hessian–vector product, [2, 3]."""
    state, displacement = _states(dtype)
    base, found = state + alpha * displacement, []
    for example in range(3):
        one = autograd_coefficients(_example_utility(example), base, displacement, torch.zeros(3).long(), 1)
        found.append(torch.cat([one.slope, one.curvature]))
    return torch.stack(found, 1)


@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
def test_slope_and_curvature_agree_with_the_hessian_vector_product(alpha):
    found = _path().derivatives(alpha, 2).stack[1:]
    torch.testing.assert_close(found, _by_autograd(torch.float64, alpha), rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("example", [0, 1, 2])
def test_curvature_agrees_with_the_normalised_chord(example):
    state, displacement = _states(torch.float64)
    chord = chord_curvature(_example_utility(example), state, displacement)
    torch.testing.assert_close(_path().curvature[example], chord, rtol=1e-10, atol=0.0)


def test_single_precision_meets_the_papers_criterion():
    state, displacement = _states(torch.float32)
    path = _path(torch.float32)
    slope, curvature = _by_autograd(torch.float32)
    for example in range(3):
        chord = chord_curvature(_example_utility(example), state, displacement)
        for theirs in (chord, curvature[example]):
            difference = abs(float(path.curvature[example] - theirs))
            assert difference <= 1e-6 or difference <= 1e-4 * abs(float(theirs))
        difference = abs(float(path.slope[example] - slope[example]))
        assert difference <= 1e-6 or difference <= 1e-4 * abs(float(slope[example]))


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_every_order_agrees_with_nested_forward_mode(alpha):
    taylor, nested = (_path(impl=impl).derivatives(alpha, 4) for impl in ("taylor", "nested"))
    assert torch.equal(taylor.value, nested.value)
    for k in range(1, 5):
        torch.testing.assert_close(taylor[k], nested[k], rtol=1e-10, atol=1e-12)


def test_third_derivatives_agree_with_central_differences_at_second_order():
    path = _path()
    third = path.derivatives(0.5, 3).third
    errors = []
    for h in (0.01, 0.005, 0.0025):
        second = path.derivatives([0.5 - h, 0.5 + h], 2).second
        errors.append(float(((second[:, 1] - second[:, 0]) / (2 * h) - third).abs().max() / third.abs().max()))
    assert errors[2] < 1e-3
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.05)


def test_values_are_utilities_of_the_readout():
    state, displacement = _states(torch.float64)
    path = _path()
    for example in range(3):
        utility = _example_utility(example)
        start, end = utility(state), utility(state + 0.7 * displacement)
        torch.testing.assert_close(path.initial_utility[example], start[0].detach(), rtol=1e-13, atol=0.0)
        torch.testing.assert_close(path.value(0.7)[example], (end - start)[0].detach(), rtol=1e-11, atol=0.0)
    assert float(path.value(0.0).abs().max()) == 0.0
    assert torch.equal(path.derivatives(0.7, 3).value, path.value(0.7))


def test_an_affine_readout_gives_the_closed_form():
    g = torch.Generator().manual_seed(6)
    h, d = torch.randn(2, 5, HIDDEN, generator=g, dtype=torch.float64)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=g, dtype=torch.float64)
    y = torch.arange(5)
    taylor = nonlinear_path(lambda s: functional.linear(s, weight), h, d, y)
    closed = affine_path(h @ weight.T, d @ weight.T, y)
    torch.testing.assert_close(
        taylor.derivatives([0.0, 0.5], 4).stack, closed.derivatives([0.0, 0.5], 4).stack, rtol=1e-11, atol=1e-12
    )


def test_options_read_out_together_keep_their_cross_terms():
    path = option_path(_path(), correct=1)
    state, displacement = _states(torch.float64)

    def utility(h):
        tokens = torch.log_softmax(readout(h, POSITIONS), -1)[range(8), TARGETS]
        scores = torch.stack([tokens[i == EXAMPLES].mean() for i in range(3)])
        return torch.log_softmax(scores, 0)[1].reshape(1)

    found = autograd_coefficients(utility, state, displacement, torch.zeros(3, dtype=torch.int64), 1)
    torch.testing.assert_close(path.slope, found.slope[0], rtol=1e-10, atol=0.0)
    torch.testing.assert_close(path.curvature, found.curvature[0], rtol=1e-10, atol=0.0)
    torch.testing.assert_close(path.curvature, chord_curvature(utility, state, displacement), rtol=1e-10, atol=0.0)


def test_states_as_they_are_stored_give_the_same_path():
    state, displacement = _states(torch.float32)
    h, h_plus = state.bfloat16(), (state + displacement).bfloat16()
    found = nonlinear_path_from_states(readout, h, h_plus, TARGETS, POSITIONS, examples=EXAMPLES, dtype=torch.float64)
    moved = h_plus.double() - h.double()
    expected = nonlinear_path(readout, h.double(), moved, TARGETS, POSITIONS, examples=EXAMPLES)
    assert torch.equal(found.derivatives([0.0, 0.3], 3).stack, expected.derivatives([0.0, 0.3], 3).stack)
