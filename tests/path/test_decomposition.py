import numpy as np
import pytest
from scipy.integrate import quad

from loopscope.path import Outcome, classify, pathwise_decomposition, uniform_grid
from loopscope.path.decomposition import cell_weights


def test_constant_curvature_is_integrated_exactly():
    found = pathwise_decomposition([0.0, 0.25, 1.0], [-4.0, -4.0, -4.0], slope=1.0, gain=-1.0)
    assert found == pytest.approx((-2.0, -1.0, 0.0, 0.0), abs=1e-15)
    assert all(type(field) is float for field in found)


@pytest.mark.parametrize("nodes", [[0.0, 0.2, 0.5, 0.9, 1.0], [0.0, 0.05, 0.1, 0.8], np.linspace(0, 0.7, 9)])
def test_cubic_curvature_is_integrated_exactly_up_to_any_scale(nodes):
    """φ = 3a + a² - 2a³ + a⁴ + 2a⁵, so φ'' is a cubic."""
    nodes = np.asarray(nodes)
    end = nodes[-1]
    curvature = 2 - 12 * nodes + 12 * nodes**2 + 40 * nodes**3
    gain = 3 * end + end**2 - 2 * end**3 + end**4 + 2 * end**5
    found = pathwise_decomposition(nodes, curvature, slope=3.0, gain=gain)
    assert found.correction == pytest.approx(gain - 3 * end, abs=1e-14)
    assert found.expected == pytest.approx(gain, abs=1e-14)
    assert abs(found.residual) < 1e-14
    assert found.error > 1e-6


def test_two_nodes_fall_back_to_the_chord():
    found = pathwise_decomposition([0.0, 1.0], [-1.0, -3.0], slope=0.0, gain=-5 / 6)
    assert found.correction == pytest.approx(-5 / 6, abs=1e-15)
    assert found.error == pytest.approx(0.0, abs=1e-15)


def test_three_nodes_use_a_parabola():
    found = pathwise_decomposition([0.0, 0.5, 1.0], [0.0, 0.25, 1.0], slope=0.0, gain=1 / 12)
    assert found.correction == pytest.approx(1 / 12, abs=1e-15)


def test_the_integral_agrees_with_adaptive_quadrature(paths):
    nodes = np.linspace(0, 1, 257)
    found = pathwise_decomposition(nodes, paths.on(nodes, 2), paths.slope, paths.gain)
    for row in paths.rows[:20]:
        integrand = lambda s, row=row: (1 - s) * paths.evaluate(2, np.asarray(s), np.asarray(row))  # noqa: E731
        scale = 1 + paths.fourth[row]
        exact, error = quad(integrand, 0, 1, epsabs=1e-10 * scale, limit=200)
        assert abs(found.correction[row] - exact) <= error + 1e-9 * scale


def test_the_estimate_covers_the_residual_of_smooth_paths(paths):
    nodes = np.linspace(0, 1, 129)
    found = pathwise_decomposition(nodes, paths.on(nodes, 2), paths.slope, paths.gain)
    size = 1 + np.abs(paths.slope) + paths.bound_of(2)
    assert (np.abs(found.residual) <= found.error + 1e-9 * size).all()
    assert np.array_equal(found.expected, paths.slope + found.correction)
    assert np.array_equal(found.residual, paths.gain - found.expected)


@pytest.mark.parametrize("count", [2, 6, 21])
def test_the_lipschitz_bound_covers_the_residual_of_every_path(paths, rounding, count):
    nodes = uniform_grid(count) ** 1.5
    found = pathwise_decomposition(
        nodes, paths.on(nodes, 2), paths.slope, paths.gain, lipschitz=paths.cell_constants(nodes)
    )
    size = 1 + np.abs(paths.slope) + paths.bound_of(2)
    assert (np.abs(found.residual) <= found.error + rounding * size).all()


def test_the_lipschitz_bound_is_attained():
    """A tent: slope +L then -L within one cell, endpoints equal, seen with the weight close to α - l."""
    width = 1e-3
    nodes = np.array([0.0, width, 1.0])
    found = pathwise_decomposition(nodes, [0.0, 0.0, 0.0], 0.0, 0.0, lipschitz=[4.0, 0.0])
    assert found.error == pytest.approx(4.0 * width**2 / 4)
    found = pathwise_decomposition(nodes, [0.0, 2.0 * width, 2.0 * width], 0.0, 0.0, lipschitz=[4.0, 0.0])
    assert found.error == pytest.approx((16 - 4) * width**2 / 16)
    found = pathwise_decomposition([0.0, 0.5, 1.0], [0.0, 0.0, 0.0], 0.0, 0.0, lipschitz=[0.0, 8.0])
    assert found.error == 0.5 * 8.0 * 0.25 / 4


def test_the_bound_weighs_cells_by_what_is_left_of_a_shorter_segment():
    found = pathwise_decomposition([0.0, 0.25, 0.5], [0.0, 0.0, 0.0], 1.0, 0.5, lipschitz=[0.0, 8.0])
    assert found.error == 0.25 * 8.0 * 0.0625 / 4
    assert found.expected == 0.5


