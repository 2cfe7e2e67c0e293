import numpy as np
import pytest

from loopscope.path import _arrays
from loopscope.path._cells import curvature_cells

NODES = np.array([0.0, 0.25, 1.0])


def test_shared_samples_and_constants_are_spread_over_updates():
    cells = curvature_cells(NODES, np.zeros((4, 3)), 2.0)
    assert cells.width.tolist() == [0.25, 0.75]
    assert cells.curvature.shape == (4, 3)
    assert cells.lipschitz.shape == (4, 2)
    assert (cells.lipschitz == 2.0).all()
    assert curvature_cells(NODES, np.zeros(3), np.ones((5, 2))).curvature.shape == (5, 3)


def test_blocks_cover_every_update_in_order():
    count = _arrays.BLOCK + 7
    curvature = np.arange(3.0 * count).reshape(count, 3)
    constants = 10 * np.ones((count, 2)) + np.arange(count)[:, None]
    cells = curvature_cells(NODES, curvature, constants)
    blocks = list(cells.blocks())
    assert len(blocks) == 2
    assert np.array_equal(np.concatenate([block.curvature for _, block in blocks]), curvature)
    assert np.array_equal(np.concatenate([block.lipschitz for _, block in blocks]), constants)
    assert [np.arange(count)[rows].size for rows, _ in blocks] == [_arrays.BLOCK, 7]
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
