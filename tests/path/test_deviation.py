from __future__ import annotations

import mpmath
import numpy as np
import pytest

from loopscope.path import arrays, curvature_deviation, deviation_at, deviation_profile, uniform_grid
from loopscope.path.deviation import curvature_cells

NODES = np.array([0.0, 0.25, 1.0])


def test_shared_samples_and_constants_are_spread_over_updates():
    cells = curvature_cells(NODES, np.zeros((4, 3)), 2.0)
    assert cells.width.tolist() == [0.25, 0.75]
    assert cells.curvature.shape == (4, 3)
    assert cells.lipschitz.shape == (4, 2)
    assert (cells.lipschitz == 2.0).all()
    assert curvature_cells(NODES, np.zeros(3), np.ones((5, 2))).curvature.shape == (5, 3)


def test_blocks_cover_every_update_in_order():
    count = arrays.BLOCK + 7
    curvature = np.arange(3.0 * count).reshape(count, 3)
    constants = 10 * np.ones((count, 2)) + np.arange(count)[:, None]
    cells = curvature_cells(NODES, curvature, constants)
    blocks = list(cells.blocks())
    assert len(blocks) == 2
    assert np.array_equal(np.concatenate([block.curvature for _, block in blocks]), curvature)
    assert np.array_equal(np.concatenate([block.lipschitz for _, block in blocks]), constants)
    assert [np.arange(count)[rows].size for rows, _ in blocks] == [arrays.BLOCK, 7]
    assert all(block.nodes is cells.nodes for _, block in blocks)
    assert all(np.array_equal(block.width, [0.25, 0.75]) for _, block in blocks)


def test_constants_that_the_samples_refute_are_refused(refuses):
    line = "lipschitz is smaller than the sampled change of curvature on cell 1: give constants valid on the whole cell"
    with refuses(line):
        curvature_cells(NODES, [[0.0, 0.0, 0.0], [1.0, 1.0, 3.0]], [0.0, 2.6])
    with refuses(line):
        curvature_cells(NODES, [1.0, 1.0, -1.0], [0.0, 2.6])
    with refuses(line.replace("cell 1", "cell 0")):
        curvature_cells(NODES, [1.0, 0.0, 0.0], 3.9)


def test_constants_that_the_samples_attain_are_accepted():
    assert curvature_cells(NODES, [1.0, 0.0, 3.0], [4.0, 4.0]).lipschitz.tolist() == [4.0, 4.0]


@pytest.mark.parametrize(("change", "accepted"), [(0.9e-6, True), (1.1e-6, False)])
def test_changes_within_rounding_of_the_largest_curvature_are_no_contradiction(refuses, change, accepted):
    curvature = [-8.0, -8.0, -8.0 * (1 - change)]
    if accepted:
        curvature_cells(NODES, curvature, 0.0)
    else:
        with refuses(
            "lipschitz is smaller than the sampled change of curvature on cell 1: "
            "give constants valid on the whole cell"
        ):
            curvature_cells(NODES, curvature, 0.0)


def test_rounding_is_relative_to_each_update(refuses):
    with refuses(
        "lipschitz is smaller than the sampled change of curvature on cell 0: give constants valid on the whole cell"
    ):
        curvature_cells(NODES, [[1e9, 1e9, 1e9], [0.0, 1.0, 1.0]], 0.0)


def test_many_axes_of_updates_are_kept():
    cells = curvature_cells(NODES, np.zeros((2, 3, 3)), np.ones((2, 3, 2)))
    assert cells.curvature.shape == (2, 3, 3)
    ((rows, block),) = cells.blocks()
    assert block.curvature.shape == (6, 3)
    assert np.arange(6)[rows].size == 6


def test_arguments_are_checked_by_name(refuses):
    with refuses("curvature has shape (2,) for 3 scales: give one entry per scale on the last axis"):
        curvature_cells(NODES, [0.0, 0.0], 0.0)
    with refuses("lipschitz is negative: it bounds a magnitude, give zero or more"):
        curvature_cells(NODES, [0.0, 0.0, 0.0], -1.0)
    with refuses("numbers of updates differ (curvature (2,), lipschitz (4,)): give the same updates in each"):
        curvature_cells(NODES, np.zeros((2, 3)), np.zeros((4, 2)))


def test_overflowing_differences_are_contradictions_and_raise_no_floating_point_error(refuses):
    with (
        np.errstate(all="raise"),
        refuses(
            "lipschitz is smaller than the sampled change of curvature on cell 0: "
            "give constants valid on the whole cell"
        ),
    ):
        curvature_cells(NODES, [-1.7e308, 1.7e308, 1.7e308], 1.7e308)


def test_the_sums_are_those_of_the_proposition():
    """Cells of width 1/4 and 3/4 with |g| = 0, 1, 2: T = 1/8, 9/8 and P = L h²/4 = 1/16, 9/16."""
    found = curvature_deviation([0.0, 0.25, 1.0], [3.0, 4.0, 1.0], [4.0, 4.0])
    assert found == (1 / 16 + 9 / 16, 3 / 16 + 27 / 16)
    assert type(found.lower) is float


