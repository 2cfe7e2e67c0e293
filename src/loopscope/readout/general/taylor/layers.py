"""Rules for the operations that layers are made of: linear maps, products, reductions, norms, softmax, whole blocks.

A constant matrix meets all coefficients in one product. A model that offers `gated_silu_joined` and `rotate_own`
through torch's own protocol (`__torch_function__`) gets the rules for these whole operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.kernels.split_product import is_mixed, mixed_linear
from loopscope.readout.general.taylor.core import Series, cauchy, implements, lifted, takes_series_kernel, unsupported
from loopscope.readout.general.taylor.elementwise import add, chain, div, log, mul, rsqrt, silu, square, sub
from loopscope.readout.general.taylor.structural import shifted


@implements("linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Series:
    """The affine map x Wᵀ + b: one product for all coefficients; the bias joins the constant one.

    A float32 series may meet a matrix that is stored in BF16: the product is float32 all the same.
    """
    if not isinstance(input, Series) or isinstance(weight, Series) or isinstance(bias, Series):
        raise unsupported("linear", "a weight or bias that depends on the state")
    c = input.coefficients
    product = mixed_linear if is_mixed(c, weight) else functional.linear
    # As one matrix: of coefficients that are not neighbours in memory torch would make a product each.
    out = product(c.reshape(-1, c.shape[-1]), weight).reshape(*c.shape[:-1], weight.shape[0])
    if bias is not None:
        out[0] += bias
    return Series(out)


@implements("matmul", "mm", "bmm", "mv", "dot")
def matmul(a: Any, b: Any) -> Series:
    """A product of matrices, either of them a series or both."""
    row, column = a.ndim == 1, b.ndim == 1
    if row:
        a = a.unsqueeze(0)
    if column:
        b = b.unsqueeze(-1)
    ndim = max(a.ndim, b.ndim)
    if isinstance(a, Series) and isinstance(b, Series):
        out = cauchy(lifted(a, ndim), lifted(b, ndim), torch.matmul)
    elif isinstance(a, Series):
        out = torch.matmul(lifted(a, ndim), b)
    else:
        out = torch.matmul(a, lifted(b, ndim))
    if row:
        out = out.squeeze(-2)
    if column:
        out = out.squeeze(-1)
    return Series(out)


@implements("addmm")
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Series:
    """beta·input + alpha·mat1 @ mat2."""
    return add(mul(matmul(mat1, mat2), alpha), input * beta)


@implements("einsum")
def einsum(equation: str, *operands: Any) -> Series:
    """An Einstein sum with at most two series among its operands."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "->" not in equation:
        raise unsupported("einsum", "write the equation as a string with '->'")
    places = [i for i, x in enumerate(operands) if isinstance(x, Series)]
    if len(places) > 2:
        raise unsupported("einsum", "more than two series in one product")
    letter = next(c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in equation)
    inputs, output = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    last = places[-1]
    terms[last] = letter + terms[last]
    batched = f"{','.join(terms)}->{letter}{output}"

    def product(*coefficients: Tensor) -> Tensor:
        filled = list(operands)
        for place, c in zip(places, coefficients, strict=True):
            filled[place] = c
        return torch.einsum(batched, *filled)

    if len(places) == 1:
        return Series(product(operands[last].coefficients))
    return Series(cauchy(operands[places[0]].coefficients, operands[last].coefficients, product))


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


_WIDEST_KERNEL = 1 << 14


