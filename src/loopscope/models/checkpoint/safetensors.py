"""A checkpoint's safetensors files, in one file or in shards with an index, checked without reading a weight.

A safetensors file is eight bytes (the header's length, little-endian), the header (JSON), and one buffer that the
tensors fill without holes. `read_header` reads the header alone and checks every number in it against the file's size,
so that a truncated or tampered file is refused before any memory is taken. `open_checkpoint` does so for all files of
a folder and checks that they agree with the index. Pickle is never read and no code of a checkpoint is ever run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError, shown
from loopscope.models.checkpoint.config import CONFIG, read_config, read_json_object

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


LONGEST_NAME = 255
"""Of a shard's file, as file systems have it."""


LARGEST_HEADER = 50_000_000
"""Bytes; half the format's own limit. A larger announced header is garbage, and believing it would cost gigabytes."""
MOST_TENSORS = 200_000
"""In one file; the largest published models have half as many in all their shards."""


ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: its bytes are `file[start:stop]`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    path: Path

    @property
    def elements(self) -> int:
        """The number of elements (1 for a scalar, 0 for an empty tensor)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes in the file."""
        return self.stop - self.start

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
        shape, step = (rows // len(names), *self.shape[1:]), self.nbytes // len(names)
        starts = [self.start + index * step for index in range(len(names))]
        return [
            TensorEntry(name, self.dtype, shape, start, start + step, self.path)
            for name, start in zip(names, starts, strict=True)
        ]


@dataclass(frozen=True)
class Checkpoint:
    """The checked contents of a folder: configuration, and every tensor with its place on disk."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the weights and the configuration come from."""
        shards = {entry.path for entry in self.tensors.values()}
        return (self.folder / CONFIG, *sorted(shards))


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, all headers checked.

    Raises:
        LoopscopeError: if anything is missing, damaged, contradictory or not safetensors.
    """
    try:
        return Checkpoint(folder, read_config(folder), _read_tensors(folder))
    except OSError as error:
        raise LoopscopeError(f"{error.filename or folder} cannot be read: {error.strerror or error}") from None


def _read_tensors(folder: Path) -> dict[str, TensorEntry]:
    index, single = folder / INDEX, folder / WEIGHTS
    if index.is_file():
        weight_map = index_shards(index)
        if single.is_file() and WEIGHTS not in weight_map.values():
            raise LoopscopeError(f"{folder} holds both {WEIGHTS} and shards: remove the ones that are out of date")
        return _read_shards(index, weight_map)
    if single.is_file():
        return read_header(single)
    raise _no_weights(folder)


def _no_weights(folder: Path) -> LoopscopeError:
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if any("-of-" in name for name in others):
        return LoopscopeError(f"{folder} holds shards ({others[0]}, …) but no {INDEX}: download that file too")
    if others:
        return LoopscopeError(f"{folder} has no {WEIGHTS} (found {others[0]}): rename the weights' file to {WEIGHTS}")
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
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
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise LoopscopeError(f"{index} names the shard {shown(shard)}, which is not a file in its folder; refused")
    return weight_map


def _is_plain_name(name: str) -> bool:
    forbidden = "/" in name or "\\" in name or ":" in name or "\0" in name
    return name.endswith(".safetensors") and not forbidden and not name.startswith(".") and len(name) <= LONGEST_NAME


def _read_shards(index: Path, weight_map: dict[str, str]) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for shard in sorted(set(weight_map.values())):
        for name, entry in read_header(_shard_path(index, shard)).items():
            if name in tensors:
                both = f"{tensors[name].path.name} and {shard}"
                raise LoopscopeError(
                    f"{index.parent} stores {shown(name)} twice, in {both}; download or export it again"
                )
            tensors[name] = entry
    for name, shard in weight_map.items():
        if name not in tensors:
            raise LoopscopeError(f"{index} lists {shown(name)} in {shard}, which does not hold it")
        if tensors[name].path.name != shard:
            raise LoopscopeError(f"{index} lists {shown(name)} in {shard}, but it is in {tensors[name].path.name}")
    unlisted = sorted(tensors.keys() - weight_map.keys())
    if unlisted:
        raise LoopscopeError(f"{tensors[unlisted[0]].path} holds {shown(unlisted[0])}, which {INDEX} does not list")
    return tensors


def _shard_path(index: Path, shard: str) -> Path:
    """The shard beside its index; a link may lead out of the folder only into the hub cache that made it."""
    path = index.parent / shard
    if not path.is_file():
        raise LoopscopeError(f"{index} lists {shard}, which is missing: download it too")
    target, folder = path.resolve(), index.parent.resolve()
    allowed = [folder]
    if folder.parent.name == "snapshots":
        repository = folder.parent.parent
        allowed += [repository / "blobs", repository.parent / "blobs"]
    if not any(target.is_relative_to(place) for place in allowed):
        raise LoopscopeError(f"{path} is a link that leaves its folder; refused: load the folder the weights lie in")
    return path


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a safetensors file by name, every offset checked.

    Raises:
        LoopscopeError: if the file is truncated, is not safetensors, or contradicts itself.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if prefix.startswith(b"version "):
            raise LoopscopeError(f"{path} is a git-lfs pointer, not the weights: run `git lfs pull` in its folder")
        if len(prefix) < 8:
            raise _damaged(path, f"is truncated: it has {size} bytes, less than a safetensors header")
        length = int.from_bytes(prefix, "little")
        if length > LARGEST_HEADER:
            raise _damaged(
                path, f"is not a safetensors file: it announces a header of {length} bytes, more than {LARGEST_HEADER}"
            )
        if 8 + length > size:
            raise _damaged(path, f"is truncated: its header needs {8 + length} bytes and the file has {size}")
        table = _parse_json(path, file.read(length))
    table.pop("__metadata__", None)
    if len(table) > MOST_TENSORS:
        raise _damaged(path, f"lists {len(table)} tensors, more than the {MOST_TENSORS} allowed")
    entries = {name: _entry(path, name, fields, 8 + length) for name, fields in table.items()}
    _check_layout(path, entries, 8 + length, size)
    return entries


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                raise _damaged(path, f"lists {shown(name)} twice in its header")
            result[name] = value
        return result

    try:
        table = json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise _damaged(path, "is not a safetensors file: its header is not a JSON object")
    return table


def _entry(path: Path, name: str, fields: Any, data_start: int) -> TensorEntry:
    try:
        dtype, shape, (start, stop) = fields["dtype"], fields["shape"], fields["data_offsets"]
        numbers = [*shape, start, stop]
    except (TypeError, KeyError, ValueError):
        raise _damaged(path, f"describes tensor {shown(name)} wrongly in its header") from None
    # bool is an int to Python, and not to the format; the bounds keep a hostile header from costing time.
    counts = len(numbers) <= 64 and all(type(number) is int and 0 <= number < 2**63 for number in numbers)
    if not (isinstance(dtype, str) and isinstance(shape, list) and counts and start <= stop):
        raise _damaged(path, f"describes tensor {shown(name)} wrongly in its header")
    entry = TensorEntry(name, dtype, tuple(shape), data_start + start, data_start + stop, path)
    if dtype in ITEM_BYTES and entry.elements * ITEM_BYTES[dtype] != entry.nbytes:
        needed = entry.elements * ITEM_BYTES[dtype]
        raise _damaged(path, f"gives {shown(name)} {entry.nbytes} bytes where {dtype} {list(shape)} needs {needed}")
    return entry


def _check_layout(path: Path, entries: dict[str, TensorEntry], data_start: int, size: int) -> None:
    """Tensors fill the buffer in some order, without holes, overlaps or bytes left over."""
    position = data_start
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.stop)):
        if entry.start != position:
            what = "overlaps another tensor" if entry.start < position else "leaves a hole before it"
            raise _damaged(path, f"is inconsistent: {shown(entry.name)} {what}")
        position = entry.stop
    if position > size:
        raise _damaged(path, f"is truncated: its tensors end at byte {position} and the file at {size}")
    if position < size:
        raise _damaged(path, f"has {size - position} bytes after its last tensor")


def _damaged(path: Path, what: str) -> LoopscopeError:
    return LoopscopeError(f"{path} {what}; download or export it again")
