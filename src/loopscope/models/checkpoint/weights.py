"""A checkpoint's tensors into a model: names and shapes are compared first, and bytes copied only if all agree.

The model arrives on the meta device, so a checkpoint that does not fit costs no memory and leaves nothing half loaded.
Values are not inspected: a checkpoint that holds NaN loads, and its measurements will say so. Parameters own their
memory afterwards: a checkpoint that is overwritten during a run cannot change the weights under it.
"""

from __future__ import annotations

import math
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
        if entry.dtype not in FLOATING_TYPES:
            raise LoopscopeError(
                f"{entry.path} stores {entry.name!r} as {entry.dtype}, which is not supported: "
                f"export the weights as one of {', '.join(FLOATING_TYPES)}"
            )
    for name, source in tied.items():
        if name in tensors and not torch.equal(tensors[name].read(), tensors[source].read()):
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


def main_dtype(tensors: Iterable[TensorEntry]) -> torch.dtype:
    """The dtype of most of the checkpoint's bytes."""
    sizes: dict[str, int] = {}
    for entry in tensors:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.nbytes
    return FLOATING_TYPES.get(max(sizes, key=lambda name: sizes[name]), torch.float32)


@torch.no_grad()
def load_tensors(
    model: LoopedModule, matched: Mapping[str, TensorEntry], device: torch.device, dtype: torch.dtype
) -> None:
    """Allocates a meta model and fills it, tensor by tensor, from the files."""
    for name, parameter in allocate(model, device, dtype).items():
        # The file is opened for each tensor, so that no more of it is mapped into memory than that one.
        parameter.data.copy_(matched[name].read())


def allocate(model: LoopedModule, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Gives all that a meta model stores memory of its own on the device, uninitialised; tied parameters once."""
    tied = model.tied_tensors()
    placed: dict[str, torch.Tensor] = {}
    stored = {name: tensor for name, tensor in stored_tensors(model).items() if name not in tied}
    kinds = {name: model.parameter_dtype(name, dtype) for name in stored}
    needed = sum(tensor.numel() * kinds[name].itemsize for name, tensor in stored.items())
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
            empty = torch.empty(tensor.shape, dtype=kinds[name], device=device)
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
