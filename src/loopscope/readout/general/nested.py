"""Which mode differentiates a readout, and nested forward mode for what Taylor mode does not know.

Taylor mode comes first: it is the fastest, and exact. Where it has no rule for an operation, or the readout's code does
not take a series at all (compiled or scripted code, checks of types), nested forward mode takes its place for all later
derivatives of the same readout, and `Derivation.note` says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp
from torch.overrides import TorchFunctionMode

from loopscope.errors import LoopscopeError
from loopscope.readout.checks import is_out_of_memory, require_choice
from loopscope.readout.general import layers
from loopscope.readout.general.core import MissingRuleError
from loopscope.readout.hessian_vector import differentiable_attention

IMPLEMENTATIONS = ("auto", "taylor", "nested")


class Derivation:
    """The mode that is taken for one readout; paths through the same readout may share it.

    Attributes:
        impl: the requested mode; where that is "auto", "nested" once Taylor mode has given up.
        taken: the modes that have given derivatives so far.
        note: one line on why "auto" gave Taylor mode up, empty while it has not.
    """

    def __init__(self, impl: str = "auto") -> None:
        require_choice("impl", impl, IMPLEMENTATIONS)
        self.impl = impl
        self.taken: set[str] = set()
        self.note = ""

    def choose(self, taylor: Callable[[], Tensor], nested: Callable[[], Tensor]) -> Tensor:
        """The derivatives by the requested mode, or by the one that can."""
        first = ""
        if self.impl != "nested":
            try:
                return self._taking("taylor", taylor)
            except Exception as error:
                refused = isinstance(error, LoopscopeError) and not isinstance(error, MissingRuleError)
                if self.impl == "taylor" or refused or is_out_of_memory(error):
                    raise
                first = _first_sentence(error)
        try:
            found = self._taking("nested", nested)
        except Exception as error:
            if is_out_of_memory(error) or not (first or isinstance(error, NotImplementedError | RuntimeError)):
                raise
            raise LoopscopeError(
                f"the readout cannot be differentiated: {first and first + '; '}"
                f"nested forward mode: {_first_sentence(error)}; "
                "write it with other operations (docs/your-own-model.md lists those that are known)."
            ) from error
        if first:
            self.note = f"derivatives of the readout by nested forward mode, which is slower: {first}"
        self.impl = "nested"
        return found

    def _taking(self, name: str, derivatives: Callable[[], Tensor]) -> Tensor:
        found = derivatives()
        self.taken.add(name)
        return found


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MissingRuleError):
        return text.partition("; write the readout")[0]
    return f"{type(error).__name__}: {text if len(text) <= 200 else text[:200] + '…'}"


def nested_derivatives(
    function: Callable[[Tensor], Tensor], base: Tensor, direction: Tensor, order: int
) -> list[Tensor]:
    """f, f', … at τ = 0 of f(τ) = function(base + τ·direction), each one more forward differentiation of the last."""
    at = torch.zeros((), dtype=base.dtype, device=base.device)

    def deepen(level: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
        if level == 0:
            return lambda tau: (function(base + tau * direction),)
        lower = deepen(level - 1)

        def higher(tau: Tensor) -> tuple[Tensor, ...]:
            values, slopes = jvp(lower, (tau,), (torch.ones_like(at),))  # type: ignore[misc]
            return (*values, slopes[-1])

        return higher

    fused = torch.backends.mha.get_fastpath_enabled()
    # torch's fused encoder layer has no derivative.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Some of torch's forward-mode formulas (silu's) can be differentiated again only where gradients are enabled.
        with torch.enable_grad(), differentiable_attention(), _RightNorms(), warnings.catch_warnings():
            # torch compiles its own forward-mode formulas on first use, with a function that it deprecates.
            warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
            return [derivative.detach() for derivative in deepen(order)(at)]
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


class _RightNorms(TorchFunctionMode):
    """Keeps torch's fused normalisations out of nested forward mode, which differentiates them wrongly.

    Their forward-mode formula takes the saved mean and variance for constants, so that second and higher derivatives
    come out silently wrong (seen in torch 2.13). They are written out instead, or refused.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = getattr(func, "__name__", ""), kwargs or {}
        if name.endswith(("group_norm", "instance_norm", "batch_norm")) or name == "native_layer_norm":
            raise LoopscopeError(
                f"torch's nested forward mode differentiates {name!r} wrongly; "
                "write the normalisation out with mean and rsqrt."
            )
        if name == "layer_norm":
            func = layers.layer_norm
            given.pop("cudnn_enable", None)
        return func(*args, **given)
