"""Rules for arithmetic and smooth functions, each against nested forward mode in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from loopscope.readout.general.taylor import Series

G = torch.Generator().manual_seed(7)


def _randn(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


K = _randn(2, 3, 4)


def inside(x):
    """Within (−1, 1)."""
    return 0.9 * torch.tanh(x)


def positive(x):
    return x * x + 0.5


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES = {
    "add": lambda x: torch.add(x, x * x, alpha=2) + K + 1.5,
    "add-broadcast": lambda x: x[0, 0] + K,
    "constant-first": lambda x: K + x,
    "sub": lambda x: torch.sub(x, K, alpha=3) - x * x,
    "subtract": lambda x: torch.subtract(2.0 - x, K - x * x),
    "rsub": lambda x: torch.rsub(x * x, K),
    "neg": lambda x: torch.neg(-x * x),
    "negative": lambda x: torch.negative(x * x),
    "mul": lambda x: x * x * K * 2.0,
    "mul-broadcast": lambda x: x[0, 0] * K + K[0] * x,
    "multiply": lambda x: torch.multiply(x, x),
    "div": lambda x: x / (x * x + 1.0) + K / positive(x) + x / 2.0 + 1.0 / positive(x),
    "div-broadcast": lambda x: x / (x[0, 0] ** 2 + 1.0),
    "divide": lambda x: torch.divide(x, K.abs() + 1.0),
    "true_divide": lambda x: torch.true_divide(x, 3.0),
    "reciprocal": lambda x: torch.reciprocal(positive(x)),
    "square": lambda x: torch.square(x),
    "sqrt": lambda x: torch.sqrt(positive(x)),
    "rsqrt": lambda x: torch.rsqrt(positive(x)),
    "pow": lambda x: x**3 + positive(x) ** 1.7 + positive(x) ** -2 + 1.3**x,
    "float_power": lambda x: torch.float_power(positive(x), 0.3),
    "exp": lambda x: torch.exp(x),
    "expm1": lambda x: torch.expm1(x),
    "log": lambda x: torch.log(positive(x)),
    "log1p": lambda x: torch.log1p(x * x),
    "sigmoid": lambda x: torch.sigmoid(3.0 * x) + functional.sigmoid(x),
    "special_expit": lambda x: torch.special.expit(x),
    "tanh": lambda x: torch.tanh(2.0 * x) + functional.tanh(x),
    "erf": lambda x: torch.erf(x),
    "special_erf": lambda x: torch.special.erf(x),
    "sin": lambda x: torch.sin(x),
    "cos": lambda x: torch.cos(x * x),
    "exp2": lambda x: torch.exp2(x),
    "log2": lambda x: torch.log2(positive(x)),
    "log10": lambda x: torch.log10(positive(x)),
    "tan": lambda x: torch.tan(inside(x)),
    "atan": lambda x: torch.atan(x) + torch.arctan(2 * x),
    "asin": lambda x: torch.asin(inside(x)) + torch.arcsin(0.5 * inside(x)),
    "acos": lambda x: torch.acos(inside(x)) + torch.arccos(0.5 * inside(x)),
    "sinh": lambda x: torch.sinh(x),
    "cosh": lambda x: torch.cosh(x),
    "asinh": lambda x: torch.asinh(x) + torch.arcsinh(2 * x),
    "atanh": lambda x: torch.atanh(inside(x)) + torch.arctanh(0.5 * inside(x)),
    "logit": lambda x: torch.logit(torch.sigmoid(2 * x)) + torch.special.logit(0.5 + 0.4 * inside(x)),
    "erfc": lambda x: torch.erfc(x) + torch.special.erfc(2 * x),
    "logaddexp": lambda x: torch.logaddexp(x, x * x) + torch.logaddexp(x, K) + torch.logaddexp(K, x),
    "addcmul": lambda x: torch.addcmul(x, x, K, value=0.5) + torch.addcmul(K, x, x),
    "addcdiv": lambda x: torch.addcdiv(x, K, positive(x), value=0.5),
    "lerp": lambda x: torch.lerp(x, K, 0.3) + torch.lerp(K, x * x, x),
    "positive": lambda x: +x * torch.positive(x),
    "power-of-state": lambda x: positive(x) ** x + K.abs() ** x + positive(x) ** K + x**0 * x**1,
    "constants-first": lambda x: K * x + (K - x) / positive(x) + 2.0**x + (1.0 - x) * (3.0 / positive(x)),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES[name])


def test_every_rule_is_exercised(rules_without_a_case):
    assert rules_without_a_case("elementwise", CASES.values()) == set()


def test_saturated_gates_keep_their_derivatives():
    # σ'(x) at x = 40 is about 4e-18: y − y² would give 0.
    x = Series.line(torch.tensor([40.0]).double(), torch.tensor([1.0]).double(), 2)
    assert float(torch.sigmoid(x).derivative(1)) == pytest.approx(math.exp(-40.0), rel=1e-12, abs=0.0)
    assert float(torch.sigmoid(x).derivative(2)) == pytest.approx(-math.exp(-40.0), rel=1e-12, abs=0.0)
