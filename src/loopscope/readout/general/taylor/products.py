"""Rules for linear maps, products and convolutions; a constant matrix meets all coefficients in one product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.kernels.split_product import is_mixed, mixed_linear
from loopscope.readout.general.taylor.core import Series, cauchy, implements, lifted, multilinear
from loopscope.readout.general.taylor.elementwise import add, mul


@implements("linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Series:
    """The affine map x Wᵀ + b: one product for all coefficients; the bias joins the constant one.

    A float32 series may meet a matrix that is stored in BF16: the product is float32 all the same.
    """
    if not isinstance(input, Series) or isinstance(weight, Series) or isinstance(bias, Series):
        mapped = matmul(input, weight.mT) if weight.ndim > 1 else matmul(input, weight)
        return mapped if bias is None else add(mapped, bias)
    c = input.coefficients
    product = mixed_linear if is_mixed(c, weight) else functional.linear
    # As one matrix: of coefficients that are not neighbours in memory torch would make a product each.
    out = product(c.reshape(-1, c.shape[-1]), weight).reshape(*c.shape[:-1], weight.shape[0])
    if bias is not None:
        out[0] += bias
    return Series(out)


@implements("matmul", "mm", "bmm", "mv", "dot", "vdot", "linalg_matmul")
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


@implements("addmv")
def addmv(input: Any, mat: Any, vec: Any, *, beta: float = 1, alpha: float = 1) -> Series:
    """beta·input + alpha·mat @ vec."""
    return addmm(input, mat, vec, beta=beta, alpha=alpha)


@implements("baddbmm")
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Series:
    """beta·input + alpha·batch1 @ batch2, of many matrices."""
    return addmm(input, batch1, batch2, beta=beta, alpha=alpha)


@implements("addmm")
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Series:
    """beta·input + alpha·mat1 @ mat2."""
    product = matmul(mat1, mat2) if isinstance(mat1, Series) or isinstance(mat2, Series) else mat1 @ mat2
    return add(product * alpha, input * beta)


@implements("addbmm")
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Series:
    """beta·input + alpha·Σ batch1 @ batch2."""
    return add((batch1 @ batch2).sum(0) * alpha, input * beta)


@implements("addr")
def addr(input: Any, vec1: Any, vec2: Any, *, beta: float = 1, alpha: float = 1) -> Series:
    """beta·input + alpha·vec1 vec2ᵀ."""
    return add(vec1.unsqueeze(-1) * vec2 * alpha, input * beta)


@implements("outer", "ger")
def outer(a: Any, b: Any) -> Series:
    """The products of all pairs of entries."""
    return mul(a.unsqueeze(-1), b)


@implements("inner")
def inner(a: Any, b: Any) -> Series:
    """Products summed over the last axes."""
    return multilinear(torch.inner, [a, b])


@implements("tensordot")
def tensordot(a: Any, b: Any, dims: Any = 2) -> Series:
    """Products summed over chosen axes."""
    return multilinear(lambda x, y: torch.tensordot(x, y, dims), [a, b])


@implements("kron")
def kron(a: Any, b: Any) -> Series:
    """Kronecker's product."""
    return multilinear(torch.kron, [a, b])


@implements("linalg_multi_dot")
def multi_dot(tensors: Any) -> Series:
    """A product of several matrices."""
    first, *others = tensors
    for other in others:
        first = first @ other
    return first  # type: ignore[no-any-return]


@implements("bilinear")
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Series:
    """x₁ᵀ W x₂ + b."""
    out = multilinear(functional.bilinear, [input1, input2, weight])
    return out if bias is None else add(out, bias)


@implements("embedding")
def embedding(input: Tensor, weight: Series, *args: Any, **kwargs: Any) -> Series:
    """Rows of a table that depends on the state."""
    return Series(torch.stack([functional.embedding(input, c) for c in weight.coefficients]))


def _convolution(name: str, axes: int) -> Callable[..., Series]:
    """A rule for a convolution over `axes` axes: bilinear in input and weight, with a bias for each channel."""
    function = getattr(functional, name)

    def rule(input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Series:
        out = multilinear(lambda x, w: function(x, w, None, *args, **kwargs), [input, weight])
        return out if bias is None else add(out, bias.reshape(-1, *[1] * axes))

    rule.__doc__ = "A convolution."
    rule.__module__ = __name__
    return rule


for _axes in (1, 2, 3):
    implements(f"conv{_axes}d")(_convolution(f"conv{_axes}d", _axes))
    implements(f"conv_transpose{_axes}d")(_convolution(f"conv_transpose{_axes}d", _axes))


@implements("einsum")
def einsum(equation: str, *operands: Any) -> Series:
    """An Einstein sum."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    places = [i for i, x in enumerate(operands) if isinstance(x, Series)]
    if len(places) > 2 or "->" not in equation:
        return multilinear(lambda *filled: torch.einsum(equation, *filled), list(operands))
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
