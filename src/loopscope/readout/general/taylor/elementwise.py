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
from torch.nn import functional

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
    """base^exponent, with one of the two a number."""
    if isinstance(base, Series) and isinstance(exponent, (int, float)):
        if float(exponent).is_integer() and 0 < exponent <= 8:
            out = base
            for _ in range(int(exponent) - 1):
                out = mul(out, base)
            return out
        return _power(base, float(exponent), base.coefficients[0] ** exponent)
    if isinstance(base, (int, float)) and isinstance(exponent, Series) and base > 0:
        return exp(mul(exponent, math.log(base)))
    raise unsupported("pow", "only a series to a number, or a positive number to a series")


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


@implements("silu")
def silu(x: Series, inplace: bool = False) -> Series:
    """x·σ(x)."""
    return mul(x, sigmoid(x))


@implements("gelu")
def gelu(x: Series, approximate: str = "none") -> Series:
    """x·Φ(x), or its tanh approximation."""
    if approximate == "tanh":
        inner = mul(add(x, mul(power(x, 3), 0.044715)), math.sqrt(2.0 / math.pi))
        return mul(mul(x, add(tanh(inner), 1.0)), 0.5)
    density = mul(exp(mul(square(x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi)).coefficients
    normal = chain(x, 0.5 * torch.erfc(x.coefficients[0] * -math.sqrt(0.5)), lambda y: density[len(y) - 1])
    return mul(x, normal)


@implements("erf", "special_erf")
def erf(x: Series) -> Series:
    """The error function, with g = 2/√π·e^{−x²}."""
    slope = mul(exp(neg(square(x))), 2.0 / math.sqrt(math.pi)).coefficients
    return chain(x, x.coefficients[0].erf(), lambda y: slope[len(y) - 1])


@implements("softplus")
def softplus(x: Series, beta: float = 1.0, threshold: float = 20.0) -> Series:
    """log(1 + e^{βx})/β, with g = σ(βx)."""
    slope = sigmoid(mul(x, beta)).coefficients
    return chain(x, functional.softplus(x.coefficients[0], beta, threshold), lambda y: slope[len(y) - 1])


@implements("log_sigmoid")
def logsigmoid(x: Series) -> Series:
    """The logarithm of σ(x), with g = σ(−x)."""
    slope = sigmoid(neg(x)).coefficients
    return chain(x, functional.logsigmoid(x.coefficients[0]), lambda y: slope[len(y) - 1])


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


@implements("where")
def where(condition: Any, a: Any, b: Any) -> Series:
    """Entries of a where the (constant) condition holds, of b elsewhere."""
    if isinstance(condition, Series):
        raise unsupported("where", "a condition that depends on the state is not smooth")
    example = a if isinstance(a, Series) else b
    ndim = max(x.ndim for x in (condition, a, b) if isinstance(x, (Series, Tensor)))
    return Series(torch.where(condition, _as_coefficients(a, example, ndim), _as_coefficients(b, example, ndim)))


def _as_coefficients(x: Any, example: Series, ndim: int) -> Tensor:
    if isinstance(x, Series):
        return lifted(x, ndim)
    value = constant_like(x, example).to(example.dtype)
    value = value.reshape(*([1] * (ndim - value.ndim)), *value.shape)
    return torch.cat([value.unsqueeze(0), torch.zeros_like(value).expand(example.order, *value.shape)])


@implements("masked_fill")
def masked_fill(x: Series, mask: Tensor, value: Any) -> Series:
    """A constant where the mask holds."""
    c = lifted(x, mask.ndim)
    return Series(torch.cat([c[:1].masked_fill(mask, value), c[1:].masked_fill(mask, 0.0)]))


@implements("dropout")
def dropout(x: Series, p: float = 0.5, training: bool = True, inplace: bool = False) -> Series:
    """The identity, which is what dropout is outside training."""
    if training and p > 0.0:
        raise unsupported("dropout", "it is random in training; call model.eval()")
    return x
