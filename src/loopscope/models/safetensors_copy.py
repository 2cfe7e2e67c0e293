"""Tensor bytes from a file straight to their place: mapped a window at a time, converted on the way.

A window of the file is mapped, copied into the (already allocated) parameter on its device and in its dtype, and
unmapped before the next one, so loading needs the model's own memory plus one window, whatever the sizes of the
checkpoint, its shards or its largest tensor. Parameters own their memory afterwards: a checkpoint that is
overwritten while a run is going on cannot change the weights under it.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import torch

from loopscope._errors import LoopscopeError

if TYPE_CHECKING:
    from loopscope.models.safetensors_header import TensorEntry

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
