"""The model families, one file each: their registry, and their config.json as pydantic models.

A family is a class with the decorator `family`, in a module of this package; nothing else lists them. Fields of its
configuration have the names of config.json; a field that is absent or null has its default, a field that is not
declared does not matter to the computation. Values that would compute what is not implemented are refused: those
outside a `Literal`, and those that differ from the one value in `fixed`.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from loopscope.errors import LoopscopeError, shown
from loopscope.models.layers.attention import AttentionSizes
from loopscope.models.layers.positions import Rotary, Scaling

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModule

# A width, vocabulary or number of positions: at most a hundred thousand times today's.
Size = Annotated[int, Field(gt=0, le=2**31 - 1)]
Layers = Annotated[int, Field(ge=0, le=1000)]
Loops = Annotated[int, Field(gt=0, le=1_000_000)]
# Beyond these a number has no use in float32, whose sums and products would overflow or vanish.
Number = Annotated[float, Field(ge=1e-30, le=1e30)]
TokenIds = Annotated[tuple[int, ...], BeforeValidator(lambda ids: tuple(ids) if isinstance(ids, list) else (ids,))]


def option(default: Any, meaning: str) -> Any:
    """A field that the user chooses (`model_args`); without a default, instead of the value in config.json."""
    return Field(default, description=meaning, json_schema_extra={"option": True})


def only(inherited: Mapping[str, Any] | None = None, /, **values: Any) -> Mapping[str, Any]:
    """Fields with the one value that each may have, in addition to those of the class that is derived from."""
    return MappingProxyType({**(inherited or {}), **values})


class FamilyConfig(BaseModel):
    """What every family's configuration has."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())
    title: ClassVar[str]
    fixed: ClassVar[Mapping[str, Any]] = only()
    """Fields whose other values compute what is not implemented, with the one value that they may have."""
    widths: ClassVar[tuple[str, ...]] = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    """The fields of the hidden size, the heads, those of keys and values, and the width of a head."""

    @classmethod
    def options(cls) -> dict[str, str]:
        """What a user may choose, with the meaning of each."""
        return {name: field.description or "" for name, field in cls.model_fields.items() if field.json_schema_extra}

    @classmethod
    def read(
        cls, json: Mapping[str, Any], tensors: Collection[str] | None = None, chosen: Mapping[str, Any] | None = None
    ) -> Self:
        """The configuration of config.json, the names of a checkpoint's tensors (where there is one) and choices.

        Raises:
            LoopscopeError: one line for the first value that is missing, unsupported or contradictory.
        """
        options, chosen = cls.options(), chosen or {}
        for name in chosen:
            if name not in options:
                there = f"choose {', '.join(options)}" if options else "leave it out"
                raise LoopscopeError(f"{cls.title} has no option {shown(name)}: {there}")
        ours = {name for name in options if not cls.model_fields[name].is_required()}
        values = {name: value for name, value in json.items() if name not in ours}
        try:
            return cls.model_validate(values | dict(chosen), context={"tensors": tensors})
        except ValidationError as error:
            raise cls.fault(_first(error)) from None

    @classmethod
    def fault(cls, message: str) -> LoopscopeError:
        """The error to raise: one line that names the file and the family."""
        return LoopscopeError(f"config.json ({cls.title}): {message}")

    def require(self, fits: bool, problem: str) -> None:
        """Refuses values that contradict each other or that nothing here computes."""
        if not fits:
            raise self.fault(problem)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in cls.fixed.items():
            if given.get(name, value) != value:
                only = "null" if value is None else repr(value)
                raise cls.fault(f"{name} {shown(given[name])} is not supported, only {only}")
        return given

    @property
    def design(self) -> dict[str, str]:
        """What distinguishes models of one family, in a few words each: `topology`, `injection`, `depth_prior`."""
        return {}

    @property
    def sizes(self) -> AttentionSizes:
        """The widths of attention layers: the heads of keys divide the others, a head's width is even."""
        found: list[Any] = [getattr(self, name, None) for name in self.widths]
        hidden, heads, shared, width = found
        self.require(bool(width) or hidden % heads == 0, f"hidden size {hidden} does not divide into {heads} heads")
        width, shared = width or hidden // heads, shared or heads
        self.require(width > 0 and width % 2 == 0, f"head_dim {width} is odd; rotary positions need an even one")
        self.require(heads % shared == 0, f"{heads} attention heads cannot share {shared} key-value heads")
        return AttentionSizes(hidden, heads, shared, width)


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    name, given = ".".join(str(part) for part in problem["loc"]), shown(problem["input"])
    match problem["type"]:
        case "missing":
            return f"{name} is missing"
        case "literal_error":
            return f"{name} {given} is not supported, only {problem['ctx']['expected']}"
        case _:
            return f"{name} {problem['msg'].replace('Input should', 'must')}, not {given}"


