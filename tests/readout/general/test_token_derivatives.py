"""log softmax of a moving score vector: derivatives against mpmath's own differentiation."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.readout import nonlinear_path
from loopscope.readout.general import token_derivatives as module
from loopscope.readout.general.token_derivatives import log_softmax_derivatives, token_derivatives
from loopscope.readout.softmax import Softmax


def _exact(coefficients, target, order):
    """Taylor coefficients of u by mpmath, as derivatives."""
    entries = range(len(coefficients[0]))

    def utility(t):
        scores = [sum(mpmath.mpf(c[a]) * t**k for k, c in enumerate(coefficients)) for a in entries]
        return scores[target] - mpmath.log(sum(mpmath.exp(s) for s in scores))

    with mpmath.workdps(60):
        return [math.factorial(k) * c for k, c in enumerate(mpmath.taylor(utility, 0, order))][1:]


@pytest.mark.parametrize(("peak", "target"), [(0.0, 0), (30.0, 0), (30.0, 2)])
def test_derivatives_agree_with_mpmath(peak, target):
    g = torch.Generator().manual_seed(17)
    coefficients = torch.randn(5, 4, generator=g, dtype=torch.float64)
    coefficients[0, 0] += peak
    factorials = torch.tensor([1.0, 1.0, 2.0, 6.0, 24.0], dtype=torch.float64)
    derivatives = coefficients * factorials.unsqueeze(1)
    found = log_softmax_derivatives(Softmax(derivatives[0, None]), list(derivatives[1:, None]), torch.tensor([target]))
    expected = _exact(coefficients.tolist(), target, 4)
    for mine, theirs in zip(found, expected, strict=True):
        assert float(mine) == pytest.approx(float(theirs), rel=1e-12, abs=0.0)


def test_a_common_drift_of_all_scores_costs_no_digits():
    scores = Softmax(torch.tensor([[0.5, -0.25, 1.0]], dtype=torch.float64))
    moving = list(torch.tensor([[[1.0, 2.0, -1.0]], [[0.5, 0.0, 1.5]]], dtype=torch.float64))
    still = log_softmax_derivatives(scores, moving, torch.tensor([0]))
    adrift = log_softmax_derivatives(scores, [m + 2.0**40 for m in moving], torch.tensor([0]))
    for a, b in zip(still, adrift, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)


TOKENS, HIDDEN, VOCABULARY = 50, 6, 11
POSITIONS = torch.stack([torch.arange(TOKENS) % 5, torch.arange(TOKENS) // 5], 1)


class Headed:
    """tanh of a mixed state, then a matrix; it remembers what it was asked."""

    vocabulary = VOCABULARY

    def __init__(self):
        g = torch.Generator().manual_seed(2)
        self.mix = torch.randn(HIDDEN, HIDDEN, generator=g, dtype=torch.float64)
        self.weight = torch.randn(VOCABULARY, HIDDEN, generator=g, dtype=torch.float64)
        self.bodies, self.heads = [], []

    def body(self, state, positions):
        self.bodies.append(type(state))
        return torch.tanh(state @ self.mix)[positions[:, 0], positions[:, 1]]

    def head(self, hidden):
        self.heads.append(hidden.shape[0])
        return torch.nn.functional.linear(hidden, self.weight)

    def __call__(self, state, positions):
        return self.head(self.body(state, positions))


@pytest.fixture
def readout():
    return Headed()


def path_of(readout):
    g = torch.Generator().manual_seed(3)
    state, displacement = torch.randn(2, 5, 10, HIDDEN, generator=g, dtype=torch.float64)
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=g)
    return nonlinear_path(readout, state, displacement, targets, POSITIONS, examples=POSITIONS[:, 0].sort().values)


@pytest.mark.parametrize("order", [0, 2, 4])
def test_blocks_give_what_the_whole_gives(readout, monkeypatch, order):
    monkeypatch.setitem(module._ELEMENTS, "cpu", (order + 1) * VOCABULARY * 20)
    blocked, whole = path_of(readout), path_of(lambda state, positions: Headed()(state, positions))
    torch.testing.assert_close(
        blocked.derivatives([0.0, 0.4], order).stack, whole.derivatives([0.0, 0.4], order).stack, rtol=1e-12, atol=1e-15
    )
    assert 20 in readout.heads
    assert max(readout.heads) <= 20 * (order + 1)
    torch.testing.assert_close(blocked.initial_utility, whole.initial_utility, rtol=1e-13, atol=0.0)


def test_the_utility_at_the_start_needs_one_plain_pass(readout):
    path = path_of(readout)
    assert path.initial_utility.shape == (5,)
    assert path.value([0.0, 1.0]).shape == (5, 2)
    assert readout.bodies == [torch.Tensor] * 2


@pytest.mark.parametrize("which", ["mix", "weight"])
def test_logits_that_are_not_finite_are_refused(readout, which):
    getattr(readout, which)[0, 0] = torch.nan
    path = path_of(readout)
    with pytest.raises(LoopscopeError, match="NaN or infinite values in the readout's logits"):
        path.value(1.0)
    with pytest.raises(LoopscopeError, match="NaN or infinite values in the derivatives"):
        path.derivatives(0.0, 2)


def _coefficients(order, tokens=7, vocabulary=23, dtype=torch.float64):
    g = torch.Generator().manual_seed(order)
    return torch.randn(order + 1, tokens, vocabulary, generator=g, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("order", [0, 4])
def test_against_autograd_along_the_polynomial(order):
    c = _coefficients(order)
    targets = torch.arange(7)
    tau = torch.zeros((), dtype=torch.float64, requires_grad=True)
    z = sum(c[k] * tau**k for k in range(order + 1))
    found = token_derivatives(c, targets)
    for token in range(7):
        derivative = torch.log_softmax(z, -1)[token, targets[token]]
        for k in range(order + 1):
            torch.testing.assert_close(found[k, token], derivative.detach(), rtol=1e-11, atol=1e-12)
            if k < order:
                (derivative,) = torch.autograd.grad(derivative, tau, create_graph=True)


def test_a_sure_token_keeps_its_small_probability_of_the_rest():
    c = torch.zeros(1, 1, 4, dtype=torch.float64)
    c[0, 0, 2] = 80.0
    assert float(token_derivatives(c, torch.tensor([2]))) == pytest.approx(-3.0 * math.exp(-80.0), rel=1e-12)
