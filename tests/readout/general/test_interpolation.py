"""Polynomials from derivatives at five scales: against SciPy's Hermite interpolation; how their error is measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import Polynomial
from scipy.interpolate import KroghInterpolator

from loopscope.path import GRID
from loopscope.readout.composed import NODES, Interpolation, Polynomials, interpolate


def stack(*functions: Polynomial | np.ufunc) -> torch.Tensor:
    """Values and two derivatives of one function at the nodes, [3, 1, 5]."""
    return torch.tensor(np.stack([function(np.array(NODES)) for function in functions]))[:, None]


def waves(frequency: float, offset: float = 0.0) -> Interpolation:
    """What the nodes say of sin(fα + o), whose derivatives are known and as large as one likes."""
    return interpolate(
        stack(
            lambda a: np.sin(frequency * a + offset),
            lambda a: frequency * np.cos(frequency * a + offset),
            lambda a: -(frequency**2) * np.sin(frequency * a + offset),
        )
    )


def error(found: Interpolation, frequency: float, offset: float = 0.0) -> float:
    """The largest on a grid much finer than that of the measurement."""
    scales = np.linspace(0, 1, 501)
    exact = np.sin(frequency * scales + offset) - np.sin(offset)
    return float(np.abs(found.polynomials.at(scales.tolist())[0].numpy() - exact).max())


def test_slopes_are_those_of_scipys_interpolation() -> None:
    rng = np.random.default_rng(0)
    derivatives = rng.normal(size=(2, 3, 5))
    scales = np.linspace(0, 1, 9)
    nodes, weights = np.polynomial.legendre.leggauss(8)  # exact for the degrees here
    found = Polynomials(NODES, torch.tensor(derivatives)).at(scales.tolist())
    for example in range(3):
        slope = KroghInterpolator(np.repeat(NODES, 2), derivatives[:, example].T.ravel())
        exact = [float(scale / 2 * weights @ slope(scale / 2 * (nodes + 1))) for scale in scales]
        np.testing.assert_allclose(found[example], exact, atol=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=10))
@settings(max_examples=25, deadline=None)
def test_a_polynomial_of_degree_ten_is_found_again(powers: list[float]) -> None:
    exact = Polynomial([0.0, *powers])
    found = interpolate(stack(exact, exact.deriv(), exact.deriv(2)) + torch.tensor([2.5, 0, 0])[:, None, None])
    np.testing.assert_allclose(found.polynomials.at(GRID)[0], exact(np.array(GRID)), atol=1e-9)
    assert float(found.residual_N) < 1e-9


def test_every_example_has_its_own_scale_and_begins_at_zero() -> None:
    polynomials = Polynomials(
        NODES, torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    )
    own = torch.tensor([0.0, 0.3, 0.65, 1.0], dtype=torch.float64)
    assert torch.equal(polynomials.at_own(own), polynomials.at(own.tolist()).diagonal())
    assert polynomials.at_own(own)[0] == 0.0


@pytest.mark.parametrize("frequency", [0.1, 0.5, 2.0, 5.0, 9.0])
def test_both_measured_differences_are_no_less_than_the_error(frequency: float) -> None:
    for offset in (0.0, 0.7, 2.0):
        found = waves(frequency, offset)
        exact = error(found, frequency, offset)
        assert exact <= float(found.truncation_N) + 1e-13
        assert exact <= 1.2 * float(found.residual_N) + 1e-12


def test_a_smooth_path_needs_no_more_and_a_rough_one_is_known_as_such() -> None:
    assert float(waves(0.3).truncation_N) < 1e-9
    assert min(float(waves(30.0).truncation_N), float(waves(30.0).residual_N)) > 0.1


def test_derivatives_that_are_not_those_of_the_values_are_noticed() -> None:
    # A step at 0.6 that no derivative shows: the polynomials agree, the values do not.
    found = interpolate(stack(lambda a: a + 0.01 * (a > 0.6), np.ones_like, np.zeros_like))
    assert float(found.truncation_N) < 1e-10
    assert float(found.residual_N) == pytest.approx(0.01)
