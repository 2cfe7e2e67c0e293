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


def pinned(batch: Batch, device: torch.device) -> Batch:
    """The same batch in memory from which `Batch.to` does not wait for the device."""
    if device.type != "cuda":
        return batch
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    held: dict[str, Any] = {name: value.pin_memory() for name, value in fields.items() if isinstance(value, Tensor)}
    if batch.parts is not None:
        held["parts"] = batch.parts.moved(Tensor.pin_memory)
    return dataclasses.replace(batch, **held)


class HostCopy:
    """Tensors of one device that are being copied to the host."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._order: dict[torch.dtype, list[int]] = {}
        for index, tensor in enumerate(tensors):
            self._order.setdefault(tensor.dtype, []).append(index)
        self._host = {
            dtype: _start(torch.cat([tensors[index].detach().reshape(-1) for index in indices]))
            for dtype, indices in self._order.items()
        }
        on_gpu = [tensor.device for tensor in tensors if tensor.is_cuda]
        self._done = torch.cuda.current_stream(on_gpu[0]).record_event() if on_gpu else None

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The tensors as arrays, in order, when they are on the host."""
        if self._done is not None:
            self._done.synchronize()
        found: dict[int, np.ndarray[Any, Any]] = {}
        for dtype, indices in self._order.items():
            sizes = [self._shapes[index].numel() for index in indices]
            for index, flat in zip(indices, torch.split(self._host[dtype], sizes), strict=True):
                found[index] = flat.numpy().reshape(self._shapes[index])
        return [found[index] for index in range(len(self._shapes))]


def _start(flat: Tensor) -> Tensor:
    if not flat.is_cuda:
        return flat
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    return host.copy_(flat, non_blocking=True)


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
        self._copy = HostCopy([sent for table in tables for value in table.values() for sent in _tensors(value)])

    def is_finite(self) -> bool:
        """Whether every number is finite, when they are on the host."""
        return all(np.isfinite(values).all() for values in self._copy.arrays() if values.dtype.kind == "f")

    def columns(self) -> list[Columns]:
        """The same with arrays and lists only, when the numbers are on the host."""
        arrays = iter(self._copy.arrays())
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
    names = list(dict.fromkeys(name for table in tables for name in table))
    return {name: _joined([table.get(name, [None] * length(table)) for table in tables]) for name in names}


def length(columns: Columns) -> int:
    """How many rows the columns hold."""
    return len(next(iter(columns.values()))) if columns else 0


def _joined(columns: list[Any]) -> Any:
    if all(isinstance(values, np.ndarray) for values in columns):
        masked = any(isinstance(values, np.ma.MaskedArray) for values in columns)
        join: Any = np.ma.concatenate if masked else np.concatenate
        return join(columns)
    return [cell for values in columns for cell in (values.tolist() if isinstance(values, np.ndarray) else values)]
