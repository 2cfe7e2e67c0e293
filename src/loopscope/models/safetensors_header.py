"""The header of a safetensors file: which tensors it holds, of what type and shape, and where their bytes lie.

A safetensors file is eight bytes (the header's length, little-endian), the header (JSON), and one buffer that the
tensors fill without holes. Only the header is read here, and it is believed only after every number in it has
been checked against the file's size, so that a truncated or tampered file is refused before any memory is taken.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loopscope._errors import LoopscopeError, shown

if TYPE_CHECKING:
    from pathlib import Path

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
