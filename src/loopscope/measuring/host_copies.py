"""Columns computed on the device, copied to the host without waiting for it.

On a GPU a blocking copy waits for everything that was asked of the device before. So index tensors go up in one copy,
results come down in one per dtype, both through pinned memory, and the host waits only when it needs the numbers, a
batch later. Until then a column may be a tensor on the device or a `HostColumn`; `PendingColumns` brings all of them to
the host. On a CPU nothing is copied at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from loopscope.models.batch import Batch
from loopscope.models.packing import Packing


def upload(arrays: Sequence[Any], device: torch.device) -> list[Tensor]:
    """Integer arrays as int64 tensors on the device, by one copy.

    Each begins at a multiple of 16 bytes: kernels are compiled for memory that does, and once more for other.
    """
    whole = [np.asarray(numbers, dtype=np.int64) for numbers in arrays]
    sizes = [numbers.size + numbers.size % 2 for numbers in whole]
    flat = torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
    for place, numbers in zip(torch.split(flat, sizes), whole, strict=True):
        place.numpy()[: numbers.size] = numbers.reshape(-1)
    sent = torch.split(flat.to(device, non_blocking=True), sizes)
    return [tensor[: numbers.size].reshape(numbers.shape) for tensor, numbers in zip(sent, whole, strict=True)]


def pinned(packing: Packing, device: torch.device) -> Packing:
    """The same packing in memory from which `Packing.to` does not wait for the device."""
    if device.type != "cuda":
        return packing
    batch = _pinned(packing.batch)
    sequences = batch if packing.sequences is packing.batch else _pinned(packing.sequences)
    return Packing(batch, sequences, None if packing.place_RS is None else packing.place_RS.pin_memory())


def _pinned(batch: Batch) -> Batch:
    held: dict[str, Any] = {name: held.pin_memory() for name, held in vars(batch).items() if isinstance(held, Tensor)}
    parts = None if batch.parts is None else batch.parts.moved(Tensor.pin_memory)
    return dataclasses.replace(batch, **held, parts=parts)


Columns: TypeAlias = dict[str, Any]
"""NumPy arrays (masked where null) or lists, all of one length; before that, tensors and `HostColumn`."""


class HostColumn:
    """A column that is computed on the host, from the columns before it and from tensors of any length."""

    def __init__(self, function: Callable[..., Any], *tensors: Tensor) -> None:
        self.function, self.tensors = function, tensors


class PendingColumns:
    """Columns whose tensors are being copied to the host.

    >>> import torch
    >>> b = HostColumn(lambda columns, c: columns["a"] + c, torch.ones(2))
    >>> (found,) = PendingColumns([{"a": torch.arange(2), "b": b}]).columns()
    >>> {name: values.tolist() for name, values in found.items()}
    {'a': [0, 1], 'b': [1.0, 2.0]}
    """

    def __init__(self, tables: Sequence[Columns]) -> None:
        self._tables = tables
        tensors = [tensor for table in tables for value in table.values() for tensor in _tensors(value)]
        self._shapes = [tensor.shape for tensor in tensors]
        by_dtype: dict[torch.dtype, list[int]] = {}
        for index, tensor in enumerate(tensors):
            by_dtype.setdefault(tensor.dtype, []).append(index)
        self._copies = [
            (places, _to_host(torch.cat([tensors[place].detach().reshape(-1) for place in places])))
            for places in by_dtype.values()
        ]
        on_gpu = [tensor.device for tensor in tensors if tensor.is_cuda]
        self._done = torch.cuda.current_stream(on_gpu[0]).record_event() if on_gpu else None

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The tensors as arrays, in order, when they are on the host."""
        if self._done is not None:
            self._done.synchronize()
        found: dict[int, np.ndarray[Any, Any]] = {}
        for places, flat in self._copies:
            pieces = torch.split(flat, [self._shapes[place].numel() for place in places])
            found |= {
                place: piece.numpy().reshape(self._shapes[place]) for place, piece in zip(places, pieces, strict=True)
            }
        return [found[place] for place in range(len(found))]

    def is_finite(self) -> bool:
        """Whether every number is finite, when they are on the host."""
        return all(np.isfinite(values).all() for values in self.arrays() if values.dtype.kind == "f")

    def columns(self) -> list[Columns]:
        """The same with arrays and lists only, when the numbers are on the host."""
        arrays = iter(self.arrays())
        found: list[Columns] = []
        for table in self._tables:
            columns: Columns = {}
            for name, value in table.items():
                given = [next(arrays) for _ in _tensors(value)]
                columns[name] = (
                    value.function(columns, *given) if isinstance(value, HostColumn) else (given or [value])[0]
                )
            found.append(columns)
        return found


def _tensors(value: Any) -> tuple[Tensor, ...]:
    if isinstance(value, HostColumn):
        return value.tensors
    return (value,) if isinstance(value, Tensor) else ()


def _to_host(flat: Tensor) -> Tensor:
    if not flat.is_cuda:
        return flat
    return torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)


def array(values: Tensor) -> np.ndarray[Any, Any]:
    """A result on the host; waits for the device."""
    return values.detach().cpu().numpy()


def pairs(
    low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], where: np.ndarray[Any, Any] | bool = True
) -> list[list[float] | None]:
    """A list column of two numbers; null where one of them is not finite, and outside of `where`."""
    both = np.stack([low, high], 1)
    known: np.ndarray[Any, Any] = np.isfinite(both).all(1) & where
    return [pair if is_known else None for pair, is_known in zip(both.tolist(), known.tolist(), strict=True)]


def stacked(tables: Sequence[Columns]) -> Columns:
    """The rows of several tables, one after the other; a column that a table lacks is null there.

    >>> stacked([{"a": [1], "b": [2]}, {"a": [3]}])
    {'a': [1, 3], 'b': [2, None]}
    """
    names = dict.fromkeys(name for table in tables for name in table)
    lengths = [len(next(iter(table.values()), ())) for table in tables]
    found: Columns = {}
    for name in names:
        parts = [table.get(name, [None] * length) for table, length in zip(tables, lengths, strict=True)]
        if all(isinstance(part, np.ndarray) for part in parts):
            masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
            join: Any = np.ma.concatenate if masked else np.concatenate
            found[name] = join(parts)
        else:
            found[name] = [cell for part in parts for cell in (part.tolist() if isinstance(part, np.ndarray) else part)]
    return found