@implements("rms_norm")
def rms_norm(
    input: Series, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Series:
    """The input over √(mean x² + ε), times the weight."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    epsilon = torch.finfo(input.dtype).eps if eps is None else eps
    same = weight is None or weight.dtype == input.dtype
    if same and len(axes) == 1 and input.shape[-1] <= _WIDEST_KERNEL and takes_series_kernel(input.coefficients):
        from loopscope.readout.general.taylor.kernels import rms_norm as kernel

        return Series(kernel(input.coefficients, weight, epsilon))
    out = mul(input, rsqrt(add(mean(square(input), axes, keepdim=True), epsilon)))
    return out if weight is None else mul(out, weight)


@implements("layer_norm")
def layer_norm(
    input: Series,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Series:
    """(x − mean) / √(var + ε), times the weight, plus the bias."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    centred = sub(input, mean(input, axes, keepdim=True))
    out = mul(centred, rsqrt(add(mean(square(centred), axes, keepdim=True), eps)))
    out = out if weight is None else mul(out, weight)
    return out if bias is None else add(out, bias)


@implements("softmax")
def softmax(input: Series, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Series:
    """Softmax along an axis."""
    if dim is None:
        raise unsupported("softmax", "give dim")
    axis = _axis(input, dim)
    weights, total = exponentials(input.coefficients if dtype is None else input.coefficients.to(dtype), axis)
    return div(weights, total)


def _axis(x: Series, dim: int) -> int:
    """The axis counted from the end, where coefficients do not shift it."""
    return dim if dim < 0 else dim - x.ndim


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
    weights = chain(moved, w0, lambda y: y[-1])
    total = weights.coefficients.sum(axis, keepdim=True)
    # A row that is masked everywhere has no weights; dividing by one leaves the zeros that torch gives there.
    total = torch.cat([torch.where(total[:1] == 0, torch.ones_like(total[:1]), total[:1]), total[1:]])
    return weights, Series(total)


@implements("logsumexp", "special_logsumexp")
def logsumexp(x: Series, dim: int, keepdim: bool = False) -> Series:
    """The logarithm of Σ e^x along an axis."""
    axis = _axis(x, dim)
    c = x.coefficients
    weights, total = exponentials(c, axis)
    mass = weights.coefficients[0]
    centre = (mass * c[1:]).sum(axis, keepdim=True) / total.coefficients[0]
    top = c[0].amax(axis, keepdim=True)
    out = add(log(total), Series(torch.cat([top.unsqueeze(0), centre])))
    return out if keepdim else Series(out.coefficients.squeeze(axis))


@implements("log_softmax")
def log_softmax(
    input: Series, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Series:
    """The input less log Σ e^x along an axis."""
    if dim is None:
        raise unsupported("log_softmax", "give dim")
    x = input if dtype is None else Series(input.coefficients.to(dtype))
    return sub(x, logsumexp(x, _axis(x, dim), keepdim=True))


@implements("gated_silu_joined")
def gated_silu_joined(both: Series, plain: bool = False, impl: Any = None) -> Series:
    """silu(gate) · up from gate and up side by side, [..., 2F] → [..., F], gate first."""
    c = both.coefficients
    if takes_series_kernel(c, impl):
        from loopscope.readout.general.taylor.kernels import gated_silu

        return Series(gated_silu(c))
    inner = both.shape[-1] // 2
    return mul(silu(Series(c[..., :inner])), Series(c[..., inner:]))


@implements("rotate_own")
def rotate_own(x: Series, tables: Any, bias: Tensor | None = None, impl: Any = None) -> Series:
    """Pairs of entries turned by the angles of `tables` (cos, sin, layout): linear, each coefficient by itself.

    A bias is turned by itself and joins the constant coefficient.
    """
    out = _rotated(x.coefficients, tables)
    if bias is not None:
        out[0] += _rotated(bias, tables)
    return Series(out)


def _rotated(c: Tensor, tables: Any) -> Tensor:
    """(a, b) → (a cos − b sin, b cos + a sin)."""
    if tables.layout == "interleaved" and c.dtype == tables.cos.dtype:
        # Neighbours as complex numbers: one pass over memory.
        rotation = torch.complex(tables.cos[..., ::2], tables.sin[..., ::2])
        return torch.view_as_real(_as_complex(c) * rotation).flatten(-2)
    straight: Tensor = c * tables.cos
    crossed: Tensor = c * tables.sin
    half = c.shape[-1] // 2
    split = tables.layout == "half"
    one, two = (slice(None, half), slice(half, None)) if split else (slice(0, None, 2), slice(1, None, 2))
    straight[..., one] -= crossed[..., two]
    straight[..., two] += crossed[..., one]
    return straight.to(c.dtype)


def _as_complex(c: Tensor) -> Tensor:
    pairs = c.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    even = c.storage_offset() % 2 == 0 and all(stride % 2 == 0 for stride in pairs.stride()[:-1])
    return torch.view_as_complex(pairs if even and pairs.stride(-1) == 1 else pairs.contiguous())
