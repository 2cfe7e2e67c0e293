"""A model in the middle of its training, measured so that the training does not notice.

Wrappers are taken off; autocast and compiled code are set aside; mode, `requires_grad`, buffers and random streams are
afterwards as they were, to the bit. Gradients, optimisers and weights are never written.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.models.in_memory import evaluating
from loopscope.models.protocol import LoopedModel, LoopedModule
from loopscope.models.registry import require_model

_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}
"""Where each kind of wrapper holds the model itself."""
_SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine")
"""Wrappers under which no process holds all weights; `fully_shard` wraps nothing, but its weights have a mesh."""


def bare(model: Any) -> LoopedModel:
    """The looped model inside what distributes or compiles it.

    Raises:
        LoopscopeError: it is none, or no process holds all of its weights.
    """
    model = unwrapped(model)
    if not isinstance(model, nn.Module) and not hasattr(model, "step"):
        raise LoopscopeError(
            f"{setting('model')} must be the model that is trained, as it is in memory, not {shown(model)}: a saved "
            "one is measured with loopscope.measure"
        )
    return require_model(model, type(model).__name__)


def unwrapped(model: Any) -> Any:
    """A model without what distributes or compiles it."""
    while (kind := type(model).__name__) in _WRAPPERS:
        model = getattr(model, _WRAPPERS[kind])
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    if kind in _SHARDED or any(hasattr(weight, "device_mesh") for weight in weights):
        raise LoopscopeError(f"a {kind} spreads its weights over processes: save checkpoints and measure those instead")
    return model


@contextmanager
def untouched(model: LoopedModel) -> Iterator[None]:
    """Within this block the model is measured as a checkpoint of it would be; afterwards all is as before."""
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        for kind in {"cpu", model.device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if "torch._dynamo" in sys.modules:
            # Nothing is compiled again for other shapes, which could change what training steps run.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad=True")  # a checkpointed step
        _forget_casts(model)
        try:
            yield
        finally:
            _forget_casts(model)


def _forget_casts(model: LoopedModel) -> None:
    if isinstance(model, LoopedModule):
        model.forget_casts()


class Autocast:
    """A looped model whose `embed` and `step` run under autocast; it is read out as ever."""

    def __init__(self, model: LoopedModel, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self.embed, self.step = self._cast(model.embed), self._cast(model.step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _cast(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(self._model.device.type, self._dtype):
                return function(*args, **kwargs)

        return run
