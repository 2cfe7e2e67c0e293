"""A user's own looped model, named through an entry point and checked for what the rest of loopscope calls.

The entry point names a callable. It is called with `device` and `dtype` if it takes them; if not, what it returns
is moved there when it is an `nn.Module`. Modules are frozen and put in evaluation mode.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from loopscope._errors import LoopscopeError
from loopscope.models.registry import load_entry_point, user_models

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModel

REQUIRED = (
    "family", "name", "hidden_size", "vocabulary_size", "trained_depth", "boundary", "head", "device", "dtype",
    "embed", "step", "readout", "states",
)  # fmt: skip


def load_user_model(name: str, device: torch.device, dtype: torch.dtype | None) -> LoopedModel:
    """The model that the entry point `name` builds.

    Raises:
        LoopscopeError: if it cannot be imported or lacks a part of the `LoopedModel` protocol.
    """
    factory = load_entry_point(user_models()[name])
    wanted = {"device": device, "dtype": dtype}
    taken = {key: value for key, value in wanted.items() if _takes(factory, key)}
    model = factory(**taken)
    if isinstance(model, nn.Module):
        if len(taken) < len(wanted):
            model.to(device=device, dtype=dtype)
        model.eval().requires_grad_(False)
    missing = [attribute for attribute in REQUIRED if not hasattr(model, attribute)]
    if missing:
        raise LoopscopeError(
            f"the model {name!r} lacks {', '.join(missing)}: see the LoopedModel protocol in loopscope.models.protocol"
        )
    return model  # type: ignore[no-any-return]


def _takes(factory: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(factory).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