def test_lower_terms_are_cut_at_zero_cell_by_cell():
    found = curvature_deviation([0.0, 0.5, 1.0], [0.0, 0.0, 1.0], [8.0, 2.0])
    assert found.lower == 0.25 - 0.125
    assert found.upper == 0.5 + 0.25 + 0.125


@pytest.mark.parametrize("count", [2, 3, 21, 65])
def test_the_sums_enclose_the_deviation_of_every_path(paths, rounding, count):
    nodes = uniform_grid(count) ** 1.3
    found = curvature_deviation(nodes, paths.on(nodes, 2), paths.cell_constants(nodes))
    true_lower, true_upper = paths.whole_deviation
    size = 1 + paths.bound_of(2)
    assert (found.lower <= true_upper + rounding * size).all()
    assert (true_lower <= found.upper + rounding * size).all()
    assert (found.lower <= found.upper).all()


def test_the_sums_close_on_the_deviation_as_cells_shrink(paths):
    nodes = np.linspace(0, 1, 513)
    found = curvature_deviation(nodes, paths.on(nodes, 2), paths.cell_constants(nodes))
    assert (found.upper - found.lower <= (paths.bound_of(3) + paths.fourth / 512) / 512).all()


def test_the_deviation_of_polynomials_agrees_with_high_precision_quadrature():
    """g(s) = s(s - 1/3)(s - 0.9), integrated between its sign changes at 50 digits."""
    with mpmath.workdps(50):
        exact = sum(
            abs(mpmath.quad(lambda s: s * (s - mpmath.mpf(1) / 3) * (s - mpmath.mpf("0.9")), ends))
            for ends in ([0, mpmath.mpf(1) / 3], [mpmath.mpf(1) / 3, mpmath.mpf("0.9")], [mpmath.mpf("0.9"), 1])
        )
    nodes = np.linspace(0, 1, 4097)
    curvature = nodes * (nodes - 1 / 3) * (nodes - 0.9) - 7.0
    # |g'| ≤ 3s² + 2(37/30)s + 3/10 ≤ 5.8
    found = curvature_deviation(nodes, curvature, 5.8)
    assert found.lower <= float(exact) <= found.upper
    assert found.upper - found.lower < 2 * 5.8 / 4 / 4096 + 1e-12


def test_constant_curvature_has_no_deviation():
    found = curvature_deviation(uniform_grid(), np.full((5, 21), -3.0), 0.0)
    assert (found.lower == 0).all()
    assert (found.upper == 0).all()
    profile = deviation_profile(uniform_grid(), np.full((5, 21), -3.0), 0.0)
    assert (profile.upper == 0).all()


def test_adding_a_linear_or_quadratic_path_changes_nothing(paths, rounding):
    nodes = uniform_grid(17)
    curvature, constants = paths.on(nodes, 2), paths.cell_constants(nodes)
    before = curvature_deviation(nodes, curvature, constants)
    after = curvature_deviation(nodes, curvature + 2.0, constants)
    assert np.allclose(before.upper, after.upper, rtol=1e-12, atol=rounding)
    assert np.allclose(before.lower, after.lower, rtol=1e-9, atol=1e-11)


def test_deviation_many_axes_of_updates_are_kept():
    curvature = np.random.default_rng(0).normal(size=(2, 3, 5))
    found = curvature_deviation(uniform_grid(5), curvature, 100.0)
    assert found.upper.shape == (2, 3)
    assert found.upper[1, 2] == curvature_deviation(uniform_grid(5), curvature[1, 2], 100.0).upper


def test_blocks_of_updates_do_not_show():
    rng = np.random.default_rng(0)
    curvature = rng.normal(size=(10_000, 3))
    constants = rng.uniform(20, 30, (10_000, 2))
    found = curvature_deviation([0.0, 0.5, 1.0], curvature, constants)
    assert (found.upper > 0).all()
    for row in (0, 4095, 4096, 9999):
        one = curvature_deviation([0.0, 0.5, 1.0], curvature[row], constants[row])
        assert (found.lower[row], found.upper[row]) == one


def test_no_updates_give_no_sums():
    assert curvature_deviation([0.0, 1.0], np.zeros((0, 2)), 0.0).upper.shape == (0,)


def test_the_profile_accumulates_the_sums(paths):
    nodes = uniform_grid(21)
    curvature, constants = paths.on(nodes, 2), paths.cell_constants(nodes)
    profile = deviation_profile(nodes, curvature, constants)
    whole = curvature_deviation(nodes, curvature, constants)
    assert profile.lower.shape == profile.upper.shape == (paths.count, 21)
    assert (profile.lower[:, 0] == 0).all()
    assert (profile.upper[:, 0] == 0).all()
    assert np.allclose(profile.lower[:, -1], whole.lower, rtol=1e-12)
    assert np.allclose(profile.upper[:, -1], whole.upper, rtol=1e-12)
    assert (np.diff(profile.upper) >= 0).all()


