"""A checkpoint folder: its config.json and its safetensors files, in one file or in shards with an index.

The safetensors library checks headers against the files. Nothing else is read: pickles can run code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loopscope.errors import LoopscopeError, shown
from loopscope.limits import check_regular, read_text

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
LARGEST_JSON = 100_000_000
"""Bytes of a configuration or an index; the largest published ones have a tenth."""
MOST_LOOPS = 1_000_000
"""Trained depth."""
_SHARD = re.compile(r"\w[\w.-]{0,240}\.safetensors", re.ASCII)


class TensorEntry(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
        name: what the model calls it.
        dtype: as safetensors writes it: "BF16".
        shape: its sizes.
        path: the file that holds it.
        stored: its name in the file.
        first_row: where it begins, if it is a block of the stored tensor's rows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    stored: str
    first_row: int | None = None

    def row_blocks(self, names: Sequence[str]) -> list[TensorEntry]:
        """Equal blocks of its rows, each a tensor of its own."""
        rows = self.shape[0] if self.shape else 0
        if not rows or rows % len(names):
            raise LoopscopeError(
                f"{self.path} stores {shown(self.name)} as {list(self.shape)}, not in {len(names)} blocks"
            )
        size = rows // len(names)
        shape = (size, *self.shape[1:])
        return [self._replace(name=name, shape=shape, first_row=index * size) for index, name in enumerate(names)]

    def read(self) -> Tensor:
        """Its values; memory of the file, so copy them before the file may change."""
        with _opened(self.path, "pt") as file:
            if self.first_row is None:
                return file.get_tensor(self.stored)  # type: ignore[no-any-return]
            return file.get_slice(self.stored)[self.first_row : self.first_row + self.shape[0]]  # type: ignore[no-any-return]


class Checkpoint(NamedTuple):
    """The contents of a folder: configuration, every tensor with its place on disk, the files of both."""

    config: dict[str, Any]
    tensors: dict[str, TensorEntry]
    files: tuple[Path, ...]


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, all headers checked; torch is not imported.

    Raises:
        LoopscopeError: if anything is missing, damaged, contradictory or not safetensors.
    """
    config, index, single = read_config(folder), folder / INDEX, folder / WEIGHTS
    if index.is_file():
        weight_map = index_shards(index)
        if single.is_file() and WEIGHTS not in weight_map.values():
            raise LoopscopeError(f"{folder} holds both {WEIGHTS} and shards: remove the ones that are out of date")
        tensors = _read_shards(index, weight_map)
    elif single.exists():
        tensors = read_header(single)
    else:
        raise _no_weights(folder)
    return Checkpoint(config, tensors, (folder / CONFIG, *sorted({entry.path for entry in tensors.values()})))


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a checkpoint folder."""
    if not folder.is_dir():
        what = "is a file: give the folder it lies in" if folder.exists() else "does not exist"
        raise LoopscopeError(f"{folder} {what}")
    if not (folder / CONFIG).is_file():
        raise LoopscopeError(f"{folder} has no {CONFIG}: it is not a checkpoint in the Hugging Face layout")
    return read_json_object(folder / CONFIG)


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""
    try:
        value = json.loads(read_text(path, "checkpoint file", LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"{path} is not valid JSON ({reason}); download or export it again") from None
    if not isinstance(value, dict):
        raise LoopscopeError(f"{path} holds no JSON object; download or export it again")
    return value


def stored_names(folder: Path) -> list[str] | None:
    """The tensors a folder's index or header names; None where only the configuration is there."""
    if (folder / WEIGHTS).is_file():
        return list(read_header(folder / WEIGHTS))
    return list(index_shards(folder / INDEX)) if (folder / INDEX).is_file() else None


def index_shards(index: Path) -> dict[str, str]:
    """Tensor name to shard file name, as the index of a sharded checkpoint has it; every name stays in the folder."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoopscopeError(f"{index} has no weight_map; download or export it again")
    for shard in weight_map.values():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise LoopscopeError(f"{index} names the shard {shown(shard)}, which is not a file in its folder; refused")
    return weight_map


def _read_shards(index: Path, weight_map: dict[str, str]) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for shard in sorted(set(weight_map.values())):
        path = index.parent / shard
        if not path.exists():
            raise LoopscopeError(f"{index} lists {shard}, which is missing: download it too")
        found = read_header(path)
        listed = {name for name, place in weight_map.items() if place == shard}
        if strange := next(iter(listed ^ found.keys()), None):
            raise LoopscopeError(f"{index} and {path} do not agree on {shown(strange)}; download or export them again")
        tensors |= found
    return tensors


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a safetensors file by name."""
    with _opened(path, "np") as file:
        pieces = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {
            name: TensorEntry(name, piece.get_dtype(), tuple(piece.get_shape()), path, name)
            for name, piece in pieces.items()
        }


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    """A safetensors file; whatever is wrong with it is one line."""
    from safetensors import SafetensorError, safe_open

    check_regular(path, "checkpoint file")
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        reason, advice = " ".join(str(error).split())[:160], "download or export it again"
        with path.open("rb") as start:
            if start.read(8) == b"version ":
                reason, advice = "it is a git-lfs pointer", "run `git lfs pull` in its folder"
        raise LoopscopeError(f"{path} cannot be read as safetensors ({reason}); {advice}") from None


def _no_weights(folder: Path) -> LoopscopeError:
    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith(PICKLES)]
    if others:
        advice = f"download {INDEX} too" if "-of-" in others[0] else f"rename the weights' file to {WEIGHTS}"
        return LoopscopeError(f"{folder} has no {WEIGHTS} (found {others[0]}): {advice}")
    if pickles:
        return LoopscopeError(
            f"{folder} has pickled weights only ({pickles[0]}), which are never read because they can run code; "
            f"{save_as_safetensors(pickles[0])}"
        )
    return LoopscopeError(f"{folder} has no {WEIGHTS}: the weights are missing")


def save_as_safetensors(pickled: str) -> str:
    """The remedy for a pickled checkpoint: two lines of torch."""
    return (
        f"save them as safetensors in that folder: weights = torch.load({pickled!r}, weights_only=True); "
        f"safetensors.torch.save_file({{name: w.clone() for name, w in weights.items()}}, {WEIGHTS!r})"
    )
