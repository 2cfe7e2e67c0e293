"""A checkpoint's tensors into a model: names and shapes are compared first, and bytes copied only if all agree.

The model arrives on the meta device, so a checkpoint that does not fit costs no memory and leaves nothing half loaded.
Values are not inspected: a checkpoint that holds NaN loads, and its measurements will say so.

A window of the file at a time is mapped, copied into the allocated parameter on its device and in its dtype, and
unmapped, so loading needs the model's own memory plus one window, whatever the sizes of the checkpoint, its shards or
its largest tensor. Parameters own their memory afterwards: a checkpoint that is overwritten during a run cannot change
the weights under it.
"""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from loopscope.errors import LoopscopeError, shown
from loopscope.models.checkpoint.safetensors import TensorEntry

if TYPE_CHECKING:
    from loopscope.models.base import LoopedModule


WINDOW_BYTES = 32 * 1024 * 1024


FLOATING_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def match_tensors(model: LoopedModule, tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The stored tensor of every parameter and buffer, tied parameters once.

    Raises:
        LoopscopeError: naming the first missing, unexpected or misshapen tensor, or one of unsupported type.
    """
    tensors = model.arrange(tensors)
    expected = stored_tensors(model)
    tied = model.tied_tensors()
    missing = [name for name in expected if name not in tensors and name not in tied]
    if missing:
        raise LoopscopeError(f"the checkpoint lacks {_listed(missing)}: it is incomplete or of another architecture")
    extra = [name for name in tensors if name not in expected and name not in model.ignorable_tensors()]
    if extra:
        raise LoopscopeError(
            f"the checkpoint holds {_listed(extra)}, which a {model.family} model of this configuration does not have"
        )
    for name, tensor in expected.items():
        if name in tensors and tensors[name].shape != tuple(tensor.shape):
            raise LoopscopeError(
                f"{name!r} has shape {list(tensors[name].shape)} in the checkpoint but the configuration "
                f"makes it {list(tensor.shape)}"
            )
    matched = {name: tensors[name] for name in expected if name not in tied}
    for entry in matched.values():
        stored_dtype(entry)
    for name, source in tied.items():
        if name in tensors and not same_bytes(tensors[name], tensors[source]):
            warnings.warn(
                f"the configuration ties {name} to {source} but the checkpoint stores different values: "
                f"{source} is used for both",
                stacklevel=2,
            )
    return matched


def stored_tensors(model: LoopedModule) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of a model: its parameters, tied ones under each name, and its buffers."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    plural = "the tensors" if len(names) > 1 else "the tensor"
    return f"{plural} {', '.join(shown(name) for name in names[:3])}{more}"


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


def main_dtype(tensors: Iterable[TensorEntry]) -> torch.dtype:
    """The dtype of most of the checkpoint's bytes."""
    sizes: dict[str, int] = {}
    for entry in tensors:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.nbytes
    return FLOATING_TYPES[max(sizes, key=lambda name: sizes[name])]


def load_tensors(
    model: LoopedModule, matched: Mapping[str, TensorEntry], device: torch.device, dtype: torch.dtype
) -> None:
    """Allocates a meta model and fills it, tensor by tensor, from the files."""
    for name, parameter in allocate(model, device, dtype).items():
        entry = matched[name]
        try:
            copy_tensor(entry, parameter.data)
        except (OSError, ValueError) as error:  # ValueError: the file is shorter than when its header was checked
            reason = " ".join(str(error).split())
            raise LoopscopeError(f"{entry.path} cannot be read ({reason}): is it being replaced? try again") from None


def allocate(model: LoopedModule, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Gives all that a meta model stores memory of its own on the device, uninitialised; tied parameters once."""
    tied = model.tied_tensors()
    placed: dict[str, torch.Tensor] = {}
    stored = {name: tensor for name, tensor in stored_tensors(model).items() if name not in tied}
    own = {name: model.parameter_dtype(name, dtype) for name in stored}
    needed = sum(tensor.numel() * own[name].itemsize for name, tensor in stored.items())
    too_large = LoopscopeError(
        f"the weights need {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, more than {device} "
        f"has free: choose a smaller dtype or another device"
    )
    # A system that lends more memory than it has would end the process only when the weights are written.
    if device.type == "cpu" and needed > _installed_memory():
        raise too_large
    try:
        for name, tensor in stored.items():
            owner, _, leaf = name.rpartition(".")
            empty = torch.empty(tensor.shape, dtype=own[name], device=device)
            placed[name] = nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
            setattr(model.get_submodule(owner), leaf, placed[name])
    except RuntimeError as error:  # torch.OutOfMemoryError on an accelerator, a plain RuntimeError on the CPU
        if "memory" not in str(error):
            raise
        raise too_large from None
    model.tie()
    return placed


def _installed_memory() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return math.inf


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
