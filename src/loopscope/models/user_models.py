"""Models and tokenizers of the user's own, which installed packages name through entry points.

A model is an entry point in the group `loopscope.models`: its name on the left, a callable that returns a
`LoopedModel` on the right. The callable gets `device` and `dtype` if it takes them; if not, what it returns is moved
there when it is an `nn.Module`. Modules are frozen and put in evaluation mode. A tokenizer for the model may be named
likewise in `loopscope.tokenizers`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError

if TYPE_CHECKING:
    import torch

    from loopscope.models.protocol import LoopedModel


MODEL_GROUP = "loopscope.models"
TOKENIZER_GROUP = "loopscope.tokenizers"


REQUIRED = (
    "family", "name", "hidden_size", "vocabulary_size", "trained_depth", "boundary", "head", "device", "dtype",
    "embed", "step", "readout", "states",
)  # fmt: skip


def user_models() -> dict[str, metadata.EntryPoint]:
    """The models that installed packages bring, by name."""
    return _entry_points(MODEL_GROUP)


def user_tokenizers() -> dict[str, metadata.EntryPoint]:
    """The tokenizers that installed packages bring, by the model's name."""
    return _entry_points(TOKENIZER_GROUP)


def load_user_model(name: str, device: torch.device, dtype: torch.dtype | None) -> LoopedModel:
    """The model that the entry point `name` builds.

    Raises:
        LoopscopeError: if it cannot be imported or lacks a part of the `LoopedModel` protocol.
    """
    from torch import nn

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


def load_entry_point(point: metadata.EntryPoint) -> Callable[..., Any]:
    """The callable an entry point names."""
    try:
        factory = point.load()
    except (ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"the entry point {point.name} = {point.value} cannot be imported: {reason}") from error
    if not callable(factory):
        raise LoopscopeError(f"the entry point {point.name} = {point.value} names no callable")
    return factory  # type: ignore[no-any-return]


def _entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=group):
        known = found.setdefault(point.name, point)
        if known.value != point.value:
            raise LoopscopeError(
                f"two packages bring a model called {point.name!r} ({known.value}, {point.value}): uninstall one"
            )
    return found


def _takes(factory: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(factory).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
