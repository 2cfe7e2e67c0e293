"""The paper's own derivatives: gradient, Hessian–vector product, and the second derivative along the chord."""

from __future__ import annotations

import torch

from loopscope.readout import autograd_coefficients, chord_curvature
from loopscope.readout.autograd import chord_curvatures


def _zeros(n):
    return torch.zeros(n, dtype=torch.int64)


def test_a_quadratic_utility_is_recovered_exactly():
    g = torch.Generator().manual_seed(0)
    H, D = torch.randn(2, 5, 3, generator=g, dtype=torch.float64)
    S = torch.randn(15, 15, generator=g, dtype=torch.float64)
    S = S + S.T

    def utility(h):
        return (0.5 * h.reshape(-1) @ S @ h.reshape(-1)).reshape(1)

    found = autograd_coefficients(utility, H, D, _zeros(5), 1)
    h, d = H.reshape(-1), D.reshape(-1)
    torch.testing.assert_close(found.slope[0], d @ S @ h)
    torch.testing.assert_close(found.curvature[0], d @ S @ d)
    torch.testing.assert_close(chord_curvature(utility, H, D), d @ S @ d)


def test_a_linear_utility_has_no_curvature():
    H, D = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    found = autograd_coefficients(lambda h: h.sum().reshape(1), H, D, _zeros(2), 1)
    assert float(found.slope) == 6.0
    assert float(found.curvature) == 0.0
    assert float(chord_curvature(lambda h: h.sum(), H, D)) == 0.0


def test_examples_do_not_leak_into_each_other():
    g = torch.Generator().manual_seed(0)
    H, D = torch.randn(2, 4, 3, generator=g, dtype=torch.float64)
    owner = torch.tensor([1, 0, 1, 0])

    def utility(h):
        rows = torch.tanh(h).prod(1)
        return torch.zeros(2, dtype=torch.float64).index_add(0, owner, rows)

    both = autograd_coefficients(utility, H, D, owner, 2)
    for example in range(2):
        rows = owner == example
        alone = autograd_coefficients(lambda h: torch.tanh(h).prod(1).sum().reshape(1), H[rows], D[rows], _zeros(2), 1)
        torch.testing.assert_close(both.slope[example], alone.slope[0])
        torch.testing.assert_close(both.curvature[example], alone.curvature[0])


def test_chords_of_many_examples_are_those_of_each_alone():
    g = torch.Generator().manual_seed(3)
    H, D = torch.randn(2, 5, 4, 3, generator=g, dtype=torch.float64)
    D[2] = 0.0
    owner = torch.tensor([0, 1, 2, 1, 3])

    def alone(h):
        return torch.tanh(h).prod(-1).sum() * h.sum()

    def utility(h):
        return torch.stack([alone(h[owner == example]) for example in range(4)])

    found = chord_curvatures(utility, H, D, owner, 4)
    for example in range(4):
        rows = owner == example
        torch.testing.assert_close(found[example], chord_curvature(alone, H[rows], D[rows]), rtol=1e-12, atol=1e-14)
    assert found[2] == 0.0
    assert found.count_nonzero() == 3
