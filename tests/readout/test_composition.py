"""log softmax of a moving score vector: derivatives against mpmath's own differentiation."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from loopscope.readout.composition import log_softmax_derivatives


def _exact(coefficients, target, order):
    """Taylor coefficients of u by mpmath, as derivatives."""
    entries = range(len(coefficients[0]))

    def utility(t):
        scores = [sum(mpmath.mpf(c[a]) * t**k for k, c in enumerate(coefficients)) for a in entries]
        return scores[target] - mpmath.log(sum(mpmath.exp(s) for s in scores))

    with mpmath.workdps(60):
        return [math.factorial(k) * c for k, c in enumerate(mpmath.taylor(utility, 0, order))][1:]


@pytest.mark.parametrize("peak", [0.0, 30.0])
@pytest.mark.parametrize("target", [0, 2])
def test_derivatives_agree_with_mpmath(peak, target):
    g = torch.Generator().manual_seed(17)
    coefficients = torch.randn(5, 4, generator=g, dtype=torch.float64)
    coefficients[0, 0] += peak
    factorials = torch.tensor([1.0, 1.0, 2.0, 6.0, 24.0], dtype=torch.float64)
    derivatives = coefficients * factorials.unsqueeze(1)
    found = log_softmax_derivatives(derivatives[0], list(derivatives[1:]), torch.tensor([target]))
    expected = _exact(coefficients.tolist(), target, 4)
    for mine, theirs in zip(found, expected, strict=True):
        assert float(mine) == pytest.approx(float(theirs), rel=1e-12, abs=0.0)


def test_absent_entries_do_not_count():
    g = torch.Generator().manual_seed(18)
    scores = torch.randn(5, 4, generator=g, dtype=torch.float64)
    padded = torch.cat([scores, torch.zeros(5, 2, dtype=torch.float64)], 1)
    padded[0, 4:] = -torch.inf
    padded[1:, 4:] = 7.0
    y = torch.tensor([1])
    for a, b in zip(
        log_softmax_derivatives(scores[0], list(scores[1:]), y),
        log_softmax_derivatives(padded[0], list(padded[1:]), y),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=0.0)


def test_a_common_drift_of_all_scores_costs_no_digits():
    scores = torch.tensor([0.5, -0.25, 1.0], dtype=torch.float64)
    moving = [torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64), torch.tensor([0.5, 0.0, 1.5], dtype=torch.float64)]
    still = log_softmax_derivatives(scores, moving, torch.tensor([0]))
    adrift = log_softmax_derivatives(scores, [m + 2.0**40 for m in moving], torch.tensor([0]))
    for a, b in zip(still, adrift, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)
