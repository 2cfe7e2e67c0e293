"""Truncated power series that pass through ordinary torch code.

A `Series` stands for x(τ) = x₀ + x₁τ + … + x_Kτ^K. Functions written with torch run on it unchanged: torch calls
`Series.__torch_function__` for every operation, which looks up what the operation does to coefficients. Pushing the
line H + (α+τ)D through a readout gives all derivatives of the logits along an update at once, without a Hessian and
without reverse mode (derivatives of φ, Eq. directional-coefficients and beyond).

Rules for operations are registered by name in the other files of this package. Coefficients are stacked on a leading
axis, so that a linear map acts on all of them as one product. Operations in place write into the coefficients, so that
views of a series see what is written into it, as torch's do.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from loopscope.errors import LoopscopeError
from loopscope.kernels.choice import Implementation, takes_kernel

Handler = Callable[..., Any]
Rule = TypeVar("Rule", bound=Handler)
_HANDLERS: dict[str, Handler] = {}
KINKS: dict[str, str] = {}
"""By the name of an operation that is not smooth: what is taken where it is not."""


class MissingRuleError(LoopscopeError):
    """An operation that Taylor mode has no rule for; nested forward mode may know it."""


def implements(*names: str, kink: str = "") -> Callable[[Rule], Rule]:
    """Register the rule for torch operations of these names; `kink` says what is taken where they are not smooth."""

    def register(handler: Rule) -> Rule:
        for name in names:
            _HANDLERS[name] = handler
            if kink:
                KINKS[name] = kink
        return handler

    return register


def operations() -> dict[str, Handler]:
    """Every operation that has a rule, by torch's name for it."""
    return dict(_HANDLERS)


def unsupported(operation: str, why: str = "") -> MissingRuleError:
    """The error for an operation that has no rule."""
    reason = f" ({why})" if why else ""
    return MissingRuleError(
        f"Taylor mode has no rule for the torch operation {operation!r}{reason}; "
        "write the readout without it, or pass impl='nested', which differentiates by nested forward mode."
    )


