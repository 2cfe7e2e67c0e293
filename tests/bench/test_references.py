"""The references of the benchmark are right themselves: otherwise a ratio to them says nothing."""

from __future__ import annotations

import pytest
import torch

from loopscope.bench.accuracy import by_name, plain_geometry
from loopscope.bench.affine_geometry import CURVATURE_AT, SCALES, PaperWay
from loopscope.bench.fp64_path import NodeByNode
from loopscope.readout import affine_path_from_states

GRID = [k / (SCALES - 1) for k in range(SCALES)]


@pytest.fixture
def path(update):
    return affine_path_from_states(
        update.h_TD, update.h_plus_TD, update.weight_VD, None, update.targets_T, dtype=torch.float64, impl="reference"
    ).per_token()


@pytest.mark.parametrize("chunk", [3, 100])
def test_the_papers_way_gives_the_slope_and_curvature_of_every_token(update, path, chunk):
    found = PaperWay(update, chunk).differentiated()
    torch.testing.assert_close(found.slope.double(), path.slope, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.curvature.double(), path.curvature, rtol=1e-4, atol=1e-5)


def test_the_papers_way_gives_the_utility_at_every_scale(update, path):
    torch.testing.assert_close(PaperWay(update, 4).utilities(GRID).double(), path.utility(GRID), rtol=1e-5, atol=1e-5)


def test_plain_fp32_names_and_gives_every_quantity(update, path):
    exact = by_name(path.survey(SCALES, CURVATURE_AT, order=2))
    plain = plain_geometry(update, GRID, CURVATURE_AT)
    assert list(plain) == list(exact)
    for name, value in plain.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact[name], rtol=1e-4, atol=2e-5)


def test_node_by_node_gives_three_derivatives_at_every_node(update, path):
    found = NodeByNode(update).derivatives(GRID)
    torch.testing.assert_close(found, path.derivatives(GRID, 3).stack, rtol=1e-9, atol=1e-11)
