"""The learning rate over a run: a short warm-up by steps, a plateau, a straight way down to zero by progress.

The training's state on disk, written atomically: the same command goes on from it.

One safetensors file: weights and the optimisers' tensors by name, and everything else as JSON in its metadata, so that
reading it back can run no code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from loopscope.errors import LoopscopeError, setting


def rate_factor(step: int, progress: float, warmup_steps: int, decay_from: float) -> float:
    """What the learning rate is multiplied by at `step` (from 0), `progress` of the budget being spent.

    Progress is a share of the time or of the steps. A run that is resumed with a larger budget has less of it
    behind it: the rate goes up again and comes down at the new end.

    >>> [round(rate_factor(1000, p, 100, 0.5), 2) for p in (0.0, 0.5, 0.75, 1.0, 1.2)]
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    warm = min(1.0, (step + 1) / max(1, warmup_steps))
    cool = min(1.0, max(0.0, (1.0 - progress) / (1.0 - decay_from)))
    return warm * cool


STATE = "training.safetensors"
CURVES = "curves.json"
_PICKLED_STATE = "training.pt"
_VALUES = "values"
_TENSOR = "tensor"


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
        return {"pairs": [[key, _without_tensors(part, f"{name}/{key}", tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return [_without_tensors(part, f"{name}/{index}", tensors) for index, part in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _with_tensors(part, tensors) for key, part in value["pairs"]}
    return [_with_tensors(part, tensors) for part in value] if isinstance(value, list) else value