def refused(operation: str, why: str) -> LoopscopeError:
    """The error for an operation through which no way of differentiating gives the readout's derivatives."""
    return LoopscopeError(f"a readout with the torch operation {operation!r} has no derivatives here: {why}")


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

    @property
    def data(self) -> Tensor:
        """The value alone, as a constant."""
        return self.coefficients[0].detach()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _call(getattr(func, "__name__", str(func)), func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name in _PLAIN_FACTS:
            return _PLAIN_FACTS[name]
        if name.startswith("__") or (name not in _HANDLERS and not callable(getattr(Tensor, name, None))):
            raise AttributeError(f"a Series has no attribute {name!r}")
        return functools.partial(_method(name), self)

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

    def __pos__(self) -> Series:
        return self

    def __neg__(self) -> Series:
        return Series(-self.coefficients)

    def __mod__(self, other: Any) -> Any:
        return _HANDLERS["remainder"](self, other)

    def __abs__(self) -> Any:
        return _HANDLERS["abs"](self)

    def __iadd__(self, other: Any) -> Series:
        return _in_place(self, self + other)

    def __isub__(self, other: Any) -> Series:
        return _in_place(self, self - other)

    def __imul__(self, other: Any) -> Series:
        return _in_place(self, self * other)

    def __itruediv__(self, other: Any) -> Series:
        return _in_place(self, self / other)

    def __ipow__(self, other: Any) -> Series:
        return _in_place(self, self**other)

    def __lt__(self, other: Any) -> Any:
        return _HANDLERS["lt"](self, other)

    def __le__(self, other: Any) -> Any:
        return _HANDLERS["le"](self, other)

    def __gt__(self, other: Any) -> Any:
        return _HANDLERS["gt"](self, other)

    def __ge__(self, other: Any) -> Any:
        return _HANDLERS["ge"](self, other)

    def __eq__(self, other: Any) -> Any:
        return _HANDLERS["eq"](self, other)

    def __ne__(self, other: Any) -> Any:
        return _HANDLERS["ne"](self, other)

    __hash__ = object.__hash__

    def __getitem__(self, index: Any) -> Any:
        return _HANDLERS["__getitem__"](self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _HANDLERS["__setitem__"](self, index, value)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(_HANDLERS["unbind"](self, 0))

    def __bool__(self) -> bool:
        return bool(self.coefficients[0])

    def __float__(self) -> float:
        return cast(float, _HANDLERS["item"](self))

    __int__ = __index__ = __float__


_PLAIN_FACTS: dict[str, Any] = {
    **dict.fromkeys(("is_nested", "is_sparse", "is_quantized", "is_meta", "is_mkldnn"), False),
    "layout": torch.strided,
}
_RESHAPING = ("squeeze_", "unsqueeze_", "transpose_", "swapaxes_", "swapdims_", "t_")
# Of a plain tensor and a series, these look only at the shape and dtype of the series.
_LOOKING = ("to", "type_as", "view_as", "reshape_as", "expand_as")


@functools.cache
def _method(name: str) -> Callable[..., Any]:
    """A method of tensors, for a series; modes that listen to torch's functions hear of it too."""

    def method(self: Series, *args: Any, **kwargs: Any) -> Any:
        if torch._C._len_torch_function_stack():
            return handle_torch_function(method, (self,), self, *args, **kwargs)
        return _call(name, None, (self, *args), kwargs)

    method.__name__ = name
    return method


def _call(name: str, func: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation does to a series: its rule, its rule in place, or the error that names it."""
    kwargs = dict(kwargs)
    args = _positional(args, kwargs)
    if kwargs.pop("inplace", False):
        name += "_"
    target, target_name = kwargs.pop("out", None), name
    if name.endswith("_") and not name.endswith("__") and name not in _HANDLERS:
        target, name = args[0], name[:-1]
    rule = _HANDLERS.get(name)
    if rule is None:
        raise unsupported(target_name)
    if name in _LOOKING and func is not None and not isinstance(args[0], Series):
        return func(*(x.coefficients[0] if isinstance(x, Series) else x for x in args), **kwargs)
    if target is None:
        return rule(*args, **kwargs)
    if not isinstance(target, Series):
        raise unsupported(target_name, "writing what depends on the state into a tensor that does not")
    result = rule(*args, **kwargs)
    if target_name in _RESHAPING:
        target.coefficients = result.coefficients
        return target
    return _in_place(target, result)


def _positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """With the first operands, where they were given by name."""
    for count, names in enumerate((("input", "tensor", "tensors"), ("other",))):
        given = [name for name in names if name in kwargs]
        if len(args) == count and given:
            args = (*args, kwargs.pop(given[0]))
    return args


def _in_place(target: Series, result: Any) -> Series:
    """Written into the coefficients that the target shares with its views."""
    if isinstance(result, Series):
        target.coefficients.copy_(result.coefficients)
    else:
        target.coefficients[0].copy_(constant_like(result, target))
        target.coefficients[1:].zero_()
    return target


def constant_like(value: Any, series: Series) -> Tensor:
    """A plain tensor for a number or tensor that meets a series."""
    if isinstance(value, Tensor):
        return value
    # torch's default dtype would round the number before it meets the series.
    dtype = series.dtype if isinstance(value, float) else None
    return torch.as_tensor(value, dtype=dtype, device=series.device)


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


def multilinear(function: Callable[..., Tensor], operands: list[Any]) -> Series:
    """A map that is linear in each operand by itself: its k-th coefficient sums over orders that add up to k."""
    places = [i for i, x in enumerate(operands) if isinstance(x, Series)]
    n = operands[places[0]].coefficients.shape[0]
    found: list[Tensor | None] = [None] * n
    for orders in itertools.product(range(n), repeat=len(places)):
        k = sum(orders)
        if k >= n:
            continue
        filled = list(operands)
        for place, order in zip(places, orders, strict=True):
            filled[place] = operands[place].coefficients[order]
        term, before = function(*filled), found[k]
        found[k] = term if before is None else before + term
    return Series(torch.stack([c for c in found if c is not None]))


def each(function: Callable[..., Any], x: Series, *args: Any, **kwargs: Any) -> Series:
    """A map that is linear in its first argument: each coefficient by itself."""
    return Series(torch.stack([function(c, *args, **kwargs) for c in x.coefficients]))


def constant_series(value: Tensor, order: int) -> Series:
    """A value that does not depend on the state, as a series that may be written into."""
    return Series(torch.cat([value.unsqueeze(0), torch.zeros_like(value).expand(order, *value.shape)]))


HIGHEST_KERNEL_ORDER = 3


def takes_series_kernel(coefficients: Tensor, impl: Implementation | None = None) -> bool:
    """Whether a kernel of `taylor.kernels` acts on these coefficients: all up to the third in one pass, in float32.

    The plain rules make a pass over memory for every product of two coefficients; on a GPU that would cost about as
    much as the matrix products. The rules that call the kernels have the plain code.
    """
    few = 2 <= coefficients.shape[0] <= HIGHEST_KERNEL_ORDER + 1
    return few and takes_kernel(coefficients, impl, (torch.float32,))
