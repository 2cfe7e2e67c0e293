"""Rules for operations that only move, pick or convert entries: each coefficient moves alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.readout.general.taylor.core import Series, constant_like, each, implements, unsupported


def shifted(dim: int) -> int:
    """An axis of the value as an axis of the coefficients."""
    return dim + 1 if dim >= 0 else dim


def _sizes(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        return tuple(int(s) for s in sizes[0])
    return tuple(int(s) for s in sizes)


def _wrap(coefficients: Sequence[Tensor]) -> tuple[Series, ...]:
    return tuple(Series(c) for c in coefficients)


def _constant_coefficients(x: Any, example: Series) -> Tensor:
    """A series' coefficients, or those of a constant beside it."""
    if isinstance(x, Series):
        return x.coefficients
    value = constant_like(x, example).unsqueeze(0)
    return torch.cat([value, torch.zeros_like(value).expand(example.order, *value.shape[1:])])


@implements("reshape", "view")
def reshape(x: Series, *shape: Any) -> Series:
    """Another shape."""
    if shape and isinstance(shape[0], torch.dtype):
        raise unsupported("view", "reinterpreting the bits of a dtype")
    return Series(x.coefficients.reshape(x.coefficients.shape[0], *_sizes(shape)))


@implements("view_as", "reshape_as")
def view_as(x: Series, other: Any) -> Series:
    """The shape of another."""
    return reshape(x, *other.shape)


@implements("flatten")
def flatten(x: Series, start_dim: int = 0, end_dim: int = -1) -> Series:
    """Axes joined to one."""
    return Series(x.coefficients.flatten(shifted(start_dim), shifted(end_dim)))


@implements("unflatten")
def unflatten(x: Series, dim: int, sizes: Sequence[int]) -> Series:
    """One axis split in several."""
    return Series(x.coefficients.unflatten(shifted(dim), tuple(sizes)))  # type: ignore[no-untyped-call]


@implements("transpose", "swapaxes", "swapdims")
def transpose(x: Series, dim0: int, dim1: int) -> Series:
    """Two axes exchanged."""
    return Series(x.coefficients.transpose(shifted(dim0), shifted(dim1)))


@implements("t")
def t(x: Series) -> Series:
    """A matrix transposed."""
    return transpose(x, 0, 1) if x.ndim == 2 else x


@implements("permute")
def permute(x: Series, *dims: Any) -> Series:
    """Axes reordered."""
    order = [d % x.ndim + 1 for d in _sizes(dims)]
    return Series(x.coefficients.permute(0, *order))


@implements("movedim", "moveaxis")
def movedim(x: Series, source: Any, destination: Any) -> Series:
    """Axes moved."""

    def shift(d: Any) -> Any:
        return shifted(d) if isinstance(d, int) else tuple(shifted(i) for i in d)

    return Series(x.coefficients.movedim(shift(source), shift(destination)))


@implements("unsqueeze")
def unsqueeze(x: Series, dim: int) -> Series:
    """A new axis of length one."""
    return Series(x.coefficients.unsqueeze(shifted(dim)))


@implements("squeeze")
def squeeze(x: Series, dim: Any = None) -> Series:
    """Axes of length one dropped, or all of them."""
    if dim is None:
        return reshape(x, tuple(s for s in x.shape if s != 1))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return Series(x.coefficients.squeeze([d % max(1, x.ndim) + 1 for d in dims]))


@implements("expand", "broadcast_to")
def expand(x: Series, *sizes: Any) -> Series:
    """Broadcast to a shape."""
    shape = _sizes(sizes)
    c = x.coefficients
    c = c.reshape(c.shape[0], *([1] * (len(shape) - x.ndim)), *c.shape[1:])
    return Series(c.expand(c.shape[0], *shape))


@implements("broadcast_tensors")
def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Several at the shape that they have together."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))  # type: ignore[no-untyped-call]
    return tuple(expand(x, shape) if isinstance(x, Series) else x.expand(shape) for x in tensors)


