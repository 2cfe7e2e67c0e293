"""Rules for copies, dtypes and devices, and for what a tensor says of itself."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor

from loopscope.readout.general.taylor.core import Series, implements


@implements("contiguous")
def contiguous(x: Series, *args: Any, **kwargs: Any) -> Series:
    """The same entries, laid out afresh if need be."""
    return x if x.coefficients[0].is_contiguous() else Series(x.coefficients.contiguous())


@implements("clone")
def clone(x: Series, *args: Any, **kwargs: Any) -> Series:
    """A copy."""
    return Series(x.coefficients.clone())


@implements("is_contiguous")
def is_contiguous(x: Series, *args: Any, **kwargs: Any) -> bool:
    """Whether the entries lie in order."""
    return x.coefficients[0].is_contiguous(*args, **kwargs)


@implements("stride")
def stride(x: Series, *args: Any) -> Any:
    """Steps in memory from one entry of an axis to the next."""
    return x.coefficients[0].stride(*args)


@implements("get_device")
def get_device(x: Series) -> int:
    """The number of the device."""
    return x.coefficients.get_device()


@implements("to", "type")
def to(x: Series, *args: Any, **kwargs: Any) -> Series:
    """Another dtype or device."""
    converted: list[Any] = [a.coefficients if isinstance(a, Series) else a for a in args]
    return Series(x.coefficients.to(*converted, **kwargs))


@implements("type_as")
def type_as(x: Series, other: Any) -> Series:
    """The dtype of another."""
    return Series(x.coefficients.to(other.dtype))


@implements("float")
def to_float(x: Series) -> Series:
    """In float32."""
    return Series(x.coefficients.float())


@implements("double")
def to_double(x: Series) -> Series:
    """In float64."""
    return Series(x.coefficients.double())


@implements("detach")
def detach(x: Series) -> Tensor:
    """The value alone, as a constant: what detaching means to any derivative."""
    return x.coefficients[0].detach()


@implements("size")
def size(x: Series, dim: int | None = None) -> Any:
    """Shape, or one length of it."""
    return x.shape if dim is None else x.shape[dim]


@implements("dim", "ndimension")
def dim(x: Series) -> int:
    """Number of axes."""
    return x.ndim


@implements("numel", "nelement")
def numel(x: Series) -> int:
    """Number of entries of the value."""
    return x.shape.numel()


@implements("is_floating_point")
def is_floating_point(x: Series) -> bool:
    """Whether the dtype is a floating-point one."""
    return x.dtype.is_floating_point


@implements("element_size")
def element_size(x: Series) -> int:
    """Bytes of one entry."""
    return operator.index(x.coefficients.element_size())


@implements("is_complex")
def is_complex(x: Series) -> bool:
    """Whether the dtype is a complex one."""
    return x.dtype.is_complex
