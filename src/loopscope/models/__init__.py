"""Looped language models: embed, step, readout.

The names below are imported when they are first used, so that listing models or reading a tokenizer does not
wait for torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "base": ("LoopedModule",),
    "batch": ("Batch",),
    "initial_state": ("InitialState",),
    "load": ("ModelCard", "card_of", "load_model"),
    "protocol": ("AffineHead", "Context", "LoopedModel"),
    "tokenizer": ("Tokenizer", "load_tokenizer"),
    "transformers_loop": ("loop_layers",),
    "walk": ("Walk",),
    "wrapped": ("wrap",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
