"""Derivatives along a line by nesting forward mode: for readouts with operations that Taylor mode does not know."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp
from torch.overrides import TorchFunctionMode

from loopscope.errors import LoopscopeError
from loopscope.readout.general.taylor import normalise
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
    with torch.enable_grad(), differentiable_attention(), _no_fast_attention(), warnings.catch_warnings():
        # torch compiles its own forward-mode formulas on first use, by a way that it deprecates.
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
        with _RightNorms():
            return [derivative.detach() for derivative in deepen(order)(at)]


class _RightNorms(TorchFunctionMode):
    """Keeps torch's fused normalisations out of nested forward mode, which differentiates them wrongly.

    Their forward-mode formula takes the saved mean and variance for constants, so that second and higher derivatives
    come out silently wrong (seen in torch 2.13). They are written out instead.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("native_layer_norm", "native_batch_norm", "native_group_norm"):
            raise LoopscopeError(
                f"torch's nested forward mode differentiates {name!r} wrongly; "
                "write the normalisation out with mean and rsqrt."
            )
        return _WRITTEN_OUT.get(name, func)(*args, **_known(name, kwargs or {}))


_WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    "layer_norm": normalise.layer_norm,
    "group_norm": normalise.group_norm,
    "instance_norm": normalise.instance_norm,
    "batch_norm": normalise.batch_norm,
}


def _known(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Without the switch of an implementation that is not taken."""
    return {key: value for key, value in kwargs.items() if name not in _WRITTEN_OUT or key != "cudnn_enable"}


@contextmanager
def _no_fast_attention() -> Iterator[None]:
    """`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` by formula: their fused path has no derivative."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