def test_the_profile_of_one_update_is_an_array():
    profile = deviation_profile([0.0, 0.5, 1.0], [0.0, 1.0, 1.0], 2.0)
    assert profile.lower.tolist() == [0.0, 0.125, 0.5]
    assert profile.upper.tolist() == [0.0, 0.375, 1.0]


@pytest.mark.parametrize("alpha", [0.0, 0.02, 0.5, 0.61, 1.0])
def test_the_deviation_at_a_scale_is_enclosed_on_every_path(paths, rounding, alpha):
    nodes = uniform_grid(9)
    scales = np.full(paths.count, alpha)
    found = deviation_at(scales, nodes, paths.on(nodes, 2), paths.cell_constants(nodes))
    true_lower, true_upper = paths.deviation(scales)
    size = 1 + paths.bound_of(2)
    assert (found.lower <= true_upper + rounding * size).all()
    assert (true_lower <= found.upper + rounding * size).all()


def test_the_deviation_at_a_node_is_the_profile():
    nodes, curvature = [0.0, 0.25, 1.0], [3.0, 4.0, 1.0]
    profile = deviation_profile(nodes, curvature, 4.0)
    for index, node in enumerate(nodes):
        found = deviation_at(node, nodes, curvature, 4.0)
        assert found.upper == profile.upper[index]
    assert deviation_at(0.25, nodes, curvature, 4.0).lower == profile.lower[1]


def test_inside_a_cell_the_nearer_knowledge_counts():
    """C(1/2) with |g(1/4)| = 1, L = 4, x = 1/4: 1/4 ± 1/8 beyond the first node."""
    nodes, curvature = [0.0, 0.25, 1.0], [3.0, 4.0, 1.0]
    profile = deviation_profile(nodes, curvature, 4.0)
    found = deviation_at(0.5, nodes, curvature, 4.0)
    assert found == (profile.lower[1] + 1 / 8, profile.upper[1] + 3 / 8)
    late = deviation_at(0.999, nodes, [3.0, 4.0, 3.5], 4.0)
    assert late.upper == deviation_profile(nodes, [3.0, 4.0, 3.5], 4.0).upper[2]
    assert late.lower == profile.lower[1]


def test_one_scale_serves_many_updates_and_the_reverse():
    nodes = [0.0, 0.5, 1.0]
    curvature = np.array([[0.0, 1.0, 1.0], [0.0, 2.0, 1.0]])
    assert deviation_at(0.75, nodes, curvature, 4.0).upper.shape == (2,)
    single = deviation_at([0.25, 0.75], nodes, curvature[1], 4.0)
    assert single.upper[1] == deviation_at(0.75, nodes, curvature[1], 4.0).upper
    assert single.upper[0] == 0.125


def test_constants_may_differ_by_update_and_cell():
    nodes, curvature = [0.0, 0.5, 1.0], np.zeros((2, 3))
    found = deviation_at([0.75, 0.75], nodes, curvature, [[0.0, 4.0], [4.0, 0.0]])
    assert found.upper.tolist() == [0.125, 0.25]


@pytest.mark.parametrize("function", [curvature_deviation, deviation_profile])
def test_bad_arguments_are_refused(refuses, function):
    with refuses("nodes ends at 0.5: it must contain 1, the full update"):
        function([0.0, 0.5], [0.0, 0.0], 0.0)
    with refuses("nodes does not increase at index [1]: sort it and drop repeated scales"):
        function([0.0, 1.0, 1.0], [0.0, 0.0, 0.0], 0.0)
    where = " at index [1]" if function is deviation_profile else ""
    with refuses(f"the deviation exceeds float64{where}: rescale the utility"):
        function([0.0, 0.9, 1.0], [-0.8e308, 0.8e308, 0.8e308], 1.79e308)
    with refuses("lipschitz is negative at index [0]: it bounds a magnitude, give zero or more"):
        function([0.0, 1.0], [0.0, 0.0], [-1.0])


def test_bad_scales_are_refused(refuses):
    with refuses("alpha lies outside [0, 1]: scales are fractions of the update"):
        deviation_at(1.5, [0.0, 1.0], [0.0, 0.0], 0.0)
    with refuses("alpha is NaN or infinite: leave such updates out"):
        deviation_at(np.nan, [0.0, 1.0], [0.0, 0.0], 0.0)
    with refuses("numbers of updates differ (alpha (3,), curvature (2,)): give the same updates in each"):
        deviation_at([0.1, 0.2, 0.3], [0.0, 1.0], np.zeros((2, 2)), 0.0)
    with refuses("nodes starts at 0.5: it must contain 0, the current state"):
        deviation_at(0.5, [0.5, 1.0], [0.0, 0.0], 0.0)
