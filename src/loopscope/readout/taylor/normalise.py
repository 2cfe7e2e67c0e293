"""Rules for normalisation: RMS and layer norms, softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.readout.taylor.core import Series, implements, unsupported
from loopscope.readout.taylor.elementwise import add, chain, div, log, mul, rsqrt, square, sub
from loopscope.readout.taylor.kernels import takes_series_kernel
from loopscope.readout.taylor.linear import mean

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
        from loopscope.readout.taylor.kernels.rms_norm import rms_norm as kernel

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
