"""Softmax moments and the gain, against Arb on logits that are ordinary, peaked, flat, tiny and huge."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from loopscope.readout import affine_path
from loopscope.readout.affine import moments

QUANTITIES = ("value", "first", "second", "third", "fourth")
IMPLEMENTATIONS = ("reference", "moments")


def test_every_derivative_agrees_with_arb(affine_case, exact_path):
    _, z0, v, y = affine_case
    paths = [affine_path(z0, v, [y], impl=impl) for impl in IMPLEMENTATIONS]
    # Exponents carry a rounding in proportion to how far an entry lies below the likeliest one.
    allowed = 1e-12 + 1e-14 * float(z0.max() - z0.min())
    for alpha, path in product((0.0, 0.3, 1.0), paths):
        exact = exact_path(z0, v, y, alpha)
        found = path.derivatives(alpha, order=4)
        for name in QUANTITIES:
            relative, to_scale = exact.error(name, float(getattr(found, name)))
            # To the sum of absolute terms always; to the value itself wherever cancellation leaves a fiftieth of it.
            assert to_scale < allowed, (name, alpha)
            if abs(float(exact.values[name])) > 0.02 * float(exact.scales[name]):
                assert relative < 10.0 * allowed, (name, alpha)
        assert exact.error("second", float(found.second))[0] < 1e-12
        assert exact.error("initial", float(path.initial_utility))[0] < 1e-12


@pytest.mark.parametrize("displacement", [1e-8, 1.0, 1e2])
def test_a_vocabulary_of_fifty_thousand(exact_path, displacement):
    g = torch.Generator().manual_seed(3)
    z0 = 3.0 * torch.randn(50_000, generator=g, dtype=torch.float64)
    z0[123] += 45.0
    v = displacement * torch.randn(50_000, generator=g, dtype=torch.float64)
    exact = exact_path(z0, v, 123, 0.5)
    found = affine_path(z0, v, [123]).derivatives(0.5, order=4)
    for name in QUANTITIES:
        assert exact.error(name, float(getattr(found, name)))[0] < 1e-12, name


def test_a_certain_target_loses_no_digits(exact_path):
    # p_y is within 1e-15 of one: v_y − E[v] taken as a difference would leave no digit at all.
    z0 = torch.tensor([36.0, 0.0, -1.0], dtype=torch.float64)
    v = torch.tensor([100.0, 101.5, 99.0], dtype=torch.float64)
    exact = exact_path(z0, v, 0, 0.0)
    slope = float(affine_path(z0, v, [0]).slope)
    assert 0.0 < abs(slope) < 1e-14
    assert exact.error("first", slope)[0] < 1e-13


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_constant_displacement_does_exactly_nothing(impl):
    g = torch.Generator().manual_seed(1)
    z0 = 5.0 * torch.randn(4, 50, generator=g, dtype=torch.float64)
    v = torch.full_like(z0, 1.0 / 3.0) * torch.tensor([[1e-8], [1.0], [1e2], [0.0]], dtype=torch.float64)
    path = affine_path(z0, v, [0, 1, 2, 3], impl=impl).per_token()
    assert float(path.derivatives([0.0, 0.5, 1.0], order=4).stack.abs().max()) == 0.0
    assert float(path.distributions.divergence.abs().max()) == 0.0
    assert float(path.distributions.entropy_change.abs().max()) == 0.0


@pytest.mark.parametrize(("tokens", "vocabulary", "block_tokens"), [(1, 1, 1), (3, 2, 2), (7, 33, 3), (4, 65, 9)])
def test_blocks_of_any_shape_agree_with_the_reference(monkeypatch, tokens, vocabulary, block_tokens):
    monkeypatch.setattr(moments, "_WIDTH", 8)
    g = torch.Generator().manual_seed(tokens * 100 + vocabulary)
    z0 = 8.0 * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64)
    v = 3.0 * torch.randn(tokens, vocabulary, generator=g, dtype=torch.float64)
    y = torch.randint(0, vocabulary, (tokens,), generator=g)
    blocked = affine_path(z0, v, y, block_tokens=block_tokens)
    plain = affine_path(z0, v, y, impl="reference")
    alphas = [0.0, 0.25, 0.9, 1.0]
    torch.testing.assert_close(
        blocked.derivatives(alphas, order=4).stack, plain.derivatives(alphas, order=4).stack, rtol=1e-12, atol=1e-13
    )
    torch.testing.assert_close(blocked.initial_utility, plain.initial_utility, rtol=1e-14, atol=0.0)


def test_results_do_not_depend_on_which_scales_and_orders_are_asked_for_together():
    g = torch.Generator().manual_seed(6)
    z0, v = torch.randn(2, 3, 40, generator=g, dtype=torch.float64)
    path = affine_path(z0, v, [1, 2, 3])
    together = path.derivatives([0.1, 0.5, 0.9], 4).stack
    for order in range(5):
        assert torch.equal(together[: order + 1, 1], path.derivatives(0.5, order).stack)


@pytest.mark.parametrize("start", [-1.0, 0.0])
def test_gains_are_continuous_where_their_formula_changes(start):
    # The target's gain passes ±1 along this path, where the small-gain form hands over to log-sum-exps.
    z0 = torch.tensor([[start, 1.0, 0.5]], dtype=torch.float64)
    for sign in (1.0, -1.0):
        v = torch.tensor([[4.0 * sign, 0.3, -0.2]], dtype=torch.float64)
        alphas = torch.linspace(0, 1, 2001, dtype=torch.float64)
        d = affine_path(z0, v, [0]).derivatives(alphas, 2)
        step = float(alphas[1])
        trapezoid = 0.5 * step * (d.first[1:] + d.first[:-1])
        assert float((d.value[1:] - d.value[:-1] - trapezoid).abs().max()) < float(d.second.abs().max()) * step**2
        assert float(d.value.abs().max()) > 1.2
