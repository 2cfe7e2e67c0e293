"""A family's config.json as a pydantic model: types and sizes checked, values that change the computation refused.

Fields have the names of config.json; a field that is absent or null has its default, a field that is not declared does
not matter to the computation. `Literal` fields are those whose other values are not implemented.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from loopscope.errors import LoopscopeError, shown
from loopscope.models.layers.attention import AttentionSizes
from loopscope.models.layers.rope import Rotary, Scaling

LARGEST_SIZE = 2**31 - 1
"""Of any width, vocabulary or number of positions: a hundred thousand times today's."""
Size = Annotated[int, Field(gt=0, le=LARGEST_SIZE)]
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
        strange = next((name for name in chosen if name not in options), None)
        if strange is not None:
            there = f"choose {', '.join(options)}" if options else "leave it out"
            raise LoopscopeError(f"{cls.title} has no option {shown(strange)}: {there}")
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

    def attention_sizes(
        self, hidden: int, heads: int, shared: int | None = None, width: int | None = None
    ) -> AttentionSizes:
        """The widths of attention layers: `shared` heads of keys divide the others, a head's width is even."""
        self.require(
            width is not None or hidden % heads == 0, f"hidden size {hidden} does not divide into {heads} heads"
        )
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

    def half_split(self, width: int, *, rounded: bool, default_theta: float | None = None) -> Rotary:
        """The positions of heads of this width."""
        nested = self.rope_parameters
        theta = (nested.rope_theta if nested is not None else None) or self.rope_theta or default_theta
        if theta is None:
            raise self.fault("rope_theta is missing")
        scaled = nested or self.rope_scaling
        return Rotary(width, theta, "half", rounded, scaled.scaling() if scaled is not None else None)


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
        self.require(
            not uses or self.sliding_window is None, f"sliding_window {self.sliding_window} is not supported, only null"
        )
        return self

    @property
    def sizes(self) -> AttentionSizes:
        """Of the attention layers."""
        return self.attention_sizes(self.hidden_size, self.num_attention_heads, self.num_key_value_heads, self.head_dim)
