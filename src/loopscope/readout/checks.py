"""Checks of arguments for every public function of `readout`: one clear line, never a silent wrong number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError

Scales = float | Sequence[float] | Tensor | Any  # Any: NumPy arrays and scalars


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a named implementation that does not exist."""
    if value not in choices:
        raise LoopscopeError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, choices))}.")


def require_floating(name: str, tensor: Tensor) -> None:
    """Refuse anything but a real floating-point tensor."""
    if not isinstance(tensor, Tensor):
        raise LoopscopeError(f"{name} is a {type(tensor).__name__}, not a torch tensor; wrap it with torch.as_tensor.")
    if not tensor.dtype.is_floating_point:
        raise LoopscopeError(f"{name} has dtype {tensor.dtype}; give a floating-point tensor.")
    if tensor.is_meta:
        raise LoopscopeError(f"{name} is on the device meta, which holds no values; give a tensor with values.")
    if tensor.layout != torch.strided:
        raise LoopscopeError(f"{name} has layout {tensor.layout}; give a dense tensor, e.g. {name}.to_dense().")


def require_finite(name: str, tensor: Tensor) -> None:
    """Refuse NaN and infinities, saying how many there are; waits for the device."""
    # A sum says it in one look, unless finite numbers overflow it; then every entry is looked at.
    if not math.isfinite(float(tensor.sum())) and (bad := int((~torch.isfinite(tensor)).sum())):
        raise LoopscopeError(
            f"NaN or infinite values in {name}, {bad} of them; "
            "remove those rows, check the weights, or compute the logits in a wider dtype."
        )


def require_matrix(name: str, tensor: Tensor) -> None:
    """Refuse anything but a non-empty floating-point matrix."""
    require_floating(name, tensor)
    if tensor.ndim != 2:
        raise LoopscopeError(f"{name} has shape {tuple(tensor.shape)}; give a matrix, one row for each token or entry.")
    if tensor.shape[0] == 0:
        raise LoopscopeError(f"{name} has no rows: the reference set is empty; give at least one reference token.")
    if tensor.shape[1] == 0:
        raise LoopscopeError(f"{name} has no columns; give at least one.")


def require_same_shape(name_a: str, a: Tensor, name_b: str, b: Tensor) -> None:
    """Refuse two tensors that must agree in shape and device and do not."""
    if a.shape != b.shape:
        raise LoopscopeError(
            f"{name_a} has shape {tuple(a.shape)} but {name_b} has shape {tuple(b.shape)}; they must be the same."
        )
    if a.device != b.device:
        raise LoopscopeError(f"{name_a} is on {a.device} but {name_b} is on {b.device}; move them to one device.")


def as_integers(name: str, index: Any) -> Tensor:
    """Whatever holds integers, as a tensor."""
    try:
        tensor = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise LoopscopeError(f"{name} is not a list of integers that torch can hold; give one integer a row.") from None
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise LoopscopeError(f"{name} has dtype {tensor.dtype}; give integers.")
    return tensor


def as_index(name: str, index: Any, length: int, device: torch.device) -> Tensor:
    """A one-dimensional int64 tensor of the given length, from integers only."""
    tensor = as_integers(name, index)
    if tensor.ndim != 1 or tensor.shape[0] != length:
        raise LoopscopeError(f"{name} has shape {tuple(tensor.shape)}; give one integer for each of the {length} rows.")
    return tensor.to(device=device, dtype=torch.int64)


def as_groups(
    name: str, group: str, members: str, index: Any, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The group of each row, integers 0..G-1, and how many rows each group has; none is empty."""
    group_of_row = as_index(name, index, length, device)
    if int(group_of_row.min()) < 0:
        raise LoopscopeError(f"{name} holds {int(group_of_row.min())}; number the {group}s from 0.")
    counts = torch.bincount(group_of_row)
    empty = torch.nonzero(counts == 0)
    if empty.numel():
        raise LoopscopeError(
            f"{group} {int(empty[0])} has no {members}; drop it and number the others from 0 without gaps."
        )
    return group_of_row, counts


def as_targets(targets: Any, tokens: int, vocabulary: int, device: torch.device) -> Tensor:
    """The reference labels, each inside the vocabulary."""
    index = as_index("targets", targets, tokens, device)
    low, high = map(int, torch.stack(index.aminmax()).tolist())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise LoopscopeError(f"target {wrong} is outside the vocabulary of {vocabulary} entries; check the tokenizer.")
    return index


def as_readout_dtype(dtype: torch.dtype) -> torch.dtype:
    """The readout's arithmetic: FP32 or FP64."""
    if dtype not in (torch.float32, torch.float64):
        raise LoopscopeError(f"readout dtype {dtype} is not supported; use torch.float32 or torch.float64.")
    return dtype


def as_scales(alpha: Scales) -> tuple[list[float], bool]:
    """Scales in [0, 1] as Python floats, and whether a single one was given."""
    try:
        # Not as_tensor(alpha): Python floats would become float32 and 0.3 another number.
        tensor = alpha.detach() if isinstance(alpha, Tensor) else torch.as_tensor(np.asarray(alpha))
    except (TypeError, ValueError):
        raise LoopscopeError(f"alpha is a {type(alpha).__name__}; give one scale or a list of scales.") from None
    if tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise LoopscopeError(f"alpha has dtype {tensor.dtype}; give real numbers.")
    if tensor.ndim > 1 or tensor.numel() == 0:
        raise LoopscopeError(f"alpha has shape {tuple(tensor.shape)}; give one scale or a non-empty list of scales.")
    scales: list[float] = tensor.reshape(-1).to(device="cpu", dtype=torch.float64).tolist()
    for value in scales:
        if not 0.0 <= value <= 1.0:
            raise LoopscopeError(f"alpha = {value:g} is outside [0, 1]; scales are fractions of the update.")
    return scales, tensor.ndim == 0


def as_order(order: int, maximum: int) -> int:
    """A derivative order that this path can give."""
    if isinstance(order, bool) or not isinstance(order, int) or not 0 <= order <= maximum:
        raise LoopscopeError(f"order={order!r} is not available here; choose an integer from 0 to {maximum}.")
    return order


def as_block(name: str, size: int) -> int:
    """A positive block size."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise LoopscopeError(f"{name}={size!r} is not a block size; give a positive integer.")
    return size


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host refused an allocation."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)
