"""Derivatives along a line by nesting forward mode: for readouts with operations that Taylor mode does not know."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp
from torch.overrides import TorchFunctionMode

from loopscope.errors import LoopscopeError
from loopscope.readout.hessian_vector import differentiable_attention


def nested_derivatives(
    function: Callable[[Tensor], Tensor], base: Tensor, direction: Tensor, order: int
) -> list[Tensor]:
    """f, f', … at τ = 0 of f(τ) = function(base + τ·direction), each one more forward differentiation of the last."""
    at = torch.zeros((), dtype=base.dtype, device=base.device)
    one = torch.ones_like(at)

    def deepen(level: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
        if level == 0:
            return lambda tau: (function(base + tau * direction),)
        lower = deepen(level - 1)

        def higher(tau: Tensor) -> tuple[Tensor, ...]:
            values, slopes = jvp(lower, (tau,), (one,))  # type: ignore[misc]
            return (*values, slopes[-1])

        return higher

    # Some of torch's forward-mode formulas (silu's) can be differentiated again only where gradients are enabled.
    with torch.enable_grad(), differentiable_attention(), warnings.catch_warnings():
        # torch compiles its own forward-mode formulas on first use, by a way that it deprecates.
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
        with _RightNorms():
            return [derivative.detach() for derivative in deepen(order)(at)]


class _RightNorms(TorchFunctionMode):
    """Keeps torch's fused normalisations out of nested forward mode, which differentiates them wrongly.

    Their forward-mode formula takes the saved mean and variance for constants, so that second and higher derivatives
    come out silently wrong (seen in torch 2.13). Layer norm is written out; the others are refused.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "layer_norm":
            return _layer_norm(*args, **kwargs)
        if name in ("native_layer_norm", "instance_norm", "batch_norm", "native_batch_norm"):
            raise LoopscopeError(
                f"torch's nested forward mode differentiates {name!r} wrongly; "
                "write the normalisation out with mean and rsqrt."
            )
        return func(*args, **kwargs)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *unused: Any,
    **ignored: Any,
) -> Tensor:
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    centred = input - input.mean(axes, keepdim=True)
    out = centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias
