"""Products with a head: long sums in float32 are float64 sums of short ones on a CPU."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout.affine.query import SUMMED, HeadLogits


def logits(h, weight, dtype):
    return HeadLogits(h, 2.0 * h, weight, None, dtype).block(slice(None), torch.zeros(h.shape[0], dtype=torch.int64))


@pytest.mark.parametrize("parts", [3, 8])
def test_small_terms_do_not_drown_in_large_ones_that_cancel(parts):
    """2²⁴ at the beginning, its opposite at the end, and ones between them, each of which float32 would lose."""
    width = parts * SUMMED
    weight = torch.zeros(4, width)
    weight[:, 0], weight[:, -1] = 2.0**24, -(2.0**24)
    weight[:, SUMMED : width - SUMMED] = 1.0
    z0, v = logits(torch.ones(3, width), weight, torch.float32)
    ones = float(width - 2 * SUMMED)
    for found in (z0, v):
        assert (found == ones).all()
