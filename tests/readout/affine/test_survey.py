"""One sweep that answers everything, against the questions asked one by one."""

from __future__ import annotations

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.readout import affine_path

CURVATURE = (0.0, 0.25, 0.5, 0.75, 1.0)


@pytest.fixture
def path():
    generator = torch.Generator().manual_seed(7)
    z0 = 3.0 * torch.randn(11, 37, generator=generator, dtype=torch.float64)
    v = torch.randn(11, 37, generator=generator, dtype=torch.float64)
    targets = torch.randint(37, (11,), generator=generator)
    return affine_path(z0, v, targets, examples=[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2])


def test_a_survey_is_the_questions_asked_one_by_one(path):
    found = path.survey(21, CURVATURE, order=3)
    torch.testing.assert_close(found.gains, path.value(found.alpha.tolist()), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found.derivatives, path.derivatives(list(CURVATURE), 3).stack, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found.initial, path.initial_utility, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        torch.stack(found.distributions), torch.stack(path.distributions), rtol=1e-11, atol=1e-13
    )


def test_a_single_example_has_no_example_axis():
    found = affine_path(torch.zeros(2, 3), torch.eye(2, 3), [0, 1]).survey(5, [0.0, 1.0])
    assert found.gains.shape == (5,)
    assert found.derivatives.shape == (3, 2)


def test_derivatives_are_on_a_grid_with_two_ends(path):
    for scale in (0.26, -0.05, 1.05):
        with pytest.raises(LoopscopeError, match="is not one of the 21 evenly spaced"):
            path.survey(21, [scale])
    with pytest.raises(LoopscopeError, match="at least 2"):
        path.survey(1)


def test_both_ends_alone(path):
    found = path.survey(2, [], 0)
    assert found.derivatives.shape == (1, 3, 0)
    torch.testing.assert_close(found.gains[:, -1], path.gain, rtol=1e-11, atol=1e-13)
