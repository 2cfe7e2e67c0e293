import numpy as np

from loopscope.path import grid_optimum, grid_resolution, uniform_grid


def test_the_bounds_are_those_of_the_proposition():
    found = grid_resolution([0.0, 0.25, 1.0], 8.0)
    assert found == (0.75, 0.75, 0.5625)
    assert grid_resolution([0.0, 0.5, 1.0], [4.0, 8.0]).value.tolist() == [0.125, 0.25]
    assert type(found.spacing) is float


def test_the_value_lost_to_the_grid_is_covered_on_every_path(paths, rounding):
    _, best = paths.maximisers
    for count in (2, 5, 21):
        grid = uniform_grid(count)
        found = grid_optimum(grid, paths.on(grid))
        bound = grid_resolution(grid, paths.bound_of(2)).value
        lost = best - found.value
        assert (lost <= bound + rounding * (1 + bound)).all()


def test_the_location_is_covered_on_concave_paths(concave_paths):
    best, _ = concave_paths.maximisers
    for count in (2, 5, 21):
        grid = uniform_grid(count) ** 1.5
        found = grid_optimum(grid, concave_paths.on(grid))
        assert (np.abs(found.alpha - best) <= grid_resolution(grid, 0.0).location + 1e-9).all()


def test_a_parabola_attains_the_value_bound():
    """A maximum midway between grid points of a parabola loses exactly B h²/8."""
    grid = uniform_grid(5)
    lost = 0.0 - grid_optimum(grid, -3 * (grid - 0.375) ** 2).value
    assert lost == grid_resolution(grid, 6.0).value


def test_bad_arguments_are_refused(refuses):
    with refuses("grid ends at 0.5: it must contain 1, the full update"):
        grid_resolution([0.0, 0.5], 1.0)
    with refuses("curvature_bound is negative: it bounds a magnitude, give zero or more"):
        grid_resolution([0.0, 1.0], -1.0)
    with refuses("curvature_bound is NaN or infinite: leave such updates out"):
        grid_resolution([0.0, 1.0], np.nan)
