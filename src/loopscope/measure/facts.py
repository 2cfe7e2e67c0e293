"""What the driver of a run must know of a model that may live in another process."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from loopscope.models.load import card_of
from loopscope.models.protocol import LoopedModel
from loopscope.store.manifest import ModelInfo


@dataclass(frozen=True)
class ModelFacts:
    """A loaded model without its weights.

    Attributes:
        info: what the manifest says of it.
        vocabulary_size: token ids that it can embed.
        max_positions: the longest sequence, if there is a limit.
        states_dtype: arithmetic of the states.
        device_type: "cpu", "cuda".
        device_name: the device as its maker calls it.
        seed: what random weights were drawn from; None for a checkpoint.
        shares_context: whether it runs options that share a row.
    """

    info: ModelInfo
    vocabulary_size: int
    max_positions: int | None
    states_dtype: str
    device_type: str
    device_name: str
    seed: int | None
    shares_context: bool


def facts_of(model: LoopedModel) -> ModelFacts:
    """The facts of a model that `load_model` returned."""
    card = card_of(model)
    info = ModelInfo(
        spec=card.spec,
        name=card.name,
        family=card.family,
        revision=card.revision,
        weights={name: digest for name, digest in card.sha256.items() if name.endswith(".safetensors")},
        config_sha256=card.sha256.get("config.json"),
        dtype=card.dtype,
        affine_readout=model.head is not None,
        boundary=card.boundary,
        trained_depth=card.trained_depth,
        random_weights=card.random,
        toy=card.kind == "embedded",
    )
    return ModelFacts(
        info,
        model.vocabulary_size,
        getattr(model, "max_positions", None),
        str(model.dtype).removeprefix("torch."),
        model.device.type,
        _device_name(model.device),
        card.seed if card.random else None,
        bool(getattr(model, "shares_context", False)),
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"
