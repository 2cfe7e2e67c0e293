"""Weights into a model: a checkpoint's tensors, or random ones at sensible scales.

The model arrives on the meta device. Names and shapes are compared first, and bytes copied only if all agree: a
checkpoint that does not fit costs no memory and leaves nothing half loaded. Values are not inspected: a checkpoint that
holds NaN loads, and its measurements will say so. Parameters own their memory afterwards: a checkpoint that is
overwritten during a run cannot change the weights under it.

Random weights size a run before a checkpoint is at hand. Every matrix is drawn with standard deviation 1/√(fan-in),
which keeps a normed input's scale, embeddings as the families initialise them, norms are one and biases zero: states
stay finite at any depth and in any dtype, and logits are of order one. An adapter that joins a state with the input
counts the state for less (`CALM`), so that a loop comes to rest as a trained one does and measuring its updates costs
what it will. The numbers mean nothing: the model's name says so, `model.is_random` and `ModelCard.random`.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError, shown
from loopscope.models.checkpoint import TensorEntry
from loopscope.models.layers.residual import OffsetNorm

if TYPE_CHECKING:
    from loopscope.models.base import LoopedModule

FLOATING_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
CALM = 0.15
"""Of the state's half of an adapter: after 19 steps an update of Huginn's size changes states by about a hundredth."""
# The usual width of a fresh embedding where the configuration does not say (Ouro, Llama).
_EMBEDDING_STD = 0.02


def match_tensors(model: LoopedModule, tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The stored tensor of every parameter, tied parameters once.

    Raises:
        LoopscopeError: naming the first missing, unexpected or misshapen tensor, or one of unsupported type.
    """
    tensors = model.arrange(tensors)
    expected, tied = dict(model.named_parameters(remove_duplicate=False)), model.tied
    missing = [name for name in expected if name not in tensors and name not in tied]
    if missing:
        raise LoopscopeError(f"the checkpoint lacks {_listed(missing)}: it is incomplete or of another architecture")
    extra = [name for name in tensors if name not in expected and name not in model.ignored]
    if extra:
        raise LoopscopeError(
            f"the checkpoint holds {_listed(extra)}, which a {model.family} model of this configuration does not have"
        )
    for name, entry in ((name, tensors[name]) for name in expected if name in tensors):
        wanted = list(expected[name].shape)
        if list(entry.shape) != wanted:
            raise LoopscopeError(
                f"{name!r} has shape {list(entry.shape)} in the checkpoint but the configuration makes it {wanted}"
            )
        if entry.dtype not in FLOATING_TYPES:
            raise LoopscopeError(
                f"{entry.path} stores {name!r} as {entry.dtype}, which is not supported: "
                f"export the weights as one of {', '.join(FLOATING_TYPES)}"
            )
    for name, source in tied.items():
        if name in tensors and not torch.equal(tensors[name].read(), tensors[source].read()):
            warnings.warn(
                f"the configuration ties {name} to {source} but the checkpoint stores different values: "
                f"{source} is used for both",
                stacklevel=2,
            )
    return {name: tensors[name] for name in expected if name not in tied}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the tensor{'s' * (len(names) > 1)} {', '.join(shown(name) for name in names[:3])}{more}"


def main_dtype(tensors: Iterable[TensorEntry]) -> torch.dtype:
    """The dtype of most of the checkpoint's numbers."""
    sizes: dict[str, int] = {}
    for entry in tensors:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + math.prod(entry.shape)
    return FLOATING_TYPES.get(max(sizes, key=lambda name: sizes[name]), torch.float32)


@torch.no_grad()
def load_tensors(
    model: LoopedModule, matched: Mapping[str, TensorEntry], device: torch.device, dtype: torch.dtype
) -> None:
    """Allocates a meta model and fills it, tensor by tensor, from the files."""
    for name, parameter in _allocated(model, device, dtype).items():
        # The file is opened for each tensor, so that no more of it is mapped into memory than that one.
        parameter.data.copy_(matched[name].read())


@torch.no_grad()
def fill_randomly(model: LoopedModule, device: torch.device, dtype: torch.dtype, seed: int) -> None:
    """Allocates a meta model and draws its weights where they lie, in their dtype.

    Each tensor has a generator of its own, seeded by `seed` and its name, so a tensor's values do not depend on
    the others. CPU and CUDA generators differ: a seed fixes the values for one kind of device.
    """
    embedding_std = getattr(getattr(model, "config", None), "state_std", _EMBEDDING_STD)
    for name, parameter in _allocated(model, device, dtype).items():
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        _fill(name, parameter.data, embedding_std, generator)
    for module in model.modules():
        if isinstance(module, OffsetNorm):
            module.weight.zero_()


def _fill(name: str, tensor: Tensor, embedding_std: float, generator: torch.Generator) -> None:
    if name.endswith("bias"):
        tensor.zero_()
    elif name.endswith("z_L_init"):
        tensor.normal_(generator=generator)
    elif tensor.dim() == 1:
        tensor.fill_(1.0)
    elif name.endswith(("embed_tokens.weight", "wte.weight")):
        tensor.normal_(0.0, embedding_std, generator=generator)
    else:
        tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)
        if name.endswith("adapter.weight") and tensor.shape[1] == 2 * tensor.shape[0]:
            tensor[:, : tensor.shape[0]] *= CALM


def _allocated(model: LoopedModule, device: torch.device, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Gives the parameters of a meta model memory of their own on the device, uninitialised; tied ones once."""
    named = model.named_parameters(remove_duplicate=False)
    shapes = {name: weight.shape for name, weight in named if name not in model.tied}
    dtypes = {name: model.parameter_dtype(name, dtype) for name in shapes}
    needed = sum(shape.numel() * dtypes[name].itemsize for name, shape in shapes.items())
    too_large = LoopscopeError(
        f"the weights need {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, more than {device} "
        f"has free: choose a smaller dtype or another device"
    )
    # A system that lends more memory than it has would end the process only when the weights are written.
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    if device.type == "cpu" and needed > installed:
        raise too_large
    placed: dict[str, nn.Parameter] = {}
    try:
        for name, shape in shapes.items():
            owner, _, leaf = name.rpartition(".")
            placed[name] = nn.Parameter(torch.empty(shape, dtype=dtypes[name], device=device), requires_grad=False)
            setattr(model.get_submodule(owner), leaf, placed[name])
    except RuntimeError as error:  # torch.OutOfMemoryError on an accelerator, a plain RuntimeError on the CPU
        if "memory" not in str(error):
            raise
        raise too_large from None
    model.tie()
    return placed
