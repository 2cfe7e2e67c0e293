"""Rules for writing: entries put, added or copied at places, in a copy or in place; and fresh tensors to write into.

All of these are linear in the tensors that hold state, so each coefficient is written by itself; what is written and
does not depend on the state goes into the constant one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from loopscope.readout.general.taylor.core import (
    Series,
    constant_like,
    constant_series,
    implements,
    lifted,
    unsupported,
)


def _jointly(function: Callable[..., Tensor], *operands: Any) -> Series:
    """A map that is linear in all operands together: constants among them are 0 in all coefficients but the first."""
    example = next(x for x in operands if isinstance(x, Series))

    def at(order: int, x: Any) -> Any:
        if isinstance(x, Series):
            return x.coefficients[order]
        value = constant_like(x, example)
        return (value if order == 0 else torch.zeros_like(value)).to(example.dtype)

    return Series(torch.stack([function(*(at(k, x) for x in operands)) for k in range(example.order + 1)]))


@implements("__setitem__")
def setitem(x: Any, index: Any, value: Any) -> None:
    """Entries written in place."""
    if not isinstance(x, Series):
        raise unsupported(
            "__setitem__", "writing what depends on the state into a tensor that does not; torch.zeros_like(state) does"
        )
    for order, c in enumerate(x.coefficients.unbind(0)):
        if isinstance(value, Series):
            c[index] = value.coefficients[order].to(c.dtype)
        elif order == 0:
            c[index] = value
        else:
            c[index] = 0


@implements("copy")
def copy(x: Series, other: Any, non_blocking: bool = False) -> Any:
    """Another's entries in place of its own (`copy_`)."""
    if isinstance(other, Series):
        return Series(lifted(other, x.ndim).expand_as(x.coefficients))
    return constant_series(constant_like(other, x).to(x.dtype).expand(x.shape), x.order)


@implements("masked_fill")
def masked_fill(x: Any, mask: Tensor, value: Any) -> Series:
    """A constant where the mask holds."""
    if not isinstance(x, Series) or isinstance(value, Series):
        raise unsupported("masked_fill", "a value that depends on the state; use torch.where")
    c = lifted(x, mask.ndim)
    return Series(torch.cat([c[:1].masked_fill(mask, value), c[1:].masked_fill(mask, 0.0)]))


@implements("fill")
def fill(x: Series, value: Any) -> Series:
    """A constant everywhere (`fill_`)."""
    return constant_series(torch.full_like(x.coefficients[0], value), x.order)


@implements("zero")
def zero(x: Series) -> Series:
    """Zero everywhere (`zero_`)."""
    return Series(torch.zeros_like(x.coefficients))


@implements("masked_scatter")
def masked_scatter(x: Any, mask: Tensor, source: Any) -> Series:
    """The entries of a source, in order, where the mask holds."""
    return _jointly(lambda a, b: a.masked_scatter(mask, b), x, source)


@implements("masked_select")
def masked_select(x: Series, mask: Tensor) -> Series:
    """The entries where the mask holds."""
    return Series(torch.stack([c.masked_select(mask) for c in x.coefficients]))


@implements("index_fill")
def index_fill(x: Series, dim: int, index: Tensor, value: Any) -> Series:
    """A constant in chosen slices of an axis."""
    if isinstance(value, Series):
        raise unsupported("index_fill", "a value that depends on the state")
    return _jointly(lambda a, b: a.index_fill(dim, index, b), x, constant_like(value, x))


@implements("index_add")
def index_add(x: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Series:
    """Slices added to chosen slices of an axis."""
    return _jointly(lambda a, b: a.index_add(dim, index, b, alpha=alpha), x, source)


@implements("index_copy")
def index_copy(x: Any, dim: int, index: Tensor, source: Any) -> Series:
    """Slices in place of chosen slices of an axis."""
    return _jointly(lambda a, b: a.index_copy(dim, index, b), x, source)


@implements("index_put")
def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Series:
    """Entries written or added at places."""
    return _jointly(lambda a, b: a.index_put(tuple(indices), b, accumulate), x, values)


@implements("scatter")
def scatter(x: Any, dim: int, index: Tensor, src: Any = None, *, value: Any = None) -> Series:
    """Entries put at places along an axis."""
    if src is None:
        src = value
    if not isinstance(src, Series | Tensor):
        src = torch.full(index.shape, float(src), dtype=x.dtype, device=x.device)
    return _jointly(lambda a, b: a.scatter(dim, index, b), x, src)


@implements("scatter_add")
def scatter_add(x: Any, dim: int, index: Tensor, src: Any) -> Series:
    """Entries added at places along an axis."""
    return _jointly(lambda a, b: a.scatter_add(dim, index, b), x, src)


@implements("scatter_reduce")
def scatter_reduce(
    x: Any, dim: int, index: Tensor, src: Any, reduce: str = "sum", *, include_self: bool = True
) -> Series:
    """Entries summed or averaged at places along an axis."""
    if reduce not in ("sum", "mean"):
        raise unsupported("scatter_reduce", f"reduce={reduce!r}")
    return _jointly(lambda a, b: a.scatter_reduce(dim, index, b, reduce, include_self=include_self), x, src)


@implements("select_scatter")
def select_scatter(x: Any, src: Any, dim: int, index: int) -> Series:
    """One slice of an axis replaced."""
    return _jointly(lambda a, b: torch.select_scatter(a, b, dim, index), x, src)


@implements("slice_scatter")
def slice_scatter(
    x: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Series:
    """Slices of an axis replaced."""
    return _jointly(lambda a, b: torch.slice_scatter(a, b, dim, start, end, step), x, src)


def _fresh(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """A rule for a new tensor beside a series: one that may be written into, unless it holds no floating point."""

    def rule(x: Series, *args: Any, **kwargs: Any) -> Any:
        value = function(x.coefficients[0], *args, **kwargs)
        return constant_series(value, x.order) if value.dtype == x.dtype else value

    rule.__doc__ = "A new tensor that does not depend on the state."
    rule.__module__ = __name__
    return rule


for _name in ("zeros_like", "ones_like", "full_like"):
    implements(_name)(_fresh(getattr(torch, _name)))
implements("empty_like")(_fresh(torch.zeros_like))
for _name in ("new_zeros", "new_ones", "new_full"):
    implements(_name)(_fresh(getattr(Tensor, _name)))
implements("new_empty")(_fresh(Tensor.new_zeros))
