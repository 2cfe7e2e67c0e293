"""Rules for arithmetic, activations, sums over axes and softmax.

A function y = f(x) with y' = g·x' satisfies k·y_k = Σ_{i=1}^k i·x_i·g_{k−i} in coefficients; f's own differential
equation gives g from y (exp: g = y, sigmoid: g = y(1−y)), so each coefficient follows from the earlier ones.

Comparisons look at values alone and give constants. Where a function is made of pieces, the value chooses the piece,
and all coefficients are that piece's; where two pieces meet it is the one whose slope torch's backward takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from loopscope.readout.general.core import (
    Series,
    cauchy,
    coefficients_of,
    implements,
    lifted,
    refused,
    unsupported,
    value_of,
)
from loopscope.readout.general.shapes import shifted_all


@implements("add")
def add(input: Any, other: Any, *, alpha: float = 1) -> Series:
    """The sum input + alpha·other."""
    other = other if alpha == 1 else other * alpha
    if isinstance(input, Series) and isinstance(other, Series):
        ndim = max(input.ndim, other.ndim)
        return Series(lifted(input, ndim) + lifted(other, ndim))
    series, constant = (input, other) if isinstance(input, Series) else (other, input)
    c = lifted(series, getattr(constant, "ndim", 0))
    head = c[0] + constant
    tail = c[1:].to(head.dtype).expand(c.shape[0] - 1, *head.shape)
    return Series(torch.cat([head.unsqueeze(0), tail]))


@implements("sub")
def sub(input: Any, other: Any, *, alpha: float = 1) -> Series:
    """The difference input − alpha·other."""
    return add(input, -other, alpha=alpha)


@implements("mul")
def mul(input: Any, other: Any) -> Series:
    """The product of two."""
    if isinstance(input, Series) and isinstance(other, Series):
        ndim = max(input.ndim, other.ndim)
        return Series(cauchy(lifted(input, ndim), lifted(other, ndim), torch.mul))
    series, constant = (input, other) if isinstance(input, Series) else (other, input)
    return Series(lifted(series, getattr(constant, "ndim", 0)) * constant)


@implements("div")
def div(input: Any, other: Any) -> Series:
    """The quotient of two."""
    if not isinstance(other, Series):
        return Series(lifted(input, getattr(other, "ndim", 0)) / other)
    if not isinstance(input, Series):
        return mul(input, reciprocal(other))
    ndim = max(input.ndim, other.ndim)
    numerator, denominator = lifted(input, ndim), lifted(other, ndim)
    q = [numerator[0] / denominator[0]]
    for k in range(1, numerator.shape[0]):
        rest = numerator[k] - sum((denominator[i] * q[k - i] for i in range(2, k + 1)), denominator[1] * q[k - 1])
        q.append(rest / denominator[0])
    return Series(torch.stack(q))


@implements("square")
def square(input: Series) -> Series:
    """x²."""
    return mul(input, input)


@implements("reciprocal")
def reciprocal(input: Series) -> Series:
    """1 / x."""
    return _power(input, -1.0, input.coefficients[0].reciprocal())


@implements("sqrt")
def sqrt(input: Series) -> Series:
    """√x."""
    return _power(input, 0.5, input.coefficients[0].sqrt())


@implements("rsqrt")
def rsqrt(input: Series) -> Series:
    """1/√x."""
    return _power(input, -0.5, input.coefficients[0].rsqrt())


@implements("pow")
def power(input: Any, exponent: Any) -> Series:
    """A power with one number as its exponent."""
    if not isinstance(input, Series) or not isinstance(exponent, int | float):
        raise unsupported("pow", "an exponent that is not a number")
    if exponent not in range(1, 9):
        return _power(input, float(exponent), input.coefficients[0] ** exponent)
    out = Series(input.coefficients.clone())
    for _ in range(int(exponent) - 1):
        out = mul(out, input)
    return out


def _power(x: Series, p: float, y0: Tensor) -> Series:
    """x^p from x·y' = p·x'·y: k·x₀·y_k = Σ_{i=1}^k (p·i − k + i)·x_i·y_{k−i}."""
    c = x.coefficients
    y = [y0]
    for k in range(1, c.shape[0]):
        terms = [((p * i - k + i) / k) * (c[i] * y[k - i]) for i in range(1, k + 1)]
        y.append(_total(terms) / c[0])
    return Series(torch.stack(y))


def _total(terms: list[Tensor]) -> Tensor:
    return sum(terms[1:], terms[0])


def _chain(x: Series, y0: Tensor, slope: Callable[[list[Tensor]], Tensor]) -> Series:
    """The series y with y' = g·x', given y₀ and the function that makes g's next coefficient from y's so far."""
    c = x.coefficients
    y, g = [y0], []
    for k in range(1, c.shape[0]):
        g.append(slope(y))
        y.append(_total([(i / k) * (c[i] * g[k - i]) for i in range(1, k + 1)]))
    return Series(torch.stack(y))


def _with_slope(x: Series, y0: Tensor, slope: Series) -> Series:
    """The series y with y' = g·x', given y₀ and g whole."""
    return _chain(x, y0, lambda y: slope.coefficients[len(y) - 1])


@implements("exp")
def exp(input: Series) -> Series:
    """e^x, with g = y."""
    return _chain(input, input.coefficients[0].exp(), lambda y: y[-1])


@implements("log")
def log(input: Series) -> Series:
    """The logarithm, with g = 1/x."""
    return _with_slope(input, input.coefficients[0].log(), reciprocal(input))


@implements("sigmoid")
def sigmoid(input: Series) -> Series:
    """σ(x), with g = y(1−y); 1−y is carried by itself so that a saturated gate keeps its derivatives."""
    other = torch.sigmoid(-input.coefficients[0])

    def slope(y: list[Tensor]) -> Tensor:
        complement = [other, *(-yi for yi in y[1:])]
        return _total([y[i] * complement[len(y) - 1 - i] for i in range(len(y))])

    return _chain(input, torch.sigmoid(input.coefficients[0]), slope)


@implements("tanh")
def tanh(input: Series) -> Series:
    """The hyperbolic tangent, 2σ(2x) − 1."""
    slopes = mul(sigmoid(mul(input, 2.0)), 2.0).coefficients[1:]
    return Series(torch.cat([input.coefficients[:1].tanh(), slopes]))


@implements("silu")
def silu(input: Series) -> Series:
    """x·σ(x)."""
    return mul(input, sigmoid(input))


@implements("gelu")
def gelu(input: Series, approximate: str = "none") -> Series:
    """x·Φ(x), or its tanh approximation."""
    if approximate == "tanh":
        inner = mul(add(input, mul(power(input, 3), 0.044715)), math.sqrt(2.0 / math.pi))
        return mul(mul(input, add(tanh(inner), 1.0)), 0.5)
    density = mul(exp(mul(square(input), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    return mul(input, _with_slope(input, 0.5 * torch.erfc(input.coefficients[0] * -math.sqrt(0.5)), density))


@implements("relu")
def relu(input: Series) -> Any:
    """The positive part; slope 0 at 0."""
    return where(value_of(input) > 0, input, 0.0)


@implements("where")
def where(condition: Any, input: Any, other: Any) -> Any:
    """Entries of one where the condition holds, of the other elsewhere."""
    series = next((x for x in (input, other) if isinstance(x, Series)), None)
    if series is None:
        return torch.where(value_of(condition), input, other)
    ndim = max(getattr(x, "ndim", 0) for x in (condition, input, other))
    one, two = (coefficients_of(x, series, ndim).to(series.dtype) for x in (input, other))
    return Series(torch.where(value_of(condition), one, two))


@implements("clamp")
def clamp(input: Series, min: Any = None, max: Any = None) -> Any:
    """The state between bounds; slope 1 at a bound."""
    x = input if min is None else where(value_of(input) >= value_of(min), input, min)
    return x if max is None else where(value_of(x) <= value_of(max), x, max)


@implements("masked_fill")
def masked_fill(input: Series, mask: Tensor, value: Any) -> Any:
    """A constant where the mask holds."""
    return where(mask, value, input)


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*map(value_of, args))


for _name in ("gt", "ge", "lt", "le", "eq", "ne"):
    implements(_name)(_by_value(getattr(torch, _name)))


@implements("dropout")
def dropout(input: Series, p: float = 0.5, training: bool = True) -> Series:
    """The identity, which is what dropout is outside training."""
    if training and p > 0.0:
        raise refused("dropout", "it is random in training; call model.eval().")
    return input


@implements("sum")
def sum_(input: Series, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Series:
    """Sum over axes."""
    return Series(input.coefficients.sum(shifted_all(input, dim), keepdim=keepdim, dtype=dtype))


@implements("mean")
def mean(input: Series, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Series:
    """Mean over axes."""
    return Series(input.coefficients.mean(shifted_all(input, dim), keepdim=keepdim, dtype=dtype))


def exponentials(c: Tensor, axis: int) -> tuple[Series, Series]:
    """exp(x) as a series, and its sum along the axis, both free of the row's common motion.

    Softmax does not change when a row is shifted, so the value is measured from its largest entry and every higher
    coefficient from its mean under the softmax itself: a common drift of the logits then costs no digits. Entries
    masked with −∞ weigh nothing at any order.
    """
    top = c[0].amax(axis, keepdim=True)
    w0 = torch.exp(c[0] - torch.where(torch.isfinite(top), top, torch.zeros_like(top)))
    mass = w0.sum(axis, keepdim=True)
    centre = (w0 * c[1:]).sum(axis, keepdim=True) / mass.clamp(min=torch.finfo(c.dtype).tiny)
    moved = Series(torch.cat([c[:1], c[1:] - centre]))
    weights = _chain(moved, w0, lambda y: y[-1])
    total = weights.coefficients.sum(axis, keepdim=True)
    # A row that is masked everywhere has no weights; dividing by one leaves the zeros that torch gives there.
    total = torch.cat([torch.where(total[:1] == 0, torch.ones_like(total[:1]), total[:1]), total[1:]])
    return weights, Series(total)


@implements("softmax")
def softmax(input: Series, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Series:
    """Softmax along an axis."""
    return div(*exponentials(input.coefficients.to(dtype or input.dtype), dim - input.ndim if dim >= 0 else dim))


@implements("logsumexp")
def logsumexp(input: Series, dim: int, keepdim: bool = False) -> Series:
    """The logarithm of Σ e^x along an axis."""
    axis = dim - input.ndim if dim >= 0 else dim
    c = input.coefficients
    weights, total = exponentials(c, axis)
    centre = (weights.coefficients[0] * c[1:]).sum(axis, keepdim=True) / total.coefficients[0]
    out = log(total).coefficients + torch.cat([c[:1].amax(axis, keepdim=True), centre])
    return Series(out if keepdim else out.squeeze(axis))


@implements("log_softmax")
def log_softmax(input: Series, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Series:
    """The input less log Σ e^x along an axis."""
    x = Series(input.coefficients.to(dtype or input.dtype))
    return sub(x, logsumexp(x, dim, keepdim=True))
