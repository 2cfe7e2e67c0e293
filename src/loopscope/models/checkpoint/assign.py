"""From a checkpoint into a model: compared name by name and shape by shape first, copied only if all agree.

The model arrives on the meta device, so a checkpoint that does not fit costs no memory and leaves nothing half
loaded. Values are not inspected: a checkpoint that holds NaN loads, and its measurements will say so.

Random weights at sensible scales, for sizing a run before a checkpoint is at hand.

Every matrix is drawn with standard deviation 1/√(fan-in), which keeps a normed input's scale, embeddings as the
families initialise them, norms are one and biases zero: states stay finite at any depth and in any dtype, and
logits are of order one. The numbers mean nothing; a model filled like this says so in its name and its card.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from loopscope.errors import LoopscopeError, shown
from loopscope.models.checkpoint.safetensors import FLOATING_TYPES, copy_tensor, same_bytes, stored_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from loopscope.models.base import LoopedModule
    from loopscope.models.checkpoint.safetensors import TensorEntry


def match_tensors(model: LoopedModule, tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The stored tensor of every parameter, tied parameters once.

    Raises:
        LoopscopeError: naming the first missing, unexpected or misshapen tensor, or one of unsupported type.
    """
    expected = dict(model.named_parameters(remove_duplicate=False))
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


def main_dtype(tensors: Iterable[TensorEntry]) -> torch.dtype:
    """The dtype of most of the checkpoint's bytes."""
    sizes: dict[str, int] = {}
    for entry in tensors:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.nbytes
    return FLOATING_TYPES[max(sizes, key=lambda name: sizes[name])]


def allocate(model: LoopedModule, device: torch.device, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Gives every parameter of a meta model memory of its own on the device, uninitialised; tied ones once."""
    tied = model.tied_tensors()
    placed: dict[str, nn.Parameter] = {}
    needed = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    too_large = LoopscopeError(
        f"the weights need {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, more than {device} "
        f"has free: choose a smaller dtype or another device"
    )
    # A system that lends more memory than it has would end the process only when the weights are written.
    if device.type == "cpu" and needed > _installed_memory():
        raise too_large
    try:
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if name in tied:
                continue
            owner, _, leaf = name.rpartition(".")
            empty = torch.empty(parameter.shape, dtype=dtype, device=device)
            placed[name] = nn.Parameter(empty, requires_grad=False)
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


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    plural = "the tensors" if len(names) > 1 else "the tensor"
    return f"{plural} {', '.join(shown(name) for name in names[:3])}{more}"


# The usual width of a fresh embedding where the configuration does not say (Ouro, Llama).
_EMBEDDING_STD = 0.02


@torch.no_grad()
def fill_randomly(model: LoopedModule, device: torch.device, dtype: torch.dtype, seed: int) -> None:
    """Allocates a meta model and draws its weights where they lie, in their dtype.

    Each tensor has a generator of its own, seeded by `seed` and its name, so a tensor's values do not depend on
    the others. CPU and CUDA generators differ: a seed fixes the values for one kind of device.
    """
    embedding_std = getattr(getattr(model, "config", None), "state_std", _EMBEDDING_STD)
    for name, parameter in allocate(model, device, dtype).items():
        generator = torch.Generator(device).manual_seed(_tensor_seed(seed, name))
        _fill(name, parameter.data, embedding_std, generator)


def _fill(name: str, tensor: Tensor, embedding_std: float, generator: torch.Generator) -> None:
    if name.endswith("bias"):
        tensor.zero_()
    elif tensor.dim() == 1:
        tensor.fill_(1.0)
    elif name.endswith(("embed_tokens.weight", "wte.weight")):
        tensor.normal_(0.0, embedding_std, generator=generator)
    else:
        tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)


def _tensor_seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
