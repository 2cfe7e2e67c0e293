"""The ways through Huginn's readout that the benchmark times agree with each other."""

from __future__ import annotations

import pytest
import torch

from loopscope.bench.huginn_readout import HuginnUpdate
from loopscope.bench.sizes import HuginnSizes


@pytest.fixture(scope="module")
def update() -> HuginnUpdate:
    return HuginnUpdate(HuginnSizes(48, 2, 64, 301, rows=2, positions=5), torch.device("cpu"))


def test_all_ways_give_the_same_derivatives(update):
    exact = update.path(dtype=torch.float64).derivatives(0.0, 3).stack
    for way in (update.taylor, update.plain_taylor, update.nested):
        torch.testing.assert_close(way(), exact, rtol=1e-4, atol=1e-5)
    product = update.hessian_vector()
    torch.testing.assert_close(torch.stack([product.slope, product.curvature]), exact[1:3], rtol=1e-4, atol=1e-5)


def test_tokens_average_to_their_rows(update):
    rows = update.of_tokens(plain=True, dtype=torch.float64).reshape(3, 2, -1).mean(2)
    torch.testing.assert_close(rows, update.path(dtype=torch.float64).derivatives(0.0, 3).stack[1:])


def test_a_forward_pass_reads_every_reference_token(update):
    assert update.forward().shape == update.plain_forward().shape == (update.tokens, 301)
    assert float(update.forward().std()) == pytest.approx(4.0, rel=0.2)
