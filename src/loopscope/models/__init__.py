"""Looped language models: embed, step, readout.

The names below are imported when they are first used, so that listing models or reading a tokenizer does not
wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopscope.models.base import LoopedModule
    from loopscope.models.batch import Batch
    from loopscope.models.initial_state import InitialState
    from loopscope.models.load import ModelCard, card_of, load_model
    from loopscope.models.protocol import AffineHead, Context, LoopedModel
    from loopscope.models.tokenizer import Tokenizer, load_tokenizer
    from loopscope.models.transformers_loop import loop_layers
    from loopscope.models.walk import Walk
    from loopscope.models.wrapped import wrap

__all__ = [
    "AffineHead",
    "Batch",
    "Context",
    "InitialState",
    "LoopedModel",
    "LoopedModule",
    "ModelCard",
    "Tokenizer",
    "Walk",
    "card_of",
    "load_model",
    "load_tokenizer",
    "loop_layers",
    "wrap",
]

_HOMES = {
    "AffineHead": "protocol",
    "Batch": "batch",
    "Context": "protocol",
    "InitialState": "initial_state",
    "LoopedModel": "protocol",
    "LoopedModule": "base",
    "ModelCard": "load",
    "Tokenizer": "tokenizer",
    "Walk": "walk",
    "card_of": "load",
    "load_model": "load",
    "load_tokenizer": "tokenizer",
    "loop_layers": "transformers_loop",
    "wrap": "wrapped",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
