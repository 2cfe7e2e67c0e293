"""From a configuration and tensor names to the family that reads them.

Only this module knows every family; torch is imported when a model is built, not when families are listed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, shown
from loopscope.models.checkpoint.config import MOST_LAYERS
from loopscope.models.choices import require_known

if TYPE_CHECKING:
    from loopscope.models.base import LoopedModule


@dataclass(frozen=True)
class Family:
    """A family: what it is, where its state is taken, and the code that reads its checkpoints.

    Attributes:
        name: "ouro", "huginn", …
        title: for people.
        boundary: where in the model the state is taken; a model may say more.
        code: its module in this package, and in it what makes the model and the configuration.
        choices: what a specification may choose (`models.choices`), each with its meaning.
    """

    name: str
    title: str
    boundary: str
    code: tuple[str, str, str]
    choices: Mapping[str, str] = field(default_factory=dict)


_NORMED_STACK = "the shared stack's output after its norm, just before the language-model head"
_RAW_CORE = "the recurrent core's raw output, before the coda"
_RAW_STREAM = "the residual stream after the shared blocks, before the last norm"
_LOOPED_LAYERS = "the output of the looped layers, before the layers that follow"

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "ouro",
            "Ouro",
            _NORMED_STACK,
            ("ouro_inside", "build_ouro", "OuroConfig"),
            {"inside": "the layer before which the state is taken, with the rest of the stack as readout"},
        ),
        Family("huginn", "Huginn", _RAW_CORE, ("huginn", "Huginn", "HuginnConfig")),
        Family("retrofit-llama", "Retrofitted Llama", _RAW_CORE, ("retrofit", "RetrofitLlama", "RetrofitConfig")),
        Family("retrofit-olmo", "Retrofitted OLMo-2", _RAW_CORE, ("retrofit", "RetrofitOlmo", "RetrofitConfig")),
        Family("nanbeige", "Nanbeige", _NORMED_STACK, ("nanbeige", "Nanbeige", "NanbeigeConfig")),
        Family(
            "hrm-text",
            "HRM-Text",
            "the slow state z_H after an H cycle, just before the language-model head",
            ("hrm_text", "HrmText", "HrmTextConfig"),
            {
                "attention": "prefix (the prompt attends both ways, as in training) or causal",
                "L_cycles": "updates of the fast state z_L in a step, instead of the checkpoint's own number",
            },
        ),
        Family(
            "loopus",
            "LoopUS",
            "the state after the update gate, before the decoder's layers",
            ("loopus", "LoopUS", "LoopUSConfig"),
            {"exit": "threshold (the checkpoint's confidence exit is recorded) or none"},
        ),
        Family(
            "parcae",
            "Parcae",
            _RAW_CORE,
            ("parcae", "Parcae", "ParcaeConfig"),
            {"initial_state": "question (by position), paper (in one call) or official (the published calls)"},
        ),
        Family(
            "loopformer",
            "LoopFormer",
            _RAW_STREAM,
            ("loopformer", "LoopFormer", "LoopFormerConfig"),
            {"budget": "M steps of 1/M instead of eight of 1/8", "schedule": "the steps, e.g. 1/2+1/4+1/8+1/8"},
        ),
        Family(
            "tmlt",
            "TMLT (LoopFormer's baseline; no published weights known)",
            _RAW_STREAM,
            ("loopformer", "Tmlt", "LoopFormerConfig"),
        ),
        Family("loop", "Looped layers", _LOOPED_LAYERS, ("layer_loop", "LayerLoop", "LayerLoopConfig")),
    )
}

_ARCHITECTURES = {
    "OuroForCausalLM": "ouro",
    "RavenForCausalLM": "raven",
    "NanbeigeForCausalLM": "nanbeige",
    "HrmTextForCausalLM": "hrm-text",
    "LDSForCausalLM": "loopus",
    "LoopFormerGPTForCausalLM": "loopformer",
}
_MODEL_TYPES = {
    "ouro": "ouro",
    "huginn_raven": "raven",
    "nanbeige": "nanbeige",
    "hrm_text": "hrm-text",
    "lds": "loopus",
    "loopformer": "loopformer",
    "tmlt": "tmlt",
}
_CLASS_NAMES = {"ParcaeConfig": "parcae"}
"""Of configurations that name neither of the two."""


def detect_family(config: Mapping[str, Any], tensor_names: Iterable[str] | None) -> str:
    """The family of a checkpoint, from `model_type`, `architectures` and, where those are shared, its tensors.

    Args:
        config: config.json.
        tensor_names: what the checkpoint holds; None where only the configuration is at hand.

    Raises:
        LoopscopeError: for an unknown or contradictory architecture.
    """
    kind = check_architecture(config)
    if kind != "raven":
        return kind
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
    """The family named, or "raven" for Huginn and retrofits, which only their tensors tell apart.

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
    class_name = config.get("_class_name")
    if architecture is None and model_type is None and isinstance(class_name, str):
        kind = _CLASS_NAMES.get(class_name)
    if kind is None:
        name = architecture or model_type or class_name
        named = shown(name) if name else "(none named)"
        raise LoopscopeError(
            f"unknown architecture {named}: `loopscope models` lists the families; "
            f"--model-args loop=FIRST-LAST loops layers of a model that is not looped"
        )
    return kind


def build_model(
    family: str,
    config: Mapping[str, Any],
    span: tuple[int, int] | None = None,
    tensor_names: Iterable[str] | None = None,
    chosen: Mapping[str, str] | None = None,
) -> LoopedModule:
    """The model of a configuration on the meta device: every name and shape, no memory.

    `from_json` of the family's configuration gets those of the three others that its signature asks for.

    Args:
        family: a name of `FAMILIES`.
        config: config.json.
        span: first and last layer to loop, of the family "loop".
        tensor_names: what the checkpoint holds, for families whose configuration does not say it all; None where
            there is no checkpoint.
        chosen: what the specification chooses, by name.

    Raises:
        LoopscopeError: for sizes that are unsupported, contradictory or absurd, and for unknown choices.
    """
    import torch

    for key, value in config.items():
        # Layers are objects even on the meta device, so a damaged count would take the memory that it must not.
        if "layers" in key and type(value) is int and value > MOST_LAYERS:
            raise LoopscopeError(
                f"config.json: {shown(key)} {shown(value)} is more than the {MOST_LAYERS} layers allowed"
            )
    require_known(chosen or {}, FAMILIES[family].title, FAMILIES[family].choices)
    home, model_name, config_name = FAMILIES[family].code
    module = import_module(f"loopscope.models.families.{home}")
    from_json = getattr(module, config_name).from_json
    names = None if tensor_names is None else frozenset(tensor_names)
    given = {"span": span, "tensor_names": names, "chosen": chosen or {}}
    asked = {name: value for name, value in given.items() if name in inspect.signature(from_json).parameters}
    try:
        with torch.device("meta"):
            model: LoopedModule = getattr(module, model_name)(from_json(config, **asked))
            return model
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise LoopscopeError("config.json: its sizes multiply to more than any memory holds") from None
