"""Moments at evenly spaced scales in the kernels, against the plain reference and torch's own way."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout.affine import reference
from loopscope.readout.affine.even import even_survey
from loopscope.readout.affine.kernel_sums import KernelSums, Shape
from loopscope.readout.affine.power_sums import EvenNodes
from loopscope.readout.affine.sources import StoredLogits


def _random(tokens, vocabulary, size, peak=0.0):
    g = torch.Generator().manual_seed(tokens + vocabulary)
    z0 = 4.0 * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64)
    z0[:, 0] += peak
    v = size * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64)
    return z0, v, torch.randint(0, vocabulary, (tokens,), generator=g)


def _plain(z0, v, y, count, order):
    return torch.stack([reference.derivatives_at(z0, v, y, k / (count - 1), order) for k in range(count)], -1)


def _summed(z0, v, y, count, order, cuts, shape):
    nodes = EvenNodes(count, tuple(range(count)), order)
    sums = KernelSums(v.gather(1, y.unsqueeze(1)), nodes, len(cuts), shape)
    for z0_tb, v_tb in zip(z0.split(cuts, 1), v.split(cuts, 1), strict=True):
        sums.add(z0_tb, v_tb, *v_tb.aminmax(dim=1))
    return sums.result()


@pytest.mark.parametrize("size", [1e-9, 0.5, 4.0, 25.0])
@pytest.mark.parametrize("peak", [0.0, 40.0])
def test_derivatives_are_the_references(interpreted, size, peak):
    z0, v, y = _random(2, 45, size, peak)
    count = 21 if size < 10.0 else 7  # with a scale for every interval
    found = _summed(z0, v, y, count, 4, [30, 15], Shape(scales=11, tile=16))
    expected = _plain(z0, v, y, count, 4)[1:]
    scale = size ** torch.arange(1.0, 5.0).double()[:, None, None]
    torch.testing.assert_close(
        found.derivatives / scale, expected / scale, rtol=1e-11, atol=1e-12 if peak == 0.0 else 1e-26
    )
    torch.testing.assert_close(found.derivatives[1], expected[1], rtol=1e-12, atol=0.0)
    assert torch.equal(found.start, found.derivatives[:, :, 0])


@pytest.mark.parametrize(("scales", "lines", "tile"), [(1, 1, 8), (4, 4, 8), (7, 2, 64), (64, 8, 8)])
def test_however_the_work_is_cut(interpreted, scales, lines, tile):
    z0, v, y = _random(1, 137, 6.0)
    found = _summed(z0, v, y, 9, 3, [137], Shape(scales=scales, lines=lines, tile=tile))
    torch.testing.assert_close(found.derivatives, _plain(z0, v, y, 9, 3)[1:], rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(("tokens", "vocabulary"), [(1, 1), (1, 2), (3, 17)])
def test_small_and_single(interpreted, tokens, vocabulary):
    z0, v, y = _random(tokens, vocabulary, 2.0)
    found = _summed(z0, v, y, 3, 4, [vocabulary], Shape(tile=16))
    torch.testing.assert_close(found.derivatives, _plain(z0, v, y, 3, 4)[1:], rtol=1e-12, atol=1e-13)


def test_a_survey_through_the_kernels_is_torchs(interpreted, launches):
    z0, v, y = _random(3, 70, 3.0)
    source, rows = StoredLogits(z0, v), slice(0, 3)
    found = even_survey(source, rows, y, 21, places=(0, 5, 20), order=2, block_vocabulary=32, kernel=True)
    assert launches == ["power_sums_kernel"] * 3 + ["merge_kernel"]
    plain = even_survey(source, rows, y, 21, places=(0, 5, 20), order=2, block_vocabulary=32)
    assert len(launches) == 4
    torch.testing.assert_close(found.gains, plain.gains, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.derivatives, plain.derivatives, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.initial, plain.initial, rtol=1e-14, atol=0.0)
    assert torch.equal(found.spread, plain.spread)
    assert torch.equal(found.distributions.stacked(), plain.distributions.stacked())


def test_tiny_gains_keep_their_digits(interpreted):
    z0, v, y = _random(2, 20, 1e-7)
    found = even_survey(StoredLogits(z0, v), slice(0, 2), y, 5, order=3, kernel=True)
    torch.testing.assert_close(found.gains, _plain(z0, v, y, 5, 0)[0], rtol=1e-12, atol=0.0)


def test_a_repeated_run_gives_the_same_bits(interpreted):
    z0, v, y = _random(2, 40, 5.0)
    one, two = (_summed(z0, v, y, 9, 3, [25, 15], Shape(scales=5, tile=16)) for _ in range(2))
    assert torch.equal(one.derivatives, two.derivatives)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy says what the test is about
def test_numbers_that_are_not_finite_are_seen(interpreted):
    z0, v, y = _random(2, 20, 1.0)
    v[0, 3], z0[1, 4] = torch.nan, torch.inf
    source = StoredLogits(torch.zeros_like(z0), torch.zeros_like(v))
    source._z0_TV, source._v_TV = z0, v
    assert not torch.isfinite(even_survey(source, slice(0, 2), y, 5, distributions=False, kernel=True).gains).any()


@pytest.mark.parametrize("size", [0.0, 1e-9, 0.05, 0.5, 4.0, 25.0, 120.0])
@pytest.mark.parametrize("peak", [0.0, 40.0])
def test_many_scales_from_power_sums(interpreted, launches, size, peak):
    z0, v, y = _random(1, 40, size, peak)
    count = 100 if size < 10.0 else 12  # with a scale for every interval
    found = _summed(z0, v, y, count, 4, [25, 15], None)
    assert launches == ["power_sums_kernel"] * 2 + ["merge_kernel"]
    expected = _plain(z0, v, y, count, 4)[1:]
    scale = max(size, 1e-30) ** torch.arange(1.0, 5.0).double()[:, None, None]
    atol = 1e-12 if peak == 0.0 else 1e-26
    torch.testing.assert_close(found.derivatives / scale, expected / scale, rtol=1e-11, atol=atol)
    torch.testing.assert_close(found.derivatives[1], expected[1], rtol=1e-12, atol=0.0)