@implements("expand_as")
def expand_as(x: Series, other: Any) -> Series:
    """Broadcast to the shape of another."""
    return expand(x, *other.shape)


@implements("repeat", "tile")
def repeat(x: Series, *repeats: Any) -> Series:
    """Copies along axes."""
    times = _sizes(repeats)
    c = x.coefficients
    c = c.reshape(c.shape[0], *([1] * (len(times) - x.ndim)), *c.shape[1:])
    return Series(c.repeat(1, *times))


@implements("repeat_interleave")
def repeat_interleave(x: Series, repeats: Any, dim: int | None = None) -> Series:
    """Each entry of an axis several times."""
    if dim is None:
        return repeat_interleave(flatten(x), repeats, 0)
    return Series(x.coefficients.repeat_interleave(repeats, dim=shifted(dim)))


@implements("chunk")
def chunk(x: Series, chunks: int, dim: int = 0) -> tuple[Series, ...]:
    """An axis in a number of slices."""
    return _wrap(x.coefficients.chunk(chunks, shifted(dim)))


@implements("split", "split_with_sizes")
def split(
    tensor: Series, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None
) -> tuple[Series, ...]:
    """An axis in slices of given sizes."""
    sizes = split_size if split_size_or_sections is None else split_size_or_sections
    return _wrap(torch.split(tensor.coefficients, sizes, shifted(dim)))


@implements("tensor_split")
def tensor_split(x: Series, indices_or_sections: Any, dim: int = 0) -> tuple[Series, ...]:
    """An axis cut at given places."""
    return _wrap(torch.tensor_split(x.coefficients, indices_or_sections, dim=shifted(dim)))


@implements("unbind")
def unbind(x: Series, dim: int = 0) -> tuple[Series, ...]:
    """The slices of an axis."""
    return _wrap(x.coefficients.unbind(shifted(dim)))


@implements("select")
def select(x: Series, dim: int, index: int) -> Series:
    """One slice of an axis."""
    return Series(x.coefficients.select(shifted(dim), index))


@implements("narrow")
def narrow(x: Series, dim: int, start: Any, length: int) -> Series:
    """A slice of an axis."""
    return Series(x.coefficients.narrow(shifted(dim), int(start), length))


@implements("index_select")
def index_select(x: Series, dim: int, index: Tensor) -> Series:
    """Chosen slices of an axis."""
    return Series(x.coefficients.index_select(shifted(dim), index))


@implements("gather")
def gather(x: Series, dim: int, index: Tensor) -> Series:
    """Chosen entries along an axis."""
    return Series(x.coefficients.gather(shifted(dim), index.expand(x.coefficients.shape[0], *index.shape)))


@implements("take_along_dim")
def take_along_dim(x: Series, indices: Tensor, dim: int | None = None) -> Series:
    """Chosen entries along an axis, with broadcasting."""
    if dim is None:
        return take_along_dim(flatten(x), indices.flatten(), 0)
    return Series(torch.take_along_dim(x.coefficients, indices.unsqueeze(0), shifted(dim)))


@implements("__getitem__")
def getitem(x: Series, index: Any) -> Series:
    """Indexing."""
    items = index if isinstance(index, tuple) else (index,)
    advanced = [i for i, item in enumerate(items) if isinstance(item, (Tensor, list))]
    if advanced:
        fancy = [i for i, item in enumerate(items) if isinstance(item, (Tensor, list, int))]
        if fancy != list(range(fancy[0], fancy[-1] + 1)):
            # Separated index tensors put their axes first, before the coefficients' own: index one by one.
            return Series(torch.stack([c[index] for c in x.coefficients]))
    return Series(x.coefficients[(slice(None), *items)])


