"""A checkpoint's safetensors files, in one file or in shards with an index: what they hold, and reading it.

The safetensors library checks headers against the files. Nothing else is read: pickles can run code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, shown
from loopscope.limits import check_regular
from loopscope.models.checkpoint.config import CONFIG, read_config, read_json_object

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_BITS = {"BOOL": 8, "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8}


@dataclass(frozen=True)
class TensorEntry:
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

    @property
    def elements(self) -> int:
        """The number of elements (1 for a scalar, 0 for an empty tensor)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes in the file; of rare types those of one byte an element."""
        return self.elements * _BITS.get(self.dtype, 8) // 8

    def row_blocks(self, names: Sequence[str]) -> list[TensorEntry]:
        """Equal blocks of its rows, each a tensor of its own.

        Raises:
            LoopscopeError: if the rows do not divide.
        """
        rows = self.shape[0] if self.shape else 0
        if not rows or rows % len(names):
            raise LoopscopeError(
                f"{self.path} stores {shown(self.name)} as {list(self.shape)}, not in {len(names)} blocks"
            )
        size = rows // len(names)
        return [
            TensorEntry(name, self.dtype, (size, *self.shape[1:]), self.path, self.stored, index * size)
            for index, name in enumerate(names)
        ]

    def read(self) -> Tensor:
        """Its values; memory of the file, so copy them before the file may change."""
        with opened(self.path, "pt") as file:
            if self.first_row is None:
                found: Tensor = file.get_tensor(self.stored)
            else:
                found = file.get_slice(self.stored)[self.first_row : self.first_row + self.shape[0]]
            return found


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a folder: configuration, and every tensor with its place on disk."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the weights and the configuration come from."""
        shards = {entry.path for entry in self.tensors.values()}
        return (self.folder / CONFIG, *sorted(shards))


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, all headers checked; torch is not imported.

    Raises:
        LoopscopeError: if anything is missing, damaged, contradictory or not safetensors.
    """
    return Checkpoint(folder, read_config(folder), _read_tensors(folder))


def _read_tensors(folder: Path) -> dict[str, TensorEntry]:
    index, single = folder / INDEX, folder / WEIGHTS
    if index.is_file():
        weight_map = index_shards(index)
        if single.is_file() and WEIGHTS not in weight_map.values():
            raise LoopscopeError(f"{folder} holds both {WEIGHTS} and shards: remove the ones that are out of date")
        return _read_shards(index, weight_map)
    if single.exists():
        return read_header(single)
    raise _no_weights(folder)


def _no_weights(folder: Path) -> LoopscopeError:
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if any("-of-" in name for name in others):
        return LoopscopeError(f"{folder} holds shards ({others[0]}, …) but no {INDEX}: download that file too")
    if others:
        return LoopscopeError(f"{folder} has no {WEIGHTS} (found {others[0]}): rename the weights' file to {WEIGHTS}")
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
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


def index_shards(index: Path) -> dict[str, str]:
    """Tensor name to shard file name, as the index of a sharded checkpoint has it; every name stays in the folder."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoopscopeError(f"{index} has no weight_map; download or export it again")
    for shard in weight_map.values():
        plain = isinstance(shard, str) and shard.endswith(".safetensors") and not set(shard) & set("/\\:\0")
        if not plain or shard.startswith(".") or len(shard) > 255:
            raise LoopscopeError(f"{index} names the shard {shown(shard)}, which is not a file in its folder; refused")
    return weight_map


def _read_shards(index: Path, weight_map: dict[str, str]) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for shard in sorted(set(weight_map.values())):
        path = index.parent / shard
        if not path.exists():
            raise LoopscopeError(f"{index} lists {shard}, which is missing: download it too")
        for name, entry in read_header(path).items():
            listed = weight_map.get(name)
            if listed != shard:
                where = f"lists in {listed}" if listed else "does not list"
                raise LoopscopeError(f"{path} holds {shown(name)}, which {INDEX} {where}; download or export it again")
            tensors[name] = entry
    lacking = next((name for name in weight_map if name not in tensors), None)
    if lacking is not None:
        raise LoopscopeError(f"{index} lists {shown(lacking)} in {weight_map[lacking]}, which does not hold it")
    return tensors


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a safetensors file by name."""
    with opened(path, "np") as file:
        pieces = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {
            name: TensorEntry(name, piece.get_dtype(), tuple(piece.get_shape()), path, name)
            for name, piece in pieces.items()
        }


@contextmanager
def opened(path: Path, framework: str) -> Iterator[Any]:
    """A safetensors file; whatever is wrong with it is one line."""
    from safetensors import SafetensorError, safe_open

    check_regular(path, "checkpoint file")
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        with path.open("rb") as start:
            pointer = start.read(8) == b"version "
        if pointer:
            raise LoopscopeError(
                f"{path} is a git-lfs pointer, not the weights: run `git lfs pull` in its folder"
            ) from None
        reason = " ".join(str(error).split())[:160]
        raise LoopscopeError(f"{path} cannot be read as safetensors ({reason}); download or export it again") from None
