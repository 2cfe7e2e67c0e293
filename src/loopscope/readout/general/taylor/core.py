"""Truncated power series that pass through ordinary torch code.

A `Series` stands for x(τ) = x₀ + x₁τ + … + x_Kτ^K. Functions written with torch run on it unchanged: torch calls
`Series.__torch_function__` for every operation, which looks up what the operation does to coefficients. Pushing the
line H + (α+τ)D through a readout gives all derivatives of the logits along an update at once, without a Hessian and
without reverse mode (derivatives of φ, Eq. directional-coefficients and beyond).

Rules for operations are registered by name in the other files of this package: `elementwise`, `structural`, `layers`
and `attention`. Coefficients are stacked on a leading axis, so that a linear map acts on all of
them as one product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.kernels.choice import Implementation, takes_kernel

Handler = Callable[..., Any]
Rule = TypeVar("Rule", bound=Handler)
_HANDLERS: dict[str, Handler] = {}


def implements(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule for the torch operations of these names."""

    def register(handler: Rule) -> Rule:
        for name in names:
            _HANDLERS[name] = handler
        return handler

    return register


def unsupported(operation: str, why: str = "") -> LoopscopeError:
    """The error for an operation that has no rule."""
    reason = f" ({why})" if why else ""
    return LoopscopeError(
        f"Taylor mode has no rule for the torch operation {operation!r}{reason}; "
        "write the readout without it, or pass impl='nested', which differentiates by nested forward mode."
    )


class Series:
    """x(τ) = Σ_k coefficients[k] τ^k, truncated; `coefficients` is [K+1, *shape].

    >>> x = Series.line(torch.tensor([1.0]), torch.tensor([1.0]), order=3)   # x(τ) = 1 + τ
    >>> torch.log(x).coefficients[:, 0].tolist()                            # τ − τ²/2 + τ³/3
    [0.0, 1.0, -0.5, 0.3333333432674408]
    """

    __slots__ = ("coefficients",)

    def __init__(self, coefficients: Tensor) -> None:
        self.coefficients = coefficients

    @classmethod
    def line(cls, base: Tensor, direction: Tensor, order: int) -> Series:
        """The line base + τ·direction, truncated after τ^order."""
        coefficients = torch.zeros(order + 1, *base.shape, dtype=base.dtype, device=base.device)
        coefficients[0] = base
        if order >= 1:
            coefficients[1] = direction
        return cls(coefficients)

    @property
    def order(self) -> int:
        """K, the highest power kept."""
        return int(self.coefficients.shape[0]) - 1

    def derivative(self, k: int) -> Tensor:
        """The k-th derivative at τ = 0, k! times the coefficient."""
        return self.coefficients[k] * float(math.factorial(k))

    @property
    def shape(self) -> torch.Size:
        """Shape of the value."""
        return self.coefficients.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the coefficients."""
        return self.coefficients.dtype

    @property
    def device(self) -> torch.device:
        """Device of the coefficients."""
        return self.coefficients.device

    @property
    def ndim(self) -> int:
        """Number of axes of the value."""
        return self.coefficients.ndim - 1

    @property
    def requires_grad(self) -> bool:
        """Whether reverse mode is recording as well."""
        return self.coefficients.requires_grad

    @property
    def is_cuda(self) -> bool:
        """Whether the coefficients are on a CUDA device."""
        return self.coefficients.is_cuda

    @property
    def T(self) -> Series:  # noqa: N802 - torch's name
        """Transpose of a matrix."""
        return cast(Series, _HANDLERS["t"](self))

    @property
    def mT(self) -> Series:  # noqa: N802 - torch's name
        """Transpose of the last two axes."""
        return Series(self.coefficients.mT)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        handler = _HANDLERS.get(name)
        if handler is None:
            raise unsupported(name)
        return handler(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        handler = _HANDLERS.get(name)
        if handler is not None:
            return lambda *args, **kwargs: handler(self, *args, **kwargs)
        if name.startswith("__") or not callable(getattr(Tensor, name, None)):
            raise AttributeError(f"a Series has no attribute {name!r}")

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise unsupported(name)

        return refuse

    def __repr__(self) -> str:
        return f"Series(order={self.order}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def __add__(self, other: Any) -> Any:
        return _HANDLERS["add"](self, other)

    def __radd__(self, other: Any) -> Any:
        return _HANDLERS["add"](other, self)

    def __sub__(self, other: Any) -> Any:
        return _HANDLERS["sub"](self, other)

    def __rsub__(self, other: Any) -> Any:
        return _HANDLERS["sub"](other, self)

    def __mul__(self, other: Any) -> Any:
        return _HANDLERS["mul"](self, other)

    def __rmul__(self, other: Any) -> Any:
        return _HANDLERS["mul"](other, self)

    def __truediv__(self, other: Any) -> Any:
        return _HANDLERS["div"](self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _HANDLERS["div"](other, self)

    def __pow__(self, other: Any) -> Any:
        return _HANDLERS["pow"](self, other)

    def __rpow__(self, other: Any) -> Any:
        return _HANDLERS["pow"](other, self)

    def __matmul__(self, other: Any) -> Any:
        return _HANDLERS["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _HANDLERS["matmul"](other, self)

    def __neg__(self) -> Series:
        return Series(-self.coefficients)

    def __getitem__(self, index: Any) -> Any:
        return _HANDLERS["__getitem__"](self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise unsupported("__setitem__", "writing in place; build the result with cat or stack")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(_HANDLERS["unbind"](self, 0))

    def __bool__(self) -> bool:
        raise unsupported("__bool__", "a decision that depends on the state is not smooth")

    def __lt__(self, other: Any) -> Any:
        raise unsupported("lt", "a comparison is not smooth")

    __le__ = __gt__ = __ge__ = __lt__


def constant_like(value: Any, series: Series) -> Tensor:
    """A plain tensor for a number or tensor that meets a series."""
    return value if isinstance(value, Tensor) else torch.as_tensor(value, device=series.device)


def lifted(series: Series, ndim: int) -> Tensor:
    """Coefficients with axes of length one put in, so that the value has at least `ndim` axes."""
    c = series.coefficients
    missing = ndim - series.ndim
    return c if missing <= 0 else c.reshape(c.shape[0], *([1] * missing), *c.shape[1:])


def cauchy(a: Tensor, b: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Coefficients Σ_i product(a_i, b_{k−i}) of a bilinear map of two series; orders of b are taken together."""
    n = a.shape[0]
    out = product(a[0], b)
    for i in range(1, n):
        out[i:] += product(a[i], b[: n - i])
    return out


HIGHEST_KERNEL_ORDER = 3


def takes_series_kernel(coefficients: Tensor, impl: Implementation | None = None) -> bool:
    """Whether a kernel of `taylor.kernels` acts on these coefficients: all up to the third in one pass, in float32.

    The plain rules make a pass over memory for every product of two coefficients; on a GPU that would cost about as
    much as the matrix products. The rules that call the kernels have the plain code.
    """
    few = 2 <= coefficients.shape[0] <= HIGHEST_KERNEL_ORDER + 1
    return few and takes_kernel(coefficients, impl, (torch.float32,))
