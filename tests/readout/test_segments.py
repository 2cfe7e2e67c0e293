"""Averages over each example's tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.readout.path import SegmentMean, as_segments, segment_mean

CPU = torch.device("cpu")


def test_means_do_not_depend_on_how_tokens_are_fed():
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(11, 2, 3, generator=g, dtype=torch.float64)
    index = torch.randint(0, 4, (11,), generator=g)
    index[:4] = torch.arange(4)
    segments = as_segments(index, 11, CPU)
    whole = segment_mean(segments, rows)
    pieces = SegmentMean(segments)
    for start in range(0, 11, 3):
        pieces.add(slice(start, start + 3), rows[start : start + 3])
    torch.testing.assert_close(pieces.result(), whole, rtol=1e-15, atol=1e-15)
    for i in range(4):
        torch.testing.assert_close(whole[i], rows[index == i].mean(0), rtol=1e-14, atol=1e-15)


def test_no_index_means_one_example():
    segments = as_segments(None, 5, CPU)
    assert segments.single
    assert segments.examples == 1
    assert segments.per_token().examples == 5


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0, 2, 2], "example 1 has no reference tokens"),
        ([0, -1, 1], "number the examples from 0"),
        ([0, 1], "each of the 3 rows"),
        ([[0], [1], [2]], "each of the 3 rows"),
        ([0.0, 1.0, 2.0], "give integers"),
        ([True, False, True], "give integers"),
    ],
)
def test_a_wrong_index_is_refused(index, message):
    with pytest.raises(LoopscopeError, match=message):
        as_segments(torch.tensor(index), 3, CPU)


def test_no_tokens_at_all_are_refused():
    with pytest.raises(LoopscopeError, match="reference set is empty"):
        as_segments(None, 0, CPU)


def test_tokens_side_by_side_are_added_up_as_any_others():
    g = torch.Generator().manual_seed(1)
    rows = torch.randn(23, 2, generator=g, dtype=torch.float64)
    index = torch.sort(torch.randint(0, 5, (23,), generator=g)).values
    segments = as_segments(index, 23, CPU)
    assert segments.ends is not None
    scattered = dataclasses.replace(segments, ends=None)
    for size in (1, 2, 5, 23):
        means = SegmentMean(segments), SegmentMean(scattered)
        for mean in means:
            for start in range(0, 23, size):
                mean.add(slice(start, min(start + size, 23)), rows[start : start + size])
        assert torch.equal(means[0].result(), means[1].result())


def test_tokens_of_their_own_stay_as_they_are():
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mean = SegmentMean(as_segments(None, 7, CPU).per_token())
    for start in (0, 4):
        mean.add(slice(start, min(start + 4, 7)), rows[start : start + 4])
    assert torch.equal(mean.result(), rows)
