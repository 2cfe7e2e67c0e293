"""Rules for arithmetic, activations, sums over axes, softmax, and for moving, picking or converting entries.

A function y = f(x) with y' = g·x' satisfies k·y_k = Σ_{i=1}^k i·x_i·g_{k−i} in coefficients; f's own differential
equation gives g from y (exp: g = y, sigmoid: g = y(1−y)), so each coefficient follows from the earlier ones.

Comparisons look at values alone and give constants. Where a function is made of pieces, the value chooses the piece,
and all coefficients are that piece's; where two pieces meet it is the one whose slope torch's backward takes.

The tables at the end hold what needs no code of its own: functions made of other rules, and operations that do the
same to each coefficient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from loopscope.readout.general.core import (
    RULES,
    Series,
    cauchy,
    coefficients_of,
    implements,
    lifted,
    refused,
    unsupported,
    value_of,
)


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
        return mul(input, _power(other, -1.0, other.coefficients[0].reciprocal()))
    ndim = max(input.ndim, other.ndim)
    numerator, denominator = lifted(input, ndim), lifted(other, ndim)
    q = [numerator[0] / denominator[0]]
    for k in range(1, numerator.shape[0]):
        rest = numerator[k] - sum((denominator[i] * q[k - i] for i in range(2, k + 1)), denominator[1] * q[k - 1])
        q.append(rest / denominator[0])
    return Series(torch.stack(q))


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


def _with_slope(x: Series, y0: Tensor, slope: Any) -> Series:
    """The series y with y' = g·x', given y₀ and g whole."""
    return _chain(x, y0, lambda y: slope.coefficients[len(y) - 1])


@implements("log")
def log(input: Series) -> Series:
    """The logarithm, with g = 1/x."""
    value = input.coefficients[0]
    return _with_slope(input, value.log(), _power(input, -1.0, value.reciprocal()))


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


@implements("gelu")
def gelu(input: Any, approximate: str = "none") -> Any:
    """x·Φ(x), or its tanh approximation."""
    if approximate == "tanh":
        inner = (input + input**3 * 0.044715) * math.sqrt(2.0 / math.pi)
        return input * (tanh(inner) + 1.0) * 0.5
    density = torch.exp(input * input * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return input * _with_slope(input, 0.5 * torch.erfc(input.coefficients[0] * -math.sqrt(0.5)), density)


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


@implements("dropout")
def dropout(input: Series, p: float = 0.5, training: bool = True) -> Series:
    """The identity, which is what dropout is outside training."""
    if training and p > 0.0:
        raise refused("dropout", "it is random in training; call model.eval().")
    return input


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
def log_softmax(input: Series, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Any:
    """The input less log Σ e^x along an axis."""
    x = Series(input.coefficients.to(dtype or input.dtype))
    return x - logsumexp(x, dim, keepdim=True)


@implements("reshape", "view")
def reshape(input: Series, *shape: Any) -> Series:
    """The entries in another shape."""
    if shape and isinstance(shape[0], torch.dtype):
        raise unsupported("view", "reinterpreting the bits of a dtype")
    return Series(input.coefficients.reshape(input.coefficients.shape[0], *_sizes(shape)))


@implements("expand")
def expand(input: Series, *sizes: Any) -> Series:
    """Axes of length one repeated."""
    shape = _sizes(sizes)
    return Series(coefficients_of(input, input, len(shape)).expand(-1, *shape))


@implements("gather")
def gather(input: Series, dim: int, index: Tensor) -> Series:
    """Entries of an axis, chosen one by one."""
    index = index.expand(input.coefficients.shape[0], *index.shape)
    return Series(input.coefficients.gather(_shifted(input, dim), index))


@implements("topk")
def topk(input: Series, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The largest entries of an axis and their indices, as the value has them."""
    found: Any = torch.topk(input.coefficients[0], k, dim, largest, sorted)
    return type(found)((gather(input, dim, found.indices), found.indices))


@implements("__getitem__")
def getitem(input: Series, index: Any) -> Series:
    """Entries by any index that tensors take."""
    items = index if isinstance(index, tuple) else (index,)
    fancy = [i for i, item in enumerate(items) if isinstance(item, (Tensor, list, int))]
    listed = any(isinstance(item, (Tensor, list)) for item in items)
    if listed and fancy != list(range(fancy[0], fancy[-1] + 1)):
        # Separated index tensors put their axes first, before the coefficients' own: index one by one.
        return Series(torch.stack([c[index] for c in input.coefficients]))
    return Series(input.coefficients[(slice(None), *items)])