def test_with_lipschitz_constants_the_interpolant_is_the_chord():
    """φ'' = s² at 0, 1/2, 1: the chords are s/2 and 1/4 + 3(s - 1/2)/2, each integrated with 1 - s."""
    exact = (1 / 16 - 1 / 48) + (1 / 32 + 1.5 * (1 / 16 - 1 / 24))
    found = pathwise_decomposition([0.0, 0.5, 1.0], [0.0, 0.25, 1.0], 0.0, 1 / 12, lipschitz=2.0)
    assert found.correction == pytest.approx(exact, abs=1e-15)
    assert abs(found.residual) <= found.error


def test_quadratic_curvature_leaves_nothing_to_estimate():
    nodes = np.linspace(0, 1, 7) ** 1.5
    assert pathwise_decomposition(nodes, 3 * nodes**2 - nodes, 0.0, 0.0).error < 1e-14
    assert pathwise_decomposition(nodes, nodes**3, 0.0, 0.0).error > 1e-6


def test_updates_do_not_mix():
    nodes = np.linspace(0, 1, 6)
    curvature = np.random.default_rng(4).normal(size=(2, 3, 6))
    slope, gain = np.ones((2, 3)), np.zeros((2, 3))
    for lipschitz in (None, np.full((2, 3, 5), 100.0)):
        found = pathwise_decomposition(nodes, curvature, slope, gain, lipschitz)
        one = pathwise_decomposition(nodes, curvature[1, 0], 1.0, 0.0, None if lipschitz is None else 100.0)
        for ours, theirs in zip(found, one, strict=True):
            assert ours.shape == (2, 3)
            assert ours[1, 0] == pytest.approx(theirs, rel=1e-13)


def test_each_cell_uses_the_nodes_around_it():
    def used(stencil):
        weights = cell_weights(np.linspace(0, 1, 6), stencil)
        assert weights.shape == (6, 5)
        return [np.flatnonzero(column).tolist() for column in weights.T]

    assert used(2) == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert used(3) == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [3, 4, 5]]
    assert used(4) == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [2, 3, 4, 5]]


def test_finite_step_failures_accumulate_more_curvature_than_slope(paths):
    nodes = np.linspace(0, 1, 257)
    found = pathwise_decomposition(nodes, paths.on(nodes, 2), paths.slope, paths.gain)
    failures = classify(paths.slope, paths.gain) == Outcome.FINITE_STEP_FAILURE
    clear = failures & (paths.gain < -1e-6 * (1 + paths.fourth))
    assert clear.any()
    assert (found.correction[clear] < -paths.slope[clear]).all()


def test_a_zero_displacement_has_nothing_to_integrate():
    found = pathwise_decomposition(uniform_grid(), np.zeros((3, 21)), np.zeros(3), np.zeros(3))
    assert all((field == 0).all() for field in found)


def test_scalars_go_with_many_updates():
    found = pathwise_decomposition([0.0, 1.0], [[0.0, 0.0], [6.0, 0.0]], 1.0, [1.0, 2.0])
    assert found.expected == pytest.approx([1.0, 3.0])
    assert found.residual == pytest.approx([0.0, -1.0])


def test_bad_arguments_are_refused(refuses):
    flat = [0.0, 0.0]
    with refuses("nodes end at 1.5: scales lie in [0, 1]"):
        pathwise_decomposition([0.0, 0.5, 1.5], [0.0, 0.0, 0.0], 0.0, 0.0)
    with refuses("nodes starts at 0.5: it must contain 0, the current state"):
        pathwise_decomposition([0.5, 1.0], flat, 0.0, 0.0)
    with refuses("curvature has shape (3,) for 2 scales: give one entry per scale on the last axis"):
        pathwise_decomposition([0.0, 1.0], [0.0, 0.0, 0.0], 0.0, 0.0)
    with refuses("shapes differ (slope (2,), gain (3,)): give one entry per update in each"):
        pathwise_decomposition([0.0, 1.0], flat, [0.0, 0.0], [0.0, 0.0, 0.0])
    with refuses("numbers of updates differ (slope (2,), curvature (3,)): give the same updates in each"):
        pathwise_decomposition([0.0, 1.0], np.zeros((3, 2)), [0.0, 0.0], 0.0)
    with refuses("numbers of updates differ (gain (2,), curvature (3,)): give the same updates in each"):
        pathwise_decomposition([0.0, 1.0], np.zeros((3, 2)), 0.0, [0.0, 0.0])
    with refuses("lipschitz has shape (2,) for 1 cells: give one constant per cell on the last axis"):
        pathwise_decomposition([0.0, 1.0], flat, 0.0, 0.0, lipschitz=[1.0, 1.0])
    with refuses("the decomposition exceeds float64: rescale the utility"):
        pathwise_decomposition([0.0, 1.0], [1.7e308, 1.7e308], 1.7e308, 0.0)
    with refuses("the decomposition exceeds float64: rescale the utility"):
        pathwise_decomposition([0.0, 1.0], flat, -1.7e308, 1.7e308)
