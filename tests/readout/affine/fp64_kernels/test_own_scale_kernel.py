"""Scales of the tokens' own in the kernel, against the plain reference and torch's own way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loopscope.measuring.fp64 import ConcavePath
from loopscope.readout import affine_path
from loopscope.readout.affine import reference
from loopscope.readout.affine.own_scale_kernels import derivatives_at_own

SCALES = torch.tensor([0.37, 1.0, 1e-9, 0.0, 0.8], dtype=torch.float64)


def _random(vocabulary, size, peak=0.0):
    g = torch.Generator().manual_seed(vocabulary)
    z0 = 4.0 * torch.randn(5, vocabulary, generator=g, dtype=torch.float64)
    z0[:, 0] += peak
    v = size * torch.randn(5, vocabulary, generator=g, dtype=torch.float64)
    return z0, v, torch.randint(0, vocabulary, (5,), generator=g)


def _plain(z0, v, y):
    rows = [slice(t, t + 1) for t in range(5)]
    found = [reference.derivatives_at(z0[r], v[r], y[r], float(a), 1) for r, a in zip(rows, SCALES, strict=True)]
    return torch.cat(found, 1)


@pytest.mark.parametrize("size", [0.0, 1e-9, 0.5, 4.0, 120.0])
@pytest.mark.parametrize("peak", [0.0, 40.0])
def test_gain_and_slope_are_the_references(interpreted, size, peak):
    z0, v, y = _random(45, size, peak)
    found, expected = derivatives_at_own(z0, v, y, SCALES, 1), _plain(z0, v, y)
    assert torch.equal(found[:, 3], torch.zeros(2, dtype=torch.float64))
    read = SCALES > 0
    torch.testing.assert_close(found[:, read], expected[:, read], rtol=1e-13, atol=1e-15 * size)


@pytest.mark.parametrize("vocabulary", [1, 2, 16, 17])
def test_lanes_without_an_entry_weigh_nothing(interpreted, vocabulary):
    z0, v, y = _random(vocabulary, 2.0)
    found = derivatives_at_own(z0, v, y, SCALES, 1)[:, SCALES > 0]
    torch.testing.assert_close(found, _plain(z0, v, y)[:, SCALES > 0], rtol=1e-13, atol=1e-15)


def test_a_reference_that_is_nearly_certain_keeps_its_digits(interpreted):
    z0, v, y = _random(30, 0.5, 40.0)
    y = torch.zeros_like(y)
    found, expected = derivatives_at_own(z0, v, y, SCALES, 1), _plain(z0, v, y)
    assert bool((expected[0].abs() < 1e-9).all())
    torch.testing.assert_close(found[:, SCALES > 0], expected[:, SCALES > 0], rtol=1e-12, atol=0.0)


def test_a_path_takes_it_and_fills_in_the_start(interpreted):
    z0, v, y = _random(33, 1.5)
    examples = [0, 0, 1, 1, 2]
    path = affine_path(z0, v, y, examples=examples)
    plain = affine_path(z0, v, y, examples=examples, impl="moments")
    alpha = [0.3, 0.0, 0.9]
    torch.testing.assert_close(path.at(alpha, 1).stack, plain.at(alpha, 1).stack, rtol=1e-12, atol=1e-15)
    assert "fp64_kernel" in path.ways_taken
    # A third derivative is not the kernel's: the next way answers.
    torch.testing.assert_close(path.at(alpha, 3).stack, plain.at(alpha, 3).stack, rtol=1e-12, atol=1e-14)


def test_logits_with_gaps_between_rows(interpreted):
    z0, v, y = _random(20, 1.0)
    wide = torch.cat([z0, v], 1)
    found = derivatives_at_own(wide[:, :20], wide[:, 20:], y, SCALES, 1)
    assert torch.equal(found, derivatives_at_own(z0, v, y, SCALES, 1))


def test_a_search_for_roots_finds_the_same_through_the_kernels(interpreted):
    z0, v = (x[2:] for x in _random(20, 3.0)[:2])
    y = (z0 + 0.2 * v).argmax(1)  # likeliest on the way: optima inside, and a gain that ends before the full step
    examples = [0, 1, 1]
    found, plain = (
        ConcavePath(affine_path(z0, v, y, examples=examples, impl=impl)).columns() for impl in ("auto", "even")
    )
    kinds = found.pop("optimum_kind")
    assert kinds == plain.pop("optimum_kind")
    assert kinds == ["interior"] * 2
    assert found["gain"].min() < 0.0 < found["gain"].max()
    for name in set(found) - {"evaluations"}:
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-9, atol=1e-10, err_msg=name)
