"""From a configuration and tensor names to the family that reads them.

Only this module knows every family; torch is imported when a model is built, not when families are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, shown

if TYPE_CHECKING:
    from loopscope.models.base import LoopedModule


@dataclass(frozen=True)
class Family:
    """A family for people to read about: what it is, and where its state is taken."""

    name: str
    title: str
    boundary: str


_RAW_CORE = "the recurrent core's raw output, before the coda"

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("ouro", "Ouro", "the shared stack's output after its norm, just before the language-model head"),
        Family("huginn", "Huginn", _RAW_CORE),
        Family("retrofit-llama", "Retrofitted Llama", _RAW_CORE),
        Family("retrofit-olmo", "Retrofitted OLMo-2", _RAW_CORE),
        Family("loop", "Looped layers", "the output of the looped layers, before the layers that follow"),
    )
}

MOST_LAYERS = 1000
"""In a configuration; the deepest published models have a tenth."""
_ARCHITECTURES = {"OuroForCausalLM": "ouro", "RavenForCausalLM": "raven"}
_MODEL_TYPES = {"ouro": "ouro", "huginn_raven": "raven"}


def detect_family(config: Mapping[str, Any], tensor_names: Iterable[str] | None) -> str:
    """The family of a checkpoint, from `model_type`, `architectures` and, where those are shared, its tensors.

    Args:
        config: config.json.
        tensor_names: what the checkpoint holds; None where only the configuration is at hand.

    Raises:
        LoopscopeError: for an unknown or contradictory architecture.
    """
    if check_architecture(config) == "ouro":
        return "ouro"
    if config.get("qk_bias") is True and tensor_names is None:
        return "huginn"
    if tensor_names is None:
        raise LoopscopeError(
            "the configuration of a retrofitted model does not say whether its blocks are Llama's or OLMo's: "
            "name a published model, or a folder that holds its weights or their index"
        )
    from loopscope.models.families.retrofit import variant_from_tensors

    variant = variant_from_tensors(tensor_names)
    return variant if variant == "huginn" else f"retrofit-{variant}"


def check_architecture(config: Mapping[str, Any]) -> str:
    """The architecture named: "ouro", or "raven" (Huginn and retrofits, which only their tensors tell apart).

    Raises:
        LoopscopeError: for an unknown or contradictory architecture.
    """
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    model_type = config.get("model_type")
    by_architecture = _ARCHITECTURES.get(architecture) if isinstance(architecture, str) else None
    by_type = _MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    # A file may leave one of the two out; it may not name two different ones.
    if by_architecture != by_type and None not in (architecture, model_type):
        both = f"model_type {shown(model_type)}, architecture {shown(architecture)}"
        raise LoopscopeError(f"config.json contradicts itself ({both}): it must name one supported architecture")
    kind = by_architecture or by_type
    if kind is None:
        named = shown(architecture or model_type) if architecture or model_type else "(none named)"
        raise LoopscopeError(
            f"unknown architecture {named}: loopscope runs Ouro, Huginn and retrofitted recurrence; "
            f"`loop:MODEL:FIRST-LAST` loops the layers of a Llama-style model"
        )
    return kind


def build_model(
    family: str,
    config: Mapping[str, Any],
    span: tuple[int, int] | None = None,
    tensor_names: Iterable[str] | None = None,
) -> LoopedModule:
    """The model of a configuration on the meta device: every name and shape, no memory.

    Args:
        family: a name of `FAMILIES`.
        config: config.json.
        span: first and last layer to loop, of the family "loop".
        tensor_names: what the checkpoint holds, for families whose configuration does not say it all; None where
            there is no checkpoint.

    Raises:
        LoopscopeError: for sizes that are unsupported, contradictory or absurd.
    """
    import torch

    for key, value in config.items():
        # Layers are objects even on the meta device, so a damaged count would take the memory that it must not.
        if "layers" in key and type(value) is int and value > MOST_LAYERS:
            raise LoopscopeError(
                f"config.json: {shown(key)} {shown(value)} is more than the {MOST_LAYERS} layers allowed"
            )
    try:
        with torch.device("meta"):
            return _build(family, config, span, None if tensor_names is None else frozenset(tensor_names))
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise LoopscopeError("config.json: its sizes multiply to more than any memory holds") from None


def _build(
    family: str, config: Mapping[str, Any], span: tuple[int, int] | None, names: frozenset[str] | None
) -> LoopedModule:
    if family == "ouro":
        from loopscope.models.families.ouro import Ouro, OuroConfig

        return Ouro(OuroConfig.from_json(config))
    if family == "huginn":
        from loopscope.models.families.huginn import Huginn, HuginnConfig

        return Huginn(HuginnConfig.from_json(config))
    if family == "loop" and span is not None:
        from loopscope.models.families.layer_loop import LayerLoop, LayerLoopConfig

        return LayerLoop(LayerLoopConfig.from_json(config, span))
    from loopscope.models.families.retrofit import RetrofitConfig, RetrofitLlama, RetrofitOlmo

    kinds: dict[str, type[RetrofitLlama | RetrofitOlmo]] = {
        "retrofit-llama": RetrofitLlama,
        "retrofit-olmo": RetrofitOlmo,
    }
    return kinds[family](RetrofitConfig.from_json(config))