@implements("unfold")
def unfold(x: Series, *args: Any, **kwargs: Any) -> Series:
    """Overlapping windows of an axis (`Tensor.unfold`), or of an image (`functional.unfold`)."""
    windows = functional.unfold if "dilation" in kwargs else Tensor.unfold
    return each(windows, x, *args, **kwargs)


def _linear_rule(function: Callable[..., Tensor]) -> Callable[..., Series]:
    """A rule for an operation that moves, sums or averages entries of one tensor with fixed weights."""

    def rule(x: Series, *args: Any, **kwargs: Any) -> Series:
        return each(function, x, *args, **kwargs)

    rule.__doc__ = "Each coefficient by itself."
    rule.__module__ = __name__
    return rule


_LINEAR: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch, ("diag", "diagonal", "diag_embed", "diff", "rot90", "fliplr", "flipud", "trace", "ravel")),
    (torch, ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "adaptive_avg_pool1d", "avg_pool1d")),
    (functional, ("avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "fold", "interpolate")),
)
for _module, _names in _LINEAR:
    for _name in _names:
        implements(_name)(_linear_rule(getattr(_module, _name)))


@implements("hstack", "column_stack")
def hstack(tensors: Sequence[Any]) -> Series:
    """Joined along the second axis, or the only one."""
    return cat(tensors, 0 if _first_series(tensors).ndim == 1 else 1)


@implements("vstack")
def vstack(tensors: Sequence[Any]) -> Series:
    """Joined along the first axis."""
    return cat([x.unsqueeze(0) if x.ndim == 1 else x for x in tensors], 0)


@implements("cat", "concat", "concatenate")
def cat(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> Series:
    """Joined along an axis."""
    example = _first_series(tensors)
    dim = dim if axis is None else axis
    return Series(torch.cat([_constant_coefficients(x, example) for x in tensors], shifted(dim)))


@implements("stack")
def stack(tensors: Sequence[Any], dim: int = 0) -> Series:
    """Joined along a new axis."""
    example = _first_series(tensors)
    return Series(torch.stack([_constant_coefficients(x, example) for x in tensors], shifted(dim)))


def _first_series(tensors: Sequence[Any]) -> Series:
    for x in tensors:
        if isinstance(x, Series):
            return x
    raise TypeError("no series among the operands")


@implements("roll")
def roll(x: Series, shifts: Any, dims: Any = None) -> Series:
    """Entries moved round an axis."""
    if dims is None:
        return reshape(roll(flatten(x), shifts, 0), x.shape)
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    return Series(torch.roll(x.coefficients, shifts, tuple(shifted(d) for d in axes)))


@implements("flip")
def flip(x: Series, *dims: Any) -> Series:
    """Axes reversed."""
    return Series(x.coefficients.flip([shifted(d) for d in _sizes(dims)]))


@implements("tril")
def tril(x: Series, diagonal: int = 0) -> Series:
    """The lower triangle."""
    return Series(x.coefficients.tril(diagonal))


@implements("triu")
def triu(x: Series, diagonal: int = 0) -> Series:
    """The upper triangle."""
    return Series(x.coefficients.triu(diagonal))


@implements("constant_pad_nd")
def constant_pad(x: Series, pad_: Sequence[int], value: float = 0.0) -> Series:
    """Padded with a constant."""
    return pad(x, pad_, value=value)


@implements("pad")
def pad(x: Series, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Series:
    """Padded with a constant, or with entries of its own."""
    c = x.coefficients
    if mode != "constant":
        return each(functional.pad, x, tuple(pad), mode)
    return Series(torch.cat([functional.pad(c[:1], pad, value=value or 0.0), functional.pad(c[1:], pad)]))


@implements("view_as_complex")
def view_as_complex(x: Series) -> Series:
    """Pairs as complex numbers."""
    return Series(torch.view_as_complex(x.coefficients.contiguous()))


@implements("view_as_real")
def view_as_real(x: Series) -> Series:
    """Complex numbers as pairs."""
    return Series(torch.view_as_real(x.coefficients))
