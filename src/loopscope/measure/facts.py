"""What the driver of a run must know of a model that may live in another process."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from loopscope.models.card import ModelCard
from loopscope.models.identity import model_identity
from loopscope.models.initial_state import InitialState
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
        seeds: of what is drawn at random, by name: random weights, an initial state.
        shares_context: whether it runs options that share a row.
    """

    info: ModelInfo
    vocabulary_size: int
    max_positions: int | None
    states_dtype: str
    device_type: str
    device_name: str
    seeds: dict[str, int]
    shares_context: bool


def facts_of(model: LoopedModel) -> ModelFacts:
    """The facts of a model that `load_model` returned."""
    card = card_of(model)
    info = ModelInfo(
        spec=card.spec,
        name=card.name,
        family=card.family,
        revision=card.revision,
        weights=_weights(model, card),
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
        _seeds(model, card),
        bool(getattr(model, "shares_context", False)),
    )


def _weights(model: LoopedModel, card: ModelCard) -> dict[str, str]:
    """The hashes of the files that the weights were read from; of the model in memory where there are none."""
    files = {name: digest for name, digest in card.sha256.items() if name.endswith(".safetensors")}
    return files if files or card.random else model_identity(model)


def _seeds(model: LoopedModel, card: ModelCard) -> dict[str, int]:
    drawn = getattr(model, "initial_state", None)
    seeds = {"initial_state": drawn.seed} if isinstance(drawn, InitialState) else {}
    return seeds | ({"random_weights": card.seed} if card.random and card.seed is not None else {})


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"