class RopeScaling(FamilyConfig):
    """`rope_scaling`, or `rope_parameters` of newer files."""

    title = "rope_scaling"
    rope_type: Literal["default", "linear", "llama3"] = "default"
    rope_theta: Number | None = None
    factor: Number | None = None
    low_freq_factor: Number | None = None
    high_freq_factor: Number | None = None
    original_max_position_embeddings: Size | None = None

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, values: Any) -> Any:
        return {"rope_type": values["type"], **values} if isinstance(values, dict) and "type" in values else values

    def scaling(self) -> Scaling | None:
        """How frequencies are scaled."""
        names = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
        names = names[: {"default": 0, "linear": 1, "llama3": 4}[self.rope_type]]
        for name in names:
            self.require(getattr(self, name) is not None, f"{name} is missing")
        found = Scaling(*(getattr(self, name) for name in names)) if names else None
        rises = found is None or found.low is None or found.high > found.low
        self.require(rises, f"high_freq_factor {self.high_freq_factor} must exceed low_freq_factor")
        return found


class RotaryFields(FamilyConfig):
    """Half-split rotary positions, in the old spelling or under `rope_parameters`."""

    fixed = only(partial_rotary_factor=1.0)
    rope_theta: Number | None = None
    rope_scaling: RopeScaling | None = None
    rope_parameters: RopeScaling | None = None

    def half_split(self, *, rounded: bool, default_theta: float | None = None) -> Rotary:
        """The positions of its heads."""
        nested = self.rope_parameters
        theta = (nested.rope_theta if nested is not None else None) or self.rope_theta or default_theta
        if theta is None:
            raise self.fault("rope_theta is missing")
        scaled = nested or self.rope_scaling
        return Rotary(self.sizes.head_width, theta, "half", rounded, scaled.scaling() if scaled is not None else None)


class LlamaConfig(RotaryFields):
    """The fields that transformers gives every Llama-like model."""

    fixed = only(RotaryFields.fixed, hidden_act="silu")
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    rms_norm_eps: Number = 1e-6
    max_position_embeddings: Size
    tie_word_embeddings: bool = False
    eos_token_id: TokenIds = ()
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kind in self.layer_types or ():
            self.require(kind == "full_attention", f"layer_types {shown(kind)} is not supported, only 'full_attention'")
        uses = self.use_sliding_window if self.use_sliding_window is not None else self.layer_types is None
        window = self.sliding_window if uses else None
        self.require(window is None, f"sliding_window {window} is not supported, only null")
        return self


Recognises = Callable[[Mapping[str, Any], Collection[str] | None], bool]
"""From config.json and the names of a checkpoint's tensors, None where only config.json is at hand."""


class Family(NamedTuple):
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
    kinds: tuple[str, ...]
    recognises: Recognises | None

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
    remedy = "name a published model, or a folder that holds its weights or their index"
    where = f"the configuration does not say whether the model is {names}: {remedy}"
    if tensors is not None:
        where = f"the checkpoint's tensors do not say whether it is {names}: is it incomplete?"
    raise LoopscopeError(where)


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
    known = families().values()
    if named:
        fitting = [one for one in known if set(named) <= set(one.kinds)]
    else:
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
