"""Rules for activations: smooth ones, and those made of pieces with what is taken where the pieces meet.

A piece is chosen by the value, and all coefficients are that piece's. Where two pieces meet, the piece is the one whose
slope torch's own backward takes there; `kink` says which.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loopscope.readout.general.taylor.core import Series, implements, refused
from loopscope.readout.general.taylor.elementwise import (
    add,
    chain,
    div,
    exp,
    expm1,
    mul,
    neg,
    power,
    sigmoid,
    square,
    sub,
    tanh,
    with_slope,
)
from loopscope.readout.general.taylor.piecewise import absolute, value_of, where


@implements("silu")
def silu(x: Series) -> Series:
    """x·σ(x)."""
    return mul(x, sigmoid(x))


@implements("gelu")
def gelu(x: Series, approximate: str = "none") -> Series:
    """x·Φ(x), or its tanh approximation."""
    if approximate == "tanh":
        inner = mul(add(x, mul(power(x, 3), 0.044715)), math.sqrt(2.0 / math.pi))
        return mul(mul(x, add(tanh(inner), 1.0)), 0.5)
    density = mul(exp(mul(square(x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi)).coefficients
    normal = chain(x, 0.5 * torch.erfc(x.coefficients[0] * -math.sqrt(0.5)), lambda y: density[len(y) - 1])
    return mul(x, normal)


@implements("softplus", kink="the soft side, e^−threshold off")
def softplus(x: Series, beta: float = 1.0, threshold: float = 20.0) -> Series:
    """log(1 + e^{βx})/β, with g = σ(βx); x itself above the threshold, as torch has it."""
    soft = with_slope(x, functional.softplus(x.coefficients[0], beta, threshold), sigmoid(mul(x, beta)))
    return where(x.coefficients[0] * beta > threshold, x, soft)


@implements("log_sigmoid")
def logsigmoid(x: Series) -> Series:
    """The logarithm of σ(x), with g = σ(−x)."""
    return with_slope(x, functional.logsigmoid(x.coefficients[0]), sigmoid(neg(x)))


@implements("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout")
def dropout(x: Series, p: float = 0.5, training: bool = True) -> Series:
    """The identity, which is what dropout is outside training."""
    if training and p > 0.0:
        raise refused("dropout", "it is random in training; call model.eval().")
    return x


@implements("rand_like", "randn_like", "randint_like", "bernoulli", "normal", "multinomial", "gumbel_softmax")
def random(x: Any, *args: Any, **kwargs: Any) -> Any:
    """Refused: φ would compare two draws."""
    raise refused("rand_like", "its result is random; draw once and keep what was drawn.")


@implements("mish")
def mish(x: Series) -> Series:
    """x·tanh(softplus(x))."""
    return mul(x, tanh(softplus(x)))


@implements("glu")
def glu(x: Series, dim: int = -1) -> Series:
    """The first half times σ of the second."""
    first, second = x.chunk(2, dim)
    return mul(first, sigmoid(second))


@implements("softsign", kink="0: slope 0 of |x|, so 1")
def softsign(x: Series) -> Series:
    """X / (1 + |x|)."""
    return div(x, add(absolute(x), 1.0))


@implements("tanhshrink")
def tanhshrink(x: Series) -> Series:
    """X − tanh x."""
    return sub(x, tanh(x))


@implements("relu", kink="0: the flat side, 0")
def relu(x: Series) -> Series:
    """X where positive, else 0."""
    return where(value_of(x) > 0, x, 0.0)


@implements("leaky_relu", kink="0: the negative side, slope negative_slope")
def leaky_relu(x: Series, negative_slope: float = 0.01) -> Series:
    """X where positive, else negative_slope·x."""
    return where(value_of(x) > 0, x, mul(x, negative_slope))


@implements("prelu", kink="0: the negative side, slope weight")
def prelu(x: Series, weight: Tensor) -> Series:
    """X where positive, else weight·x, with one weight for each channel (axis 1) or one for all."""
    slopes = weight if weight.numel() == 1 else weight.reshape(-1, *[1] * (x.ndim - 2))
    return where(value_of(x) > 0, x, mul(x, slopes))


@implements("rrelu", kink="0: the negative side, slope (lower + upper)/2")
def rrelu(x: Series, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Series:
    """X where positive, else (lower + upper)/2·x, which is what it is outside training."""
    if training:
        raise refused("rrelu", "it is random in training; call model.eval().")
    return leaky_relu(x, (lower + upper) / 2)


@implements("elu", kink="0: the exponential side, slope alpha")
def elu(x: Series, alpha: float = 1.0, *, scale: float = 1.0, width: float = 1.0) -> Series:
    """X where positive, else alpha·(e^x − 1)."""
    below = where(value_of(x) > 0, 0.0, x)  # where it is not wanted, e^x may overflow
    return mul(where(value_of(x) > 0, x, mul(expm1(mul(below, 1.0 / width)), alpha)), scale)


@implements("celu", kink="0: the exponential side, slope 1")
def celu(x: Series, alpha: float = 1.0) -> Series:
    """X where positive, else alpha·(e^{x/alpha} − 1)."""
    return elu(x, alpha, width=alpha)


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@implements("selu", kink="0: the exponential side, slope 1.758…")
def selu(x: Series) -> Series:
    """1.0507… times elu with alpha 1.6732…."""
    return elu(x, _SELU_ALPHA, scale=_SELU_SCALE)


@implements("hardtanh", kink="the bounds: the flat side, 0")
def hardtanh(x: Series, min_val: float = -1.0, max_val: float = 1.0) -> Series:
    """X between the bounds."""
    v = value_of(x)
    return where((v > min_val) & (v < max_val), x, v.clamp(min_val, max_val))


@implements("relu6", kink="0 and 6: the flat side, 0")
def relu6(x: Series) -> Series:
    """X between 0 and 6."""
    return hardtanh(x, 0.0, 6.0)


@implements("hardsigmoid", kink="−3 and 3: the flat side, 0")
def hardsigmoid(x: Series) -> Series:
    """x/6 + 1/2 between 0 and 1."""
    v = value_of(x)
    return where((v > -3) & (v < 3), add(mul(x, 1.0 / 6.0), 0.5), functional.hardsigmoid(v))


@implements("hardswish", kink="−3: the flat side, 0; 3: the linear side, 1")
def hardswish(x: Series) -> Series:
    """X times hardsigmoid."""
    v = value_of(x)
    return where(v <= -3, 0.0, where(v >= 3, x, mul(x, add(mul(x, 1.0 / 6.0), 0.5))))


@implements("threshold", "_threshold", kink="the threshold: the flat side, 0")
def threshold(x: Series, threshold: float, value: float) -> Series:
    """X above the threshold, else a value."""
    return where(value_of(x) > threshold, x, value)


@implements("hardshrink", kink="±lambd: the flat side, 0")
def hardshrink(x: Series, lambd: float = 0.5) -> Series:
    """X where it is larger than lambd in size, else 0."""
    return where(value_of(x).abs() > lambd, x, 0.0)


@implements("softshrink", kink="±lambd: the flat side, 0")
def softshrink(x: Series, lambd: float = 0.5) -> Series:
    """X moved by lambd towards 0, and 0 within lambd of it."""
    v = value_of(x)
    return where(v.abs() > lambd, sub(x, v.sign() * lambd), 0.0)
