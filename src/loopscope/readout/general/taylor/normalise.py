"""Rules for norms of layers, softmax and its logarithm.

Norms that torch's own nested differentiation gets wrong are written for tensors and series alike; `nested` uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.readout.general.taylor.core import Series, implements, refused, takes_series_kernel, unsupported
from loopscope.readout.general.taylor.elementwise import add, chain, div, log, mul, neg, rsqrt, square, sub
from loopscope.readout.general.taylor.piecewise import clamp_min
from loopscope.readout.general.taylor.reductions import mean, vector_norm

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
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """(x − mean) / √(var + ε), times the weight, plus the bias."""
    out = _standardised(input, tuple(range(-len(tuple(normalized_shape)), 0)), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _standardised(x: Any, axes: Any, eps: float) -> Any:
    """(x − mean) / √(var + ε) over axes."""
    centred = x - x.mean(axes, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)


def _by_channel(x: Any, weight: Any, bias: Any) -> Any:
    """Times a weight and plus a bias for each channel, which is the second axis."""
    shape = (-1, *[1] * (x.ndim - 2))
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


@implements("group_norm")
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """(x − mean) / √(var + ε) over groups of channels, times the weight, plus the bias."""
    groups = input.reshape(input.shape[0], num_groups, -1)
    return _by_channel(_standardised(groups, -1, eps).reshape(*input.shape), weight, bias)


@implements("instance_norm")
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """(x − mean) / √(var + ε) of each channel of each row, or by means and variances that are stored."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    return _by_channel(_standardised(input, tuple(range(2, input.ndim)), eps), weight, bias)


@implements("batch_norm")
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """(x − mean) / √(var + ε) by means and variances that are stored."""
    if training:
        raise refused("batch_norm", "a row's logits would depend on the other rows; call model.eval().")
    scale = (running_var + eps).rsqrt()
    return _by_channel(_by_channel(input, scale, -running_mean * scale), weight, bias)


@implements("local_response_norm")
def local_response_norm(input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    """X over a power of the mean square of neighbouring channels."""
    spread = [0, 0] * (input.ndim - 2) + [size // 2, (size - 1) // 2]
    windows = functional.pad(input.square(), spread).unfold(1, size, 1).mean(-1)
    return input / (windows * alpha + k) ** beta


@implements("normalize", kink="0: x/eps")
def normalize(input: Series, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Series:
    """X over its norm along an axis, or over eps where that is larger."""
    return div(input, clamp_min(vector_norm(input, p, dim, True), eps))


@implements("softmin")
def softmin(input: Series, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Series:
    """Softmax of −x."""
    return softmax(neg(input), dim, dtype=dtype)


@implements("softmax", "special_softmax")
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
def logsumexp(x: Series, dim: Any, keepdim: bool = False) -> Series:
    """The logarithm of Σ e^x along axes."""
    if not isinstance(dim, int):
        for d in sorted((d % x.ndim for d in dim), reverse=True):
            x = logsumexp(x, d, keepdim)
        return x
    axis = _axis(x, dim)
    c = x.coefficients
    weights, total = exponentials(c, axis)
    mass = weights.coefficients[0]
    centre = (mass * c[1:]).sum(axis, keepdim=True) / total.coefficients[0]
    top = c[0].amax(axis, keepdim=True)
    out = add(log(total), Series(torch.cat([top.unsqueeze(0), centre])))
    return out if keepdim else Series(out.coefficients.squeeze(axis))


@implements("log_softmax", "special_log_softmax")
def log_softmax(
    input: Series, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Series:
    """The input less log Σ e^x along an axis."""
    if dim is None:
        raise unsupported("log_softmax", "give dim")
    x = input if dtype is None else Series(input.coefficients.to(dtype))
    return sub(x, logsumexp(x, _axis(x, dim), keepdim=True))
