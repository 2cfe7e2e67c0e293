"""Rules for arithmetic and smooth functions, entry by entry.

A function y = f(x) with y' = g·x' satisfies k·y_k = Σ_{i=1}^k i·x_i·g_{k−i} in coefficients; f's own differential
equation gives g from y (exp: g = y, sigmoid: g = y(1−y)), so each coefficient follows from the earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from loopscope.readout.general.taylor.core import Series, cauchy, constant_like, implements, lifted, unsupported

Number = int | float


@implements("add")
def add(a: Any, b: Any, *, alpha: Number = 1) -> Series:
    """The sum a + alpha·b."""
    if alpha != 1:
        b = b * alpha
    if isinstance(a, Series) and isinstance(b, Series):
        ndim = max(a.ndim, b.ndim)
        return Series(lifted(a, ndim) + lifted(b, ndim))
    series, constant = (a, b) if isinstance(a, Series) else (b, a)
    return _plus_constant(series, constant)


def _plus_constant(series: Series, constant: Any) -> Series:
    value = constant_like(constant, series)
    c = lifted(series, value.ndim)
    head = c[0] + constant
    tail = c[1:].to(head.dtype).expand(c.shape[0] - 1, *head.shape)
    return Series(torch.cat([head.unsqueeze(0), tail]))


@implements("sub", "subtract")
def sub(a: Any, b: Any, *, alpha: Number = 1) -> Series:
    """The difference a − alpha·b."""
    if alpha != 1:
        b = b * alpha
    if isinstance(a, Series) and isinstance(b, Series):
        ndim = max(a.ndim, b.ndim)
        return Series(lifted(a, ndim) - lifted(b, ndim))
    return _plus_constant(a, -b) if isinstance(a, Series) else _plus_constant(neg(b), a)


@implements("rsub")
def rsub(a: Any, b: Any, *, alpha: Number = 1) -> Series:
    """The difference b − alpha·a."""
    return sub(b, a, alpha=alpha)


@implements("positive")
def positive(x: Series) -> Series:
    """+x."""
    return x


@implements("neg", "negative")
def neg(x: Series) -> Series:
    """−x."""
    return Series(-x.coefficients)


@implements("mul", "multiply")
def mul(a: Any, b: Any) -> Series:
    """The product a·b."""
    if isinstance(a, Series) and isinstance(b, Series):
        ndim = max(a.ndim, b.ndim)
        return Series(cauchy(lifted(a, ndim), lifted(b, ndim), torch.mul))
    series, constant = (a, b) if isinstance(a, Series) else (b, a)
    ndim = constant.ndim if isinstance(constant, Tensor) else 0
    return Series(lifted(series, ndim) * constant)


@implements("div", "divide", "true_divide")
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Series:
    """The quotient a / b."""
    if rounding_mode is not None:
        raise unsupported("div", f"rounding_mode={rounding_mode!r}")
    if not isinstance(b, Series):
        ndim = b.ndim if isinstance(b, Tensor) else 0
        return Series(lifted(a, ndim) / b)
    if not isinstance(a, Series):
        return mul(a, reciprocal(b))
    ndim = max(a.ndim, b.ndim)
    numerator, denominator = lifted(a, ndim), lifted(b, ndim)
    q = [numerator[0] / denominator[0]]
    for k in range(1, numerator.shape[0]):
        rest = numerator[k] - sum((denominator[i] * q[k - i] for i in range(2, k + 1)), denominator[1] * q[k - 1])
        q.append(rest / denominator[0])
    return Series(torch.stack(q))


@implements("reciprocal")
def reciprocal(x: Series) -> Series:
    """1 / x."""
    return _power(x, -1.0, x.coefficients[0].reciprocal())


@implements("square")
def square(x: Series) -> Series:
    """x²."""
    return mul(x, x)


@implements("sqrt")
def sqrt(x: Series) -> Series:
    """√x."""
    return _power(x, 0.5, x.coefficients[0].sqrt())


@implements("rsqrt")
def rsqrt(x: Series) -> Series:
    """1/√x."""
    return _power(x, -0.5, x.coefficients[0].rsqrt())


@implements("pow", "float_power")
def power(base: Any, exponent: Any) -> Series:
    """base^exponent; unless the exponent is one number, the base must be positive."""
    if isinstance(exponent, Tensor) and exponent.numel() == 1 and isinstance(base, Series):
        exponent = exponent.item()
    if isinstance(base, Series) and isinstance(exponent, (int, float)):
        if float(exponent).is_integer() and 0 <= exponent <= 8:
            out = Series(base.coefficients.clone()) if exponent else _with_value(mul(base, 0.0), base.data**0)
            for _ in range(int(exponent) - 1):
                out = mul(out, base)
            return out
        return _power(base, float(exponent), base.coefficients[0] ** exponent)
    if not isinstance(base, Series):
        return exp(mul(exponent, torch.as_tensor(base, dtype=exponent.dtype, device=exponent.device).log()))
    return exp(mul(log(base), exponent))


def _power(x: Series, p: float, y0: Tensor) -> Series:
    """x^p from x·y' = p·x'·y: k·x₀·y_k = Σ_{i=1}^k (p·i − k + i)·x_i·y_{k−i}."""
    c = x.coefficients
    y = [y0]
    for k in range(1, c.shape[0]):
        terms = [((p * i - k + i) / k) * (c[i] * y[k - i]) for i in range(1, k + 1)]
        y.append(_total(terms) / c[0])
    return Series(torch.stack(y))


def _total(terms: list[Tensor]) -> Tensor:
    out = terms[0]
    for term in terms[1:]:
        out = out + term
    return out


def chain(x: Series, y0: Tensor, slope: Callable[[list[Tensor]], Tensor]) -> Series:
    """The series y with y' = g·x', given y₀ and the function that makes g's next coefficient from y's so far."""
    c = x.coefficients
    y, g = [y0], []
    for k in range(1, c.shape[0]):
        g.append(slope(y))
        y.append(_total([(i / k) * (c[i] * g[k - i]) for i in range(1, k + 1)]))
    return Series(torch.stack(y))


@implements("exp")
def exp(x: Series) -> Series:
    """e^x, with g = y."""
    return chain(x, x.coefficients[0].exp(), lambda y: y[-1])


@implements("expm1")
def expm1(x: Series) -> Series:
    """e^x − 1."""
    return _with_value(exp(x), x.coefficients[0].expm1())


def _with_value(y: Series, value: Tensor) -> Series:
    return Series(torch.cat([value.unsqueeze(0), y.coefficients[1:]]))


@implements("log")
def log(x: Series) -> Series:
    """The logarithm, with g = 1/x."""
    slope = reciprocal(x).coefficients
    return chain(x, x.coefficients[0].log(), lambda y: slope[len(y) - 1])


@implements("exp2")
def exp2(x: Series) -> Series:
    """2^x."""
    return _with_value(exp(mul(x, math.log(2.0))), x.coefficients[0].exp2())


@implements("log2")
def log2(x: Series) -> Series:
    """The logarithm to base 2."""
    return _with_value(mul(log(x), 1.0 / math.log(2.0)), x.coefficients[0].log2())


@implements("log10")
def log10(x: Series) -> Series:
    """The logarithm to base 10."""
    return _with_value(mul(log(x), 1.0 / math.log(10.0)), x.coefficients[0].log10())


@implements("log1p")
def log1p(x: Series) -> Series:
    """log(1 + x)."""
    slope = reciprocal(add(x, 1.0)).coefficients
    return chain(x, x.coefficients[0].log1p(), lambda y: slope[len(y) - 1])


@implements("sigmoid", "special_expit")
def sigmoid(x: Series) -> Series:
    """σ(x), with g = y(1−y); 1−y is carried by itself so that a saturated gate keeps its derivatives."""
    other = torch.sigmoid(-x.coefficients[0])

    def slope(y: list[Tensor]) -> Tensor:
        n = len(y) - 1
        complement = [other, *(-yi for yi in y[1:])]
        return _total([y[i] * complement[n - i] for i in range(n + 1)])

    return chain(x, torch.sigmoid(x.coefficients[0]), slope)


@implements("tanh")
def tanh(x: Series) -> Series:
    """The hyperbolic tangent, 2σ(2x) − 1."""
    return _with_value(mul(sigmoid(mul(x, 2.0)), 2.0), x.coefficients[0].tanh())


@implements("erf", "special_erf")
def erf(x: Series) -> Series:
    """The error function, with g = 2/√π·e^{−x²}."""
    slope = mul(exp(neg(square(x))), 2.0 / math.sqrt(math.pi)).coefficients
    return chain(x, x.coefficients[0].erf(), lambda y: slope[len(y) - 1])


@implements("sin")
def sin(x: Series) -> Series:
    """The sine."""
    return _sin_cos(x)[0]


@implements("cos")
def cos(x: Series) -> Series:
    """The cosine."""
    return _sin_cos(x)[1]


def _sin_cos(x: Series) -> tuple[Series, Series]:
    c = x.coefficients
    s, k_ = [c[0].sin()], [c[0].cos()]
    for k in range(1, c.shape[0]):
        s.append(_total([(i / k) * (c[i] * k_[k - i]) for i in range(1, k + 1)]))
        k_.append(_total([(-i / k) * (c[i] * s[k - i]) for i in range(1, k + 1)]))
    return Series(torch.stack(s)), Series(torch.stack(k_))


def with_slope(x: Series, y0: Tensor, slope: Series) -> Series:
    """The series y with y' = g·x', given y₀ and g whole."""
    return chain(x, y0, lambda y: slope.coefficients[len(y) - 1])


@implements("tan")
def tan(x: Series) -> Series:
    """The tangent."""
    return div(*_sin_cos(x))


@implements("atan", "arctan")
def atan(x: Series) -> Series:
    """The inverse tangent, with g = 1/(1 + x²)."""
    return with_slope(x, x.coefficients[0].atan(), reciprocal(add(square(x), 1.0)))


@implements("asin", "arcsin")
def asin(x: Series) -> Series:
    """The inverse sine, with g = 1/√(1 − x²)."""
    return with_slope(x, x.coefficients[0].asin(), rsqrt(sub(1.0, square(x))))


@implements("acos", "arccos")
def acos(x: Series) -> Series:
    """The inverse cosine, with g = −1/√(1 − x²)."""
    return with_slope(x, x.coefficients[0].acos(), neg(rsqrt(sub(1.0, square(x)))))


@implements("sinh")
def sinh(x: Series) -> Series:
    """The hyperbolic sine."""
    return _with_value(mul(sub(exp(x), exp(neg(x))), 0.5), x.coefficients[0].sinh())


@implements("cosh")
def cosh(x: Series) -> Series:
    """The hyperbolic cosine."""
    return mul(add(exp(x), exp(neg(x))), 0.5)


@implements("asinh", "arcsinh")
def asinh(x: Series) -> Series:
    """The inverse hyperbolic sine, with g = 1/√(x² + 1)."""
    return with_slope(x, x.coefficients[0].asinh(), rsqrt(add(square(x), 1.0)))


@implements("atanh", "arctanh")
def atanh(x: Series) -> Series:
    """The inverse hyperbolic tangent, with g = 1/(1 − x²)."""
    return with_slope(x, x.coefficients[0].atanh(), reciprocal(sub(1.0, square(x))))


@implements("logit", "special_logit")
def logit(x: Series, eps: float | None = None) -> Series:
    """log(x / (1 − x)), with g = 1/(x(1 − x))."""
    if eps is not None:
        raise unsupported("logit", "clamp first")
    return with_slope(x, x.coefficients[0].logit(), reciprocal(mul(x, sub(1.0, x))))


@implements("erfc", "special_erfc")
def erfc(x: Series) -> Series:
    """1 − erf(x)."""
    return _with_value(neg(erf(x)), x.coefficients[0].erfc())


@implements("logaddexp")
def logaddexp(a: Any, b: Any) -> Any:
    """The logarithm of e^a + e^b, as b + log(1 + e^{a−b})."""
    gap = sub(a, b)
    slope = sigmoid(gap)
    soft = with_slope(gap, torch.logaddexp(gap.coefficients[0], torch.zeros_like(gap.coefficients[0])), slope)
    return add(soft, b)


@implements("addcmul")
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Number = 1) -> Any:
    """Input + value·tensor1·tensor2."""
    return input + tensor1 * tensor2 * value


@implements("addcdiv")
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Number = 1) -> Any:
    """Input + value·tensor1/tensor2."""
    return input + tensor1 / tensor2 * value


@implements("lerp")
def lerp(input: Any, end: Any, weight: Any) -> Any:
    """Input + weight·(end − input)."""
    return input + (end - input) * weight
