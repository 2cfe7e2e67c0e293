"""The header of a safetensors file: which tensors it holds, of what type and shape, and where their bytes lie.

A safetensors file is eight bytes (the header's length, little-endian), the header (JSON), and one buffer that the
tensors fill without holes. Only the header is read here, and it is believed only after every number in it has
been checked against the file's size, so that a truncated or tampered file is refused before any memory is taken.

Tensor bytes from a file straight to their place: mapped a window at a time, converted on the way.

A window of the file is mapped, copied into the (already allocated) parameter on its device and in its dtype, and
unmapped before the next one, so loading needs the model's own memory plus one window, whatever the sizes of the
checkpoint, its shards or its largest tensor. Parameters own their memory afterwards: a checkpoint that is
overwritten while a run is going on cannot change the weights under it.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from loopscope.errors import LoopscopeError, shown

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


WINDOW_BYTES = 32 * 1024 * 1024

FLOATING_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def stored_dtype(entry: TensorEntry) -> torch.dtype:
    """The torch type of a tensor of weights.

    Raises:
        LoopscopeError: for types that are no plain floating-point weights (8-bit floats, integers).
    """
    try:
        return FLOATING_TYPES[entry.dtype]
    except KeyError:
        raise LoopscopeError(
            f"{entry.path} stores {entry.name!r} as {entry.dtype}, which is not supported: "
            f"export the weights as one of {', '.join(FLOATING_TYPES)}"
        ) from None


@torch.no_grad()
def copy_tensor(entry: TensorEntry, target: torch.Tensor, window_bytes: int = WINDOW_BYTES) -> None:
    """Fill `target` (contiguous, any device, any floating dtype) with a stored tensor of the same shape."""
    source_dtype = stored_dtype(entry)
    if tuple(target.shape) != entry.shape or not target.is_contiguous():
        raise ValueError(f"{entry.name}: {entry.shape} cannot be copied into {tuple(target.shape)}")
    flat = target.view(-1)
    per_window = max(window_bytes // source_dtype.itemsize, 1)
    with entry.path.open("rb") as file:
        for first in range(0, entry.elements, per_window):
            last = min(first + per_window, entry.elements)
            start = entry.start + first * source_dtype.itemsize
            _copy_window(file.fileno(), start, source_dtype, flat[first:last])


def same_bytes(one: TensorEntry, other: TensorEntry, window_bytes: int = WINDOW_BYTES) -> bool:
    """Whether two stored tensors are the same, bit by bit, without holding either in memory."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with one.path.open("rb") as first, other.path.open("rb") as second:
        first.seek(one.start)
        second.seek(other.start)
        for position in range(0, one.nbytes, window_bytes):
            count = min(window_bytes, one.nbytes - position)
            if first.read(count) != second.read(count):
                return False
    return True


def _copy_window(descriptor: int, start: int, dtype: torch.dtype, target: torch.Tensor) -> None:
    mapped_start = start - start % mmap.ALLOCATIONGRANULARITY
    offset = start - mapped_start
    nbytes = target.numel() * dtype.itemsize
    # A private mapping, because torch warns about read-only buffers; nothing is ever written to it.
    with mmap.mmap(descriptor, offset + nbytes, access=mmap.ACCESS_COPY, offset=mapped_start) as window:
        if offset % dtype.itemsize == 0:
            source = torch.frombuffer(window, dtype=dtype, count=target.numel(), offset=offset)
        else:  # a header whose length is no multiple of eight leaves every tensor unaligned
            source = torch.frombuffer(window, dtype=torch.uint8, count=nbytes, offset=offset).clone().view(dtype)
        target.copy_(source)
        # The mapping cannot be closed while a tensor still looks into it.
        del source
