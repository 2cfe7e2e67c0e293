"""Rules for comparing, choosing and ordering: what depends on the state piece by piece.

Which piece holds is decided by the value, and all coefficients are that piece's: exact away from the places where
pieces meet. There, the value is the function's and the slope is what torch's own backward takes (`kink` says which).
Comparisons, signs, roundings and indices are constants, because they do not change within a piece.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from loopscope.readout.general.taylor.core import Series, constant_like, implements, lifted, refused, unsupported
from loopscope.readout.general.taylor.elementwise import mul, sub
from loopscope.readout.general.taylor.structural import shifted


def value_of(x: Any) -> Any:
    """The value of a series; anything else as it is."""
    return x.coefficients[0] if isinstance(x, Series) else x


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that looks at values alone and gives a constant."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        return function(*map(value_of, args), **{name: value_of(x) for name, x in kwargs.items()})

    rule.__doc__ = "A constant, from the value."
    rule.__module__ = __name__
    return rule


_COMPARISONS = (
    *("gt", "greater", "lt", "less", "ge", "greater_equal", "le", "less_equal", "eq", "ne", "not_equal"),
    *("isclose", "allclose", "equal", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"),
    *("logical_and", "logical_or", "logical_xor", "logical_not", "any", "all", "count_nonzero"),
)
_STEPS = ("sign", "sgn", "floor", "ceil", "round", "trunc", "fix", "floor_divide", "heaviside")
_INDICES = ("argmax", "argmin", "argsort", "nonzero", "bucketize", "searchsorted")
for _name in _COMPARISONS:
    implements(_name, kink="a tie: what the comparison says")(_by_value(getattr(torch, _name)))
for _name in _STEPS:
    implements(_name, kink="a jump: slope 0")(_by_value(getattr(torch, _name)))
for _name in _INDICES:
    implements(_name, kink="a tie: torch's index")(_by_value(getattr(torch, _name)))


@implements("where", kink="the condition changes: the piece that it names")
def where_or_indices(condition: Any, input: Any = None, other: Any = None) -> Any:
    """Entries of one where the condition holds, of the other elsewhere; the indices of a mask where it is alone."""
    if isinstance(input, Series) or isinstance(other, Series):
        return where(value_of(condition), input, other)
    return torch.where(value_of(condition), *(() if input is None else (input, other)))


def where(condition: Tensor, a: Any, b: Any) -> Series:
    """Entries of a where the condition holds, of b elsewhere; a or b is a series."""
    example = a if isinstance(a, Series) else b
    ndim = max(x.ndim for x in (condition, a, b) if isinstance(x, (Series, Tensor)))
    return Series(torch.where(condition, _as_coefficients(a, example, ndim), _as_coefficients(b, example, ndim)))


def _as_coefficients(x: Any, example: Series, ndim: int) -> Tensor:
    if isinstance(x, Series):
        return lifted(x, ndim)
    value = constant_like(x, example).to(example.dtype)
    value = value.reshape((*[1] * (ndim - value.ndim), *value.shape))
    return torch.cat([value.unsqueeze(0), torch.zeros_like(value).expand(example.order, *value.shape)])


@implements("abs", "absolute", kink="0: slope 0")
def absolute(x: Series) -> Series:
    """|x|."""
    if x.dtype.is_complex:
        raise unsupported("abs", "of complex numbers")
    return mul(x, value_of(x).sign())


@implements("copysign", kink="0: slope 0")
def copysign(x: Series, other: Any) -> Series:
    """The size of x with the sign of another."""
    return mul(absolute(x), torch.copysign(torch.ones_like(value_of(x)), constant_like(value_of(other), x)))


@implements("clamp", "clip", kink="the bounds: inside, slope 1")
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """X between bounds, which may depend on the state themselves."""
    if min is not None:
        x = where_or_indices(_constant(x) >= value_of(min), x, min)
    if max is not None:
        x = where_or_indices(_constant(x) <= value_of(max), x, max)
    return x


def _constant(x: Any) -> Any:
    return torch.as_tensor(value_of(x))


@implements("clamp_min", kink="the bound: inside, slope 1")
def clamp_min(x: Any, min: Any) -> Any:
    """X and at least a bound."""
    return clamp(x, min=min)


@implements("clamp_max", kink="the bound: inside, slope 1")
def clamp_max(x: Any, max: Any) -> Any:
    """X and at most a bound."""
    return clamp(x, max=max)


@implements("maximum", kink="equal operands: the mean of both")
def maximum(a: Any, b: Any) -> Any:
    """The larger of two."""
    return _larger(a, b, value_of(a) > value_of(b), value_of(a) == value_of(b))


@implements("minimum", kink="equal operands: the mean of both")
def minimum(a: Any, b: Any) -> Any:
    """The smaller of two."""
    return _larger(a, b, value_of(a) < value_of(b), value_of(a) == value_of(b))


def _larger(a: Any, b: Any, first: Tensor, tie: Tensor) -> Any:
    return where(tie, (a + b) * 0.5, where(first, a, b))


@implements("fmax", kink="equal operands: the first")
def fmax(a: Any, b: Any) -> Any:
    """The larger of two; NaN gives way."""
    return where((value_of(a) >= value_of(b)) | torch.isnan(_constant(b)), a, b)


@implements("fmin", kink="equal operands: the first")
def fmin(a: Any, b: Any) -> Any:
    """The smaller of two; NaN gives way."""
    return where((value_of(a) <= value_of(b)) | torch.isnan(_constant(b)), a, b)


@implements("amax", kink="several largest entries: their mean")
def amax(x: Series, dim: Any = (), keepdim: bool = False) -> Series:
    """The largest entry along axes."""
    return _extreme(x, dim, keepdim, torch.amax)


@implements("amin", kink="several smallest entries: their mean")
def amin(x: Series, dim: Any = (), keepdim: bool = False) -> Series:
    """The smallest entry along axes."""
    return _extreme(x, dim, keepdim, torch.amin)


def _extreme(x: Series, dim: Any, keepdim: bool, function: Callable[..., Tensor]) -> Series:
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(x.ndim))
    v = value_of(x)
    top = (v == function(v, dims, keepdim=True)).to(x.dtype)
    shares = top / top.sum(dims, keepdim=True)
    picked = torch.where(shares > 0, x.coefficients * shares, torch.zeros_like(x.coefficients))
    return Series(picked.sum([shifted(d) for d in dims], keepdim=keepdim))


@implements("max", kink="equal entries: torch's index along an axis, the mean over all axes or of two operands")
def max_(x: Any, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
    """The largest entry, with its index along an axis, or the larger of two."""
    other = named.get("other", dim)
    if isinstance(other, (Series, Tensor)):
        return maximum(x, other)
    return amax(x) if dim is None else _with_indices("max", x, dim, keepdim)


@implements("min", kink="equal entries: torch's index along an axis, the mean over all axes or of two operands")
def min_(x: Any, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
    """The smallest entry, with its index along an axis, or the smaller of two."""
    other = named.get("other", dim)
    if isinstance(other, (Series, Tensor)):
        return minimum(x, other)
    return amin(x) if dim is None else _with_indices("min", x, dim, keepdim)


def _with_indices(name: str, x: Series, dim: int, keepdim: bool, *args: Any) -> Any:
    """The entries that an operation picks along one axis, and their indices, under torch's names."""
    found = getattr(torch, name)(value_of(x), *args, dim, True)
    values = _picked(x, dim, found.indices)
    indices = found.indices
    if not keepdim:
        values, indices = Series(values.coefficients.squeeze(shifted(dim))), indices.squeeze(dim)
    return type(found)((values, indices))


