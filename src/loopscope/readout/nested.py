"""Derivatives along a line by nesting forward mode: for readouts with operations that Taylor mode does not know."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp

from loopscope.readout.autograd import differentiable_attention


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

    with torch.no_grad(), differentiable_attention():
        return list(deepen(order)(at))
