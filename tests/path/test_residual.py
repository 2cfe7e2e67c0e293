import numpy as np

from loopscope.path import (
    curvature_deviation,
    predicted_scale,
    regret_bound,
    residual_envelope,
    scale_bound,
    uniform_grid,
)


def test_the_envelope_is_that_of_the_equation():
    """e = 0, 1/4, -1/2 at 0, 1/2, 1 with q' = 1 - a; the constants add L h²/8 = 1/32 and 1/16."""
    nodes, slopes = [0.0, 0.5, 1.0], [1.0, 0.75, -0.5]
    assert residual_envelope(nodes, slopes, -0.5, [1.0, 2.0]) == 0.5 + 1 / 16
    assert residual_envelope(nodes, slopes, -0.5, [9.0, 0.0]) == 0.25 + 9 / 32
    assert residual_envelope(nodes, slopes, -0.5, 0.0) == 0.5


def test_the_larger_end_of_each_cell_counts():
    """e = 0, 1, 0 at 0, 1/2, 1: the steep second cell has its larger end on the left."""
    assert residual_envelope([0.0, 0.5, 1.0], [0.0, 1.0, 0.0], 0.0, [0.0, 32.0]) == 2.0
    assert residual_envelope([0.0, 0.5, 1.0], [0.0, 1.0, 0.0], 0.0, [32.0, 0.0]) == 2.0


def test_the_upper_deviation_caps_the_envelope():
    nodes, slopes = [0.0, 0.5, 1.0], [1.0, 0.75, -0.5]
    assert residual_envelope(nodes, slopes, -0.5, 1.0, deviation=0.25) == 0.25
    assert residual_envelope(nodes, slopes, -0.5, 0.0, deviation=0.75) == 0.5
    found = residual_envelope(nodes, slopes, [-0.5, -0.5], 0.0, deviation=[0.25, 0.75])
    assert found.tolist() == [0.25, 0.5]


def test_the_envelope_covers_the_residual_of_every_path(paths, rounding):
    dense = paths.dense
    residual = np.abs(paths.dense_samples(1) - paths.slope[:, None] - 2 * paths.quadratic[:, None] * dense)
    size = 1 + paths.bound_of(2)
    for count in (2, 6, 21):
        nodes = uniform_grid(count) ** 1.3
        constants = paths.cell_constants(nodes)
        deviation = curvature_deviation(nodes, paths.on(nodes, 2), constants).upper
        plain = residual_envelope(nodes, paths.on(nodes, 1), paths.quadratic, constants)
        capped = residual_envelope(nodes, paths.on(nodes, 1), paths.quadratic, constants, deviation)
        assert (residual.max(axis=1) <= plain + rounding * size).all()
        assert (residual.max(axis=1) <= capped + rounding * size).all()
        assert np.array_equal(capped, np.minimum(plain, deviation))


def test_the_signed_bounds_cover_scale_error_and_regret(paths, rounding):
    nodes = uniform_grid(65)
    constants = paths.cell_constants(nodes)
    deviation = curvature_deviation(nodes, paths.on(nodes, 2), constants).upper
    envelope = residual_envelope(nodes, paths.on(nodes, 1), paths.quadratic, constants, deviation)
    best, value = paths.maximisers
    predicted = predicted_scale(paths.slope, paths.quadratic)
    falling = paths.quadratic < 0
    assert (np.abs(predicted - best) <= scale_bound(envelope, paths.quadratic) + 1e-9)[falling].all()
    size = 1 + paths.bound_of(2)
    assert (value - paths.at(predicted) <= regret_bound(envelope, paths.quadratic) + rounding * size).all()


def test_cancelling_deviations_make_the_envelope_smaller():
    """φ'' - φ''(0) = sin(2πa)·2π has deviation 4, but the slope residual 1 - cos(2πa) never exceeds 2."""
    nodes = np.linspace(0, 1, 513)
    curvature = -20 + 2 * np.pi * np.sin(2 * np.pi * nodes)
    slopes = 3 - 20 * nodes + 1 - np.cos(2 * np.pi * nodes)
    deviation = curvature_deviation(nodes, curvature, 4 * np.pi**2).upper
    assert 4 < deviation < 4.1
    assert 2 <= residual_envelope(nodes, slopes, -10.0, 4 * np.pi**2, deviation) < 2.001


def test_blocks_of_updates_do_not_show():
    rng = np.random.default_rng(0)
    slopes, quadratic = rng.normal(size=(10_000, 3)), rng.normal(size=10_000)
    constants = rng.uniform(0, 1, (10_000, 2))
    found = residual_envelope([0.0, 0.5, 1.0], slopes, quadratic, constants)
    for row in (0, 4095, 4096, 9999):
        one = residual_envelope([0.0, 0.5, 1.0], slopes[row], quadratic[row], constants[row])
        assert found[row] == one
        assert type(one) is float


def test_many_axes_of_updates_are_kept():
    slopes = np.random.default_rng(0).normal(size=(2, 3, 5))
    found = residual_envelope(uniform_grid(5), slopes, 0.0, 1.0)
    assert found.shape == (2, 3)
    assert found[1, 2] == residual_envelope(uniform_grid(5), slopes[1, 2], 0.0, 1.0)
    assert residual_envelope(uniform_grid(5), slopes[0, 0], 0.0, np.ones((7, 4))).shape == (7,)
    assert residual_envelope(uniform_grid(5), slopes, np.zeros((2, 3)), np.ones((2, 3, 4))).shape == (2, 3)


def test_a_quadratic_path_has_no_residual():
    nodes = uniform_grid()
    assert residual_envelope(nodes, 2 - 6 * nodes, -3.0, 0.0) < 1e-15


def test_bad_arguments_are_refused(refuses):
    nodes, flat = [0.0, 1.0], [0.0, 0.0]
    with refuses("nodes ends at 0.5: it must contain 1, the full update"):
        residual_envelope([0.0, 0.5], flat, 0.0, 0.0)
    with refuses("slopes has shape (3,) for 2 scales: give one entry per scale on the last axis"):
        residual_envelope(nodes, [0.0, 0.0, 0.0], 0.0, 0.0)
    with refuses("quadratic is NaN or infinite: leave such updates out"):
        residual_envelope(nodes, flat, np.nan, 0.0)
    with refuses("lipschitz is negative: it bounds a magnitude, give zero or more"):
        residual_envelope(nodes, flat, 0.0, -1.0)
    with refuses("deviation is negative: it bounds a magnitude, give zero or more"):
        residual_envelope(nodes, flat, 0.0, 0.0, deviation=-1.0)
    with refuses("deviation is NaN or infinite: leave such updates out"):
        residual_envelope(nodes, flat, 0.0, 0.0, deviation=np.nan)
    with refuses("numbers of updates differ (slopes (2,), quadratic (3,)): give the same updates in each"):
        residual_envelope(nodes, np.zeros((2, 2)), np.zeros(3), 0.0)
    with refuses("numbers of updates differ (slopes (2,), lipschitz (3,)): give the same updates in each"):
        residual_envelope(nodes, np.zeros((2, 2)), 0.0, np.zeros((3, 1)))
    with refuses("numbers of updates differ (slopes (2,), deviation (3,)): give the same updates in each"):
        residual_envelope(nodes, np.zeros((2, 2)), 0.0, 0.0, np.zeros(3))
    with refuses("the residual exceeds float64: rescale the utility"):
        residual_envelope(nodes, [0.0, -1.7e308], 1.7e308, 0.0)
