"""Rules for linear maps, products and reductions. A constant matrix meets all coefficients in one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.readout.taylor.core import Series, cauchy, implements, lifted, unsupported
from loopscope.readout.taylor.elementwise import add, mul
from loopscope.readout.taylor.structural import shifted
from loopscope.split_product import is_mixed, mixed_linear


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
