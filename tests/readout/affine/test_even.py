"""Evenly spaced scales by repeated multiplication, against Arb, the plain reference and their error bound."""

from __future__ import annotations

import math
from contextvars import ContextVar
from functools import partial

import flint
import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.readout.affine import reference
from loopscope.readout.affine.endpoint import endpoint_distributions
from loopscope.readout.affine.even import even_survey, in_parallel, workers
from loopscope.readout.affine.power_sums import EvenNodes, intervals, power_sums
from loopscope.readout.affine.sources import HeadLogits, ScaledDisplacement, StoredLogits

QUANTITIES = ("value", "first", "second", "third", "fourth")


def _survey(z0, v, y, count, **options):
    source = StoredLogits(torch.atleast_2d(z0), torch.atleast_2d(v))
    return even_survey(source, slice(0, source.tokens), torch.atleast_1d(torch.as_tensor(y)), count, **options)


def _random(tokens, vocabulary, size, seed=0):
    g = torch.Generator().manual_seed(seed)
    z0 = 8.0 * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64)
    v = size * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64)
    return z0, v, torch.randint(0, vocabulary, (tokens,), generator=g)


@pytest.mark.parametrize(("count", "block"), [(3, 1024), (21, 7), (257, 1024)])
def test_gains_and_derivatives_agree_with_arb(affine_case, exact_path, count, block):
    _, z0, v, y = affine_case
    found = _survey(z0, v, y, count, order=4, distributions=False, block_vocabulary=block)
    for k in {1, count // 3, count - 2, count - 1}:
        exact = exact_path(z0, v, y, k / (count - 1))
        for order, name in enumerate(QUANTITIES):
            # A first gain of a certain target is a small difference of masses that differ by a 256th.
            bound = 1e-12 if order else 3e-12
            assert exact.error(name, float(found.derivatives[order, 0, k]))[1] < bound, (name, k)
        assert exact.error("second", float(found.derivatives[2, 0, k]))[0] < 1e-12, k
        assert exact.error("initial", float(found.initial))[0] < 1e-12


@pytest.mark.parametrize("spread", [1e-9, 1e-3, 0.7, 3.9, 30.0, 100.0])
@pytest.mark.parametrize("count", [21, 257])
def test_a_power_series_is_as_accurate_as_its_bound_says(spread, count):
    tokens = 40
    g = torch.Generator().manual_seed(5)
    z0 = torch.stack([torch.zeros(tokens), -40.0 * torch.rand(tokens, generator=g)], 1).double()
    v = torch.stack([torch.zeros(tokens), spread * (2.0 * torch.rand(tokens, generator=g) - 1.0)], 1).double()
    nodes = EvenNodes(count, tuple(range(count)), 4)
    found = power_sums(z0, v, v[:, :1], spread, nodes).mass
    flint.ctx.prec = 200
    tightest = 0.0
    for interval in intervals(nodes, spread):
        for k in range(interval.first, interval.stop, 1 + (interval.stop - interval.first) // 7):
            for token in range(tokens):
                d = 0 if float(found.z0_d[token, k]) == 0.0 and float(found.v_d[token, k]) == 0.0 else 1
                gap, u = float(z0[token, 1 - d] - z0[token, d]), float(v[token, 1 - d] - v[token, d])
                exact = (flint.arb(gap) + flint.arb(k) / (count - 1) * flint.arb(u)).exp()
                error = float(abs(flint.arb(float(found.others[token, k])) / exact - 1).mid())
                x = abs((k / (count - 1) - interval.centre) * u)
                bound = (
                    math.exp(2.0 * x) * (4.0 * x + 5.0) + 8.0 + 3.0 * abs(interval.centre * u) + 2.0 * abs(gap) + 8.0
                )
                assert error <= bound * 2.0**-53
                tightest = max(tightest, error / (bound * 2.0**-53))
    assert tightest > 0.02


@pytest.mark.parametrize("size", [1e-9, 0.1, 3.0, 25.0])
@pytest.mark.parametrize(
    ("tokens", "vocabulary", "block"), [(1, 1, 1), (3, 2, 1), (7, 33, 8), (5, 64, 64), (2, 700, 256)]
)
def test_ragged_blocks_agree_with_the_reference(tokens, vocabulary, block, size):
    z0, v, y = _random(tokens, vocabulary, size)
    for count in (2, 3, 22, 257):
        found = _survey(z0, v, y, count, order=4, block_vocabulary=block)
        plain = torch.stack([reference.derivatives_at(z0, v, y, k / (count - 1), 4) for k in range(count)], -1)
        scale = size ** torch.arange(5.0).double()[:, None, None]
        torch.testing.assert_close(found.derivatives / scale, plain / scale, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.initial, reference.log_probability_at_start(z0, y), rtol=1e-13, atol=0.0)
        assert torch.equal(found.spread, v.amax(1) - v.amin(1))


@pytest.mark.parametrize("places", [(), (0,), (0, 20), (3, 10, 11), (20, 5)])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_some_places_have_what_all_have(places, order):
    z0, v, y = _random(4, 90, 4.0)
    every = _survey(z0, v, y, 21, order=4, block_vocabulary=32)
    some = _survey(z0, v, y, 21, places=places, order=order, block_vocabulary=32)
    assert some.derivatives.shape == (order + 1, 4, len(places))
    torch.testing.assert_close(
        some.derivatives, every.derivatives[: order + 1][..., list(places)], rtol=1e-12, atol=1e-13
    )
    torch.testing.assert_close(some.gains, every.gains, rtol=1e-13, atol=1e-14)


def test_tiny_gains_keep_their_digits(exact_path):
    # A difference of log-sum-exps would leave four digits of a gain of 1e-12.
    z0, v, _ = _random(1, 50, 1e-12)
    found = _survey(z0, v, 7, 21)
    for k in (1, 10, 20):
        assert exact_path(z0[0], v[0], 7, k / 20).error("value", float(found.gains[0, k]))[0] < 1e-12


def test_gains_are_continuous_where_their_formula_changes():
    z0, v, y = _random(1, 50, 1.0)
    v = v / (v.amax() - v.amin())
    below, above = (
        _survey(z0, size * v, y, 21, order=1).gains / size for size in (0.9999 * 1e-13**0.2, 1.0001 * 1e-13**0.2)
    )
    torch.testing.assert_close(below, above, rtol=1e-3, atol=0.0)
    assert not torch.equal(below, above)


def test_a_constant_displacement_does_exactly_nothing():
    z0, _, y = _random(4, 50, 1.0)
    v = torch.full_like(z0, 1.0 / 3.0) * torch.tensor([[1e-8], [1.0], [1e2], [0.0]], dtype=torch.float64)
    found = _survey(z0, v, y, 21, order=4)
    assert float(found.gains.abs().max()) == 0.0
    assert float(found.derivatives.abs().max()) == 0.0


def test_distributions_are_those_of_their_own_sweep():
    z0, v, y = _random(5, 200, 2.0)
    source, rows = StoredLogits(z0, v), slice(0, 5)
    found = even_survey(source, rows, y, 21, block_vocabulary=64).distributions
    assert torch.equal(found.stacked(), endpoint_distributions(source, rows, y, 64).stacked())
    assert even_survey(source, rows, y, 21, distributions=False).distributions is None


def test_the_products_are_taken_once():
    g = torch.Generator().manual_seed(1)
    h, h_plus, head = (torch.randn(*shape, generator=g) for shape in ((6, 16), (6, 16), (100, 16)))
    seen = []

    class Counted(HeadLogits):
        def block(self, rows, columns, targets_t, target):
            seen.append((columns.start, columns.stop))
            return super().block(rows, columns, targets_t, target)

    y = torch.arange(6)
    source = Counted(h, h_plus, head, None, torch.float32)
    found = even_survey(source, slice(0, 6), y, 21, places=(0, 20), block_vocabulary=40)
    assert seen == [(0, 40), (40, 80), (80, 100)]
    z0, v = h.double() @ head.double().T, (h_plus.double() - h.double()) @ head.double().T
    exact = torch.stack([reference.derivatives_at(z0, v, y, alpha, 3) for alpha in (0.0, 1.0)], -1)
    torch.testing.assert_close(found.derivatives, exact, rtol=1e-4, atol=1e-4)


def test_a_scaled_displacement_is_a_shorter_path():
    z0, v, y = _random(3, 40, 2.0)
    source = ScaledDisplacement(StoredLogits(z0, v), torch.tensor([0.5, 0.25, 1.0]))
    found = even_survey(source, slice(0, 3), y, 9)
    whole = even_survey(StoredLogits(z0, v), slice(0, 3), y, 9)
    torch.testing.assert_close(found.gains[0, ::2], whole.gains[0, :5], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.gains[1, ::4], whole.gains[1, :3], rtol=1e-12, atol=1e-14)


def test_a_repeated_run_gives_the_same_bits():
    z0, v, y = _random(9, 300, 3.0)
    one, two = (_survey(z0, v, y, 257, order=4, block_vocabulary=128) for _ in range(2))
    assert torch.equal(one.derivatives, two.derivatives)
    assert torch.equal(one.gains, two.gains)


@pytest.mark.parametrize(
    ("count", "options"), [(1, {}), (21, {"order": 5}), (21, {"places": (21,)}), (21, {"places": (-1,)})]
)
def test_senseless_requests_are_refused(count, options):
    with pytest.raises(LoopscopeError, match=r"scale|order"):
        _survey(*_random(1, 4, 1.0), count, **options)


def test_tokens_side_by_side_are_the_same_tokens():
    # Enough of them for several threads, and a number that does not divide evenly.
    z0, v, y = _random(101, 60, 3.0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = _survey(z0, v, y, 21, places=(0, 20), order=4, block_vocabulary=25)
        torch.set_num_threads(1)
        one = _survey(z0, v, y, 21, places=(0, 20), order=4, block_vocabulary=25)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(together.gains, one.gains, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(together.derivatives, one.derivatives, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(together.distributions.stacked(), one.distributions.stacked(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(together.initial, one.initial, rtol=1e-14, atol=0.0)
    assert torch.equal(together.spread, one.spread)


_SETTING = ContextVar("setting", default="outside")


@pytest.fixture(params=[1, 2, 8])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_tasks(threads):
    assert in_parallel([partial(pow, k, 2) for k in range(9)]) == [k**2 for k in range(9)]


def test_an_error_comes_out(threads):
    with pytest.raises(ZeroDivisionError):
        in_parallel([partial(divmod, 1, k) for k in (2, 0, 1)])


def test_pieces_share_torchs_threads_and_leave_them_alone(threads):
    assert workers() == min(4, threads)
    assert in_parallel([torch.get_num_threads] * 3) == [max(1, threads // workers())] * 3
    assert torch.get_num_threads() == threads


def test_tasks_see_the_settings_of_whoever_asks(threads):
    token = _SETTING.set("inside")
    try:
        assert in_parallel([_SETTING.get] * 3) == ["inside"] * 3
    finally:
        _SETTING.reset(token)


def test_a_single_task_needs_no_other_thread(monkeypatch):
    monkeypatch.setattr("loopscope.readout.affine.even._pool", None)
    assert in_parallel([lambda: 5]) == [5]
