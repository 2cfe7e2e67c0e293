"""The kernels on small shapes against FP64, through Triton's interpreter."""

from __future__ import annotations

from itertools import pairwise

import pytest
import rows
import torch

from geometry import by_name
from loopscope.readout import affine_path, affine_path_from_states
from loopscope.readout.affine.path import surveys

AT = rows.AT


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 64, 65, 131])
def test_hard_rows(vocabulary):
    hard = rows.hard_rows(131, "cpu").values()
    z0, z1 = (torch.stack(each)[:, :vocabulary].contiguous() for each in zip(*hard, strict=True))
    rows.check(z0, z1, torch.full((len(hard),), min(5, vocabulary - 1)))
    rows.check(z0[:1], z1[:1], torch.tensor([0]))


def test_rows_whose_largest_logits_come_after_the_entries_that_references_are_taken_from():
    hard = rows.hard_rows(3001, "cpu").values()
    z0, z1 = (torch.stack(each).flip(1).contiguous() for each in zip(*hard, strict=True))
    rows.check(z0, z1, torch.full((len(hard),), 3001 - 1 - 5))


def test_mass_that_grows_along_the_step_from_peaked_to_flat_rows():
    g = torch.Generator().manual_seed(3)
    noise, heights = (
        torch.randn(2, 6, 2700, generator=g),
        torch.tensor([[12.0], [25.0], [40.0], [60.0], [90.0], [140.0]]),
    )
    z0, z1 = 0.5 * noise[0], 0.4 * heights + 0.5 * noise[1]
    z0[:, :1], z1[:, :1] = heights, 0.3 * heights
    rows.check(z0, z1, torch.tensor([0, 1, 2, 0, 2699, 5]))


def test_derivatives_to_the_fourth():
    g = torch.Generator().manual_seed(1)
    z0, v = (torch.randn(2, 130, generator=g) for _ in range(2))
    y = torch.tensor([3, 129])
    for scales, places in ((None, None), ((0.0, 0.3, 0.35, 1.0), (1, 2))):
        found = rows.reduced(z0, z0 + v, y, scales, places, order=4)
        path = affine_path(z0.double(), (z0 + v).double() - z0.double(), y, impl="reference").per_token()
        expected = path.derivatives(found.moments_at.tolist(), 4).stack
        torch.testing.assert_close(found.derivatives, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_path_from_states(states, dtype, bias):
    made = states(5, 70, 32, scale=2.0, bias=bias, dtype=dtype)
    ours, exact = (
        affine_path_from_states(*made, examples=[0, 0, 1, 1, 1], dtype=kind, impl=impl)
        for kind, impl in ((torch.float32, "kernel"), (torch.float64, "reference"))
    )
    found, true = ours.survey(21, AT, 2), exact.survey(21, AT, 2)
    for name in ("gains", "derivatives", "initial"):
        torch.testing.assert_close(getattr(found, name), getattr(true, name), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.distributions, true.distributions, rtol=1e-4, atol=1e-5)
    alpha = torch.tensor([0.37, 1.0], dtype=torch.float64)
    torch.testing.assert_close(ours.at(alpha, 1).stack, exact.at(alpha, 1).stack, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.value([0.3, 0.7]), exact.value([0.3, 0.7]), rtol=1e-4, atol=1e-5)
    assert ours.backends_used == {"kernel"}


def test_updates_that_follow_one_another_are_those_one_by_one(states):
    h, h_plus, weight, _, targets = states(3, 70, 32)
    chain = [h, h_plus, (h_plus.float() * 0.9).bfloat16()]
    paths = [
        affine_path_from_states(*ends, weight, None, targets, dtype=torch.float32, impl="kernel").per_token()
        for ends in pairwise(chain)
    ]
    for together, path in zip(surveys(paths, 5, (0.0, 1.0), 2), paths, strict=True):
        alone = path.survey(5, (0.0, 1.0), 2)
        found, expected = by_name(together), by_name(alone)
        for name in found:  # NumPy multiplies matrices of other shapes in another order
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e-9, 0.05, 3.0, 400.0])
@pytest.mark.parametrize("scales", [[k / 32 for k in range(33)], [0.2, 0.7]], ids=["even", "uneven"])
def test_fp64_is_the_reference(size, scales):
    g = torch.Generator().manual_seed(2)
    z0, v = (torch.randn(2, 45, generator=g, dtype=torch.float64) for _ in range(2))
    z0[0, 3] += 40.0
    ours, exact = (affine_path(4.0 * z0, size * v, [3, 8], impl=impl).per_token() for impl in ("kernel", "reference"))
    found, true = ours.derivatives(scales, 4).stack, exact.derivatives(scales, 4).stack
    torch.testing.assert_close(found[2], true[2], rtol=1e-11, atol=0.0)
    for order in (0, 1, 3, 4):
        assert float((found[order] - true[order]).abs().max()) <= 1e-12 * float(true[order].abs().max()), order
    for own in ([1e-9, 0.6], [0.0, 0.3]):
        alpha = torch.tensor(own, dtype=torch.float64)
        torch.testing.assert_close(ours.at(alpha, 1).stack, exact.at(alpha, 1).stack, rtol=1e-10, atol=1e-300)
