"""Averages over each example's tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from loopscope.readout.path import as_segments, segment_mean

CPU = torch.device("cpu")


@pytest.mark.parametrize("in_order", [True, False])
def test_each_example_gets_the_mean_of_its_tokens(in_order):
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(11, 2, 3, generator=g, dtype=torch.float64)
    index = torch.randint(0, 4, (11,), generator=g)
    index[:4] = torch.arange(4)
    index = index.sort().values if in_order else index
    segments = as_segments(index, 11, CPU)
    assert segments.in_order == in_order
    found = segment_mean(segments, rows)
    for i in range(4):
        torch.testing.assert_close(found[i], rows[index == i].mean(0), rtol=1e-14, atol=1e-15)
    assert torch.equal(found, segment_mean(dataclasses.replace(segments, in_order=False), rows))
    assert torch.equal(segment_mean(segments.per_token(), rows), rows)


def test_no_index_means_one_example():
    segments = as_segments(None, 5, CPU)
    assert segments.single
    assert segments.examples == 1
    assert segments.per_token().examples == 5
