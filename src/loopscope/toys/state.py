"""The training's state on disk, written atomically: the same command goes on from it.

Read back with `weights_only`, so that a file can hold tensors and plain values but no code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from loopscope._errors import LoopscopeError

STATE = "training.pt"
CURVES = "curves.json"


def write_atomically(path: Path, data: bytes) -> None:
    """Either the old file or the whole new one is there, whatever happens in between."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def save_state(folder: Path, state: dict[str, Any], curves: list[dict[str, Any]]) -> None:
    """Saves everything a resumed run needs; the curves lie beside it as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (STATE + ".part")
    torch.save({**state, "curves": json.dumps(curves)}, part)
    part.replace(folder / STATE)
    write_atomically(folder / CURVES, (json.dumps(curves) + "\n").encode())


def load_state(folder: Path, identity: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The saved state and curves, or None in a fresh folder; another run's state is refused."""
    path = folder / STATE
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise LoopscopeError(f"{path} cannot be read ({error}); delete it to train from nothing") from error
    for key, value in identity.items():
        if state["identity"].get(key) != value:
            raise LoopscopeError(
                f"{path} belongs to a training with {key} {state['identity'].get(key)!r}, not {value!r}; "
                "choose another --output or delete it"
            )
    return state, json.loads(state.pop("curves"))