def _picked(x: Series, dim: int, indices: Tensor) -> Series:
    return Series(x.coefficients.gather(shifted(dim), indices.expand(x.order + 1, *indices.shape)))


@implements("median", kink="equal entries: torch's index")
def median(x: Series, dim: int = -1, keepdim: bool = False) -> Any:
    """The (lower) median along an axis and its index."""
    return _with_indices("median", x, dim, keepdim)


@implements("kthvalue", kink="equal entries: torch's index")
def kthvalue(x: Series, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest entry along an axis and its index."""
    return _with_indices("kthvalue", x, dim, keepdim, k)


@implements("topk", kink="equal entries: torch's indices")
def topk(x: Series, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest entries along an axis and their indices."""
    found: Any = torch.topk(value_of(x), k, dim, largest, sorted)
    return type(found)((_picked(x, dim, found.indices), found.indices))


@implements("sort", kink="equal entries: torch's indices")
def sort(x: Series, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """The entries of an axis in order, and their indices."""
    found: Any = torch.sort(value_of(x), dim=dim, descending=descending, stable=stable)
    return type(found)((_picked(x, dim, found.indices), found.indices))


@implements("cummax", kink="equal entries: torch's indices")
def cummax(x: Series, dim: int) -> Any:
    """The largest entry so far along an axis, and its index."""
    found: Any = torch.cummax(value_of(x), dim)
    return type(found)((_picked(x, dim, found.indices), found.indices))


@implements("cummin", kink="equal entries: torch's indices")
def cummin(x: Series, dim: int) -> Any:
    """The smallest entry so far along an axis, and its index."""
    found: Any = torch.cummin(value_of(x), dim)
    return type(found)((_picked(x, dim, found.indices), found.indices))


@implements("remainder", kink="a jump: the slope of either side, 1")
def remainder(a: Any, b: Any) -> Any:
    """A less the multiple of b below it."""
    whole = _constant(value_of(a) / value_of(b)).floor()
    return a - b * whole


@implements("frac", kink="a jump: the slope of either side, 1")
def frac(x: Series) -> Series:
    """What is behind the decimal point."""
    return sub(x, value_of(x).trunc())


@implements("nan_to_num", kink="NaN and infinities: constants")
def nan_to_num(x: Series, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Series:
    """Finite numbers in place of NaN and infinities."""
    v = value_of(x)
    return where(torch.isfinite(v), x, torch.nan_to_num(v, nan, posinf, neginf))


@implements("item", "tolist", "numpy", "unique", "histc")
def item(x: Any, *args: Any, **kwargs: Any) -> Any:
    """Refused: a number taken out of the state is a constant to every derivative."""
    raise refused("item", "a number taken out of the state no longer depends on it; keep it a tensor.")
