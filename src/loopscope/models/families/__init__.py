"""The model families, one file each, and from a configuration and tensor names to the family that reads them.

A family is a class with the decorator `family`, in a module of this package; nothing else lists them.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from loopscope.errors import LoopscopeError, shown
from loopscope.models.families.config import FamilyConfig

if TYPE_CHECKING:
    from loopscope.models.base import LoopedModule

Recognises = Callable[[Mapping[str, Any], Collection[str] | None], bool]
"""From config.json and the names of a checkpoint's tensors, None where only config.json is at hand."""


@dataclass(frozen=True)
class Family:
    """A family of looped models.

    Attributes:
        name: "ouro", "huginn", …
        config: its config.json.
        model: builds the model of a configuration.
        boundary: where in the model the state is taken; a model may say more.
        kinds: values of `model_type`, `architectures` or `_class_name` in config.json that name it.
        recognises: distinguishes families of the same kind; without kinds, the family itself.
    """

    name: str
    config: type[FamilyConfig]
    model: Callable[[Any], LoopedModule]
    boundary: str
    kinds: tuple[str, ...] = ()
    recognises: Recognises | None = None

    @property
    def title(self) -> str:
        """For people."""
        return self.config.title


_FOUND: dict[str, Family] = {}


M = TypeVar("M", bound="type[LoopedModule]")


def family(
    name: str, config: type[FamilyConfig], *kinds: str, recognises: Recognises | None = None
) -> Callable[[M], M]:
    """Registers a class as the model of a family."""

    def register(model: M) -> M:
        model.family = model.name = name
        _FOUND[name] = Family(name, config, model, model.boundary, kinds, recognises)
        return model

    return register


@functools.cache
def families() -> dict[str, Family]:
    """Every family by name."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_FOUND.items()))


def detect_family(config: Mapping[str, Any], tensors: Collection[str] | None) -> str:
    """The family of a checkpoint, from config.json and the names of its tensors (None where there are none at hand).

    Raises:
        LoopscopeError: for an unknown or contradictory architecture.
    """
    found = check_architecture(config)
    fitting = [one.name for one in found if one.recognises is None or one.recognises(config, tensors)]
    if len(fitting) == 1:
        return fitting[0]
    names = " or ".join(one.name for one in found)
    if tensors is None:
        raise LoopscopeError(
            f"the configuration does not say whether the model is {names}: name a published model, or a folder that "
            "holds its weights or their index"
        )
    raise LoopscopeError(f"the checkpoint's tensors do not say whether it is {names}: is it incomplete?")


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """The first of `architectures` in config.json."""
    listed = config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, str) else None


def check_architecture(config: Mapping[str, Any]) -> list[Family]:
    """The families that config.json may mean: one, or several that only their tensors tell apart.

    Raises:
        LoopscopeError: for an unknown or contradictory architecture.
    """
    named = [name for name in (architecture_of(config), config.get("model_type")) if isinstance(name, str)]
    named = named or [name for key in ("_class_name", "model_class_name") if isinstance(name := config.get(key), str)]
    known = list(families().values())
    fitting = [one for one in known if named and set(named) <= set(one.kinds)]
    if not named:
        fitting = [one for one in known if not one.kinds and one.recognises and one.recognises(config, None)]
    if fitting:
        return fitting
    what = " and ".join(map(shown, named)) or "(none named)"
    raise LoopscopeError(
        f"unknown architecture {what}: `loopscope models` lists the families; "
        f"--model-args loop=FIRST-LAST loops layers of a model that is not looped"
    )


def build_model(
    name: str,
    config: Mapping[str, Any],
    tensors: Collection[str] | None = None,
    chosen: Mapping[str, Any] | None = None,
) -> LoopedModule:
    """The model of a configuration on the meta device: every name and shape, no memory.

    Args:
        name: of a family.
        config: config.json.
        tensors: the names of the checkpoint's tensors, for families whose configuration does not say it all.
        chosen: the user's choices (`model_args`), by name.

    Raises:
        LoopscopeError: for sizes that are unsupported, contradictory or absurd, and for unknown choices.
    """
    one = families()[name]
    read = one.config.read(config, None if tensors is None else frozenset(tensors), chosen)
    try:
        with torch.device("meta"):
            return one.model(read)
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise LoopscopeError("config.json: its sizes multiply to more than any memory holds") from None
