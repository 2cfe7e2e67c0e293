"""The device and dtype a user asks for, by name."""

from __future__ import annotations

import torch

from loopscope._errors import LoopscopeError, shown

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_TYPES = ("cpu", "cuda", "mps")
_ABBREVIATIONS = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp64": "float64"}


def find_device(device: str | torch.device) -> torch.device:
    """The device of a name; "auto" is the first accelerator, else the CPU.

    Raises:
        LoopscopeError: if there is no such device on this machine.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else _apple() or "cpu")
    unknown = LoopscopeError(f"there is no device {shown(str(device))} for models: choose cpu, cuda, cuda:1, … or auto")
    # torch knows devices that hold no numbers (meta) or that no model was ever run on.
    if str(device).partition(":")[0] not in _TYPES:
        raise unknown
    try:
        found = torch.device(device)
    except RuntimeError:
        raise unknown from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise LoopscopeError(f"{found} is asked for but this machine has {count} CUDA devices: choose cpu or auto")
    if found.type == "mps" and _apple() is None:
        raise LoopscopeError("mps is asked for but this machine has none: choose cpu or auto")
    return found


def _apple() -> str | None:
    return "mps" if torch.backends.mps.is_available() else None


def find_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The floating-point dtype of a name.

    >>> find_dtype("bf16")
    torch.bfloat16
    """
    name = str(dtype).removeprefix("torch.").lower()
    try:
        return DTYPES[_ABBREVIATIONS.get(name, name)]
    except KeyError:
        raise LoopscopeError(f"{shown(name)} is no dtype for weights: choose one of {', '.join(DTYPES)}") from None
