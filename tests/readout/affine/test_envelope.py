"""Derivative envelopes: they hold between samples, and hardly exceed them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopscope.path import beneficial_lower_bound, curvature_deviation
from loopscope.readout import affine_path

BETWEEN = 2  # samples inside each cell


def _violations(path, cells):
    """How often a dense sample leaves the envelope."""
    e = path.envelope(cells)
    dense = torch.linspace(0, 1, cells * (BETWEEN + 1) + 1, dtype=torch.float64)
    d = path.derivatives(dense, 3)
    cell = torch.arange(cells).repeat_interleave(BETWEEN + 1)
    count = 0
    for at in (slice(None, -1), slice(1, None)):  # a node belongs to the cells on both sides of it
        bent, third = -d.second[..., at], d.third[..., at].abs()
        count += int((bent > e.curvature_upper[..., cell]).sum())
        count += int((bent < e.curvature_lower[..., cell]).sum())
        count += int((third > e.third[..., cell]).sum())
    return count, e, d


def test_envelopes_hold_and_are_tight_on_peaked_logits(language_model_logits):
    z0, v, y, examples = language_model_logits(300, 3, 128, seed=20260904)
    count, e, d = _violations(affine_path(z0, v, y, examples=examples), 256)
    assert count == 0
    sampled = (-d.second).amax(-1)
    ratio = e.L_D / sampled
    assert float(ratio.min()) >= 1.0
    assert float(ratio.median()) <= 1.001
    assert float(ratio.max()) <= 1.02
    assert float((e.M / d.third.abs().amax(-1)).median()) <= 1.01
    assert float((e.mu / (-d.second).amin(-1)).median()) >= 0.999


@pytest.mark.parametrize("size", [1e-8, 20.0, 1000.0])
def test_envelopes_hold_for_displacements_of_every_size(language_model_logits, size):
    z0, v, y, examples = language_model_logits(12, 4, 60, seed=5)
    count, e, _ = _violations(affine_path(z0, size * v, y, examples=examples), 32)
    assert count == 0
    assert torch.isfinite(e.M).all()
    assert torch.isfinite(e.L_D).all()


@example(243550, 2, 40.0, 1.51953125)  # a third derivative of 1e-312, where float64 keeps two digits
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([2, 3, 30]), st.sampled_from([0.0, 5.0, 40.0]), st.floats(-3, 3))
def test_envelopes_hold_on_random_paths(seed, vocabulary, peak, log_size):
    g = torch.Generator().manual_seed(seed)
    z0 = 3.0 * torch.randn(6, vocabulary, generator=g, dtype=torch.float64)
    z0[:, 0] += peak
    v = 10.0**log_size * torch.randn(6, vocabulary, generator=g, dtype=torch.float64)
    v[:, -1] += 10.0**log_size * peak * (seed % 3)
    y = torch.randint(0, vocabulary, (6,), generator=g)
    count, _, _ = _violations(affine_path(z0, v, y, examples=[0, 0, 0, 1, 1, 2]), 9)
    assert count == 0


def test_one_coarse_cell_still_bounds_the_whole_path():
    # Two tokens that trade places inside the cell: samples at its ends see almost nothing of the curvature.
    z0, v = torch.tensor([[12.0, 0.0]]).double(), torch.tensor([[0.0, 24.0]]).double()
    path = affine_path(z0, v, [0])
    e = path.envelope(1)
    middle = float(-path.derivatives(0.5, 2).second)
    ends = float((-path.derivatives([0.0, 1.0], 2).second).max())
    assert ends < 1e-2 * middle
    assert middle <= float(e.L_D) <= 24.0**2 / 4 * (1 + 1e-9)


@pytest.mark.parametrize("size", [0.5, 2.0, 8.0])
def test_two_entries_stay_inside_coarse_cells_everywhere(size):
    # The distribution with the most negative fourth cumulant: nothing is farther from what the cells' ends suggest.
    for lead, cells in product((-1.0, 0.0, 1.0), (1, 3)):
        z0, v = torch.tensor([[lead * size, 0.0]]).double(), torch.tensor([[0.0, size]]).double()
        assert _violations(affine_path(z0, v, [0]), cells)[0] == 0


def test_finer_cells_approach_the_samples():
    g = torch.Generator().manual_seed(3)
    z0, v = torch.randn(2, 5, 40, generator=g, dtype=torch.float64) * 3
    path = affine_path(z0, v, [0, 1, 2, 3, 4])
    largest = float((-path.derivatives(torch.linspace(0, 1, 4097), 2).second).max())
    excess = [float(path.envelope(n).L_D) / largest - 1.0 for n in (16, 64, 256)]
    # Second order in the width: four times as many cells leave about a sixteenth.
    assert excess[1] < excess[0] / 8
    assert excess[2] < excess[1] / 8


def test_many_examples_have_the_envelopes_of_each(language_model_logits):
    z0, v, y, examples = language_model_logits(3, 4, 50, seed=1)
    together = affine_path(z0, v, y, examples=examples, block_tokens=5).envelope(16)
    for i in range(3):
        rows = examples == i
        alone = affine_path(z0[rows], v[rows], y[rows]).envelope(16)
        torch.testing.assert_close(together.third[i], alone.third, rtol=1e-12, atol=0.0)
        torch.testing.assert_close(together.curvature_lower[i], alone.curvature_lower, rtol=1e-12, atol=0.0)


def test_the_papers_bounds_hold_with_these_constants(language_model_logits):
    z0, v, y, examples = language_model_logits(40, 3, 80, seed=6)
    path = affine_path(z0, 3.0 * v, y, examples=examples)
    e = path.envelope(32)
    fine = torch.linspace(0, 1, 4001, dtype=torch.float64)
    d = path.derivatives(fine, 2)
    away = (d.second - d.second[:, :1]).abs()
    deviation = torch.trapezoid(away, fine, dim=-1).numpy()
    bounds = curvature_deviation(e.nodes, e.derivatives.second, e.third)
    slack = 1e-6 * deviation.max()
    assert (bounds.lower <= deviation + slack).all()
    assert (deviation <= bounds.upper + slack).all()
    alpha = 0.4
    assert (beneficial_lower_bound(alpha, path.slope, e.L_D) <= path.value(alpha).numpy() + 1e-14).all()
