"""Rules for sums, means, variances, products and norms over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from loopscope.readout.general.taylor.core import Series, implements, unsupported
from loopscope.readout.general.taylor.elementwise import add, mul, power, sqrt, square, sub
from loopscope.readout.general.taylor.piecewise import absolute, amax, amin, value_of, where
from loopscope.readout.general.taylor.structural import flatten, shifted, stack


@implements("sum")
def sum_(x: Series, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Series:
    """Sum over axes."""
    return Series(x.coefficients.sum(_axes(x, dim), keepdim=keepdim, dtype=dtype))


@implements("mean")
def mean(x: Series, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Series:
    """Mean over axes."""
    return Series(x.coefficients.mean(_axes(x, dim), keepdim=keepdim, dtype=dtype))


def _axes(x: Series, dim: Any) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(1, x.ndim + 1))
    if isinstance(dim, Sequence):
        return tuple(shifted(d) for d in dim)
    return (shifted(dim),)


@implements("cumsum")
def cumsum(x: Series, dim: int, *, dtype: torch.dtype | None = None) -> Series:
    """Running sum along an axis."""
    return Series(x.coefficients.cumsum(shifted(dim), dtype=dtype))


def _dims(x: Series, dim: Any) -> tuple[int, ...]:
    """Axes of the value; all of them where none is named."""
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(x.ndim))
    return tuple(dim) if isinstance(dim, Sequence) else (dim,)


@implements("var")
def var(
    x: Series, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Series:
    """The variance over axes, with n − correction in the denominator."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = _dims(x, dim)
    count = math.prod(x.shape[d] for d in dims)
    centred = sub(x, mean(x, dims, keepdim=True))
    less = correction if correction is not None else 1.0 if unbiased else 0.0
    return mul(sum_(square(centred), dims, keepdim), 1.0 / (count - less))


@implements("std", kink="equal entries: slope 0")
def std(
    x: Series, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Series:
    """The square root of the variance."""
    return _root(var(x, dim, unbiased, keepdim, correction=correction))


@implements("var_mean")
def var_mean(x: Series, dim: Any = None, *args: Any, **kwargs: Any) -> tuple[Series, Series]:
    """The variance and the mean."""
    return var(x, dim, *args, **kwargs), mean(x, _mean_dim(dim), bool(kwargs.get("keepdim", args[1:2] == (True,))))


@implements("std_mean", kink="equal entries: slope 0 of std")
def std_mean(x: Series, dim: Any = None, *args: Any, **kwargs: Any) -> tuple[Series, Series]:
    """The standard deviation and the mean."""
    return std(x, dim, *args, **kwargs), mean(x, _mean_dim(dim), bool(kwargs.get("keepdim", args[1:2] == (True,))))


def _mean_dim(dim: Any) -> Any:
    return None if isinstance(dim, bool) else dim


def _root(x: Series) -> Series:
    """√x, with slope 0 where x is 0: torch's choice for norms."""
    none = value_of(x) == 0
    return where(none, 0.0, sqrt(where(none, 1.0, x)))


@implements("prod")
def prod(x: Series, dim: int | None = None, keepdim: bool = False) -> Series:
    """The product of the entries of an axis."""
    if dim is None:
        return prod(flatten(x), 0)
    out = cumprod(x, dim).select(dim, -1)
    return out.unsqueeze(dim) if keepdim else out  # type: ignore[no-any-return]


@implements("cumprod")
def cumprod(x: Series, dim: int) -> Series:
    """Running product along an axis."""
    found: list[Any] = []
    for entry in x.unbind(dim):
        found.append(mul(found[-1], entry) if found else entry)
    return stack(found, dim)


@implements("linalg_vector_norm", kink="0: slope 0 (ord 2); as abs and amax for the others")
def vector_norm(
    x: Series, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Series:
    """(Σ |x|^ord)^(1/ord) over axes."""
    x = x if dtype is None else Series(x.coefficients.to(dtype))
    dims = _dims(x, dim)
    if ord == 2:
        return _root(sum_(square(x), dims, keepdim))
    size = absolute(x)
    if ord in (math.inf, -math.inf):
        return (amax if ord > 0 else amin)(size, dims, keepdim)
    if ord == 1:
        return sum_(size, dims, keepdim)
    if ord == 0:
        raise unsupported("linalg_vector_norm", "ord=0 counts entries")
    return power(sum_(power(size, ord), dims, keepdim), 1.0 / ord)


@implements("norm", kink="0: slope 0")
def norm(x: Series, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Series:
    """(Σ |x|^p)^(1/p) over axes."""
    if p not in ("fro", None) and isinstance(p, str):
        raise unsupported("norm", f"the norm {p!r} of matrices")
    return vector_norm(x, 2 if isinstance(p, str | None) else p, dim, keepdim, dtype=dtype)


@implements("linalg_norm", kink="0: slope 0")
def linalg_norm(x: Series, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Series:
    """The norm of vectors, or the Frobenius norm of matrices."""
    of_matrices = len(_dims(x, dim)) == 2
    if ord in (None, "fro") or not of_matrices:
        return vector_norm(x, 2 if ord in (None, "fro") else ord, dim, keepdim, dtype=dtype)
    raise unsupported("linalg_norm", f"the norm {ord!r} of matrices")


@implements("linalg_matrix_norm", kink="0: slope 0")
def matrix_norm(
    x: Series, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Series:
    """The Frobenius norm of matrices."""
    return linalg_norm(x, ord, dim, keepdim, dtype=dtype)


@implements("dist", kink="equal operands: slope 0")
def dist(a: Any, b: Any, p: float = 2) -> Series:
    """The norm of the difference."""
    return vector_norm(sub(a, b), p)


@implements("pairwise_distance", kink="equal operands: slope of the added eps")
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Series:
    """The norm of the difference (plus eps) along the last axis."""
    return vector_norm(add(sub(x1, x2), eps), p, -1, keepdim)


@implements("cosine_similarity", kink="0: x/eps")
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Series:
    """x₁·x₂ / (|x₁| |x₂|) along an axis."""
    lengths = (torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp_min(eps) for x in (x1, x2))
    one, two = (x / length for x, length in zip((x1, x2), lengths, strict=True))
    return sum_(mul(one, two), dim)