@implements("index_add")
def index_add(input: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Series:
    """Rows added to those that the index names."""
    like = input if isinstance(input, Series) else source
    into, added = (coefficients_of(x, like) for x in (input, source))
    return Series(into.index_add(_shifted(like, dim), index, added, alpha=alpha))


@implements("to")
def to(input: Series, *args: Any, **kwargs: Any) -> Series:
    """Another dtype or device."""
    given: list[Any] = [a.coefficients if isinstance(a, Series) else a for a in args]
    return Series(input.coefficients.to(*given, **kwargs))


def _sizes(sizes: tuple[Any, ...]) -> Sequence[int]:
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes


def _shifted(x: Series, dim: Any) -> Any:
    """An axis of the value, several, or all of them where none is named, as axes of the coefficients."""
    if isinstance(dim, int):
        return dim + 1 if dim >= 0 else dim
    return tuple(d % max(1, x.ndim) + 1 for d in (range(x.ndim) if dim is None else dim))


_MADE_OF_OTHERS: dict[str, Callable[..., Any]] = {
    "sub": lambda input, other, *, alpha=1: add(input, -other, alpha=alpha),
    "square": lambda input: mul(input, input),
    "reciprocal": lambda input: _power(input, -1.0, input.coefficients[0].reciprocal()),
    "sqrt": lambda input: _power(input, 0.5, input.coefficients[0].sqrt()),
    "rsqrt": lambda input: _power(input, -0.5, input.coefficients[0].rsqrt()),
    "exp": lambda input: _chain(input, input.coefficients[0].exp(), lambda y: y[-1]),
    "silu": lambda input: mul(input, sigmoid(input)),
    "relu": lambda input: where(value_of(input) > 0, input, 0.0),
    "masked_fill": lambda input, mask, value: where(mask, value, input),
    "addmm": lambda input, mat1, mat2, *, beta=1, alpha=1: add((mat1 @ mat2) * alpha, input * beta),
    "permute": lambda input, *dims: Series(input.coefficients.permute(0, *_shifted(input, _sizes(dims)))),
    "contiguous": lambda input: (
        input if input.coefficients[0].is_contiguous() else Series(input.coefficients.contiguous())
    ),
    "type_as": lambda input, other: to(input, other.dtype),
    "dim": lambda input: input.ndim,
    "size": lambda input, dim=None: input.shape if dim is None else input.shape[dim],
    "numel": lambda input: input.shape.numel(),
    "is_floating_point": lambda input: input.dtype.is_floating_point,
    "detach": lambda input: input.data,
    "t": lambda input: input.mT,
}
"""Functions made of other rules, and facts about the value; parameters have torch's names."""

_ALONG_AXES: dict[str, dict[str, Any]] = {
    "sum": {"dim": None, "keepdim": False},
    "mean": {"dim": None, "keepdim": False},
    "transpose": {"dim0": None, "dim1": None},
    "flatten": {"start_dim": 0, "end_dim": -1},
    "unflatten": {"dim": None, "sizes": None},
    "unsqueeze": {"dim": None},
    "squeeze": {"dim": None},
    "unbind": {"dim": 0},
    "chunk": {"chunks": None, "dim": 0},
    "split": {"split_size_or_sections": None, "dim": 0},
    "repeat_interleave": {"repeats": None, "dim": None},
    "select": {"dim": None, "index": None},
    "index_select": {"dim": None, "index": None},
    "cumsum": {"dim": None},
}
"""Operations on one tensor along axes: torch's names of their parameters, with what is taken for those not given."""

_AXES = ("dim", "dim0", "dim1", "start_dim", "end_dim")
_TO_EACH = (Tensor.float, Tensor.double, Tensor.clone, Tensor.neg, torch.zeros_like)


def _along_axes(
    function: Callable[..., Any], parameters: dict[str, Any], input: Series, *args: Any, **named: Any
) -> Any:
    given = parameters | dict(zip(parameters, args, strict=False)) | named
    axes = {name: _shifted(input, value) for name, value in given.items() if name in _AXES}
    found = function(input.coefficients, **given | axes)
    return Series(found) if isinstance(found, Tensor) else tuple(map(Series, found))


def _to_each(function: Callable[..., Tensor], input: Series, *args: Any, **kwargs: Any) -> Series:
    return Series(function(input.coefficients, *args, **kwargs))


def _joined(function: Callable[..., Tensor], tensors: Sequence[Any], dim: int = 0) -> Series:
    like = next(x for x in tensors if isinstance(x, Series))
    return Series(function([coefficients_of(x, like) for x in tensors], _shifted(like, dim)))


def _of_values(function: Callable[..., Any], *args: Any) -> Any:
    return function(*map(value_of, args))


RULES.update(_MADE_OF_OTHERS)
RULES.update({k: functools.partial(_along_axes, getattr(torch, k), names) for k, names in _ALONG_AXES.items()})
RULES.update({function.__name__: functools.partial(_to_each, function) for function in _TO_EACH})
RULES.update({function.__name__: functools.partial(_joined, function) for function in (torch.cat, torch.stack)})
RULES.update({k: functools.partial(_of_values, getattr(torch, k)) for k in ("gt", "ge", "lt", "le", "eq", "ne")})
