"""Between host and device without waiting: index tensors go up in one copy, results come down in one a dtype.

On a GPU a blocking copy waits for everything that was asked of the device before. Numbers therefore travel through
pinned memory, and the host only waits when it needs them, a batch later. On a CPU nothing is copied at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.models.batch import Batch


def upload(arrays: Sequence[Any], device: torch.device) -> list[Tensor]:
    """Integer arrays as int64 tensors on the device, by one copy."""
    whole = [np.asarray(numbers, dtype=np.int64) for numbers in arrays]
    flat = torch.from_numpy(np.concatenate([numbers.reshape(-1) for numbers in whole]))
    if device.type == "cuda":
        flat = flat.pin_memory()
    parts = torch.split(flat.to(device, non_blocking=True), [numbers.size for numbers in whole])
    return [part.reshape(numbers.shape) for part, numbers in zip(parts, whole, strict=True)]


def pinned(batch: Batch, device: torch.device) -> Batch:
    """The same batch in memory from which `Batch.to` does not wait for the device."""
    if device.type != "cuda":
        return batch
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    held: dict[str, Any] = {name: value.pin_memory() for name, value in fields.items() if isinstance(value, Tensor)}
    return dataclasses.replace(batch, **held)


class Landing:
    """Tensors of one device on their way to the host."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._order: dict[torch.dtype, list[int]] = {}
        for index, tensor in enumerate(tensors):
            self._order.setdefault(tensor.dtype, []).append(index)
        self._landed = {
            dtype: _start(torch.cat([tensors[index].detach().reshape(-1) for index in indices]))
            for dtype, indices in self._order.items()
        }
        on_gpu = [tensor.device for tensor in tensors if tensor.is_cuda]
        self._arrived = torch.cuda.current_stream(on_gpu[0]).record_event() if on_gpu else None

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The tensors as arrays, in order, as soon as they are here."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: dict[int, np.ndarray[Any, Any]] = {}
        for dtype, indices in self._order.items():
            sizes = [self._shapes[index].numel() for index in indices]
            for index, part in zip(indices, torch.split(self._landed[dtype], sizes), strict=True):
                found[index] = part.numpy().reshape(self._shapes[index])
        return [found[index] for index in range(len(self._shapes))]


def _start(flat: Tensor) -> Tensor:
    if not flat.is_cuda:
        return flat
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    return host.copy_(flat, non_blocking=True)
