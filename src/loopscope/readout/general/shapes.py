"""Rules for operations that only move, pick or convert entries: each coefficient moves alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from loopscope.readout.general.core import RULES, Series, coefficients_of, implements, unsupported


def shifted(dim: int) -> int:
    """An axis of the value as an axis of the coefficients."""
    return dim + 1 if dim >= 0 else dim


def shifted_all(x: Series, dims: Any) -> tuple[int, ...]:
    """Axes of the value, all of them where none is named, as axes of the coefficients."""
    chosen = range(x.ndim) if dims is None else (dims,) if isinstance(dims, int) else dims
    return tuple(d % max(1, x.ndim) + 1 for d in chosen)


_ALONG_AXES: dict[str, dict[str, Any]] = {
    "transpose": {"dim0": None, "dim1": None},
    "flatten": {"start_dim": 0, "end_dim": -1},
    "unflatten": {"dim": None, "sizes": None},
    "unsqueeze": {"dim": None},
    "unbind": {"dim": 0},
    "select": {"dim": None, "index": None},
    "index_select": {"dim": None, "index": None},
    "chunk": {"chunks": None, "dim": 0},
    "split": {"split_size_or_sections": None, "dim": 0},
    "repeat_interleave": {"repeats": None, "dim": None},
    "cumsum": {"dim": None},
}
"""Operations on one tensor along axes: torch's names of their parameters, with what is taken for those not given."""


def _along_axes(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    def rule(input: Series, *args: Any, **kwargs: Any) -> Any:
        given = parameters | dict(zip(parameters, args, strict=False)) | kwargs
        moved = {name: shifted(value) if "dim" in name else value for name, value in given.items()}
        found = function(input.coefficients, **moved)
        return Series(found) if isinstance(found, Tensor) else tuple(map(Series, found))

    return rule


for _name, _parameters in _ALONG_AXES.items():
    implements(_name)(_along_axes(getattr(torch, _name), _parameters))


def _on_all(function: Callable[..., Tensor]) -> Callable[..., Series]:
    return lambda input, *args, **kwargs: Series(function(input.coefficients, *args, **kwargs))


for _name in ("float", "double", "clone", "neg"):
    implements(_name)(_on_all(getattr(Tensor, _name)))
RULES.update(
    dim=lambda input: input.ndim,
    size=lambda input, dim=None: input.shape if dim is None else input.shape[dim],
    numel=lambda input: input.shape.numel(),
    is_floating_point=lambda input: input.dtype.is_floating_point,
    detach=lambda input: input.data,
    t=lambda input: input.mT,
    type_as=lambda input, other: Series(input.coefficients.to(other.dtype)),
)


def _sizes(sizes: tuple[Any, ...]) -> Sequence[int]:
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes


@implements("reshape", "view")
def reshape(input: Series, *shape: Any) -> Series:
    if shape and isinstance(shape[0], torch.dtype):
        raise unsupported("view", "reinterpreting the bits of a dtype")
    return Series(input.coefficients.reshape(input.coefficients.shape[0], *_sizes(shape)))


@implements("permute")
def permute(input: Series, *dims: Any) -> Series:
    return Series(input.coefficients.permute(0, *shifted_all(input, _sizes(dims))))


@implements("squeeze")
def squeeze(input: Series, dim: Any = None) -> Series:
    return Series(input.coefficients.squeeze(shifted_all(input, dim)))


@implements("expand")
def expand(input: Series, *sizes: Any) -> Series:
    shape = _sizes(sizes)
    return Series(coefficients_of(input, input, len(shape)).expand(-1, *shape))


@implements("gather")
def gather(input: Series, dim: int, index: Tensor) -> Series:
    return Series(input.coefficients.gather(shifted(dim), index.expand(input.coefficients.shape[0], *index.shape)))


@implements("topk")
def topk(input: Series, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The largest entries of an axis and their indices, as the value has them."""
    found: Any = torch.topk(input.coefficients[0], k, dim, largest, sorted)
    return type(found)((gather(input, dim, found.indices), found.indices))


@implements("__getitem__")
def getitem(input: Series, index: Any) -> Series:
    items = index if isinstance(index, tuple) else (index,)
    fancy = [i for i, item in enumerate(items) if isinstance(item, (Tensor, list, int))]
    listed = any(isinstance(item, (Tensor, list)) for item in items)
    if listed and fancy != list(range(fancy[0], fancy[-1] + 1)):
        # Separated index tensors put their axes first, before the coefficients' own: index one by one.
        return Series(torch.stack([c[index] for c in input.coefficients]))
    return Series(input.coefficients[(slice(None), *items)])


def _joining(function: Callable[..., Tensor]) -> Callable[..., Series]:
    def rule(tensors: Sequence[Any], dim: int = 0) -> Series:
        like = next(x for x in tensors if isinstance(x, Series))
        return Series(function([coefficients_of(x, like) for x in tensors], shifted(dim)))

    return rule


implements("cat")(_joining(torch.cat))
implements("stack")(_joining(torch.stack))


@implements("index_add")
def index_add(input: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Series:
    like = input if isinstance(input, Series) else source
    into, added = (coefficients_of(x, like) for x in (input, source))
    return Series(into.index_add(shifted(dim), index, added, alpha=alpha))


@implements("zeros_like")
def zeros_like(input: Series) -> Series:
    """Zeros that may be added to in place."""
    return Series(torch.zeros_like(input.coefficients))


@implements("contiguous")
def contiguous(input: Series) -> Series:
    return input if input.coefficients[0].is_contiguous() else Series(input.coefficients.contiguous())


@implements("to")
def to(input: Series, *args: Any, **kwargs: Any) -> Series:
    given: list[Any] = [a.coefficients if isinstance(a, Series) else a for a in args]
    return Series(input.coefficients.to(*given, **kwargs))
