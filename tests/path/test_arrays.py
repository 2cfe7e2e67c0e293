"""Arguments that become float64 arrays, and the lines that refuse the others."""

import numpy as np
import pytest

from loopscope.errors import LoopscopeError
from loopscope.path import arrays


@pytest.mark.parametrize("value", [3, 3.0, [1, 2], np.float32([1, 2]), np.arange(3, dtype=np.uint8), np.float16(2)])
def test_real_numbers_become_float64(value):
    array = arrays.as_floats("slope", value)
    assert array.dtype == np.float64
    assert np.array_equal(array, value)


def test_float64_arrays_are_not_copied():
    value = np.ones(3)
    assert arrays.as_floats("slope", value) is value


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (np.nan, "slope is NaN or infinite: leave such updates out"),
        (-np.inf, "slope is NaN or infinite: leave such updates out"),
        ([0.0, np.inf, np.nan], "slope is NaN or infinite at index [1]: leave such updates out"),
        ([[0.0, 1.0], [np.nan, 2.0]], "slope is NaN or infinite at index [1, 0]: leave such updates out"),
        (True, "slope has dtype bool: give real numbers"),
        (1j, "slope has dtype complex128: give real numbers"),
        (["a"], "slope has dtype <U1: give real numbers"),
        (None, "slope has dtype object: give real numbers"),
    ],
)
def test_everything_else_is_refused(refuses, value, line):
    with refuses(line):
        arrays.as_floats("slope", value)


def test_ragged_lists_are_refused_with_numpys_reason_in_one_line():
    with pytest.raises(LoopscopeError, match=r"^gain is not an array of numbers: \S[^\n]*$"):
        arrays.as_floats("gain", [[1.0], [1.0, 2.0]])


def test_objects_that_refuse_conversion_are_refused(refuses):
    class Stubborn:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("detach it first\nsecond line")

    with refuses("gain is not an array of numbers: detach it first"):
        arrays.as_floats("gain", Stubborn())


def test_scalars_go_with_every_update():
    first, second = arrays.per_update(slope=[1.0, 2.0], gain=3.0)
    assert first.shape == (2,)
    assert second.shape == ()


def test_shapes_of_updates_must_agree(refuses):
    with refuses("shapes differ (slope (2,), gain (3,)): give one entry per update in each"):
        arrays.per_update(slope=[1.0, 2.0], gain=[1.0, 2.0, 3.0], scale=1.0)


def test_leading_shapes_must_agree(refuses):
    arrays.same_updates(slope=(), gains=(3,), more=(3,))
    with refuses("shapes differ (slope (2,), gains (3,)): give one entry per update in each"):
        arrays.same_updates(scalar=(), slope=(2,), gains=(3,))


@pytest.mark.parametrize("name", sorted(arrays.MAGNITUDES))
def test_bounds_of_magnitudes_are_not_negative(refuses, name):
    assert arrays.in_range(name, [0.0, 5.0]).shape == (2,)
    with refuses(f"{name} is negative at index [1]: it bounds a magnitude, give zero or more"):
        arrays.in_range(name, [0.0, -1e-300])
    with refuses(f"{name} is negative: it bounds a magnitude, give zero or more"):
        arrays.per_update(**{name: -1.0})


@pytest.mark.parametrize("name", sorted(arrays.SCALES))
@pytest.mark.parametrize("outside", [-1e-300, 1 + 1e-15])
def test_scales_lie_between_zero_and_one(refuses, name, outside):
    assert arrays.in_range(name, [0.0, 1.0]).tolist() == [0.0, 1.0]
    with refuses(f"{name} lies outside [0, 1] at index [2]: scales are fractions of the update"):
        arrays.per_update(**{name: [0.0, 1.0, outside]})


def test_other_arguments_have_no_range():
    assert arrays.in_range("slope", [-7.0, 7.0]).tolist() == [-7.0, 7.0]


def test_nodes_of_a_part_may_end_anywhere():
    assert arrays.partition("nodes", [0.0, 0.25], whole=False).tolist() == [0.0, 0.25]


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        ([0.0], "grid has shape (1,): give at least the two scales 0 and 1 on one axis"),
        ([], "grid has shape (0,): give at least the two scales 0 and 1 on one axis"),
        (0.5, "grid has shape (): give at least the two scales 0 and 1 on one axis"),
        ([[0.0, 1.0]], "grid has shape (1, 2): give at least the two scales 0 and 1 on one axis"),
        ([0.25, 1.0], "grid starts at 0.25: it must contain 0, the current state"),
        ([-0.25, 1.0], "grid starts at -0.25: it must contain 0, the current state"),
        ([0.0, 0.25, 0.5], "grid ends at 0.5: it must contain 1, the full update"),
        ([0.0, 1.5], "grid ends at 1.5: it must contain 1, the full update"),
        ([0.0, 0.5, 0.5, 1.0], "grid does not increase at index [1]: sort it and drop repeated scales"),
        ([0.0, 0.75, 0.5, 1.0], "grid does not increase at index [1]: sort it and drop repeated scales"),
        ([0.0, np.nan, 1.0], "grid is NaN or infinite at index [1]: leave such updates out"),
    ],
)
def test_a_partition_runs_from_zero_to_one_and_increases(refuses, nodes, line):
    with refuses(line):
        arrays.partition("grid", nodes)


def test_two_nodes_are_a_partition():
    assert arrays.partition("grid", [0, 1]).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (3, 4)])
def test_samples_have_one_entry_per_node(refuses, shape):
    nodes = np.array([0.0, 0.5, 1.0])
    with refuses(f"gains has shape {shape} for 3 scales: give one entry per scale on the last axis"):
        arrays.sampled("gains", np.zeros(shape), nodes)
    assert arrays.sampled("gains", np.zeros((2, 3)), nodes).shape == (2, 3)


def test_cell_constants_have_one_entry_per_cell(refuses):
    nodes = np.array([0.0, 0.5, 1.0])
    assert arrays.cellwise("lipschitz", 1.0, nodes).shape == ()
    assert arrays.cellwise("lipschitz", np.ones((4, 2)), nodes).shape == (4, 2)
    with refuses("lipschitz has shape (3,) for 2 cells: give one constant per cell on the last axis"):
        arrays.cellwise("lipschitz", np.ones(3), nodes)
    with refuses("lipschitz is NaN or infinite: leave such updates out"):
        arrays.cellwise("lipschitz", np.nan, nodes)
    with refuses("lipschitz is negative at index [0]: it bounds a magnitude, give zero or more"):
        arrays.cellwise("lipschitz", [-1.0, 1.0], nodes)


def test_results_beyond_float64_are_refused(refuses):
    assert arrays.finite("the sum", np.ones(2)).tolist() == [1.0, 1.0]
    with refuses("the sum exceeds float64 at index [1]: rescale the utility"):
        arrays.finite("the sum", np.array([1.0, np.inf]))


def test_quiet_arithmetic_raises_nothing():
    with np.errstate(all="raise"), arrays.quiet():
        assert np.isinf(np.float64(1e308) * 10)
        assert np.float64(5e-324) * 0.5 == 0
        assert np.isnan(np.float64(np.inf) - np.inf)


def test_one_update_gives_a_plain_scalar():
    assert type(arrays.plain(np.float64(1.0))) is float
    assert type(arrays.plain(np.array(True))) is bool
    assert arrays.plain(np.ones(2)).shape == (2,)
