"""The probe sees a matrix that is made, and does not see what was held before."""

from __future__ import annotations

import pytest
import torch

from loopscope.bench.affine_memory import probe


def test_differentiating_needs_matrices_of_tokens_by_vocabulary():
    tokens, vocabulary = 400, 30_000
    logits = tokens * vocabulary * 4 / 2**20
    held_here = torch.ones(10 * tokens * vocabulary)  # more than the probe will ever hold: not its own, so not counted
    extra = probe("paper", tokens, 8, vocabulary)
    del held_here
    assert extra > 2 * logits


def test_a_probe_that_fails_says_why():
    with pytest.raises(RuntimeError, match="memory probe failed"):
        probe("survey", 0, 8, 10)
