"""Random weights at sensible scales, for sizing a run before a checkpoint is at hand.

Every matrix is drawn with standard deviation 1/√(fan-in), which keeps a normed input's scale, embeddings as the
families initialise them, norms are one and biases zero: states stay finite at any depth and in any dtype, and
logits are of order one. An adapter that joins a state with the input counts the state for less (`CALM`), so that a loop
comes to rest as a trained one does and measuring its updates costs what it will. The numbers mean nothing: the model
says so in its name (`random_name`), in `model.is_random` and in `ModelCard.random`, from which a run's manifest, tables
and report repeat it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import nn

from loopscope.models.checkpoint.weights import allocate

if TYPE_CHECKING:
    from torch import Tensor

    from loopscope.models.base import LoopedModule


CALM = 0.15
"""Of the state's half of an adapter: after 19 steps an update of Huginn's size changes states by about a hundredth."""

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
        if not isinstance(parameter, nn.Parameter):
            continue
        generator = torch.Generator(device).manual_seed(_tensor_seed(seed, name))
        _fill(name, parameter.data, embedding_std, generator)
    model.fill_buffers()


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


def _tensor_seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def random_name(name: str) -> str:
    """The name of a model without its trained weights, as every table and log shows it."""
    return f"{name} (random weights)"
