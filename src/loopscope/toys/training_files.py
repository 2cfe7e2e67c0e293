"""What a training leaves on disk, each file written atomically: the state to go on from, the curves, the checkpoint.

The state is one safetensors file: weights and the optimisers' tensors by name, and everything else as JSON in its
metadata, so that reading it back can run no code. The checkpoint is the folder of the model's family: config.json,
model.safetensors, tokenizer.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor

from loopscope.errors import LoopscopeError, setting
from loopscope.store.atomic import write_atomically
from loopscope.toys.build import Toy
from loopscope.toys.recipe import Recipe

STATE = "training.safetensors"
CURVES = "curves.json"
MONITOR = "monitor.jsonl"
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints that are kept on the way, step-100, step-200, …"""
_PICKLED_STATE = "training.pt"
_VALUES = "values"
_TENSOR = "tensor"


def save_state(folder: Path, state: dict[str, Any], curves: list[dict[str, Any]]) -> None:
    """Saves everything a resumed run needs; the curves lie beside it as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    values = _without_tensors({**state, "curves": curves}, "", tensors)
    write_atomically(folder / STATE, save(tensors, {_VALUES: json.dumps(values)}))
    write_atomically(folder / CURVES, (json.dumps(curves) + "\n").encode())


def load_state(folder: Path, identity: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The saved state and curves, or None in a fresh folder; another run's state is refused."""
    path = folder / STATE
    if not path.exists():
        if (folder / _PICKLED_STATE).exists():
            raise LoopscopeError(
                f"{folder / _PICKLED_STATE} is the state of an older loopscope, a pickle, which is not read: "
                f"delete it to train from nothing, or choose another {setting('output')}"
            )
        return None
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads((file.metadata() or {})[_VALUES])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = _with_tensors(values, tensors)
        saved, curves = state["identity"], state.pop("curves")
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"{path} cannot be read ({reason}); delete it to train from nothing") from error
    for key, value in identity.items():
        if saved.get(key) != value:
            raise LoopscopeError(
                f"{path} belongs to a training with {key} {saved.get(key)!r}, not {value!r}; "
                f"choose another {setting('output')} or delete it"
            )
    return state, curves


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON holds it: tensors by their names, which lead to them; dictionaries as pairs, to keep keys."""
    if isinstance(value, Tensor):
        # Tied weights have one memory, which the format refuses to hold twice.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {"pairs": [[key, _without_tensors(entry, f"{name}/{key}", tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        return [_without_tensors(entry, f"{name}/{index}", tensors) for index, entry in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _with_tensors(entry, tensors) for key, entry in value["pairs"]}
    return [_with_tensors(entry, tensors) for entry in value] if isinstance(value, list) else value


LIMIT = 5_000_000
"""The most bytes an embedded model's folder may take."""


def export(model: Toy, recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> int:
    """Rounds the weights to BF16 and writes the folder; returns its size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    left_out = model.tied_tensors()
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in left_out
    }
    files = {
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        "config.json": (json.dumps(dict(recipe.config), indent=2) + "\n").encode(),
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
    }
    for name, data in files.items():
        write_atomically(folder / name, data)
    size = sum(len(data) for data in files.values())
    if size > LIMIT:
        raise AssertionError(f"{recipe.name} takes {size} bytes, more than {LIMIT}")
    return size
