"""Truncated power series that pass through ordinary torch code: Taylor mode.

A `Series` stands for x(τ) = x₀ + x₁τ + … + x_Kτ^K. Functions written with torch run on it unchanged: torch calls
`Series.__torch_function__` for every operation, which looks up what the operation does to coefficients. Pushing the
line H + (α+τ)D through a readout gives all derivatives of the logits along an update at once, without a Hessian and
without reverse mode (derivatives of φ, Eq. directional-coefficients and beyond).

The rules are in `operations` and `layers`, by torch's name of the operation. They cover what the readouts of
language models are made of; an operation without a rule raises `MissingRuleError`, and nested forward mode takes over.
Coefficients are stacked on a leading axis, so that a linear map acts on all of them as one product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from loopscope.errors import LoopscopeError
from loopscope.kernels.choice import Implementation, takes_kernel

Rule = TypeVar("Rule", bound=Callable[..., Any])
RULES: dict[str, Callable[..., Any]] = {}
"""What each operation does to series, by torch's name for it."""

_TAKEN_OUT = "a number taken out of the state no longer depends on it; keep it a tensor."
_RANDOM = "its result is random; draw once and keep what was drawn."
_REFUSED = {
    **dict.fromkeys(("item", "tolist", "numpy"), _TAKEN_OUT),
    **dict.fromkeys(("rand_like", "randn_like", "randint_like", "bernoulli", "normal", "multinomial"), _RANDOM),
}
_FACTS = ("dtype", "device", "requires_grad", "is_cuda", "is_nested")


class MissingRuleError(LoopscopeError):
    """An operation that Taylor mode has no rule for; nested forward mode may know it."""


def implements(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule for torch operations of these names; its parameters have torch's names."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def unsupported(operation: str, why: str = "") -> MissingRuleError:
    """The error for an operation that has no rule."""
    reason = f" ({why})" if why else ""
    return MissingRuleError(
        f"Taylor mode has no rule for the torch operation {operation!r}{reason}; "
        "write the readout without it, or pass impl='nested', which differentiates by nested forward mode."
    )


def refused(operation: str, why: str) -> LoopscopeError:
    """The error for an operation through which the readout has no derivatives."""
    return LoopscopeError(f"a readout with the torch operation {operation!r} has no derivatives here: {why}")


def _operators(name: str) -> Any:
    """An operator with the series on its left, on its right, and in place."""

    def right(self: Series, other: Any) -> Any:
        return RULES[name](other, self)

    def in_place(self: Series, other: Any) -> Series:
        return _written(name, self, RULES[name](self, other))

    return lambda self, other: RULES[name](self, other), right, in_place


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
    def ndim(self) -> int:
        """Number of axes of the value."""
        return self.coefficients.ndim - 1

    @property
    def mT(self) -> Series:  # noqa: N802 - torch's name
        """Transpose of the last two axes."""
        return Series(self.coefficients.mT)

    T = mT

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
        if name in _FACTS:
            return getattr(self.coefficients, name)
        if name.startswith("__") or not callable(getattr(Tensor, name, RULES.get(name))):
            raise AttributeError(f"a Series has no attribute {name!r}")
        return functools.partial(_method(name), self)

    def __repr__(self) -> str:
        return f"Series(order={self.order}, shape={tuple(self.shape)}, dtype={self.dtype})"

    __add__, __radd__, __iadd__ = _operators("add")
    __sub__, __rsub__, __isub__ = _operators("sub")
    __mul__, __rmul__, __imul__ = _operators("mul")
    __truediv__, __rtruediv__, __itruediv__ = _operators("div")
    __pow__, __rpow__, __ipow__ = _operators("pow")
    __matmul__, __rmatmul__, _ = _operators("matmul")
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = (
        _operators(name)[0] for name in ("lt", "le", "gt", "ge", "eq", "ne")
    )
    __hash__ = object.__hash__

    def __neg__(self) -> Series:
        return Series(-self.coefficients)

    def __getitem__(self, index: Any) -> Any:
        return RULES["__getitem__"](self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise unsupported("__setitem__")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(RULES["unbind"](self, 0))

    def __bool__(self) -> bool:
        return bool(self.coefficients[0])

    def __float__(self) -> float:
        raise refused("item", _TAKEN_OUT)

    __int__ = __index__ = __float__


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
    if name in _REFUSED:
        raise refused(name, _REFUSED[name])
    in_place = (name.endswith("_") and not name.endswith("__")) or bool(kwargs.get("inplace"))
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    rule, first = RULES.get(name.removesuffix("_") if in_place else name), args[0] if args else None
    if rule is None or "out" in kwargs or (in_place and not isinstance(first, Series)):
        raise unsupported(name)
    if name in ("to", "type_as") and func is not None and not isinstance(first, Series):
        return func(*map(value_of, args), **kwargs)  # only the dtype of a series matters here
    result = rule(*args, **kwargs)
    return _written(name, first, result) if isinstance(first, Series) and in_place else result


def _written(name: str, target: Series, result: Any) -> Series:
    """Into the coefficients that the target shares with its views."""
    if not isinstance(result, Series) or result.shape != target.shape:
        raise unsupported(name, "in place")
    target.coefficients.copy_(result.coefficients)
    return target


def value_of(x: Any) -> Any:
    """The value of a series; anything else as it is."""
    return x.coefficients[0] if isinstance(x, Series) else x


def lifted(series: Series, ndim: int) -> Tensor:
    """Coefficients with axes of length one put in, so that the value has at least `ndim` axes."""
    c = series.coefficients
    return c if ndim <= series.ndim else c.reshape(c.shape[0], *[1] * (ndim - series.ndim), *c.shape[1:])


def coefficients_of(x: Any, like: Series, ndim: int = 0) -> Tensor:
    """Those of a series, or of a constant that meets one, with at least `ndim` axes of the value."""
    if isinstance(x, Series):
        return lifted(x, ndim)
    # torch's default dtype would round a number before it meets the series.
    value = x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=like.dtype, device=like.device)
    value = value.reshape(*[1] * (ndim - value.ndim), *value.shape)
    return torch.cat([value.unsqueeze(0), torch.zeros_like(value).expand(like.order, *value.shape)])


def cauchy(a: Tensor, b: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Coefficients Σ_i product(a_i, b_{k−i}) of a bilinear map of two series; orders of b are taken together."""
    n = a.shape[0]
    out = product(a[0], b)
    for i in range(1, n):
        out[i:] += product(a[i], b[: n - i])
    return out


def takes_series_kernel(coefficients: Tensor, impl: Implementation | None = None) -> bool:
    """Whether a kernel of `general.kernels` acts on these coefficients: all up to the third in one pass, in float32.

    The plain rules make a pass over memory for every product of two coefficients; on a GPU that would cost about as
    much as the matrix products. The rules that call the kernels have the plain code.
    """
    return 2 <= coefficients.shape[0] <= 4 and takes_kernel(coefficients, impl, (torch.float32,))
