"""The tensors of one pickled file into one safetensors file; run as a script, in a process of its own, by `convert`.

    python -P unpickle.py SOURCE.bin TARGET.safetensors

This is the only file of the package that opens a pickle, and only with `weights_only=True`: torch then builds tensors
and plain containers and refuses everything else. A training checkpoint keeps its weights under "model" or
"state_dict"; what lies beside them is left out by name. Names lose the prefixes that wrappers put in front of them.
Anything among the weights that is no floating-point tensor is refused. What was done is one line of JSON.

The script imports torch and safetensors alone, so that what it runs in is small; -P keeps the modules beside it from
standing in for libraries of the same name.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping
from typing import Any

HOLDERS = ("model", "state_dict")
WRAPPERS = ("_orig_mod.", "module.")
REFUSED = 2


class RefusedError(Exception):
    """One line that says what is wrong with the file."""


def main(source: str, target: str) -> None:
    """Converts one file and prints what was done."""
    from safetensors.torch import save_file

    tensors, beside = weights_of(load(source))
    save_file(tensors, target, metadata={"format": "pt"})
    print(json.dumps({"tensors": sorted(tensors), "left_out": beside}))


def load(path: str) -> Any:
    """What the file holds, built from tensors and plain containers alone."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("Unsupported")[2].split("\n")[0] or str(error).split("\n")[0]
        raise RefusedError(f"it holds more than tensors and plain containers: {reason.strip()}") from None
    except Exception as error:  # a damaged file can end in almost any of them
        reason = " ".join(str(error).split())[:200]
        raise RefusedError(f"it cannot be read ({reason})") from None


def weights_of(held: Any) -> tuple[dict[str, Any], list[str]]:
    """The tensors by name, each with memory of its own, and the names of what lies beside them."""
    import torch

    if not isinstance(held, Mapping):
        raise RefusedError(f"it holds a {type(held).__name__}, not a mapping of names to tensors")
    inside = next((name for name in HOLDERS if isinstance(held.get(name), Mapping)), None)
    state: Mapping[Any, Any] = held if inside is None else held[inside]
    beside = [] if inside is None else sorted(str(name) for name in held if name != inside)
    tensors: dict[str, Any] = {}
    memory: set[int] = set()
    for name, value in state.items():
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.is_floating_point()
        if not isinstance(name, str) or not plain:
            kind = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
            raise RefusedError(f"{name!r} is a {kind}, not a tensor of floating-point weights")
        own = _unwrapped(name)
        if own in tensors:
            raise RefusedError(f"{own!r} is there twice")
        tensor = value.detach().contiguous()
        # Tied tensors share memory, which the format does not know.
        tensors[own] = tensor.clone() if tensor.untyped_storage().data_ptr() in memory else tensor
        memory.add(tensor.untyped_storage().data_ptr())
    if not tensors:
        raise RefusedError("it holds no tensors")
    return tensors, beside


def _unwrapped(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RefusedError as refused:
        print(refused, file=sys.stderr)
        sys.exit(REFUSED)
