"""Surveys of updates that follow one another: float64's numbers, and those of single surveys."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from loopscope.readout import affine_path_from_states
from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.fused import chained
from loopscope.readout.affine.fused.chained import fused_surveys
from loopscope.readout.affine.fused.launches import FusedHead, Tiles
from loopscope.readout.affine.fused.path import fused_survey
from loopscope.readout.affine.in_a_row import surveys

TILES = Tiles(16, 32, 16, 4, 1)


@pytest.fixture
def chain(states):
    """States that follow one another, head, bias and labels."""

    def make(length, tokens, vocabulary, **options):
        h, h_plus, weight, bias, targets = states(tokens, vocabulary, 16, **options)
        chance = torch.Generator().manual_seed(length)
        found = [h, h_plus]
        while len(found) < length:
            found.append((found[-1].float() + 0.3 * torch.randn(h.shape, generator=chance)).to(h.dtype))
        return found[:length], weight, bias, targets

    return make


def test_against_float64(chain):
    """With a token that the kernels give up: two entries change places over 300 nats."""
    made, weight, bias, targets = chain(4, 9, 300, bias=True, scale=3.0, step=0.3)
    weight[3], weight[7] = 0.0, 0.0
    weight[3, 0], weight[7, 1] = 150.0, 150.0
    for state in made:
        state[:, :2] = 0.0
        state[2, 1] = 2.0
    made[0][2, :2] = torch.tensor([2.0, 0.0])
    even = EvenScales.of(9, (0.0, 0.75))
    assert not fused_surveys(made, weight, bias, targets, even, 2)[0].initial_T[2].isfinite()
    paths, exact = (
        [
            affine_path_from_states(h, h_plus, weight, bias, targets, dtype=dtype, impl=impl).per_token()
            for h, h_plus in pairwise(made)
        ]
        for dtype, impl in ((torch.float32, "fused"), (torch.float64, "reference"))
    )
    for found, path in zip(surveys(paths, 9, (0.0, 0.75), 2), exact, strict=True):
        true = path.survey(9, (0.0, 0.75), 2)
        torch.testing.assert_close(found.gains, true.gains, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.derivatives, true.derivatives, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.initial, true.initial, rtol=1e-5, atol=1e-5)
        ends = found.distributions.stacked(), true.distributions.stacked()
        torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)
    assert all(path.ways_taken == {"fused"} for path in paths)


def test_chunks_of_tokens_and_programs_that_go_on(chain, monkeypatch):
    made, weight, _, targets = chain(3, 18, 64)
    even, options = EvenScales.of(2, (0.0,)), {"tiles": TILES, "splits": 1}
    monkeypatch.setattr(chained, "processors", lambda device: 1)
    whole = fused_surveys(made, weight, None, targets, even, 1, **options)
    monkeypatch.setattr(chained, "CHUNK", 16)
    parts = fused_surveys(made, weight, None, targets, even, 1, **options)
    assert len(whole) == len(parts) == 2
    for (h, h_plus), one, other in zip(pairwise(made), whole, parts, strict=True):
        alone = fused_survey(FusedHead(h, h_plus, weight, None), targets, even, 1, tiles=TILES, splits=1)
        assert torch.equal(one.gains_TK, other.gains_TK)
        assert torch.equal(one.derivatives, other.derivatives)
        torch.testing.assert_close(one.gains_TK, alone.gains_TK, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.derivatives, alone.derivatives, rtol=1e-5, atol=1e-6)


def test_states_that_have_to_be_copied_are_surveyed_one_by_one(chain):
    made, weight, bias, targets = chain(4, 3, 40)
    paths = [
        affine_path_from_states(h.T.contiguous().T, h_plus, weight, bias, targets, dtype=torch.float32, impl="fused")
        for h, h_plus in pairwise(made)
    ]
    for found, path in zip(surveys(paths, 3, (0.0,), 2), paths, strict=True):
        assert torch.equal(found.gains, path.survey(3, (0.0,), 2).gains)
